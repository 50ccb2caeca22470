"""A made-up trace of a training step with several things to mend, to show what the reader of traces says."""

from __future__ import annotations

import gzip
import json
from typing import Any

_STEPS = 6
_LOADING_US, _COPYING_US, _PRODUCT_US, _SMALL_US = 9_000, 2_500, 900, 4
_CALL_US, _BETWEEN_CALLS_US = 6, 22  # how long a launch takes, and how often Python comes to one


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

    def cpu(category: str, name: str, start: float, lasts: float, **args: Any) -> None:
        place = {"pid": 1, "tid": 1, "ts": start, "dur": lasts}
        events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def launch(category: str, name: str, lasts: float, call: str = "cudaLaunchKernel") -> None:
        nonlocal now, free
        number = len(events)
        cpu("cuda_runtime", call, now, _CALL_US, correlation=number)
        start = max(free, now + _CALL_US)
        args = {"device": 0, "stream": 7, "correlation": number}
        place = {"pid": 0, "tid": "stream 7", "ts": start, "dur": lasts}
        events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})
        now, free = now + _BETWEEN_CALLS_US, start + lasts

    for step in range(_STEPS):
        began = now
        loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        cpu("user_annotation", loading, now, _LOADING_US)
        now += _LOADING_US
        launch("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", _COPYING_US, "cudaMemcpyAsync")
        now = free  # such a copy holds the program up
        for _ in range(20):
            launch("kernel", "ampere_sgemm_128x64_tn", _PRODUCT_US)
            launch("kernel", "void at::native::vectorized_elementwise_kernel<4, at::native::relu>(int)", 60)
        waiting = now
        launch("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 2, "cudaMemcpyAsync")
        cpu("cuda_runtime", "cudaStreamSynchronize", now, free - now)
        cpu("cpu_op", "aten::item", waiting, free + 5 - waiting)
        now = free + 10
        updating = now
        for _ in range(300):
            launch(
                "kernel", "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)", _SMALL_US
            )
        cpu("user_annotation", "Optimizer.step#AdamW.step", updating, now - updating)
        cpu("user_annotation", f"ProfilerStep#{step + 5}", began, now - began)
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    return gzip.compress(text.encode(), mtime=0)
