"""The check of the lesson: the learner's loop runs in two processes, beside DDP."""

from __future__ import annotations

import marshal
import multiprocessing
import sys
import tempfile
from types import FunctionType
from typing import Any

from course_utils.lessons.answers import NotRight, exercise
from course_utils.lessons.ddp import two_ranks


def _packed(answer: Any) -> bytes:
    """A function for another process: its bytecode."""
    if not isinstance(answer, FunctionType) or answer.__closure__:
        raise NotRight("A function that stands by itself is asked for: `def train(model, optimizer, batches):`.")
    if "DistributedDataParallel" in answer.__code__.co_names:
        raise NotRight("That is DDP itself. Write what it does: a loop over the weights, with `dist`.")
    return marshal.dumps((answer.__code__, answer.__defaults__, answer.__kwdefaults__))


@exercise
def check_train(answer: Any) -> str | None:
    """Trains on two ranks that start apart and read different batches; in one of them a rank leaves a layer out."""
    packed = _packed(answer)
    starting = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        starting.set_forkserver_preload([two_ranks.__name__])  # all answers that are checked need one import of torch
    with tempfile.TemporaryDirectory(prefix="course-ddp-") as folder:
        pipes = [starting.Pipe(duplex=False) for _ in range(2)]
        ranks = [
            starting.Process(target=two_ranks.main, args=(rank, folder, packed, its), daemon=True)
            for rank, (_, its) in enumerate(pipes)
        ]
        for rank in ranks:
            rank.start()
        try:
            for rank in ranks:
                rank.join(timeout=100)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
    said = [ours.recv() if ours.poll() else "" for ours, _ in pipes]
    if all(rank.exitcode == 0 for rank in ranks):
        if not said[0]:
            raise NotRight("After four batches, with Adagrad, your weights are not those of DDP. Compare one by hand.")
        return None if said[0] == "right" else said[0]
    if any("NoneType" in words for words in said):
        return "no_gradient"
    # A rank that ended well raised nothing: its comparison met what the other one had left over.
    raised = [(rank, words) for rank, words in enumerate(said) if words and ranks[rank].exitcode]
    raised = [(rank, words) for rank, words in raised if "onnection" not in words]
    if raised and not any("imed out" in words or "size" in words for _, words in raised):
        raise NotRight(f"On rank {raised[0][0]} your code raised {raised[0][1][:200]}")
    return "waits"
