"""A call in a process of its own: how long its stages take, and how much memory of its own it holds at most."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# Is handed a function, to be called with the name of each stage at its end; returns what to keep, and a number.
Call = Callable[[Callable[[str], None]], tuple[Any, float]]


def staged(call: Call, ready_bytes: int = 0) -> dict[str, Any]:
    """Run ``call``, which uses the CPU alone, in a process that has only imported torch. Without Linux, run it here.

    First it fills ``ready_bytes`` and gives them back: a virtual machine may wait long for memory of its host.
    Returns the stages' seconds, ``answer``, the most memory of its own, and pages of files.
    """
    if sys.platform != "linux":
        return {**timed(call)[0], "own memory": None, "file in use": None}
    fork = multiprocessing.get_context("forkserver")  # of the kernel, a fork would have what it used of torch
    fork.set_forkserver_preload(["course_utils.lessons.loading_large_models.cases"])
    ours, its = fork.Pipe()
    child = fork.Process(target=_answer, args=(call, ready_bytes, its), daemon=True)
    child.start()
    its.close()
    most, until = 0, time.perf_counter() + 120
    try:
        before = ours.recv()
        while not ours.poll(0.002) and time.perf_counter() < until:
            most = max(most, _resident(child.pid, "Anon"))
        answer = ours.recv() if ours.poll() else "no answer in two minutes"
    except EOFError:
        answer = "the system ended it, for want of memory perhaps: close other programs"
    finally:
        child.kill()
        child.join()
    if isinstance(answer, str):
        raise RuntimeError(f"The process that was to load a checkpoint failed ({answer}).")
    return {**answer, "own memory": max(most, answer["own memory"]) - before}


def _answer(call: Call, ready_bytes: int, pipe: Any) -> None:
    try:
        torch.set_num_threads(1)  # the parent's others do not exist here, and would be waited for without end
        torch.empty(ready_bytes, dtype=torch.uint8).fill_(1)
        ctypes.CDLL(None).malloc_trim(0)  # what the parent freed would be used again, and nobody would notice
        pipe.send(_resident("self", "Anon"))
        files = _resident("self", "File|Shmem")  # a file in a tmpfs is shared memory
        stages, _kept = timed(call)
        files = _resident("self", "File|Shmem") - files
        pipe.send({**stages, "own memory": _resident("self", "Anon"), "file in use": files})
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")


def timed(call: Call) -> tuple[dict[str, float], Any]:
    """Run ``call`` here: seconds by stage with its number, and what is to be kept."""
    stages, last = {}, time.perf_counter()

    def done(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        stages[stage], last = now - last, now

    kept, number = call(done)
    return {**stages, "answer": number}, kept


def _resident(process: Any, kinds: str) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return 1024 * sum(map(int, re.findall(rf"^Rss(?:{kinds}):\s+(\d+)", status, re.M)))
