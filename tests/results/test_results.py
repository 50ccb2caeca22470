"""Results: statistics as properties, records that hold what was measured, and clear errors for wrong names."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from course_utils.results.ceilings import Ceiling
from course_utils.results.comparison import Comparison
from course_utils.results.measurement import Measurement
from course_utils.results.memory_trace import MemoryBlock, MemoryTrace
from course_utils.results.rank_results import RankReport, RankResults
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.unrecorded import Unrecorded
from tests.example_results import CPU as HERE

ROUNDS = 20


def measurement(label: str = "code", seconds: float = 1e-3, **more: object) -> Measurement:
    # A little spread, the same in every series, so that ratios are exact.
    return Measurement(label, tuple(seconds * (1 + i % 5 / 100) for i in range(ROUNDS)), **more)


def comparison(*cases: Measurement, control: Measurement | None = None) -> Comparison:
    return Comparison(cases, control or dataclasses.replace(cases[0], label="again"), HERE)


# Measurement


def test_median_and_rates_are_of_the_raw_samples() -> None:
    ten = Measurement("code", (3.0, 1.0, 2.0, 10.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0), items=11)
    assert (ten.rounds, ten.median_s, ten.rate("items"), ten.rate("bytes")) == (10, 5.5, 2, None)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param({}, None, id="a CPU"),
        pytest.param({"enqueue_s": 0.1, "device_s": 1.0}, False, id="Python is far ahead"),
        pytest.param({"enqueue_s": 0.95, "device_s": 1.0, "prequeued_s": 0.3}, True, id="confirmed"),
        pytest.param({"enqueue_s": 0.95, "device_s": 1.0, "prequeued_s": 0.9}, False, id="the gaps are small"),
        pytest.param({"enqueue_s": 0.95, "device_s": 1.0}, None, id="could not be tested"),
    ],
)
def test_launch_bound(times: dict[str, float], expected: bool | None) -> None:
    series = {key: value if key == "prequeued_s" else (value,) * 3 for key, value in times.items()}
    timed = Measurement("code", (1.0,) * 3, **series)
    assert timed.launch_bound is expected
    own = {None: None, False: 1.0}.get(expected)
    assert timed.queued_ahead_s == times.get("prequeued_s", own)
    assert (timed.enqueue_median_s, timed.device_median_s) == (times.get("enqueue_s"), times.get("device_s"))


def test_records_keep_five_digits_and_zeros_but_no_fields_that_say_nothing() -> None:
    record = Measurement("code", (3.14159e-6,), peak_allocated_bytes=0).to_record()
    assert set(record) == {"label", "elapsed_s", "calls", "peak_allocated_bytes"}
    assert Measurement.from_record(record).elapsed_s == (pytest.approx(3.14159e-6, rel=5.1e-5),)


# Comparison


def test_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    # Separate medians would say 1; round by round the case takes twice as long in most rounds.
    base = Measurement("base", (1.0, 1.0, 1.0, 8.0, 8.0))
    case = Measurement("case", (2.0, 2.0, 2.0, 1.0, 1.0))
    assert comparison(base, case)["case"].ratio == 2.0


def test_control_decides_what_is_noise() -> None:
    base, case = measurement("base"), measurement("case", 1.05e-3)
    assert comparison(base, case)["case"].verdict == "SLOWER"
    # The baseline against itself came out 8% apart in the same rounds: then 5% is nothing.
    noisy = comparison(base, case, control=measurement("base again", 1.08e-3))
    assert noisy.noise.high == pytest.approx(1.08)
    assert noisy["case"].verdict == "UNCLEAR"
    assert noisy["base"].ratio == pytest.approx(1.08)
    assert noisy["base"].verdict == "SAME"


def test_break_even_counts_the_calls_that_pay_for_a_dear_first_one() -> None:
    result = comparison(
        measurement("eager", 2e-3, first_call_s=0.01),
        measurement("compiled", 1e-3, first_call_s=10.01),
        measurement("cheap", 1e-3, first_call_s=0.001),
        measurement("worse", 4e-3, first_call_s=10.0),
    )
    # After so many calls, a millisecond less each has paid for ten seconds more.
    assert result["compiled"].break_even_calls == pytest.approx(10_000 / 1.02, rel=0.01)
    assert {result[label].break_even_calls for label in ("cheap", "worse", "eager")} == {None}


# Ceilings and sweeps


def test_a_rate_is_the_best_sample_and_a_latency_the_middle_one() -> None:
    assert Ceiling("copy", "B/s", 100.0, (4.0, 1.0, 2.0)).value == 100
    assert Ceiling("launch", "s", 1, (4.0, 1.0, 2.0)).value == 2


# Traces of memory

TRACE = MemoryTrace(
    label="step",
    device="cpu",
    times_us=(0, 10, 20, 35, 40, 90),
    blocks=(
        MemoryBlock(1000, 0, 6, "net.py:1 __init__"),
        MemoryBlock(300, 1, 4, "net.py:3 forward"),
        MemoryBlock(300, 2, 6, "net.py:3 forward"),
        MemoryBlock(50, 3, 5, "step.py:7 step"),
    ),
    environment=HERE,
)


def test_a_trace_adds_up_its_blocks() -> None:
    assert TRACE.totals_bytes == (1000, 1300, 1600, 1650, 1350, 1300)
    assert (TRACE.peak_bytes, TRACE.peak_moment) == (1650, 3)
    assert TRACE.by_line()["net.py:3 forward"] == (0, 300, 600, 600, 300, 300)
    assert TRACE.card().words == "Peak of step: 1.61 KiB, 650 B above the start."


def test_a_condensed_trace_is_small_and_its_sums_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, blocks = random.Random(6), []
    for _ in range(200):
        born = rng.randrange(60)
        blocks.append(MemoryBlock(rng.randrange(10**9), born, rng.randint(born + 1, 60), rng.choice("abc")))
    fields = {"label": "step", "device": "cpu", "environment": HERE}
    whole = MemoryTrace(times_us=tuple(range(60)), blocks=tuple(blocks), **fields)
    monkeypatch.setattr("course_utils.results.memory_trace.MOST_MOMENTS", 6)
    small = MemoryTrace.from_blocks(times_us=range(60), blocks=blocks, **fields)
    assert small.condensed
    assert small.moments <= 6
    assert len(small.blocks) < len(blocks)
    assert small.peak_bytes == whole.peak_bytes
    for line, values in whole.by_line().items():
        assert small.by_line()[line] == tuple(values[moment] for moment in small.times_us)
    assert small.allocations == sum(block.born > 0 for block in blocks)
    assert MemoryTrace.from_record(json.loads(json.dumps(small.to_record()))) == small


# Ranks


def rounds_of(*slowdowns: float, idle: str = "") -> dict[str, object]:
    """What `timed_rounds` reports on one rank: a plain case and a dear one."""
    seconds = {
        label: [] if label == idle else [1e-3 * slowdown * (1 + i % 5 / 100) for i in range(ROUNDS)]
        for label, slowdown in zip(("plain", "dear"), slowdowns, strict=True)
    }
    return {
        "labels": ["plain", "dear"],
        "seconds": seconds,
        "control": seconds["plain"],
        "first_call_s": {label: 0.5 if seconds[label] else None for label in seconds},
        "calls": 2,
        "items": {"plain": 8, "dear": 16},
        "agreement": "equal losses",
    }


def ranks_of(*values: dict[str, object], **more: object) -> RankResults:
    reports = tuple(RankReport(rank, of_rank) for rank, of_rank in enumerate(values))
    return RankResults("scripts/train.py", reports, HERE, **more)


RANKS = ranks_of(
    {"step_s": 0.2, "peak_bytes": 2**20, "note": "fine", "steps": rounds_of(1, 2), "ways": {"a": 1}},
    {"step_s": 0.25, "peak_bytes": 2**21, "late": True, "steps": rounds_of(1.5, 1)},
    name="ddp/parity",
    args=("--steps", "3"),
)


def test_a_table_of_ranks_has_the_plain_values_and_their_units() -> None:
    table = RANKS.table
    assert table.columns == ("rank", "step", "peak", "note", "late")
    assert table.rows == ((0, 0.2, 2**20, "fine", None), (1, 0.25, 2**21, None, True))
    assert table.units == {"step": "s", "peak": "bytes"}
    assert RANKS.command == "torchrun --standalone --nproc-per-node=2 scripts/train.py --steps 3"
    assert RANKS.card().words == RANKS.comparison("steps").card().words


def test_paired_times_of_ranks_are_those_of_the_slowest() -> None:
    compared = RANKS.comparison("steps")
    assert (compared.baseline, compared.rounds) == ("plain", ROUNDS)
    # 1.5 on rank 1 against 2 on rank 0.
    assert compared["dear"].ratio == pytest.approx(2 / 1.5)
    assert compared["dear"].verdict == "SLOWER"
    assert compared["plain"].median_s == pytest.approx(1.5e-3 * 1.02)
    # A rank with nothing to do in a case does not count there.
    idle = ranks_of({"steps": rounds_of(1, 2)}, {"steps": rounds_of(9, 1, idle="plain")}).comparison("steps")
    assert idle["dear"].ratio == pytest.approx(2)


def test_the_order_of_what_ranks_reported_outlives_a_file() -> None:
    # Files have sorted keys; the baseline and the first column must not depend on the alphabet.
    again = RankResults.from_record(json.loads(json.dumps(RANKS.to_record(), sort_keys=True)))
    assert again.keys == RANKS.keys
    assert again.table.columns == RANKS.table.columns
    assert again.comparison("steps").labels == ("plain", "dear")
    assert repr(again) == repr(RANKS)


# Missing results and wrong names


def test_unrecorded_is_a_sentence_wherever_it_is_shown() -> None:
    waiting = Unrecorded("tiny/<pair>", ("two CUDA GPUs", "a C++ compiler"))
    assert repr(waiting) == (
        "No run of tiny/<pair> is recorded yet. It needs two CUDA GPUs and a C++ compiler. On such a machine, run "
        "`course record tiny --reference`."
    )
    assert "&lt;pair&gt;" in waiting._repr_html_()
    for part in (waiting.plot("weights"), waiting["case"].showing(["case"]), waiting.table.explore()):
        assert part is waiting


_PAIR = comparison(measurement("base"), measurement("case"))
_SWEEP = Sweep("n", (SweepPoint(1, _PAIR), SweepPoint(8, _PAIR)), HERE)


def test_wrong_names_are_answered_with_the_right_ones() -> None:
    with pytest.raises(KeyError, match="no case 'cas' in this comparison; there are: base, case"):
        _PAIR["cas"]
    with pytest.raises(KeyError, match="no point n=2 in this sweep; there are: 1, 8"):
        _SWEEP[2]
    with pytest.raises(KeyError, match="no 'lost' here; there are: step_s, peak_bytes"):
        RANKS[0]["lost"]
