"""What each rank of :func:`run_ranks` starts with: ``python -m course_utils.ranks.entry program.py arguments``.

It runs the program as ``python program.py arguments`` does. If the program raises, torchelastic's ``record`` keeps the
traceback; if it dies or takes too long, Python's ``faulthandler`` keeps where it was.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import runpy
import sys
import time
from pathlib import Path

FOLDER_VARIABLE = "COURSE_RANKS_FOLDER"
DEADLINE_VARIABLE = "COURSE_RANKS_DEADLINE"
# Where torchelastic's ``record`` writes it, and torchrun reads it.
_TRACEBACK_VARIABLE = "TORCHELASTIC_ERROR_FILE"


def report_file(folder: Path, rank: int) -> Path:
    """What the program reported."""
    return folder / f"rank-{rank}.report.json"


def stack_file(folder: Path, rank: int) -> Path:
    """Where the rank's threads were when time was up, or when a signal such as SIGSEGV ended it."""
    return folder / f"rank-{rank}.stack"


def _leave(status: int = 0) -> None:
    """End the process at once; Python takes nothing apart.

    Gloo's threads may still hold tensors then, and one that releases a tensor while Python takes itself apart ends the
    process with SIGABRT: a rank that has done all its work would be dead.

    Source:
        https://github.com/pytorch/pytorch/pull/179291 describes it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run_program() -> None:
    # Opened here: record() has just told faulthandler to write elsewhere.
    stacks = stack_file(Path(os.environ[FOLDER_VARIABLE]), int(os.environ["RANK"])).open("w", encoding="utf-8")
    faulthandler.enable(stacks)
    faulthandler.dump_traceback_later(max(0.01, float(os.environ[DEADLINE_VARIABLE]) - time.time()), file=stacks)
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Run the program that the command line names."""
    from torch.distributed.elastic.multiprocessing.errors import record

    # What is registered first runs last: after the program's own threads and its own exit functions.
    atexit.register(_leave)
    # torchrun ends the others when one rank dies, and raises on a traceback that one of them was still writing.
    traceback_file = Path(os.environ[_TRACEBACK_VARIABLE])
    unfinished = traceback_file.with_suffix(".unfinished")
    os.environ[_TRACEBACK_VARIABLE] = str(unfinished)
    try:
        record(_run_program)()
    except Exception:
        with contextlib.suppress(FileNotFoundError):
            unfinished.replace(traceback_file)
        # The notebook shows the traceback; in the log it would stand there a second time.
        _leave(1)
    except BaseException:
        atexit.unregister(_leave)
        raise


if __name__ == "__main__":
    main()
