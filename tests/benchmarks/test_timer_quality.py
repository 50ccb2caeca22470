"""The trial of the timers: it runs, goes on where it was stopped, and its numbers are those that others compute."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from benchmarks import timer_quality as benchmark
from course_utils.lessons.measuring import timer_trial
from tests.figure_checks import problems_of_texts
from tests.sandbox import wait_for


def is_at_work(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != "zombie"


def test_it_answers_every_question_and_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    monkeypatch.setattr(benchmark, "FUNCTIONS", ("tiny op", "matmul"))
    monkeypatch.setattr(benchmark, "CONDITIONS", {"one busy program": (1, 0)})
    path, asked = tmp_path / "timer_quality.json", []

    def stopped_at_the_fourth(question: benchmark.Question, budget_s: float) -> timer_trial.Trial:
        asked.append(question)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return by_compare(question, budget_s)

    by_compare = benchmark.by_compare
    monkeypatch.setattr(benchmark, "by_compare", stopped_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        benchmark.run(path, trials=2, budget_s=0.05)
    kept = timer_trial.load(path)
    assert not kept.complete
    record = benchmark.run(path, trials=2, budget_s=0.05)
    assert record.complete
    assert record.trials[: len(kept.trials)] == kept.trials, "nothing lost, nothing measured twice"
    compared = [benchmark.Question(*trial[1:5]) for trial in record.trials if trial.method == "compare"]
    assert compared == benchmark.questions(2)
    assert {trial.method for trial in record.trials} == {"compare", "timer"}
    assert all(trial.ratio > 0 for trial in record.trials)


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


def test_the_questions_are_mixed_and_twins_do_the_work_that_they_claim(monkeypatch: pytest.MonkeyPatch):
    questions = benchmark.questions(20)
    assert len(questions) == len(set(questions)) == 4 * 3 * (20 + 4 + 4 + 2)
    half = questions[: len(questions) // 2]
    for truth in (1.0, *benchmark.TWIN_UNITS):
        share = sum(each.truth == truth for each in half) / sum(each.truth == truth for each in questions)
        assert 0.35 < share < 0.65
    units = []
    monkeypatch.setattr(benchmark, "_repeated", lambda unit, count: units.append(count))
    for truth, expected in benchmark.TWIN_UNITS.items():
        benchmark.sides("tiny op", truth)
        assert units[-2:] == [100, expected]
    one, other = benchmark.sides("matmul", 1.0)
    assert one is other


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


def test_the_committed_trial_reaches_what_the_course_promises():
    record = timer_trial.timer_quality()
    assert record.complete
    least = {"idle": (0.95, 0.95), "one busy program": (0.90, 0.70), "crowded": (0.90, 0.70)}
    assert tuple(least) == record.conditions
    for condition, (found, same) in least.items():
        false = record.false_verdicts("compare", condition)
        assert false.trials >= 400
        assert false.hits <= 1
        for rate, wanted in (
            (record.detection("compare", condition, 1.03), found),
            (record.rate("compare", condition, 1.0, ["SAME"]), same),
        ):
            assert rate.hits >= wanted * rate.trials > 0
    twice = [each for each in record.trials if each[:3:2] == ("compare", "idle") and each.truth == 2.0]
    assert len(twice) >= 40
    assert all(1.98 <= trial.ratio <= 2.02 and trial.high <= 1.03 * trial.low for trial in twice)
    assert all(trial.seconds <= 1 for trial in twice)


def test_the_figure_shows_every_trial_and_cuts_nothing_off():
    record = timer_trial.timer_quality()
    figure = record.plot()
    upper = next(ax for ax in figure.axes if "truth" in ax.get_xlabel())
    low, high = upper.get_xlim()
    shown = [x for line in upper.lines if line.get_marker() not in ("None", None, "") for x in line.get_xdata()]
    identical = [trial.ratio for trial in record.trials if trial.truth == 1.0]
    assert sorted(shown) == pytest.approx(sorted(1 / ratio for ratio in identical))
    assert all(low <= speed <= high for speed in shown)
    assert problems_of_texts(figure) == []
    assert record.environment.caption in figure.alt
