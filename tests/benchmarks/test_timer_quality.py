"""The trial of the timers: it runs, goes on where it was stopped, and its numbers are those that others compute."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from benchmarks import timer_quality as benchmark
from tests.sandbox import wait_for


def is_at_work(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != "zombie"


def test_it_answers_every_question_and_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    monkeypatch.setattr(benchmark, "FUNCTIONS", ("tiny op", "matmul"))
    monkeypatch.setattr(benchmark, "CONDITIONS", {"one busy program": (1, 0)})
    path, asked = tmp_path / "timer_quality.json", []

    def stopped_at_the_fourth(question: benchmark.Question, budget_s: float) -> benchmark.Trial:
        asked.append(question)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return by_compare(question, budget_s)

    by_compare = benchmark.by_compare
    monkeypatch.setattr(benchmark, "by_compare", stopped_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        benchmark.run(path, trials=2, budget_s=0.05)
    kept = benchmark.load(path)
    benchmark.run(path, trials=2, budget_s=0.05)
    trials = benchmark.load(path)
    assert trials[: len(kept)] == kept, "nothing lost, nothing measured twice"
    compared = [benchmark.Question(*trial[1:5]) for trial in trials if trial.method == "compare"]
    assert compared == benchmark.questions(2)
    assert {trial.method for trial in trials} == {"compare", "timer"}
    assert all(trial.ratio > 0 for trial in trials)


def test_the_load_is_real_and_ends_when_the_block_fails():
    others = psutil.Process().children(recursive=True)  # other tests' loaders keep their workers for a while
    with contextlib.suppress(ZeroDivisionError), benchmark.busy_programs(1, 1) as pids:
        watched = [psutil.Process(pid) for pid in pids]
        assert set(psutil.Process().children(recursive=True)) <= {*others}
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


RECORD = benchmark.RESULTS.parent / "records/timer_quality/amd-epyc-2-cores-24gib-51f9.json"
CONDITIONS = tuple(benchmark.CONDITIONS)


def share(method: str, condition: str, truth: float, verdicts: set[str], rule: str = "verdict") -> tuple[int, int]:
    """How many of the recorded trials ended in one of the verdicts, and how many there are."""
    asked = method, condition, truth
    trials = [each for each in benchmark.load(RECORD) if (each.method, each.condition, each.truth) == asked]
    return sum(getattr(each, rule) in verdicts for each in trials), len(trials)


def test_the_committed_trial_reaches_what_the_course_promises():
    least = dict(zip(CONDITIONS, ((0.95, 0.95), (0.90, 0.70), (0.90, 0.70)), strict=True))
    for condition, (found, same) in least.items():
        wrong, trials = share("compare", condition, 1.0, {"FASTER", "SLOWER"})
        assert trials >= 400
        assert wrong <= 1
        for truth, verdict, wanted in ((1.03, "SLOWER", found), (1.0, "SAME", same)):
            hits, trials = share("compare", condition, truth, {verdict})
            assert hits >= wanted * trials > 0
    twice = [each for each in benchmark.load(RECORD) if each[:3:2] == ("compare", "idle") and each.truth == 2.0]
    assert len(twice) >= 40
    assert all(1.98 <= trial.ratio <= 2.02 and trial.high <= 1.03 * trial.low for trial in twice)
    assert all(trial.seconds <= 1 for trial in twice)


def test_the_books_table_is_the_records():
    judges = {
        "`compare`": ("compare", "verdict"),
        "`Timer`": ("timer", "verdict"),
        "`Timer`, carefully": ("timer", "cautious"),
    }
    asked = {"wrong about the same code": (1.0, {"FASTER", "SLOWER"}), "finds 3% more work": (1.03, {"SLOWER"})}
    page = (benchmark.RESULTS.parents[1] / "book/how_we_measure.md").read_text(encoding="utf-8")
    for words, (truth, verdicts) in asked.items():
        for judge, (method, rule) in judges.items():
            counts = [share(method, condition, truth, verdicts, rule) for condition in CONDITIONS]
            row = " | ".join([f"{judge}, {words}", *(f"{hits} of {trials}" for hits, trials in counts)])
            assert f"| {row} |" in page, row
