"""The benchmark of timers: it runs, goes on after a kill, and its numbers are those that others compute."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import psutil
import pytest
import scipy.stats
import torch

from benchmarks import timer_quality as benchmark
from course_utils.lessons.measuring import timer_trial
from course_utils.lessons.measuring.timer_trial import Rate, TimerQuality, Trial
from course_utils.measure.compare import compare
from course_utils.measure.machine import environment
from course_utils.records.result import compact
from course_utils.records.store import RecordError, write_json
from tests.sandbox import wait_for

pytestmark = pytest.mark.serial
SCRIPT = Path(benchmark.__file__)
TINY = ("--trials", "2", "--budget", "0.05", "--functions", "tiny op")
FUNCTIONS = ("matmul", "tiny op")


@pytest.fixture(autouse=True)
def _own_progress(monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", "0")


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])},
    )


def rows_in(path):
    return json.loads(path.read_text())["trials"] if path.exists() else []


# The program, really run


def test_it_answers_every_question_and_goes_on_after_a_kill(tmp_path):
    path = tmp_path / "timer_quality.json"
    arguments = (*TINY, "--output", str(path))
    first = start(*arguments)
    try:
        wait_for(lambda: len(rows_in(path)) >= 3, "the first trials")
        # In the loaded condition a busy process runs beside it; it must not outlive the benchmark.
        wait_for(lambda: psutil.Process(first.pid).children(), "a busy process")
        burners = psutil.Process(first.pid).children()
    finally:
        first.kill()
        first.communicate()
    kept = rows_in(path)
    assert not timer_trial.load(path).complete
    wait_for(lambda: not any(each.is_running() and each.status() != "zombie" for each in burners), "its end")

    second = start(*arguments)
    printed, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    # 2 conditions, 2 trials on identical code and 1 on each of 3 twins.
    planned = 2 * (2 + 3)
    done = sum(row[0] == "compare" for row in kept)
    assert f"{planned - done} trials to run, {done} done." in printed
    assert "Timers as judges of known answers" in printed
    assert rows_in(path)[: len(kept)] == kept  # nothing lost, nothing measured twice
    record = timer_trial.load(path)
    assert record.complete
    by_compare = [trial for trial in record.trials if trial.method == "compare"]
    keys = {(trial.function, trial.condition, trial.truth, trial.index) for trial in by_compare}
    assert len(keys) == len(by_compare) == planned
    assert {trial.method for trial in record.trials} >= {"compare", "timer"}
    assert all(trial.ratio > 0 and trial.seconds > 0 and trial.rounds > 0 for trial in by_compare)
    assert all((trial.pooled is None) == (trial.truth != 1.0) for trial in by_compare)

    # A finished one measures nothing, and other settings do not mix with it.
    before = path.read_bytes()
    assert benchmark.main(arguments) == 0
    assert benchmark.main(("--trials", "3", *arguments[2:])) == 1
    assert path.read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C cannot be sent to one process on Windows")
def test_ctrl_c_leaves_a_record_and_says_so(tmp_path):
    path = tmp_path / "timer_quality.json"
    process = start(*TINY, "--trials", "50", "--conditions", "idle", "--output", str(path))
    try:
        wait_for(lambda: len(rows_in(path)) >= 3, "the first trials")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "goes on from there" in errors
    assert "Traceback" not in errors
    assert len(timer_trial.load(path).trials) >= 3


def test_half_a_comparison_is_no_trial(monkeypatch):
    def interrupted(*arguments, **options):
        return dataclasses.replace(compare(*arguments, **options), interrupted=True)

    monkeypatch.setattr(benchmark, "compare", interrupted)
    workload = benchmark.workloads("cpu")["tiny op"]
    with pytest.raises(KeyboardInterrupt):
        benchmark.by_compare(workload, benchmark.Question("tiny op", "idle", 1.0, 0), 0.05)


# The questions


def test_the_load_is_real_and_ends_when_the_block_fails():
    with contextlib.suppress(ZeroDivisionError), benchmark.busy_processes(2) as processes:
        watched = [psutil.Process(process.pid) for process in processes]
        before = [sum(process.cpu_times()[:2]) for process in watched]

        def all_worked():
            return all(sum(p.cpu_times()[:2]) > was + 0.1 for p, was in zip(watched, before, strict=True))

        # They share the cores with whatever else runs, so wait for work done rather than for time gone.
        wait_for(all_worked, "work", 60)
        raise ZeroDivisionError
    assert not any(process.is_running() for process in watched)


def test_twins_do_exactly_the_work_that_they_claim():
    calls = []
    workload = benchmark.Workload(lambda: None, lambda: calls.append(1), "", "")
    for truth, units in benchmark.TWIN_UNITS.items():
        for call, expected in zip(workload.sides(truth), (100, units), strict=True):
            calls.clear()
            call()
            assert len(calls) == expected
    one, other = workload.sides(1.0)
    assert one is other
    for workload in benchmark.workloads("cpu").values():
        baseline, case = workload.sides(1.05)
        torch.testing.assert_close(baseline(), case())


def test_a_call_costs_little_beside_its_units_and_the_truth_says_how_little():
    def unit():
        return sum(range(500))

    described = benchmark.describe(benchmark.Workload(unit, unit, "alone", "unit"))
    cost = described["call_cost_units"]
    assert 0 <= cost < 1
    for truth, units in benchmark.TWIN_UNITS.items():
        true = described["true_ratios"][f"{truth:.2f}"]
        assert true == pytest.approx((units + cost) / (100 + cost), abs=1e-5)
        assert true == pytest.approx(truth, rel=0.005)


def test_the_questions_are_mixed():
    settings = {"trials": 20, "twin_trials": 5, "known_trials": 5}
    questions = benchmark.questions(settings | {"functions": FUNCTIONS, "conditions": benchmark.CONDITIONS})
    assert len(questions) == len(set(questions)) == 2 * 2 * (20 + 3 * 5)
    assert len({question.seed for question in questions}) == len(questions)
    half = questions[: len(questions) // 2]
    for truth in (1.0, *benchmark.TWIN_UNITS):
        share = sum(q.truth == truth for q in half) / sum(q.truth == truth for q in questions)
        assert 0.35 < share < 0.65


def test_pooling_is_the_average_of_two_timings():
    result = compare({"a": lambda: None, "b": lambda: None}, budget_s=0.05, memory=False)
    base, control, case = (
        np.array(series) for series in (result.cases[0].elapsed_s, result.control.elapsed_s, result.cases[1].elapsed_s)
    )
    assert benchmark.pooled_ratio(result) == pytest.approx(np.exp(np.median(np.log(case / ((base + control) / 2)))))


def test_do_bench_is_asked_like_the_timer(monkeypatch):
    """Triton's function needs a GPU; its place is taken by one that answers in its units and form."""
    asked = []

    def do_bench(fn, rep, quantiles):
        fn()
        asked.append((rep, quantiles))
        return [1.0, 2.0, 4.0] if len(asked) == 1 else [5.0, 6.0, 7.0]

    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.testing", types.SimpleNamespace(do_bench=do_bench))
    monkeypatch.setattr(benchmark, "device_kind", lambda: "cuda")
    assert list(benchmark.two_median_methods()) == ["timer", "do_bench"]
    workload, question = benchmark.workloads("cpu")["tiny op"], benchmark.Question("tiny op", "idle", 1.0, 0)
    trial = benchmark.by_two_medians("do_bench", workload, question, 0.5)
    assert asked == [(250, [0.25, 0.5, 0.75])] * 2
    assert trial.ratio == 3
    assert (trial.verdict, trial.cautious) == ("SLOWER", "SLOWER")


@pytest.mark.parametrize(
    ("baseline", "case", "plain", "cautious"),
    [
        ((0.99, 1.00, 1.01), (1.04, 1.05, 1.06), "SLOWER", "SLOWER"),
        ((0.90, 1.00, 1.10), (0.95, 1.05, 1.15), "SLOWER", "UNCLEAR"),
        ((1.04, 1.05, 1.06), (0.99, 1.00, 1.01), "FASTER", "FASTER"),
        ((0.95, 1.05, 1.15), (0.90, 1.00, 1.10), "FASTER", "UNCLEAR"),
        ((0.999, 1.0, 1.001), (1.004, 1.005, 1.006), "SAME", "SAME"),
    ],
)
def test_the_verdicts_of_two_medians(baseline, case, plain, cautious):
    assert benchmark.two_median_verdicts(baseline, case) == (plain, cautious)


# The record


def made_up(methods=("compare", "timer"), **changes):
    """A record with invented ratios: noisy where loaded, noisier for the timers that take two medians."""
    generator = random.Random(1)
    trials = []
    for condition, spread in (("idle", 0.002), ("loaded", 0.01)):
        for truth, count in ((1.0, 40), (1.03, 12), (1.05, 12), (2.0, 12)):
            for function, index, method in ((f, i, m) for f in FUNCTIONS for i in range(count) for m in methods):
                wide = spread * (1 if method == "compare" else 12)
                ratio = truth * math.exp(generator.gauss(0, wide))
                verdict = "SAME" if abs(ratio - 1) < 0.01 else "SLOWER" if ratio > 1 else "FASTER"
                more = {"cautious": "UNCLEAR" if index % 3 else verdict}
                if method == "compare":
                    more = {"low": ratio * 0.99, "high": ratio * 1.02, "pooled": ratio * 0.99}
                place = (method, function, condition, truth, index)
                trials.append(Trial(*place, ratio, verdict, generator.uniform(0.5, 2), 100, **more))
    record = TimerQuality(
        environment=dataclasses.replace(environment(), date="2026-01-02", commit=None),
        settings={"conditions": ["idle", "loaded"], "functions": list(FUNCTIONS), "threads": 1, "burners": 1},
        workloads={name: {"true_ratios": {"2.00": 1.998}} for name in FUNCTIONS},
        trials=tuple(trials),
        recorded_at="2026-01-02T03:04:05+00:00",
        seconds=1000.0,
        complete=True,
    )
    return dataclasses.replace(record, **changes)


@pytest.mark.parametrize("trials", [1, 25, 400])
def test_bounds_are_those_of_clopper_and_pearson(trials):
    for hits in {0, 1, trials // 2, trials - 1, trials}:
        rate = Rate(hits, trials)
        above = scipy.stats.binomtest(hits, trials, alternative="less").proportion_ci(0.95, "exact").high
        below = scipy.stats.binomtest(hits, trials, alternative="greater").proportion_ci(0.95, "exact").low
        assert (rate.lower, rate.upper) == pytest.approx((below, above), abs=1e-9)


def test_the_numbers_are_what_anyone_would_count():
    record = made_up()
    for judge, method, key in (("compare", "compare", "verdict"), ("Timer, quartiles apart", "timer", "cautious")):
        for condition in ("idle", "loaded"):
            place = [t for t in record.trials if (t.method, t.condition) == (method, condition)]
            identical = [getattr(t, key) for t in place if t.truth == 1.0]
            wrong = sum(verdict in ("FASTER", "SLOWER") for verdict in identical)
            assert record.false_verdicts(judge, condition) == (wrong, len(identical))
            twins = [getattr(t, key) for t in place if t.truth == 1.03]
            assert record.detection(judge, condition, 1.03) == (twins.count("SLOWER"), len(twins))
            error = max(abs(t.ratio / 1.998 - 1) for t in place if t.truth == 2.0)
            row = next(line for line in repr(record).splitlines() if line.startswith(f"{condition}: known"))
            assert timer_trial._percent(error) in row
    pooled = [t.pooled for t in record.trials if t.method == "compare" and t.condition == "idle" and t.truth == 1.0]
    theirs = scipy.stats.quantile_test(pooled, q=1, p=0.5).confidence_interval(0.95)
    assert record.pooling()["idle"]["pooled"] == (pytest.approx(np.median(pooled)), theirs.low, theirs.high)


def put(folder, record, machine, **changes):
    """Write a record as the benchmark does."""
    data = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)} | changes
    where = dataclasses.replace(record.environment, machine=machine, **data.pop("place", {}))
    data |= {"kind": "timer_quality", "schema_version": 1, "environment": where.to_record()}
    data |= {"columns": [field.name for field in dataclasses.fields(Trial)]}
    data |= {"trials": [compact(dataclasses.astuple(trial)) for trial in record.trials]}
    write_json(folder / f"{machine}.json", data)


def test_the_newest_record_is_shown_and_a_gpus_first(tmp_path, monkeypatch):
    monkeypatch.setattr(timer_trial, "reference_root", lambda: tmp_path)
    with pytest.raises(RecordError, match=r"benchmarks/timer_quality\.py --reference"):
        timer_trial.timer_quality()
    record = made_up()
    put(tmp_path, record, "old-cpu", recorded_at="2026-01-01")
    put(tmp_path, record, "new-cpu", recorded_at="2026-03-01")
    newest = timer_trial.timer_quality()
    assert newest.environment.machine == "new-cpu"
    assert [t.verdict for t in newest.trials] == [t.verdict for t in record.trials]
    put(tmp_path, record, "gpu", recorded_at="2025-01-01", place={"device_kind": "cuda"})
    assert timer_trial.timer_quality().environment.machine == "gpu"
    assert timer_trial.timer_quality("old-cpu").environment.machine == "old-cpu"
    with pytest.raises(RecordError, match="no trial of the timers of abacus"):
        timer_trial.timer_quality("abacus")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"cannot be read .*restore the file from git"),
        ("[]", "cannot be read"),
        ('{"kind": "timer_quality", "schema_version": 99}', "schema version 99.*git pull"),
        ('{"kind": "timer_quality", "schema_version": 1}', "cannot be read"),
    ],
)
def test_a_record_that_cannot_be_used_says_why(tmp_path, text, words):
    path = tmp_path / "some-machine.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=words):
        timer_trial.load(path)


@pytest.mark.parametrize("methods", [("compare", "timer"), ("compare", "timer", "do_bench")])
def test_it_shows_itself_as_a_table_and_as_a_figure_that_cuts_nothing_off(methods):
    record = made_up(methods, complete=False)
    for shown in (repr(record), record._repr_html_()):
        assert "Timers as judges of known answers" in shown
        assert "goes on where it stopped" in shown
        assert record.environment.caption in shown
    figure = record.plot()
    figure.canvas.draw()
    upper = next(ax for ax in figure.axes if "truth" in ax.get_xlabel())
    low, high = upper.get_xlim()
    shown = [x for line in upper.lines if line.get_marker() not in ("None", None, "") for x in line.get_xdata()]
    identical = [trial.ratio for trial in record.trials if trial.truth == 1.0]
    assert sorted(shown) == pytest.approx(sorted(identical))
    assert all(low <= ratio <= high for ratio in identical)
    width, height = figure.canvas.get_width_height()
    for ax in figure.axes:
        box = ax.get_tightbbox()
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    assert record.environment.caption in figure.alt
    assert figure._repr_png_() == record.plot()._repr_png_()
