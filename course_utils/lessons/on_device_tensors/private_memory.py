"""How much memory of its own a process needs for a call: asked of the system, in a child that does nothing else."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_MOST_S = 60


def resident_bytes(fn: Callable[[], Any]) -> dict[str, int | None]:
    """Call ``fn`` in a forked child: its peak of resident memory, and what the result holds, above the start.

    Torch's own meters count a mapped file as an allocation, so Linux is asked. Elsewhere there is no answer.

    Args:
        fn: a function without arguments that uses the CPU alone. It is called twice, and the second call counts. What
            it returns is kept until memory was read.

    Returns:
        Bytes: at the ``peak``, then of its ``own`` and of the ``file``, whose pages the system may drop and read again.

    Raises:
        RuntimeError: if the child fails or hangs.
    """
    if sys.platform != "linux":
        return {"peak": None, "own": None, "file": None}
    gc.collect()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads in the parent. The child waits for none of them (see `_measured`).
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            answer = _measured(fn)
        except BaseException as error:  # nothing of the parent's program may go on here
            answer = {"failed": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    try:
        answered, _, _ = select.select([reading], [], [], _MOST_S)
        result = json.loads(os.read(reading, 65536) or "{}") if answered else {}
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if "peak" not in result:
        reason = result.get("failed", f"no answer within {_MOST_S} s")
        raise RuntimeError(f"The process in which memory was to be measured failed ({reason}).")
    return result


def _measured(fn: Callable[[], Any]) -> dict[str, int]:
    torch.set_num_threads(1)  # the parent's other threads do not exist here, and would be waited for without end
    fn()  # the first call brings in the code that it runs: pages of files, too
    gc.collect()
    trim = ctypes.CDLL(None).malloc_trim
    trim(0)  # what was freed would be used again, and nobody would notice the allocation
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM, the peak, back to the present
    before = _status()
    result = fn()
    trim(0)  # what the call freed is no longer held
    after = _status()
    del result
    file = sum(after[name] - before[name] for name in ("RssFile", "RssShmem"))  # a file in a tmpfs is shared memory
    return {"peak": after["VmHWM"] - before["VmRSS"], "own": after["RssAnon"] - before["RssAnon"], "file": file}


def _status() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}
