"""How results show themselves: every kind, from raw samples, as text, as HTML and as a figure."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import subprocess
import sys
from html.parser import HTMLParser
from io import BytesIO

import pytest

from course_utils.records.kinds.ceilings import Ceiling, Ceilings
from course_utils.records.kinds.cluster_check import CheckedPoint, ClusterCheck
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint, MethodError
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.curves import Curve, Curves
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.memory_trace import MemoryBlock, MemoryPhase, MemoryTrace
from course_utils.records.kinds.rank_results import RankReport, RankResults
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from course_utils.records.kinds.table import Table
from course_utils.records.paired import Interval, Verdict
from course_utils.records.result import NothingToDrawError
from course_utils.show import (
    figure,
    format_bytes,
    format_rate,
    format_ratio,
    format_seconds,
    html,
    text,
    verdict_sentence,
)
from course_utils.show.progress import progress
from course_utils.show.quantities import format_interval, format_percent
from course_utils.show.verdicts import headline, sweep_summary
from tests.figure_checks import problems_of_texts, visible_texts

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
GPU = Environment(
    machine="nvidia-h200",
    device_kind="cuda",
    device_name="NVIDIA H200",
    cpu_model="Intel Xeon Platinum 8468",
    cpu_cores=16,
    memory_bytes=128 * 2**30,
    os="Linux x86_64",
    python="3.11.9",
    torch="2.13.0+cu130",
    size="full",
    date="2026-08-01",
    gpu_count=1,
    gpu_memory_bytes=139 * 2**30,
    compute_capability="9.0",
    driver="580.65",
    cuda="13.0",
    power_limit_w=700.0,
    sm_clock_mhz=1980,
)
LONG = "pinned, in a staging buffer of the right size that is reused for every batch"


def _times(rng: random.Random, scale: float, n: int, noise: float, outliers: float = 0.08) -> tuple[float, ...]:
    """Lognormal noise with a few calls that take up to nine times as long."""
    return tuple(
        scale * rng.lognormvariate(0, noise) * (1 + 8 * rng.random() if rng.random() < outliers else 1)
        for _ in range(n)
    )


def _comparison(ratios: dict[str, float], rounds: int = 24, noise: float = 0.005, **more: object) -> Comparison:
    rng = random.Random(7)
    base = 2e-3
    cases = tuple(
        Measurement(label=label, elapsed_s=_times(rng, base * ratio, rounds, noise), calls=8)
        for label, ratio in ratios.items()
    )
    control = Measurement(label=cases[0].label, elapsed_s=_times(rng, base, rounds, noise), calls=8)
    fields = {"environment": CPU, "planned_rounds": rounds, "agreement": "outputs equal within 1e-6"} | more
    return Comparison(cases=cases, control=control, **fields)


def _cuda_comparison() -> Comparison:
    rng = random.Random(3)
    cases = tuple(
        Measurement(
            label=label,
            elapsed_s=_times(rng, 4e-3 * ratio, 24, 0.01),
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
        control=Measurement(label="pageable", elapsed_s=_times(rng, 4e-3, 24, 0.01), calls=4),
        environment=GPU,
        name="pinned_memory/copy",
        planned_rounds=24,
        ceiling=Ceiling("copy", "B/s", 64 * 2**20, (1.1e-3, 1.2e-3)),
        agreement="outputs equal",
    )


def _sweep(labels: tuple[str, ...], values: tuple[object, ...]) -> Sweep:
    points = []
    for i, value in enumerate(values):
        ratios = {label: 1.0 if j == 0 else 2.0 / (1 + i) + 0.2 * j for j, label in enumerate(labels)}
        points.append(SweepPoint(value, _comparison(ratios)))
    return Sweep(over="batch", points=tuple(points), environment=CPU, name="batching/size")


def _ceilings() -> Ceilings:
    rng = random.Random(5)
    entries = (
        Ceiling("copy", "B/s", 2**29, _times(rng, 0.02, 10, 0.05)),
        Ceiling("copy from host to device, pinned memory", "B/s", 2**28, _times(rng, 0.01, 10, 0.05)),
        Ceiling("matmul bfloat16", "FLOP/s", 2 * 1024**3, _times(rng, 0.002, 10, 0.05)),
        Ceiling("launch", "s", 1, _times(rng, 5e-6, 10, 0.1)),
    )
    return Ceilings(entries=entries, environment=CPU, name="measuring/ceilings")


def _measurement(**more: object) -> Measurement:
    fields = {
        "label": "matmul <512>",
        "elapsed_s": _times(random.Random(2), 1.2e-3, 40, 0.02),
        "calls": 16,
        "first_call_s": 0.4,
        "warmup_s": (3e-3, 2e-3, 1.3e-3),
        "flops": 2 * 512**3,
        "environment": CPU,
    } | more
    return Measurement(**fields)


def _table(values: dict[str, float], unit: str, **more: object) -> Table:
    rows = [("fp32", 1), (LONG, 0.7), ("none at all", 0)]
    return Table(
        columns=("case", *values, *more),
        rows=tuple((label, *(value * factor for value in values.values()), *more.values()) for label, factor in rows),
        environment=CPU,
        units=dict.fromkeys(values, unit),
        name="mixed_precision/table",
    )


def _curves(count: int) -> Curves:
    lines = []
    for i in range(count):
        y = [2.5 + 3 * math.exp(-x / (20 + 5 * i)) for x in range(60)]
        # One line breaks off, as a training that diverges does.
        lines.append(
            Curve(f"recipe {i}" if i else LONG, tuple(range(60)), tuple(y[:40] + [None] * 20 if i == 3 else y))
        )
    return Curves(tuple(lines), "step", "loss (nats per byte)", CPU, name="mixed_precision/loss")


def _memory_trace(steps: int, environment: Environment = CPU, **more: object) -> MemoryTrace:
    """Training steps of a network with eight layers, as a trace: up in the forward pass, down in the backward pass."""
    mib, moment, blocks, phases = 2**20, 0, [], []
    spans: list[tuple[int, int | None, int, str, str, str, str]] = []
    for layer in range(8):
        spans.append((0, None, 3 * mib, "weights", f"Net.layers.{layer}", "", ""))
        spans.append((0, None, 6 * mib, "optimizer state", f"Net.layers.{layer}", "", ""))
    spans.append((0, None, 100_000, "other", "", "", ""))
    for _ in range(steps):
        first, kept = moment + 1, []
        for layer in range(8):
            moment += 1
            kept.append(len(spans))
            spans.append(
                (moment, None, 5 * mib, "activations", f"Net.layers.{layer}", "net.py:12 Net.forward", "addmm")
            )
        phases.append(MemoryPhase("forward", first, moment))
        first, gradients = moment + 1, []
        for layer in reversed(range(8)):
            moment += 2
            line = "net.py:12 Net.forward, backward"
            spans.append((moment - 1, moment + 2, 4 * mib, "temporaries", f"Net.layers.{layer}", line, "mm"))
            gradients.append(len(spans))
            spans.append((moment, None, 3 * mib, "gradients", f"Net.layers.{layer}", line, "mm"))
            moment += 1
            spans[kept[layer]] = (spans[kept[layer]][0], moment, *spans[kept[layer]][2:])
        phases.append(MemoryPhase("backward", first, moment))
        phases.append(MemoryPhase("optimizer step", moment, moment + 1))
        for gradient in gradients:
            moment += 1
            spans[gradient] = (spans[gradient][0], moment, *spans[gradient][2:])
    moments = moment + 3
    for born, died, size, kind, module, line, op in spans:
        blocks.append(MemoryBlock(size, born, moments if died is None else died, kind, module, line, op))
    trace = MemoryTrace(
        label="a training step" if steps == 1 else LONG,
        device=environment.device_kind,
        times_us=tuple(37 * i for i in range(moments)),
        blocks=tuple(blocks),
        environment=environment,
        phases=tuple(phases),
        allocations=24 * steps,
        name="memory_snapshots/step",
        plain_s=(0.1, 0.11, 0.1),
        traced_s=(0.11, 0.12, 0.11),
    )
    return dataclasses.replace(trace, **more)


def _cuda_trace() -> MemoryTrace:
    trace = _memory_trace(2, GPU)
    reserved = tuple(2**24 * math.ceil(max(trace.totals_bytes[: i + 1]) / 2**24) for i in range(trace.moments))
    return dataclasses.replace(
        trace,
        reserved_bytes=reserved,
        device_allocs=7,
        alloc_retries=1,
        meter="max_memory_allocated",
        meter_bytes=trace.extra_peak_bytes,
        metered_bytes=trace.extra_peak_bytes,
        condensed=True,
        notes=("A note with <b>markup</b>.",),
    )


def _ranks(count: int, left_out: tuple[str, ...] = (), **more: object) -> RankResults:
    """A small training on several ranks."""
    reports = []
    for rank in range(count):
        rng = random.Random(rank)
        told = {
            "loss": [2.5 + math.exp(-x / 20) + 0.02 * rank for x in range(40)],
            "step_s": list(_times(rng, 2e-2, 30, 0.05)),
            "memory_bytes": {"weights": 4_000_000, "gradients": 4_000_000, "optimizer state": 8_000_000 // count},
            "peak_bytes": 21_000_000,
            "checksum": "1f3a",
        }
        reports.append(RankReport(rank, {key: value for key, value in told.items() if key not in left_out}))
    fields = {"name": "ddp/parity", "program": "scripts/ddp_train.py", "args": ("--steps", "40")} | more
    return RankResults(reports=tuple(reports), environment=CPU, notes=("A note with <b>markup</b>.",), **fields)


def _plan(ranks=(2, 8, 1024), unit=2**30):
    points = []
    for strategy, share in (("ddp", 1), ("zero1", 2), ("fsdp_root", 4)):
        for count in ranks:
            sizes = [size * unit // share for size in (24, 24, 49, 2, 9)]
            parts = dict(zip(CLUSTER_PARTS, sizes, strict=True))
            points.append(ClusterPoint(strategy, count, *sizes, sum(sizes), parts, "optimizer step"))
    return ClusterPlan(
        points=tuple(points),
        errors=(MethodError("ddp", 0.0004, 6, 4, 3_000_000), MethodError("zero1", 0.02, 1, 2, 10**10)),
        environment=CPU,
        name="fsdp/planned",
        parameters={"width": 4096, "layers": 32, "heads": 32, "vocabulary": 32000, "context": 2048},
        notes=("A note with <b>markup</b>.",),
    )


def _check(count):
    sizes = dict.fromkeys((*CLUSTER_PARTS, "peak"), 10**6)
    points = [
        CheckedPoint("fsdp_root", n % 3 + 2, 10**6, "bf16, batch 4 x 128, AdamW foreach, gloo", sizes, sizes)
        for n in range(count)
    ]
    return ClusterCheck(tuple(points), CPU)


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
    "two": _comparison(TWO, name="pinned_memory/copy", notes=("A note with <b>markup</b>.",)),
    "eight": _comparison(EIGHT),
    "five decades": _comparison({"list": 1.0, "array": 0.2, "tensor": 3e-3, "shared": 1e-4, "view": 1e-5}),
    "cuda": _cuda_comparison(),
    "few rounds": _comparison(TWO, rounds=5, planned_rounds=24, interrupted=True),
    "one round": _comparison(TWO, rounds=1),
    "sweep of two": _sweep(("one by one", "batched"), (1, 4, 16, 64, 256, 1024)),
    "sweep of four": _sweep(("one by one", "batched", LONG, "vmap"), (1, 2, 3)),
    "sweep of words": _sweep(("float32", "other"), ("contiguous", "channels last", "a long name of a layout")),
    "sweep of one point": _sweep(("one by one", "batched"), (8,)),
    "ceilings": _ceilings(),
    "measurement": _measurement(),
    "one sample": _measurement(elapsed_s=(1e-3,), first_call_s=None, warmup_s=(), environment=None),
    "table of parts": _table(
        {"weights": 4_000_000, "gradients": 4_000_000, "optimizer": 8_000_000, "activations": 31_000_000}, "bytes"
    ),
    "table of errors": _table(
        {"forward": 2.3e-7, "backward": 4.1e-3}, "relative", ran="math", equal=True, missing=None
    ),
    "table of seconds": _table({"first call": 12.5}, "s"),
    "curves": _curves(5),
    "one curve": _curves(1),
    "trace": _memory_trace(1, meter="torch's profiler", meter_bytes=70 * 2**20, metered_bytes=60 * 2**20),
    "trace of steps": _memory_trace(4),
    "trace on a GPU": _cuda_trace(),
    "plan": _plan(),
    "plan of one": _plan((1,), 2**10),
    "check": _check(3),
    "long check": _check(30),
    "trace of nothing": MemoryTrace("nothing", "cpu", (0, 5), (), CPU),
    "ranks": _ranks(4),
    "ranks with memory": _ranks(2, left_out=("loss",)),
    "one rank": _ranks(1, left_out=("loss", "memory_bytes"), name=None, program=f"scripts/{LONG}.py"),
}
DRAWN = [name for name, result in RESULTS.items() if not isinstance(result, Environment)]


# ---- quantities


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (3.2e-10, "0.320 ns"),
        (1.234e-8, "12.3 ns"),
        (9.996e-7, "1.00 µs"),
        (1.234e-5, "12.3 µs"),
        (0.5, "500 ms"),
        (0.99951, "1.00 s"),
        (75.25, "75.2 s"),
        (1234.0, "1234 s"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_seconds(seconds, shown):
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1023.9 * 1024, "1.00 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (3 * 2**29, "1.50 GiB"),
        (None, "–"),
    ],
)
def test_bytes_are_binary(count, shown):
    assert format_bytes(count) == shown


def test_rates_are_decimal():
    assert format_rate(2e9, "B/s") == "2.00 GB/s"
    assert format_rate(989e12, "FLOP/s") == "989 TFLOP/s"
    assert format_rate(1.2e6, "items/s") == "1.20 M items/s"
    assert format_rate(None, "B/s") == "–"


def test_ratios_near_one_keep_their_difference():
    assert format_ratio(1.0042) == "1.004"
    assert format_ratio(0.998) == "0.998"
    assert format_ratio(1.83) == "1.83"
    assert format_interval(Interval(0.996, 1.0312, 0.95)) == "0.996 to 1.031"
    assert format_interval(Interval(0.0, math.inf, 0.95)) == "–"
    assert format_percent(0.01) == "1%"


# ---- verdicts in words


def test_each_verdict_has_its_sentence():
    comparison = _comparison({"base": 1.0, "half": 0.5, "more": 1.05, "same": 1.0}, noise=0.002, rounds=40)
    assert verdict_sentence(comparison["half"]).startswith("FASTER: 2.00 times as fast (95% interval ")
    assert verdict_sentence(comparison["more"]).startswith("SLOWER: takes 1.05 times as long (95% interval ")
    assert verdict_sentence(comparison["same"]).startswith("SAME: within 1% (")
    assert headline(comparison["half"]) == "half is FASTER: 2.00 times as fast as base"
    assert "baseline" in verdict_sentence(comparison["base"])


def _scripted(case: list[float], control: list[float]) -> Comparison:
    """A comparison whose ratios are known exactly: the baseline always takes one second."""
    rounds = len(case)
    return Comparison(
        cases=(
            Measurement(label="base", elapsed_s=(1.0,) * rounds),
            Measurement(label="case", elapsed_s=tuple(case)),
        ),
        control=Measurement(label="base", elapsed_s=tuple(control)),
        environment=CPU,
        planned_rounds=rounds,
    )


def test_unclear_says_why_and_what_to_do():
    few = verdict_sentence(_comparison(TWO, rounds=5)["pinned"])
    assert few == "UNCLEAR: needs 8 rounds, has 5: raise budget_s"
    stopped = verdict_sentence(_comparison(TWO, rounds=5, interrupted=True)["pinned"])
    assert "needs 8 rounds, has 5" in stopped
    assert "run to the end" in stopped

    quiet = [1.0] * 10
    straddles = verdict_sentence(_scripted([0.9, 1.1] * 5, quiet)["case"])
    assert straddles.startswith("UNCLEAR: takes 0.90")
    assert "may be faster or slower" in straddles

    noisy = verdict_sentence(_scripted([1.05, 1.06] * 5, [0.8, 1.25] * 5)["case"])
    assert "baseline timed against itself strayed by" in noisy

    slight = verdict_sentence(_scripted([1.004, 1.03] * 2 + [1.008] * 6, quiet)["case"])
    assert "less than the 1% that matters" in slight
    for sentence in (few, straddles, noisy, slight):
        assert "budget_s" in sentence


def test_sweep_summary_names_the_turning_point():
    assert sweep_summary(RESULTS["sweep of two"], "batched") == "batched: SLOWER at batch 1 to 4, FASTER at 16 to 1024"


def test_a_sweep_over_names_has_no_order():
    sweep = RESULTS["sweep of words"]
    said = sweep_summary(sweep, "other")
    assert " to " not in said
    for name in sweep.values:
        assert name in said
    upper, lower = sweep.plot().axes
    assert all(line.get_linestyle() == "None" for line in upper.lines if len(line.get_xdata()) == len(sweep.values) > 1)
    joined = [line for line in lower.lines if len(set(line.get_xdata())) == len(sweep.values)]
    assert joined == []
    # Side by side, so that no case hides another, and the noise of a name ends with the name.
    medians = [line.get_xdata() for line in upper.lines if line.get_label() in sweep.points[0].comparison.labels]
    assert len({x for series in medians for x in series}) == len(medians) * len(sweep.values)
    assert len(lower.patches) >= len(sweep.values)


# ---- tables


class _Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def _read(markup: str) -> _Reader:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", RESULTS)
def test_html_is_plain_and_complete(name):
    reader = _read(html(RESULTS[name]))
    assert set(reader.tags) <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p", "br"}
    assert reader.attributes <= {"scope"}
    assert reader.tags.count("table") == reader.tags.count("caption") >= 1
    assert "nan" not in reader.text
    assert "inf " not in reader.text
    assert "None" not in reader.text


@pytest.mark.parametrize("name", RESULTS)
def test_text_fits_a_terminal(name):
    shown = text(RESULTS[name])
    assert max(map(len, shown.splitlines())) <= 110
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert repr(RESULTS[name]) == shown


def test_markup_in_labels_and_notes_is_escaped():
    shown = html(RESULTS["two"])
    assert "A note with &lt;b&gt;markup&lt;/b&gt;." in shown
    assert "matmul &lt;512&gt;" in html(RESULTS["measurement"])
    assert "a < b & c" in _read(html(RESULTS["eight"])).text


def test_comparison_shows_the_verdict_before_the_numbers():
    shown = text(RESULTS["two"])
    row = next(line for line in shown.splitlines() if line.startswith("pinned "))
    assert row.index("FASTER") < row.index("ms")
    assert "baseline again (A/A control)" in shown
    assert "noise floor: ±" in shown
    assert "24 rounds x 8 calls" in shown
    assert "warm cache" in shown
    assert "checked: outputs equal within 1e-6" in shown
    assert CPU.caption in shown
    assert "99% intervals: pinned" in shown


def test_columns_appear_with_what_they_hold():
    plain, full = text(RESULTS["two"]), text(_cuda_comparison())
    flat = " ".join(full.split())
    for value in ("64.0 MiB", "2.00 GiB", "900 ms", "GB/s", "calls", "%"):
        assert value in flat
    assert "launch-bound" in flat
    assert "pinned each time is launch-bound" in flat
    headers = [cell for row in _read(html(_cuda_comparison())).rows for cell in row]
    extras = ["first call", "pays off after", "extra peak memory", "peak reserved", "host time (enqueue)"]
    extras += ["device time", "bandwidth", "share of copy"]
    none = [cell for row in _read(html(RESULTS["two"])).rows for cell in row]
    for header in extras:
        assert header in headers
        assert header not in none
    assert "launch-bound" not in plain


def test_interrupted_comparison_says_so():
    assert "Interrupted after 5 of 24 rounds." in text(RESULTS["few rounds"])
    assert "Interrupted" not in text(RESULTS["two"])


def test_unchecked_agreement_is_not_called_checked():
    assert "checked: not" not in text(_comparison(TWO, agreement="not checked"))


def test_environment_says_what_runs_live():
    assert "recorded runs" in text(CPU)
    assert "139 GiB" in text(GPU)
    assert "none" in text(CPU)


def test_empty_sweep_is_shown():
    empty = Sweep(over="batch", points=(), environment=CPU)
    assert "none was measured" in text(empty)
    assert "none was measured" in html(empty)
    with pytest.raises(ValueError, match="no point"):
        figure(empty)


def test_only_results_are_shown():
    for show in (text, html, figure):
        with pytest.raises(TypeError, match="not a result of this course"):
            show({"a": 1})
    with pytest.raises(TypeError, match="environment has nothing to draw"):
        figure(CPU)


_PRINT_ALL = """
import sys
sys.path.insert(0, "tests")
import test_display as t
for name, result in t.RESULTS.items():
    sys.stdout.buffer.write((t.html(result) + t.text(result)).encode())
    if name.startswith("trace"):
        sys.stdout.buffer.write(result.explore()._repr_html_().encode())
    if name in ("eight", "cuda", "sweep of four", "ceilings", "measurement", "trace"):
        sys.stdout.buffer.write(t.figure(result)._repr_png_())
"""


def test_identical_in_two_processes(pytestconfig):
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_ALL],
            cwd=pytestconfig.rootpath,
            capture_output=True,
            check=True,
            timeout=240,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 100_000


def test_showing_text_and_html_needs_neither_matplotlib_nor_ipywidgets(pytestconfig):
    code = (
        "import sys, course_utils.show as d; from course_utils.show.prediction import predict; "
        "from course_utils.show.progress import progress; d.text, d.html, d.verdict_sentence; "
        "repr(predict('How many?')); "
        "loaded = {'matplotlib', 'ipywidgets', 'tqdm', 'numpy.random'} & set(sys.modules); assert not loaded, loaded"
    )
    # A bare package, so that torch (which the course itself imports) does not decide the outcome.
    bare = "import sys, types; p = types.ModuleType('course_utils'); p.__path__ = ['course_utils']; "
    bare += "sys.modules['course_utils'] = p; "
    subprocess.run([sys.executable, "-c", bare + code], cwd=pytestconfig.rootpath, check=True, timeout=240)


# ---- figures


@pytest.mark.parametrize("name", DRAWN)
def test_figure_is_a_small_image_with_labelled_axes(name):
    from PIL import Image

    fig = RESULTS[name].plot()
    png = fig._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert len(png) < 60_000
    image = Image.open(BytesIO(png)).convert("RGB")
    assert image.size[0] == 880
    assert image.getpixel((2, 2)) == (255, 255, 255)
    labels = [ax.get_xlabel() for ax in fig.axes] + [ax.get_ylabel() for ax in fig.axes]
    # What a program calls its loss has no unit.
    assert name == "ranks" or any("(" in label and ")" in label for label in labels)
    environment = getattr(RESULTS[name], "environment", None)
    shown = {item.get_text() for item, _ in visible_texts(fig)}
    if environment is not None:
        assert environment.caption in shown
        assert environment.caption in fig.alt
    assert repr(fig) == f"Figure: {fig.alt}"


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_is_cut_off_or_overlaps(name):
    assert problems_of_texts(RESULTS[name].plot()) == []


def test_bars_are_as_long_as_their_values_and_parts_end_where_the_next_begins():
    table = RESULTS["table of parts"]
    for stacked in (False, True):
        (ax,) = table.plot(stacked=stacked).axes
        bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
        expected = [value / 2**20 for row in table.rows for value in row[1:]]
        assert [width for _, width in bars] == pytest.approx(expected)
        starts = [sum(expected[i - i % 4 : i]) if stacked else 0 for i in range(len(expected))]
        assert [x for x, _ in bars] == pytest.approx(starts)


def test_values_of_many_magnitudes_are_dots_on_a_logarithmic_axis():
    table = RESULTS["table of errors"]
    (ax,) = table.plot().axes
    assert ax.get_xscale() == "log"
    assert not ax.patches
    drawn = sorted(float(line.get_xdata()[0]) for line in ax.lines)
    assert drawn == pytest.approx(sorted(value for row in table.rows for value in row[1:3] if value > 0))
    shown = [item.get_text() for item, _ in visible_texts(ax.figure)]
    assert shown.count("0") >= 2  # what has no place on the axis is still named


@pytest.mark.parametrize(
    ("columns", "message"),
    [("ran", "ran.*no numbers.*forward, backward"), (["forward", "other"], "'other'"), ("equal", "equal")],
)
def test_columns_that_cannot_be_drawn_are_named(columns, message):
    with pytest.raises(ValueError, match=message):
        RESULTS["table of errors"].plot(columns)


def test_columns_of_two_units_do_not_share_an_axis():
    table = Table(("case", "time", "memory"), (("a", 1.0, 5),), CPU, {"time": "s", "memory": "bytes"})
    assert table.plot().axes[0].get_xlabel() == "time (s)"
    with pytest.raises(ValueError, match="2 units"):
        table.plot(["time", "memory"])
    with pytest.raises(ValueError, match="no column of numbers"):
        Table(("case", "word"), (("a", "b"),), CPU).plot()


def test_curves_are_told_apart_by_colour_and_dash_and_break_where_they_are_not_finite():
    curves = RESULTS["curves"]
    (ax,) = curves.plot().axes
    styles = [(line.get_color(), str(line._dash_pattern)) for line in ax.lines]
    assert len({colour for colour, _ in styles}) == len({dash for _, dash in styles}) == len(styles) == 5
    for line, curve in zip(ax.lines, curves, strict=True):
        assert list(line.get_xdata()) == list(curve.x)
        assert [None if math.isnan(y) else y for y in line.get_ydata()] == list(curve.y)
    assert curves.plot(log_y=True).axes[0].get_yscale() == "log"
    assert "recipe 3 are not finite" in text(curves)


def test_what_ranks_reported_is_drawn_as_what_it_is():
    run = RESULTS["ranks"]
    (curves,) = run.plot().axes
    assert [line.get_label() for line in curves.lines] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert list(curves.lines[2].get_ydata()) == run[2]["loss"]
    assert run.plot(log_y=True).axes[0].get_yscale() == "log"
    (times,) = run.plot("step_s").axes
    assert times.get_ylabel() == "step (ms)"
    assert list(times.lines[0].get_ydata()) == pytest.approx([1e3 * t for t in run[0]["step_s"]])
    (memory,) = RESULTS["ranks with memory"].plot().axes
    widths = [bar.get_width() * 2**20 for bar in memory.patches]
    assert widths == pytest.approx([4e6] * 3 * 2)  # weights, optimizer state, gradients
    for name in ("step_s", "memory_bytes", "peak_bytes"):
        assert problems_of_texts(run.plot(name)) == []
    with pytest.raises(ValueError, match="'checksum' cannot be drawn"):
        run.plot("checksum")
    with pytest.raises(NothingToDrawError, match="there are: checksum"):
        _ranks(1, left_out=("loss", "step_s", "memory_bytes", "peak_bytes")).plot()


def test_figure_shows_every_sample():
    comparison = RESULTS["two"]
    left = comparison.plot().axes[0]
    drawn = sorted(x for line in left.lines if line.get_marker() == "o" for x in line.get_xdata())
    expected = sorted(1e3 * t for m in (*comparison.cases, comparison.control) for t in m.elapsed_s)
    assert drawn == pytest.approx(expected)
    low, high = left.get_xlim()
    assert low < drawn[0]
    assert drawn[-1] < high


def test_figure_draws_the_interval_that_decided():
    comparison = RESULTS["two"]
    right = comparison.plot().axes[1]
    spans = [tuple(line.get_xdata()) for line in right.lines]
    case = comparison["pinned"]
    assert (case.decision_interval.low, case.decision_interval.high) in spans
    assert (case.interval.low, case.interval.high) in spans


def test_time_axis_is_logarithmic_only_for_wide_ranges():
    calm = Comparison.from_record(RESULTS["two"].to_record())
    wide = _comparison({"a": 1.0, "b": 50.0})
    assert wide.plot().axes[0].get_xscale() == "log"
    even = tuple(1e-3 + 1e-6 * i for i in range(24))
    calm = Comparison(
        cases=(Measurement(label="a", elapsed_s=even), Measurement(label="b", elapsed_s=even)),
        control=Measurement(label="a", elapsed_s=even),
        environment=CPU,
    )
    assert calm.plot().axes[0].get_xscale() == "linear"


def test_sweep_draws_rates_and_the_ceiling_where_there_is_one():
    comparison = _cuda_comparison()
    sweep = Sweep(over="streams", points=(SweepPoint(1, comparison), SweepPoint(2, comparison)), environment=GPU)
    upper = sweep.plot().axes[0]
    assert upper.get_ylabel() == "rate (GB/s)" or upper.get_ylabel() == "rate (GB/s, log scale)"
    ceiling = comparison.ceiling.value / 1e9
    assert any(list(line.get_ydata()) == pytest.approx([ceiling] * 2) for line in upper.lines)
    assert RESULTS["sweep of two"].plot().axes[0].get_ylabel().startswith("time per call (")


def test_drawing_into_given_axes_returns_their_figure():
    from matplotlib.figure import Figure

    for name in ("two", "sweep of two", "measurement", "trace"):
        host = Figure()
        ax = host.add_subplot()
        assert RESULTS[name].plot(ax=ax) is host
        assert ax.lines
    with pytest.raises(ValueError, match="several units"):
        RESULTS["ceilings"].plot(ax=Figure().add_subplot())


def test_figures_keep_their_look_and_leave_the_users_style_alone():
    import matplotlib

    before = matplotlib.rcParams["figure.facecolor"]
    try:
        matplotlib.rcParams["figure.facecolor"] = "black"
        fig = RESULTS["two"].plot()
        assert matplotlib.rcParams["figure.facecolor"] == "black"
    finally:
        matplotlib.rcParams["figure.facecolor"] = before
    assert fig.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_pyplot_is_not_used(pytestconfig):
    code = _PRINT_ALL.replace("sys.stdout.buffer.write", "len") + "\nassert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=pytestconfig.rootpath, check=True, timeout=240)


# ---- progress


class _Terminal:
    """A stream that says it is a terminal and keeps what is written."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Call it in the test to replace stderr: pytest puts its own back between a fixture and its test."""
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)

    def replace() -> _Terminal:
        stream = _Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace


def test_progress_of_a_long_wait_is_shown_and_cleared(terminal):
    stream = terminal()
    with progress("pinned_memory/copy", expected_s=30.0) as bar:
        bar.advance(10.0)
        bar.describe("second half")
        bar.advance(25.0)  # took longer than expected
        assert bar.shown
    assert "pinned_memory/copy" in stream.written
    assert "of about 30 s" in stream.written
    assert "second half" in stream.written
    assert stream.written.endswith("\r")  # the line was wiped


def test_progress_of_a_short_wait_is_silent(terminal):
    stream = terminal()
    with progress("quick", expected_s=1.0) as bar:
        bar.advance(0.5)
        bar.describe("still quick")
    assert not bar.shown
    assert stream.written == ""


def test_progress_appears_when_a_short_wait_becomes_long(terminal, monkeypatch):
    stream = terminal()
    from course_utils.show import progress as module

    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with progress("slow", expected_s=1.0) as bar:
        bar.advance(0.1)
        assert not bar.shown
        now[0] += 2.5
        bar.advance(0.1)
        assert bar.shown
    assert "slow" in stream.written


def test_progress_can_be_turned_off(terminal, monkeypatch):
    stream = terminal()
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    with progress("long", expected_s=100.0) as bar:
        bar.advance(50.0)
    assert not bar.shown
    assert stream.written == ""


def test_progress_writes_nothing_to_a_log_file(monkeypatch, capsys):
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    with progress("long", expected_s=100.0) as bar:
        bar.advance(50.0)
    assert capsys.readouterr().err == ""


def test_progress_in_a_notebook_is_gone_at_the_end_even_if_it_was_quicker_than_expected(monkeypatch):
    import tqdm.auto
    import tqdm.notebook

    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    monkeypatch.setattr(tqdm.auto, "tqdm", tqdm.notebook.tqdm)
    with progress("quicker", expected_s=30.0) as bar:
        bar.advance(20.0)
        widget = bar._bar.container
        assert widget.comm is not None
    assert widget.comm is None  # closed: JupyterLab takes it off the page


def test_progress_passes_errors_on(terminal):
    terminal()
    with pytest.raises(KeyboardInterrupt), progress("long", expected_s=100.0):
        raise KeyboardInterrupt


def test_verdicts_are_all_covered():
    """Every verdict has a colour, a marker and a sentence."""
    from course_utils.show import figures

    for mapping in (figures._VERDICT_COLOUR, figures._VERDICT_INK, figures._VERDICT_MARKER):
        assert set(mapping) == set(Verdict)


def test_a_sweep_of_two_cases_shows_the_rates_and_shares_of_both():
    work = {"eager": 2.0e9, "compiled": 1.5e9}

    def with_rates(comparison: Comparison, bytes_of: dict[str, float | None]) -> Comparison:
        cases = tuple(
            dataclasses.replace(case, elapsed_s=(1.0,) * case.rounds, bytes=bytes_of[case.label])
            for case in comparison.cases
        )
        return dataclasses.replace(comparison, cases=cases, ceiling=Ceiling("copy", "B/s", 4e9, (1.0,)))

    sweep = _sweep(("eager", "compiled"), ("chain", "tiny"))
    chain, tiny = (point.comparison for point in sweep.points)
    points = (SweepPoint("chain", with_rates(chain, work)), SweepPoint("tiny", with_rates(tiny, dict.fromkeys(work))))
    shown = dataclasses.replace(sweep, points=points)
    rows = [line.split() for line in repr(shown).split("Rates")[1].splitlines() if line.strip().startswith("chain")]
    assert rows == [["chain", "2.00", "GB/s", "1.50", "GB/s", "50%", "38%"]]
    assert "tiny" not in repr(shown).split("Rates")[1].split("compiled:")[0]
