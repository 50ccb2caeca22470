"""Results that no machine has made, of every kind and of awkward shapes: for the tests of how they show themselves."""

from __future__ import annotations

import dataclasses
import math
import random

from course_utils.measure.devices import CudaDevice
from course_utils.results.ceilings import Ceiling, Ceilings
from course_utils.results.comparison import Comparison
from course_utils.results.curves import Curve, Curves
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from course_utils.results.memory_trace import MemoryBlock, MemoryTrace
from course_utils.results.rank_results import RankReport, RankResults
from course_utils.results.reading import Reading
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.table import Table
from course_utils.show.advice import Advice
from course_utils.show.cards import Axis, Bar, Card, Row, Toned

CPU = Environment(
    machine="amd-epyc-2-cores",
    device_kind="cpu",
    device_name="AMD EPYC 7763",
    cpu_model="AMD EPYC 7763",
    cpu_cores=2,
    memory_bytes=8 * 2**30,
    os="Linux x86_64",
    python="3.11.9",
    torch="2.13.0+cpu",
    size="smoke",
    date="2026-08-01",
    cpu_flags=("avx2",),
    torch_threads=2,
)
GPU = dataclasses.replace(
    CPU,
    machine="nvidia-h200",
    device_kind="cuda",
    device_name="NVIDIA H200",
    cpu_model="Intel Xeon Platinum 8468",
    cpu_cores=16,
    torch="2.13.0+cu130",
    size="full",
    gpu_count=1,
    gpu_memory_bytes=139 * 2**30,
    compute_capability="9.0",
    driver="580.65",
    cuda="13.0",
    power_limit_w=700.0,
    sm_clock_mhz=1980,
)
LONG = "pinned, in a staging buffer of the right size that is reused for every batch"


def times_of(rng: random.Random, scale: float, n: int, noise: float, outliers: float = 0.08) -> tuple[float, ...]:
    """Lognormal noise with a few calls that take up to nine times as long."""
    return tuple(
        scale * rng.lognormvariate(0, noise) * (1 + 8 * rng.random() if rng.random() < outliers else 1)
        for _ in range(n)
    )


def comparison_of(ratios: dict[str, float], rounds: int = 24, noise: float = 0.005, **more: object) -> Comparison:
    rng = random.Random(7)
    *cases, control = (
        Measurement(label, times_of(rng, 2e-3 * ratio, rounds, noise), calls=8)
        for label, ratio in (*ratios.items(), (next(iter(ratios)), 1.0))
    )
    fields = {"environment": CPU, "agreement": "outputs equal within 1e-6"} | more
    return Comparison(cases=tuple(cases), control=control, **fields)


def cuda_comparison_of() -> Comparison:
    rng = random.Random(3)
    cases = tuple(
        Measurement(
            label=label,
            elapsed_s=times_of(rng, 4e-3 * ratio, 24, 0.01),
            calls=4,
            first_call_s=first,
            enqueue_s=(4e-3 * ratio * enqueue,) * 24,
            device_s=(4e-3 * ratio * 0.98,) * 24,
            prequeued_s=4e-3 * ratio * 0.5,
            peak_allocated_bytes=64 * 2**20,
            peak_reserved_bytes=2 * 2**30,
            bytes=64 * 2**20,
        )
        for label, ratio, first, enqueue in (
            ("pageable", 1.0, 0.01, 0.1),
            ("pinned", 0.4, 0.9, 0.1),
            ("pinned each time", 1.5, 0.02, 0.97),
        )
    )
    return Comparison(
        cases=cases,
        control=Measurement(label="pageable", elapsed_s=times_of(rng, 4e-3, 24, 0.01), calls=4),
        environment=GPU,
        name="pinned_memory/copy",
        ceiling=Ceiling("copy", "B/s", 64 * 2**20, (1.1e-3, 1.2e-3)),
        agreement="outputs equal",
        clock=CudaDevice.clock,
    )


def sweep_of(labels: tuple[str, ...], values: tuple[object, ...]) -> Sweep:
    points = []
    for i, value in enumerate(values):
        ratios = {label: 1.0 if j == 0 else 2.0 / (1 + i) + 0.2 * j for j, label in enumerate(labels)}
        points.append(SweepPoint(value, comparison_of(ratios)))
    return Sweep(over="batch", points=tuple(points), environment=CPU, name="batching/size")


def table_of(values: dict[str, float], unit: str, **more: object) -> Table:
    rows = [("fp32", 1), (LONG, 0.7), ("none at all", 0)]
    return Table(
        columns=("case", *values, *more),
        rows=tuple((label, *(value * factor for value in values.values()), *more.values()) for label, factor in rows),
        environment=CPU,
        units=dict.fromkeys(values, unit),
        name="mixed_precision/table",
    )


def curves_of() -> Curves:
    lines = []
    for i in range(5):
        y = [2.5 + 3 * math.exp(-x / (20 + 5 * i)) for x in range(60)]
        # One line breaks off, as a training that diverges does.
        y = y[:40] + [None] * 20 if i == 3 else y
        lines.append(Curve(f"recipe {i}" if i else LONG, tuple(range(60)), tuple(y)))
    return Curves(tuple(lines), "step", "loss (nats per byte)", CPU, name="mixed_precision/loss")


def memory_trace_of() -> MemoryTrace:
    """A training step of a network with eight layers: up in the forward pass, down in the backward pass."""
    mib, blocks = 2**20, [MemoryBlock(100_000, 0, 36, "data.py:3 load")]
    for layer in range(8):
        line, back = f"net.py:{12 + layer} forward", 24 - 2 * layer
        blocks.append(MemoryBlock(3 * mib, 0, 36, "net.py:5 __init__"))
        blocks.append(MemoryBlock(5 * mib, 1 + layer, back + 1, line))
        blocks.append(MemoryBlock(4 * mib, back, back + 2, "no Python frame"))
        blocks.append(MemoryBlock(3 * mib, back, 26 + layer, "no Python frame"))
    times_us, name = tuple(range(0, 36 * 37, 37)), "memory/step"
    return MemoryTrace("a training step", "cpu", times_us, tuple(blocks), CPU, name=name, allocations=24)


def ranks_of() -> RankResults:
    """What the ranks of a small training reported."""
    values = {"loss": 2.5, "step_s": 2e-2, "peak_bytes": 21_000_000, "checksum": "1f3a", "curve": [1.0, 2.0]}
    reports = tuple(RankReport(rank, values) for rank in range(4))
    notes = ("A note with <b>markup</b>.",)
    return RankResults("scripts/ddp_train.py", reports, CPU, name="ddp/parity", args=("--steps", "40"), notes=notes)


def reading_of():
    rows = (
        Row("computing", "", "31.0 ms", "", Bar(0.0, 0.6)),
        Row(f"waiting <for> {LONG}", "in each step", "21.0 ms", "", Bar(0.0, 0.4, 0.38)),
    )
    plan = (
        Advice("load batches in workers", "The GPU waited <long> for data.", "data_loading", 0.38),
        Advice("compile the model", "Tried & timed.", "torch_compile", 0.1, "tried", low=0.07, high=0.13),
        Advice("look at the lanes", "No number can be given.", "profiler"),
    )
    ticks = ((0.0, "0"), (1.0, "52.0 ms"))
    said = ["A step takes ", Toned("52.0 ms"), ", and the GPU is idle for much of it."]
    card = Card(
        said, rows, Axis(0.0, 1.0, ticks), ("", "a step"), plan=plan, warning="Three steps.", notes=("A note.",)
    )
    return Reading.of(card, CPU, "your_own_program/trace_card", "cpu")


TWO = {"pageable": 1.0, "pinned": 0.55}
EIGHT = {
    "pageable": 1.0,
    LONG: 0.55,
    "a < b & c": 0.3,
    "costs $5 and $6": 1.6,
    "same": 1.0,
    "almost_the_same_without_any_space_to_break_at": 1.015,
    "short": 4.0,
    "x": 0.9,
}
RESULTS = {
    "cpu": CPU,
    "gpu": GPU,
    "two": comparison_of(TWO, name="pinned_memory/copy", notes=("A note with <b>markup</b>.",)),
    "eight": comparison_of(EIGHT),
    "cuda": cuda_comparison_of(),
    "one round": comparison_of(TWO, rounds=1),
    "sweep of two": sweep_of(("one by one", "batched"), (1, 4, 16, 64, 256, 1024)),
    "sweep of words": sweep_of(("float32", "other"), ("contiguous", "channels last", "a long name of a layout")),
    "ceilings": Ceilings((Ceiling("copy", "B/s", 2**29, (0.02, 0.03)), Ceiling("launch", "s", 1, (5e-6,))), CPU),
    "table of parts": table_of(
        {"weights": 4_000_000, "gradients": 4_000_000, "optimizer": 8_000_000, "activations": 31_000_000}, "bytes"
    ),
    "table of errors": table_of(
        {"forward": 2.3e-7, "backward": 4.1e-3}, "relative", ran="math", equal=True, missing=None
    ),
    "curves": curves_of(),
    "trace": memory_trace_of(),
    "trace of nothing": MemoryTrace("nothing", "cpu", (0, 5), (), CPU),
    "reading": reading_of(),
    "ranks": ranks_of(),
}
