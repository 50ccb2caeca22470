"""The benchmark of timers: it runs, goes on after a kill, and its numbers are those that others compute."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import psutil
import pytest
import scipy.stats
import torch

from course_utils.lessons.measuring import timer_trial as quality
from course_utils.lessons.measuring.timer_trial import TimerQuality, Trial
from course_utils.measure.compare import compare
from course_utils.measure.machine import environment
from course_utils.records import paired
from course_utils.records.store import RecordError, machines, records_of, write_json

pytestmark = pytest.mark.serial
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "timer_quality.py"
TINY = ["--smoke", "--functions", "tiny op", "--burners", "1"]


def _script():
    spec = importlib.util.spec_from_file_location("timer_quality_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


benchmark = _script()


@pytest.fixture(autouse=True)
def _own_progress(monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", "0")


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def rows_in(path):
    return json.loads(path.read_text())["trials"] if path.exists() else []


def wait_for(what, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# --- the program, really run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """One run with two functions, from the command line."""
    path = tmp_path_factory.mktemp("smoke") / "timer_quality.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--smoke", "--functions", "tiny op", "Python loop", "--output", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return path, done.stdout


def test_a_smoke_run_answers_every_question(smoke):
    path, printed = smoke
    record = quality.load(path)
    assert record.complete
    assert record.environment.machine == environment().machine
    by_compare = [trial for trial in record.trials if trial.method == "compare"]
    # 2 functions, 2 conditions, 2 trials on identical code and 1 on each of 3 twins.
    assert len(by_compare) == 2 * 2 * (2 + 3)
    assert {trial.method for trial in record.trials} >= {"compare", "timer"}
    assert all(trial.ratio > 0 and trial.seconds > 0 and trial.rounds > 0 for trial in by_compare)
    assert all((trial.pooled is None) == (trial.truth != 1.0) for trial in by_compare)
    assert re.search(r"20 trials to run, 0 done: about \d+ min", printed)
    assert "Timers as judges of known answers" in printed
    assert "too few trials to tell" in printed


def test_the_record_is_small_and_complete_json(smoke):
    path, _ = smoke
    data = json.loads(path.read_text())
    assert data["schema_version"] == quality.SCHEMA_VERSION
    assert data["environment"]["date"]
    assert data["settings"]["threads"] == 1
    settings = benchmark.Settings()
    answers = sum(1 + 2 * (cell.index < settings.timer_trials) for cell in settings.cells())
    assert path.stat().st_size / len(data["trials"]) * answers < 1e6


def test_a_second_run_of_a_finished_one_measures_nothing(smoke):
    path, printed = smoke
    before = path.read_bytes()
    again = subprocess.run(
        [sys.executable, str(SCRIPT), "--smoke", "--functions", "tiny op", "Python loop", "--output", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == 0
    assert "to run" not in again.stdout
    assert again.stdout.strip() == printed[printed.index("Timers as") :].strip()
    assert path.read_bytes() == before


def test_other_settings_do_not_mix(smoke):
    path, _ = smoke
    with pytest.raises(RecordError, match=r"other settings.*--restart"):
        benchmark.run(benchmark.Settings(trials=3), path)
    damaged = path.with_name("damaged.json")
    damaged.write_text("{")
    assert benchmark.main([*TINY, "--output", str(damaged)]) == 1
    assert damaged.read_text() == "{"


def test_it_goes_on_after_a_kill(tmp_path):
    path = tmp_path / "timer_quality.json"
    arguments = [*TINY, "--trials", "8", "--output", str(path)]
    first = start(*arguments)
    try:
        wait_for(lambda: len(rows_in(path)) >= 4)
        if os.name == "posix":
            # In the loaded condition a busy process runs beside it; it must not outlive the benchmark.
            wait_for(lambda: psutil.Process(first.pid).children())
        burners = psutil.Process(first.pid).children()
    finally:
        first.kill()
        first.communicate()
    kept = rows_in(path)
    assert len(kept) >= 4
    assert not quality.load(path).complete
    wait_for(lambda: not any(burner.is_running() and burner.status() != "zombie" for burner in burners))

    second = start(*arguments)
    try:
        stopped, expected = second.communicate(timeout=120)
    finally:
        second.kill()
    assert second.returncode == 0, expected
    columns = json.loads(path.read_text())["columns"]
    done = sum(dict(zip(columns, row, strict=True))["method"] == "compare" for row in kept)
    assert f"{22 - done} trials to run, {done} done" in stopped
    rows = rows_in(path)
    assert rows[: len(kept)] == kept  # nothing lost, nothing measured twice
    record = quality.load(path)
    assert record.complete
    keys = [(t.method, t.function, t.condition, t.truth, t.index) for t in record.trials]
    assert len(keys) == len(set(keys))
    assert len([t for t in record.trials if t.method == "compare"]) == 22


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C cannot be sent to one process on Windows")
def test_ctrl_c_leaves_a_record_and_says_so(tmp_path):
    path = tmp_path / "timer_quality.json"
    process = start(*TINY, "--trials", "50", "--conditions", "idle", "--output", str(path))
    try:
        wait_for(lambda: len(rows_in(path)) >= 3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "goes on from there" in errors
    assert "Traceback" not in errors
    record = quality.load(path)
    assert len(record.trials) >= 3
    assert not record.complete


def test_half_a_comparison_is_no_trial(monkeypatch):
    def interrupted(*args, **options):
        return dataclasses.replace(compare(*args, **options), interrupted=True)

    monkeypatch.setattr(benchmark, "compare", interrupted)
    workload = benchmark.workloads("cpu")["tiny op"]
    with pytest.raises(KeyboardInterrupt):
        benchmark.by_compare(workload, benchmark.Cell("tiny op", "idle", 1.0, 0), 0.05)


def test_the_load_is_real_and_ends():
    with benchmark.busy_processes(2) as processes:
        watched = [psutil.Process(process.pid) for process in processes]
        before = [sum(process.cpu_times()[:2]) for process in watched]
        # They share the cores with whatever else runs, so wait for work done rather than for time gone.
        wait_for(lambda: all(sum(p.cpu_times()[:2]) > was + 0.1 for p, was in zip(watched, before, strict=True)), 60)
    assert all(process.returncode is not None for process in processes)
    assert not any(process.is_running() for process in watched)


def test_the_load_ends_when_the_block_fails():
    processes = []
    with contextlib.suppress(ZeroDivisionError), benchmark.busy_processes(1) as started:
        processes += started
        raise ZeroDivisionError
    assert [process.poll() is not None for process in processes] == [True]


# --- the questions


def test_twins_do_exactly_the_work_that_they_claim():
    calls = []
    workload = benchmark.Workload(lambda: None, lambda: calls.append(1), "", "")
    for truth, units in ((1.03, 103), (1.05, 105), (2.0, 200)):
        baseline, case = benchmark.sides(workload, truth)
        calls.clear()
        baseline()
        assert len(calls) == 100
        calls.clear()
        case()
        assert len(calls) == units
    one, other = benchmark.sides(workload, 1.0)
    assert one is other


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


def test_every_function_runs_and_its_twins_agree():
    for workload in benchmark.workloads("cpu").values():
        for truth in (1.0, *benchmark.TWIN_UNITS):
            baseline, case = benchmark.sides(workload, truth)
            torch.testing.assert_close(baseline(), case())


def test_the_questions_are_mixed():
    settings = benchmark.Settings(trials=20, twin_trials=5, known_trials=5)
    cells = settings.cells()
    assert len(cells) == len(set(cells)) == 4 * 2 * (20 + 3 * 5)
    assert len({cell.seed for cell in cells}) == len(cells)
    half = cells[: len(cells) // 2]
    for truth in (1.0, *benchmark.TWIN_UNITS):
        share = sum(c.truth == truth for c in half) / sum(c.truth == truth for c in cells)
        assert 0.35 < share < 0.65


def test_pooling_is_the_average_of_two_timings():
    result = compare({"a": lambda: None, "b": lambda: None}, budget_s=0.05, memory=False)
    base, control, case = (
        np.array(series) for series in (result.cases[0].elapsed_s, result.control.elapsed_s, result.cases[1].elapsed_s)
    )
    assert benchmark.pooled_ratio(result) == pytest.approx(np.exp(np.median(np.log(case / ((base + control) / 2)))))


def test_do_bench_is_asked_like_the_timer(monkeypatch):
    """Triton's function needs a GPU; its place is taken by one that answers in its units and form."""
    import types

    asked = []

    def do_bench(fn, rep, quantiles):
        fn()
        asked.append((rep, quantiles))
        return [1.0, 2.0, 4.0] if len(asked) == 1 else [5.0, 6.0, 7.0]

    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.testing", types.SimpleNamespace(do_bench=do_bench))
    monkeypatch.setattr(benchmark, "device_kind", lambda: "cuda")
    methods = benchmark.two_median_methods()
    assert list(methods) == ["timer", "do_bench"]
    cell = benchmark.Cell("tiny op", "idle", 1.0, 0)
    workload = benchmark.workloads("cpu")["tiny op"]
    trial = benchmark.by_two_medians("do_bench", methods["do_bench"], workload, cell, 0.5)
    assert asked == [(250, [0.25, 0.5, 0.75])] * 2
    assert trial.ratio == 3
    assert (trial.verdict, trial.cautious) == ("SLOWER", "SLOWER")
    assert trial.quartiles_s == (0.001, 0.004, 0.005, 0.007)


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
    assert quality.two_median_verdicts(baseline, case) == (plain, cautious)


# --- the numbers


@pytest.mark.parametrize("trials", [1, 4, 25, 100, 400, 1600])
def test_bounds_are_those_of_clopper_and_pearson(trials):
    for hits in {0, 1, 2, trials // 2, trials - 1, trials} & set(range(trials + 1)):
        lower, upper = quality.rate_bounds(hits, trials)
        above = scipy.stats.binomtest(hits, trials, alternative="less").proportion_ci(0.95, "exact").high
        below = scipy.stats.binomtest(hits, trials, alternative="greater").proportion_ci(0.95, "exact").low
        assert upper == pytest.approx(above, abs=1e-9)
        assert lower == pytest.approx(below, abs=1e-9)


@pytest.mark.parametrize(("hits", "trials"), [(0, 0), (2, 1), (-1, 3)])
def test_no_rate_no_bounds(hits, trials):
    with pytest.raises(ValueError, match="not a rate"):
        quality.rate_bounds(hits, trials)


FUNCTIONS = ("matmul", "tiny op")


def made_up(counts=((1.0, 200), (1.03, 25), (1.05, 25), (2.0, 25)), methods=("compare", "timer"), seed=1):
    """A record with invented ratios: noisy where loaded, noisier for the timers that take two medians."""
    generator = random.Random(seed)
    trials = []
    for condition, spread in (("idle", 0.002), ("loaded", 0.01)):
        for function in FUNCTIONS:
            for truth, count in counts:
                for index in range(count):
                    for method in methods:
                        if method != "compare" and index >= 20:
                            continue
                        wide = spread * (1 if method == "compare" else 12)
                        ratio = truth * math.exp(generator.gauss(0, wide))
                        common = {
                            "method": method,
                            "function": function,
                            "condition": condition,
                            "truth": truth,
                            "index": index,
                            "ratio": ratio,
                            "seconds": generator.uniform(0.5, 2),
                            "rounds": 100,
                        }
                        if method == "compare":
                            ends = [ratio * math.exp(s * k * wide) for k in (2, 3) for s in (-1, 1)]
                            noise = paired.Interval(math.exp(-2 * wide), math.exp(2 * wide), 0.99)
                            verdict = paired.decide(ratio, paired.Interval(*ends[2:], 0.99), noise)
                            pooled = ratio * 0.99 if truth == 1.0 else None
                            more = dict(zip(("low", "high", "low99", "high99"), ends, strict=True))
                            more |= {"noise_low": noise.low, "noise_high": noise.high, "pooled": pooled}
                            trials.append(Trial(**common, verdict=str(verdict), **more))
                        else:
                            first, second = (0.99, 1.0, 1.02), (0.99 * ratio, ratio, 1.02 * ratio)
                            verdict, cautious = quality.two_median_verdicts(first, second)
                            quartiles = (first[0], first[2], second[0], second[2])
                            trials.append(
                                Trial(**common, verdict=str(verdict), cautious=str(cautious), quartiles_s=quartiles)
                            )
    return TimerQuality(
        environment=dataclasses.replace(environment(), date="2026-01-02", commit=None),
        settings={"conditions": ["idle", "loaded"], "functions": list(FUNCTIONS), "threads": 1, "burners": 1},
        workloads={name: {"true_ratios": {"2.00": 1.998}} for name in FUNCTIONS},
        trials=tuple(trials),
        recorded_at="2026-01-02T03:04:05+00:00",
        seconds=1000.0,
        complete=True,
    )


def test_the_summary_is_what_anyone_would_count():
    record = made_up()
    numbers = record.summary()
    rows = [dataclasses.asdict(trial) for trial in record.trials]

    def chosen(**wanted):
        return [row for row in rows if all(row[key] == value for key, value in wanted.items())]

    for label, method, key in (
        ("compare", "compare", "verdict"),
        ("Timer, 1% rule", "timer", "verdict"),
        ("Timer, quartiles apart", "timer", "cautious"),
    ):
        for condition in ("idle", "loaded"):
            seen = numbers["judges"][label][condition]
            identical = chosen(method=method, condition=condition, truth=1.0)
            wrong = [row for row in identical if row[key] in ("FASTER", "SLOWER")]
            assert (seen["identical"]["hits"], seen["identical"]["trials"]) == (len(wrong), len(identical))
            assert seen["identical"]["upper"] == pytest.approx(
                scipy.stats.binomtest(len(wrong), len(identical), alternative="less").proportion_ci(0.95, "exact").high
            )
            assert sum(one["hits"] for one in seen["identical"]["by_function"].values()) == len(wrong)
            for truth in (1.03, 1.05):
                twins = chosen(method=method, condition=condition, truth=truth)
                found = sum(row[key] == "SLOWER" for row in twins)
                assert seen["slower_twins"][f"{truth:.2f}"]["rate"] == pytest.approx(found / len(twins))
            known = chosen(method=method, condition=condition, truth=2.0)
            assert seen["known"]["bias"] == pytest.approx(np.median([row["ratio"] / 1.998 - 1 for row in known]))
            if method == "compare":
                meets = [row["low"] <= 2.02 and row["high"] >= 1.98 for row in known]
                width = [2 * (row["high"] - row["low"]) / (row["high"] + row["low"]) for row in known]
                assert seen["known"]["interval_meets"] == sum(meets)
                assert seen["known"]["width_median"] == pytest.approx(np.median(width))
                assert seen["known"]["interval_meets_and_narrow"] == sum(
                    m and w <= 0.03 for m, w in zip(meets, width, strict=True)
                )
            seconds = [row["seconds"] for row in rows if (row["method"], row["condition"]) == (method, condition)]
            assert seen["seconds"]["median"] == pytest.approx(np.median(seconds))
    for condition in ("idle", "loaded"):
        pooling = numbers["pooling"][condition]
        assert set(pooling) == {"all", *FUNCTIONS}
        both = chosen(method="compare", condition=condition, truth=1.0)
        theirs = scipy.stats.quantile_test([row["pooled"] for row in both], q=1, p=0.5).confidence_interval(0.95)
        assert pooling["all"]["pooled"]["median"] == pytest.approx(np.median([row["pooled"] for row in both]))
        assert (pooling["all"]["pooled"]["low"], pooling["all"]["pooled"]["high"]) == (theirs.low, theirs.high)
    # Made 1% low; the interval must not hide it on the idle machine.
    assert numbers["pooling"]["idle"]["all"]["pooled"]["high"] < 0.995 < numbers["pooling"]["idle"]["all"]["one"]["low"]


def test_verdicts_can_be_recomputed_from_the_record(smoke):
    """The verdict in a record follows from its own numbers, so nobody has to take it on trust."""
    path, _ = smoke
    for trial in quality.load(path).trials:
        if trial.method == "timer":
            q = trial.quartiles_s
            middle = (math.sqrt(q[0] * q[1]), trial.ratio * math.sqrt(q[0] * q[1]))
            plain, _ = quality.two_median_verdicts((q[0], middle[0], q[1]), (q[2], middle[1], q[3]))
            assert plain == trial.verdict
        elif trial.low99 is not None and trial.noise_low is not None:
            verdict = paired.decide(
                trial.ratio,
                paired.Interval(trial.low99, trial.high99, 0.99),
                paired.Interval(trial.noise_low, trial.noise_high, 0.99),
            )
            assert verdict == trial.verdict
        else:
            assert trial.verdict == "UNCLEAR"


def test_goals():
    goals = {goal["goal"]: goal["reached"] for goal in made_up().summary()["goals"]}
    assert goals["idle: at most 1 false verdict in 400 on identical code"] is True
    assert goals["idle: 1.03x twin called SLOWER in at least 90%"] is True
    assert goals["idle: a comparison takes at most 3 s"] is True
    few = {goal["goal"]: goal["reached"] for goal in made_up(counts=((1.0, 10),)).summary()["goals"]}
    assert few["idle: at most 1 false verdict in 400 on identical code"] is None
    wrong = made_up()
    first = next(t for t in wrong.trials if t.method == "compare" and t.truth == 1.0)
    spoiled = [dataclasses.replace(first, index=900 + i, verdict="FASTER", seconds=9.0) for i in range(2)]
    wrong = dataclasses.replace(wrong, trials=(*wrong.trials, *spoiled))
    goals = {goal["goal"]: goal["reached"] for goal in wrong.summary()["goals"]}
    assert goals["idle: at most 1 false verdict in 400 on identical code"] is False
    assert goals["idle: a comparison takes at most 3 s"] is False


# --- the record


def test_a_record_comes_back_as_it_was(tmp_path):
    record = made_up()
    path = tmp_path / "some-machine.json"
    write_json(path, record.to_record())
    back = quality.load(path)
    assert back.environment == record.environment
    assert len(back.trials) == len(record.trials)
    for one, other in zip(back.trials, record.trials, strict=True):
        assert (one.method, one.verdict, one.index) == (other.method, other.verdict, other.index)
        assert one.ratio == pytest.approx(other.ratio, rel=1e-5)
    assert quality.summary(path)["judges"].keys() == record.summary()["judges"].keys()
    assert quality.summary(json.loads(path.read_text())) == quality.summary(back) == quality.summary(path)
    assert back.to_record() == record.to_record()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"cannot be read"),
        ("[]", "not a record"),
        ("{}", "not a record"),
        ('{"kind": "timer_quality", "schema_version": 99}', "schema version 99.*git pull"),
        ('{"kind": "timer_quality", "schema_version": 1}', "is damaged"),
    ],
)
def test_a_record_that_cannot_be_used_says_why(tmp_path, text, words):
    path = tmp_path / "some-machine.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=words):
        quality.load(path)


def test_a_missing_record_says_how_to_make_it(tmp_path):
    with pytest.raises(RecordError, match=r"benchmarks/timer_quality\.py"):
        quality.load(tmp_path / "none.json")
    with pytest.raises(RecordError, match="no timer was judged yet"):
        quality.timer_quality(root=tmp_path)
    with pytest.raises(RecordError, match="'abacus'"):
        quality.timer_quality("abacus", root=tmp_path)


def test_the_newest_record_is_shown_and_a_gpus_first(tmp_path):
    record = made_up(counts=((1.0, 3),))

    def put(machine, kind, recorded_at):
        where = dataclasses.replace(record.environment, machine=machine, device_kind=kind)
        other = dataclasses.replace(record, environment=where, recorded_at=recorded_at)
        write_json(tmp_path / f"{machine}.json", other.to_record())

    put("old-cpu", "cpu", "2026-01-01")
    put("new-cpu", "cpu", "2026-03-01")
    assert quality.timer_quality(root=tmp_path).environment.machine == "new-cpu"
    put("gpu", "cuda", "2025-01-01")
    assert quality.timer_quality(root=tmp_path).environment.machine == "gpu"
    assert quality.timer_quality("old-cpu", root=tmp_path).environment.machine == "old-cpu"


def test_it_is_not_mistaken_for_a_lessons_record():
    from course_utils.records import store

    root = store.reference_root()
    assert root not in quality.reference_root().parents
    assert "timer_quality" not in machines(root)
    assert records_of("timer_quality", root) == []


# --- how it shows itself


class _Tables(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows = []
        self.open = []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("methods", [("compare", "timer"), ("compare", "timer", "do_bench")])
def test_it_shows_itself_as_a_table(methods):
    record = made_up(methods=methods)
    parser = _Tables()
    html = record._repr_html_()
    parser.feed(html)
    assert parser.open == []
    judges = 1 + 2 * (len(methods) - 1)
    assert set(parser.rows) == {1 + judges}
    assert "style=" not in html
    text = repr(record)
    numbers = record.summary()["judges"]["compare"]["idle"]["identical"]
    assert f"{numbers['hits']} of {numbers['trials']} (at most" in text
    assert record.environment.caption in text
    assert record._repr_html_() == html


@pytest.mark.parametrize("methods", [("compare", "timer"), ("compare", "timer", "do_bench")])
def test_the_figure_shows_every_trial_and_cuts_nothing_off(methods):
    record = made_up(methods=methods)
    figure = record.plot()
    figure.canvas.draw()
    upper = next(ax for ax in figure.axes if "truth" in ax.get_xlabel())
    low, high = upper.get_xlim()
    shown = [x for line in upper.lines if line.get_marker() not in ("None", None, "") for x in line.get_xdata()]
    identical = [t.ratio for t in record.trials if t.truth == 1.0]
    assert sorted(shown) == pytest.approx(sorted(identical))
    assert all(low <= ratio <= high for ratio in identical)
    width, height = figure.canvas.get_width_height()
    for ax in figure.axes:
        box = ax.get_tightbbox()
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= height
    assert record.environment.caption in figure.alt
    assert figure._repr_png_() == record.plot()._repr_png_()


def test_an_unfinished_record_shows_itself_too():
    record = dataclasses.replace(made_up(counts=((1.0, 2),)), complete=False)
    assert "goes on where it stopped" in repr(record)
    assert record.plot().axes


def test_the_budget_of_a_comparison_can_be_chosen(capsys) -> None:
    assert benchmark._arguments(["--budget", "0.2"]).budget == 0.2
    with pytest.raises(SystemExit):
        benchmark._arguments(["--budget", "0"])
    assert "0 is no time for a comparison" in capsys.readouterr().err
