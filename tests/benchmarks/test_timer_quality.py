"""The benchmark of timers: it runs, goes on after a kill, and its numbers are those that others compute."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import timer_quality as benchmark
from course_utils.lessons.measuring import timer_trial
from course_utils.lessons.measuring.timer_trial import TimerQuality, Trial
from course_utils.measure.machine import environment
from course_utils.records.store import RecordError, write_json
from tests.figure_checks import problems_of_texts
from tests.sandbox import wait_for

SCRIPT = Path(benchmark.__file__)
TINY = ("--trials", "8", "--budget", "0.05", "--functions", "tiny op", "--conditions", "one busy program")
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


def is_at_work(process):
    return process.is_running() and process.status() != "zombie"


def busy_beside(pid):
    """The busy programs of one benchmark: nobody's children, with its id in their command."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (words := process.info["cmdline"] or [])[-1:] == ["busy"] and str(pid) in words
    ]


# The program, really run


def test_it_answers_every_question_and_goes_on_after_a_kill(tmp_path):
    path = tmp_path / "timer_quality.json"
    arguments = (*TINY, "--output", str(path))
    first = start(*arguments)
    try:
        wait_for(lambda: len(rows_in(path)) >= 3, "the first trials")
        # A busy program runs beside it, which must not outlive the benchmark.
        wait_for(lambda: busy_beside(first.pid), "a busy program")
        busy = busy_beside(first.pid)
    finally:
        first.kill()
        first.communicate()
    kept = rows_in(path)
    assert not timer_trial.load(path).complete
    wait_for(lambda: not any(map(is_at_work, busy)), "its end")

    second = start(*arguments)
    printed, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    planned = 8 + 3  # 8 trials on identical code and 1 on each of 3 twins
    done = sum(row[0] == "compare" for row in kept)
    assert f"{planned - done} trials to run, {done} done." in printed
    assert "compare, one busy program: false verdicts" in printed
    assert rows_in(path)[: len(kept)] == kept  # nothing lost, nothing measured twice
    record = timer_trial.load(path)
    assert record.complete
    by_compare = [trial for trial in record.trials if trial.method == "compare"]
    keys = {(trial.function, trial.condition, trial.truth, trial.index) for trial in by_compare}
    assert len(keys) == len(by_compare) == planned
    assert {trial.method for trial in record.trials} == {"compare", "timer"}
    assert all(trial.ratio > 0 for trial in record.trials)

    # Other settings do not mix with it.
    before = path.read_bytes()
    assert benchmark.main(("--trials", "3", *arguments[2:])) == 1
    assert path.read_bytes() == before


# The questions


def test_the_load_is_real_and_ends_when_the_block_fails():
    with contextlib.suppress(ZeroDivisionError), benchmark.busy_programs(1, 1) as pids:
        watched = [psutil.Process(pid) for pid in pids]
        assert psutil.Process().children(recursive=True) == []
        before = [sum(process.cpu_times()[:2]) for process in watched]

        def all_worked():
            return all(sum(p.cpu_times()[:2]) > was + 0.1 for p, was in zip(watched, before, strict=True))

        # They share the cores with whatever else runs, so wait for work done rather than for time gone.
        wait_for(all_worked, "work", 60)
        raise ZeroDivisionError
    wait_for(lambda: not any(map(is_at_work, watched)), "their end")


def test_twins_do_exactly_the_work_that_they_claim():
    calls = []
    workload = benchmark.Workload(lambda: None, lambda: calls.append(1))
    for truth, units in benchmark.TWIN_UNITS.items():
        for call, expected in zip(workload.sides(truth), (100, units), strict=True):
            calls.clear()
            call()
            assert len(calls) == expected
    one, other = workload.sides(1.0)
    assert one is other


def test_the_questions_are_mixed():
    settings = {"trials": 20, "twin_trials": 5, "known_trials": 5}
    questions = benchmark.questions(settings | {"functions": FUNCTIONS, "conditions": benchmark.CONDITIONS})
    assert len(questions) == len(set(questions)) == 3 * 2 * (20 + 3 * 5)
    assert len({question.seed for question in questions}) == len(questions)
    half = questions[: len(questions) // 2]
    for truth in (1.0, *benchmark.TWIN_UNITS):
        share = sum(q.truth == truth for q in half) / sum(q.truth == truth for q in questions)
        assert 0.35 < share < 0.65


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


def made_up(**changes):
    """A record with invented ratios: noisy where loaded, noisier for the Timer."""
    generator = random.Random(1)
    trials = []
    for condition, spread in (("idle", 0.002), ("loaded", 0.01)):
        for truth, count in ((1.0, 40), (1.03, 12), (1.05, 12), (2.0, 12)):
            for function, index, method in itertools.product(FUNCTIONS, range(count), ("compare", "timer")):
                ratio = truth * math.exp(generator.gauss(0, spread * (1 if method == "compare" else 12)))
                verdict = "SAME" if abs(ratio - 1) < 0.01 else "SLOWER" if ratio > 1 else "FASTER"
                cautious = "UNCLEAR" if index % 3 else verdict
                trials.append(Trial(method, function, condition, truth, index, ratio, verdict, cautious))
    record = TimerQuality(
        environment=dataclasses.replace(environment(), date="2026-01-02", commit=None),
        settings={"conditions": ["idle", "loaded"]},
        trials=tuple(trials),
        recorded_at="2026-01-02T03:04:05+00:00",
        complete=True,
    )
    return dataclasses.replace(record, **changes)


def test_the_numbers_are_what_anyone_would_count():
    record = made_up()
    for judge, method, key in (("compare", "compare", "verdict"), ("Timer, quartiles apart", "timer", "cautious")):
        for condition in ("idle", "loaded"):
            place = [t for t in record.trials if (t.method, t.condition) == (method, condition)]
            identical = [getattr(t, key) for t in place if t.truth == 1.0]
            wrong = sum(verdict in ("FASTER", "SLOWER") for verdict in identical)
            assert f"{judge}, {condition}: false verdicts {wrong} of {len(identical)} (at most" in repr(record)
            twins = [getattr(t, key) for t in place if t.truth == 1.03]
            assert record.detection(judge, condition, 1.03) == (twins.count("SLOWER"), len(twins))


def put(folder, record, machine, **place):
    """Write a record as the benchmark does, with a column that only other versions know."""
    where = dataclasses.replace(record.environment, machine=machine, **place)
    data = {
        **vars(record),
        "kind": "timer_quality",
        "schema_version": 1,
        "environment": where.to_record(),
        "columns": [*(field.name for field in dataclasses.fields(Trial)), "unknown"],
        "trials": [[*dataclasses.astuple(trial), 1] for trial in record.trials],
    }
    write_json(folder / f"{machine}.json", data)


def test_the_newest_record_is_shown_and_a_gpus_first(tmp_path, monkeypatch):
    monkeypatch.setattr(timer_trial, "reference_root", lambda: tmp_path)
    with pytest.raises(RecordError, match=r"benchmarks/timer_quality\.py --reference"):
        timer_trial.timer_quality()
    put(tmp_path, made_up(recorded_at="2026-01-01"), "old-cpu")
    put(tmp_path, made_up(recorded_at="2026-03-01"), "new-cpu")
    newest = timer_trial.timer_quality()
    assert newest.environment.machine == "new-cpu"
    assert newest.trials == made_up().trials
    put(tmp_path, made_up(recorded_at="2025-01-01"), "gpu", device_kind="cuda")
    assert timer_trial.timer_quality().environment.machine == "gpu"


def test_the_committed_trial_reaches_what_the_course_promises():
    record = timer_trial.timer_quality()
    assert record.complete
    least = {"idle": (0.95, 0.95), "one busy program": (0.90, 0.70), "crowded": (0.90, 0.70)}
    assert list(least) == record.conditions
    for condition, (found, same) in least.items():
        false = record.false_verdicts("compare", condition)
        assert false.trials >= 400
        assert false.hits <= 1
        for rate, wanted in (
            (record.detection("compare", condition, 1.03), found),
            (record.called_same("compare", condition), same),
        ):
            assert rate.hits >= wanted * rate.trials > 0
    twice = record.of_compare("idle", 2.0)
    assert len(twice) >= 40
    assert all(1.98 <= trial.ratio <= 2.02 and trial.high <= 1.03 * trial.low for trial in twice)
    assert all(trial.seconds <= 1 for trial in twice)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"cannot be read .*restore the file from git"),
        ('{"kind": "timer_quality", "schema_version": 99}', "schema version 99.*git pull"),
    ],
)
def test_a_record_that_cannot_be_used_says_why(tmp_path, text, words):
    path = tmp_path / "some-machine.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=words):
        timer_trial.load(path)


def test_the_figure_shows_every_trial_and_cuts_nothing_off():
    record = made_up()
    figure = record.plot()
    upper = next(ax for ax in figure.axes if "truth" in ax.get_xlabel())
    low, high = upper.get_xlim()
    shown = [x for line in upper.lines if line.get_marker() not in ("None", None, "") for x in line.get_xdata()]
    identical = [trial.ratio for trial in record.trials if trial.truth == 1.0]
    assert sorted(shown) == pytest.approx(sorted(1 / ratio for ratio in identical))
    assert all(low <= speed <= high for speed in shown)
    assert problems_of_texts(figure) == []
    assert record.environment.caption in figure.alt
    assert record.plot()._repr_png_() == record.plot()._repr_png_()
