"""The limits of this machine: what any program on it can reach at best, so that a rate can be judged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from course_utils.measure.devices import Device, device_under_test
from course_utils.measure.machine import course_size, environment, scaled
from course_utils.results.ceilings import Ceiling, Ceilings
from course_utils.results.store import keep
from course_utils.show.progress import progress

# Samples of one ceiling: the best of them counts, so a few dozen are enough, and slow machines stop at the time.
_SAMPLES, _SECONDS_EACH, _SECONDS_EACH_IN_TESTS = 40, 0.4, 0.05
_EXPECTED_S = 4.0


def ceilings(name: str | None = None, *, on: str | None = None) -> Ceilings:
    """Measure this machine's limits: memory copy, matrix product by dtype, launch latency, and transfers to a GPU.

    Each rate is the best of some dozen samples, on normal random data: on a GPU a product of zeros draws less power and
    runs faster than any real one. A machine is measured once in a process; asking again returns the same samples.

    ``on`` is that of :func:`course_utils.compare`.

    Returns:
        ``copy`` (bytes read plus written), ``matmul float32`` and other dtypes, ``launch`` (seconds for one tiny
        operation), on a GPU also ``host to device`` and ``device to host`` from pinned memory.

    Source:
        H. He, "Strangely, Matrix Multiplications on GPUs Run Faster When Given 'Predictable' Data!" (2024),
        https://www.thonking.ai/p/strangely-matrix-multiplications

    Example:
        >>> ceilings()["copy"].value > 1e8
        True
    """
    measured = _measured(on, torch.get_num_threads(), course_size())
    return keep(dataclasses.replace(measured, name=name))


@lru_cache(maxsize=4)
def _measured(on: str | None, threads: int, size: str) -> Ceilings:
    """All three decide what is measured: the device, as many threads as there are now, and the sizes of now."""
    del threads, size
    device = device_under_test(on)
    where = device.kind
    # Several times what the last cache holds, so that it is memory that is measured.
    copy_bytes = scaled(cpu=2**28, cuda=2**30)
    n = scaled(cpu=1024, cuda=8192)
    link_bytes = 2**28
    # What to call it: unit, how much of it one call does, and how to make the call.
    work: dict[str, tuple[str, float, Callable[[], Callable[[], Any]]]] = {
        "copy": ("B/s", 2 * copy_bytes, lambda: _copy(copy_bytes, where, where))
    }
    # Most CPUs have no fp16 arithmetic: it is emulated, and no lesson measures against it.
    dtypes = (torch.float32, torch.bfloat16) if where == "cpu" else (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes:
        label = f"matmul {str(dtype).removeprefix('torch.')}"
        work[label] = ("FLOP/s", 2.0 * n**3, lambda d=dtype: _matmul(n, d, where))
    if where == "cuda":
        work["matmul tfloat32"] = ("FLOP/s", 2.0 * n**3, lambda: _matmul(n, torch.float32, where, tf32=True))
        work["host to device"] = ("B/s", link_bytes, lambda: _copy(link_bytes, "pinned", where))
        work["device to host"] = ("B/s", link_bytes, lambda: _copy(link_bytes, where, "pinned"))
    work["launch"] = ("s", 1, lambda: _launch(where))
    entries = []
    with progress("ceilings of this machine", expected_s=_EXPECTED_S) as bar:
        for label, (unit, amount, make) in work.items():
            bar.describe(label)
            entries.append(Ceiling(label, unit, amount, _samples(device, make(), 200 if unit == "s" else 1)))
            bar.advance(_EXPECTED_S / len(work))
    parameters = {"copy_bytes": copy_bytes, "matmul_n": n}
    worked_by = "cpu" if where == "cpu" else "gpu"
    return Ceilings(entries=tuple(entries), environment=environment(), parameters=parameters, worked_by=worked_by)


def _samples(device: Device, fn: Callable[[], Any], calls: int) -> tuple[float, ...]:
    allowed_s = _SECONDS_EACH_IN_TESTS if course_size() == "test" else _SECONDS_EACH
    # A call that takes longer than all that is allowed, as a bfloat16 product on a CPU without that arithmetic, is
    # itself a long sample: two of them are enough.
    least = 2 if device.sample(fn, calls).elapsed_s > _SECONDS_EACH else 5
    device.sample(fn, calls)
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < _SAMPLES and (len(samples) < least or time.perf_counter() - started < allowed_s):
        sample = device.sample(fn, calls)
        # Between events where there are any: the wait for the device at the end of a timing is no limit of the machine.
        samples.append(sample.elapsed_s if calls > 1 or sample.device_s is None else sample.device_s)
    return tuple(samples)


def _copy(size_bytes: int, source: str, target: str) -> Callable[[], Any]:
    a, b = (
        torch.randn(size_bytes // 4).pin_memory() if where == "pinned" else torch.randn(size_bytes // 4, device=where)
        for where in (source, target)
    )
    return lambda: b.copy_(a, non_blocking=True)


def _matmul(n: int, dtype: torch.dtype, where: str, tf32: bool = False) -> Callable[[], Any]:
    a, b = (torch.randn(n, n, device=where).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def run() -> None:
        switch = torch.backends.cuda.matmul
        before = switch.fp32_precision
        switch.fp32_precision = "tf32" if tf32 else "ieee"
        try:
            torch.mm(a, b, out=out)
        finally:
            switch.fp32_precision = before

    return run


def _launch(where: str) -> Callable[[], Any]:
    x = torch.zeros(1, device=where)
    return lambda: x.add_(1)
