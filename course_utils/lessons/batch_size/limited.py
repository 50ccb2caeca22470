"""A search for the largest batch in a process of its own, whose memory has a limit."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.memory.trace import trace_memory

LENGTH = 64  # tokens of a sequence
# glibc then gives each freed tensor back to the system at once. By default it keeps some, in a heap that fragments.
_EAGER = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
_MOST_S = 120.0


class Trainer:
    """A small transformer and AdamW, which train on random tokens; a call is two steps on so many sequences."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device
        self.model = GPT(width=32, layers=1, context=LENGTH).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, batch: int) -> None:
        """One step on int64 ``[batch, 64]`` random tokens."""
        tokens = torch.randint(256, (batch, LENGTH), device=self.device)
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten()).backward()
        self.optimizer.step()

    def peaks(self, *batches: int) -> dict[int, int]:
        """The peak memory of a step on a CPU for each batch, in bytes, with the optimizer's state there."""
        self.step(1)
        traces = {n: trace_memory(partial(self.step, n), device="cpu", verify=False, overhead=False) for n in batches}
        return {batch: trace.peak_bytes for batch, trace in traces.items()}

    def __call__(self, batch: int) -> None:
        """Two steps: AdamW makes its state in the first, so only the second holds all at once."""
        self.step(batch)
        self.step(batch)


def largest_from(peaks: dict[int, float], limit_bytes: float) -> int:
    """The largest batch below a limit, by the line through the peaks of two batches.

    Raises:
        ValueError: if there are not two batches, or the larger one takes no more memory.
    """
    if len(peaks) != 2:
        raise ValueError(f"a line goes through two points; got the peaks of {len(peaks)} batches")
    (small, low), (large, high) = sorted(peaks.items())
    per_sample = (high - low) / (large - small)
    if per_sample <= 0:
        raise ValueError(f"a batch of {large} takes no more memory than one of {small}: take sizes further apart")
    return int((limit_bytes - (low - small * per_sample)) / per_sample)


def search_under_limit(sources: Sequence[str], limit_bytes: int, most: int) -> dict[str, Any]:
    """Run ``largest_batch(trial, most)`` in a fresh process that may take only so many bytes.

    Only Linux holds a process to the limit (``RLIMIT_DATA``): elsewhere the search meets none, and ends at ``most``.

    Args:
        sources: of the functions to run, of which one is ``largest_batch``; they may use ``gc``, ``re`` and ``torch``.
        limit_bytes: for all that is allocated once torch is imported and warm: weights, optimizer and steps.
        most: the largest batch to try.

    Returns:
        ``largest``, what the search returned; ``fitted``, the largest batch that it tried and that fitted; ``error``,
        what the first batch that did not fit raised, without the bytes that it asked for, or None.

    Raises:
        RuntimeError: if the search raises; the message is the last line of the process.
    """
    asked = json.dumps({"sources": sources, "limit_bytes": limit_bytes, "most": most})
    child = subprocess.run(
        [sys.executable, "-m", __name__],
        input=asked,
        capture_output=True,
        text=True,
        timeout=_MOST_S,
        env=os.environ | _EAGER | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"the search ended with status {child.returncode}")
    return json.loads(child.stdout.splitlines()[-1])


def _limit_memory(more_bytes: int) -> None:
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/status", encoding="ascii") as status:
        used_kib = int(re.search(r"VmData:\s+(\d+)", status.read())[1])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used_kib * 1024 + more_bytes, hard))


def _main() -> None:
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    Trainer()(1)  # what libraries allocate once, at their first call, is none of the limit's business
    fitted, errors = [], []
    _limit_memory(asked["limit_bytes"])
    trainer = Trainer()

    def trial(batch: int) -> None:
        try:
            trainer(batch)
        except RuntimeError as error:
            errors.append(str(error).partition(": you tried")[0].rpartition("err == 0. ")[2])
            raise
        fitted.append(batch)

    scope: dict[str, Any] = {"gc": gc, "re": re, "torch": torch}
    for source in asked["sources"]:
        exec(source, scope)
    largest = scope["largest_batch"](trial, asked["most"])
    sys.stdout.write(json.dumps({"largest": largest, "fitted": max(fitted), "error": errors[0] if errors else None}))


if __name__ == "__main__":
    _main()
