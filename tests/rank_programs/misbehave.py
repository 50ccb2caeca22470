"""All that can go wrong in a rank: ``misbehave.py WHAT FILE [fork]``. FILE takes the ids of the processes."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from course_utils.ranks.programs import report

RANK = int(os.environ["RANK"])


def remember(pid: int) -> None:
    """Tell the test which processes there were."""
    with open(sys.argv[2], "a", encoding="utf-8") as file:
        file.write(f"{pid}\n")


def fork_away() -> None:
    """Leave a grandchild behind, in a session of its own and without parents."""
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        remember(grandchild.pid)
        os._exit(0)
    os.waitpid(child, 0)


def wait_for_others() -> None:
    """What a collective call looks like when another rank does not come."""
    time.sleep(600)


def raise_in_rank_1() -> None:
    """Because of a folder that takes no files; the other rank waits."""
    if RANK == 1:
        try:
            Path("/proc/nobody").write_text("x", encoding="utf-8")
        except OSError as error:
            failure = RuntimeError("the shapes do not fit")
            failure.add_note("A note, which is not the message.")
            raise failure from error
    wait_for_others()


def be_killed_in_rank_1() -> None:
    """As by the system, when memory is short; the other notices it at once, and complains as gloo does."""
    pipe = Path(sys.argv[2]).with_suffix(".pipe")
    with contextlib.suppress(FileExistsError):
        os.mkfifo(pipe)
    with pipe.open("w" if RANK == 1 else "r", encoding="utf-8") as file:
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        file.read()
    raise RuntimeError("Connection closed by peer")


def close_everything() -> None:
    """Nothing can be heard of it any more, but where it is can be found out."""
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    wait_for_others()


class Late:
    """What Python can no longer take apart when it ends, as some thread of gloo's now and then."""

    def __del__(self) -> None:
        os.abort()


def print_megabytes_and_abort_while_python_ends() -> None:
    """A line that is far too long, then far too many; at last all that a program may still do."""
    print("x" * 10_000)
    for number in range(50_000):
        print(f"line {number} of rank {RANK} {'.' * 60}")
    sys.modules["late"] = Late()
    atexit.register(print, "exit function")
    threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
    report(printed=50_000)


if __name__ == "__main__":
    remember(os.getpid())
    if "fork" in sys.argv[3:]:
        fork_away()
        while len(Path(sys.argv[2]).read_text(encoding="utf-8").split()) < 2 * int(os.environ["WORLD_SIZE"]):
            time.sleep(0.02)  # nobody does anything before all are there
    print("ready", flush=True)
    globals()[sys.argv[1]]()
