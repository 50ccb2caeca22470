"""A made-up trace of a training step with several things to mend, to show what the reader of traces says."""

from __future__ import annotations

import gzip
import json
from typing import Any

_STEPS = 6
_LOADING_US, _COPYING_US, _PRODUCT_US, _SMALL_US = 9_000, 2_500, 900, 4
_CALL_US, _BETWEEN_CALLS_US = 6, 22  # how long a launch takes, and how often Python comes to one
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int)"


def example_trace() -> bytes:
    """A trace as torch.profiler exports it, compressed: six equal steps of one GPU.

    In each, the program waits for a batch, copies it from pageable memory, multiplies matrices in float32, reads the
    loss, and launches an optimizer's many small kernels, which the GPU finishes faster than they come.

    Example:
        >>> sorted(json.loads(gzip.decompress(example_trace())))
        ['schemaVersion', 'traceEvents']
    """
    events: list[dict[str, Any]] = []
    now, free = 0.0, 0.0  # the CPU's clock, and when the GPU has nothing left to do

    def add(category: str, name: str, start: float, lasts: float, pid: int = 1, tid: Any = 1, **args: Any) -> None:
        place = {"pid": pid, "tid": tid, "ts": start, "dur": lasts}
        events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def launch(category: str, name: str, lasts: float, call: str = "cudaLaunchKernel") -> None:
        nonlocal now, free
        number, start = len(events), max(free, now + _CALL_US)
        add("cuda_runtime", call, now, _CALL_US, correlation=number)
        add(category, name, start, lasts, 0, "stream 7", device=0, stream=7, correlation=number)
        now, free = now + _BETWEEN_CALLS_US, start + lasts

    for step in range(_STEPS):
        began = now
        add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", now, _LOADING_US)
        now += _LOADING_US
        launch("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", _COPYING_US, "cudaMemcpyAsync")
        now = free  # such a copy holds the program up
        for _ in range(20):
            launch("kernel", "ampere_sgemm_128x64_tn", _PRODUCT_US)
            launch("kernel", _POINTWISE.format("relu"), 60)
        waiting = now
        launch("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 2, "cudaMemcpyAsync")
        add("cuda_runtime", "cudaStreamSynchronize", now, free - now)
        add("cpu_op", "aten::item", waiting, free + 5 - waiting)
        updating = now = free + 10
        for _ in range(300):
            launch("kernel", _POINTWISE.format("AddFunctor"), _SMALL_US)
        add("user_annotation", "Optimizer.step#AdamW.step", updating, now - updating)
        add("user_annotation", f"ProfilerStep#{step + 5}", began, now - began)
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    return gzip.compress(text.encode(), mtime=0)
