"""What each rank of :func:`run_ranks` starts with: it runs the program, and keeps what is said of its end.

``python -m course_utils.ranks.entry program.py arguments`` runs the program as ``python program.py arguments`` does. If
the program raises, the traceback goes into a file in the folder of the run; on request it writes down where every
thread is. Standard library only, and nothing of torch: what a program imports, and how long that takes, is its own.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import io
import json
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

FOLDER_VARIABLE = "COURSE_RANKS_FOLDER"
# Asks a rank where it is. Programs under SLURM have handlers for SIGUSR1 and SIGUSR2; real-time signals are free.
# None on Windows, which has neither.
STACK_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else getattr(signal, "SIGUSR2", None)

# How the line of an exception begins that says what it is: "RuntimeError: ...", "package.errors.Odd: ...".
_NAMED = re.compile(r"[^\W\d][\w.]*(:|$)")


def pid_file(folder: Path, rank: int) -> Path:
    """Holds the rank's process id, from the moment on at which the rank can be asked where it is."""
    return folder / f"rank-{rank}.pid"


def failure_file(folder: Path, rank: int) -> Path:
    """Says when and how the program ended, if it ended badly and could still say so."""
    return folder / f"rank-{rank}.failure.json"


def stack_file(folder: Path, rank: int) -> Path:
    """Where the rank's threads were: when it was asked, or when a signal such as SIGSEGV ended it."""
    return folder / f"rank-{rank}.stack"


def report_file(folder: Path, rank: int) -> Path:
    """What the program reported."""
    return folder / f"rank-{rank}.report.json"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that no reader ever sees half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def main() -> int:
    """Run the program that the command line names.

    Returns:
        The exit status.
    """
    folder, rank = Path(os.environ[FOLDER_VARIABLE]), int(os.environ["RANK"])
    pid = os.getpid()
    stacks = stack_file(folder, rank).open("w", encoding="utf-8")
    faulthandler.enable(stacks)
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, stacks)
    write_whole(pid_file(folder, rank), str(pid))
    ending = _Ending(pid)
    # What is registered first runs last: after the program's own threads and its own exit functions.
    atexit.register(ending.leave)
    try:
        _run(sys.argv[1:])
        ending.well = True
    except BaseException as error:
        if os.getpid() != pid or (isinstance(error, SystemExit) and not error.code):
            # A child that was forked off speaks for itself only.
            ending.well = True
            raise
        with contextlib.suppress(OSError):
            write_whole(failure_file(folder, rank), json.dumps(_described(error)))
        if isinstance(error, SystemExit):
            raise
        # The notebook shows the traceback; in the log it would stand there a second time.
        return 1
    return 0


class _Ending:
    """How the process ends after a program that ended well.

    Gloo's threads may still hold tensors then, and a thread that releases one while Python takes itself apart ends the
    process with SIGABRT: a rank that had done all its work would be dead.

    Source:
        https://github.com/pytorch/pytorch/pull/179291 describes it; the mend proposed there was given up in 2026.
    """

    def __init__(self, pid: int):
        self.pid, self.well = pid, False

    def leave(self) -> None:
        """End the process at once; Python takes nothing apart."""
        if not self.well or os.getpid() != self.pid:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)


def _run(arguments: list[str]) -> None:
    path = os.path.abspath(arguments[0])
    sys.argv = [path, *arguments[1:]]
    sys.path[0] = os.path.dirname(path)
    # The program is the main module: what it defines can be pickled, and started anew by multiprocessing.
    main_module = ModuleType("__main__")
    main_module.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main_module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main_module.__dict__)


def _described(error: BaseException) -> dict[str, object]:
    """An exception in words, without the frames of this module."""
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else 1
        words = f"exit status {status}" + ("" if status == error.code else f": {error.code}")
        return {"time": time.time(), "status": status, "message": words, "traceback": ""}
    own: TracebackType | None = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    text = "".join(traceback.format_exception(type(error), error, own))
    lines = traceback.format_exception_only(type(error), error)
    # The last line of a plain exception; after it come its notes, and before it a syntax error shows where it is.
    last = next((line for line in lines if _NAMED.match(line)), lines[-1]).strip()
    return {"time": time.time(), "status": 1, "message": last, "traceback": text}


if __name__ == "__main__":
    sys.exit(main())
