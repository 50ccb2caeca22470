"""A writer of traces as torch.profiler exports them, with every time known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

GEMM = "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TO_GPU = "Memcpy HtoD (Pageable -> Device)"
NODE = "autograd::engine::evaluate_function: "


class MadeUp:
    """A trace; times are microseconds.

    Attributes:
        events: as they stand in the file.
    """

    def __init__(self, zero: float = 1_700_000_000_000_000.0) -> None:
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {}}]
        self.zero = zero
        self._correlation = 0

    def event(self, cat: str, name: str, start: float, lasts: float, tid: Any = 1, **args: Any) -> None:
        """Any event."""
        made = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": self.zero + start, "dur": lasts}
        self.events.append(made | {"args": args})

    def step(self, number: int, start: float, lasts: float) -> None:
        """The profiler's mark of a step, on the CPU."""
        self.event("user_annotation", f"ProfilerStep#{number}", start, lasts)

    def steps(self, count: int = 4, lasts: float = 1000) -> Iterator[float]:
        """Mark steps, one after the other; the start of each."""
        for number in range(count):
            self.step(number, lasts * number, lasts)
            yield lasts * number

    def mark(self, name: str, start: float, lasts: float, tid: Any = 1) -> None:
        """An annotation on the CPU."""
        self.event("user_annotation", name, start, lasts, tid)

    def op(self, name: str, start: float, lasts: float, tid: Any = 1, **args: Any) -> None:
        """An operator on the CPU."""
        self.event("cpu_op", name, start, lasts, tid, **args)

    def work(
        self, name: str, start: float, lasts: float, launched: float | None = None, stream: int = 7, device: int = 0,
        cat: str = "kernel", call: str = "cudaLaunchKernel", call_lasts: float = 2.0,
    ) -> None:  # fmt: skip
        """Something that runs on a device, and the call that starts it, if that was recorded."""
        self._correlation += 1
        if launched is not None:
            self.event("cuda_runtime", call, launched, call_lasts, correlation=self._correlation)
        args = {"device": device, "stream": stream, "correlation": self._correlation}
        self.event(cat, name, start, lasts, stream, **args)

    def json(self, **header: Any) -> bytes:
        """The file."""
        return json.dumps({"schemaVersion": 1, **header, "traceEvents": self.events}).encode()


def busy_steps(count: int = 4, kernel: str = GEMM) -> MadeUp:
    """Steps of 1000 us of a GPU that always has something to do: four kernels each, launched a step ahead of it."""
    made = MadeUp()
    for start in made.steps(count):
        for place in range(4):
            made.work(kernel, start + 1000 + 250 * place, 250, launched=start + 5 + 4 * place)
    return made
