"""One display for a whole recording: a bar in a terminal, lines elsewhere, and an estimate that follows the pace."""

from __future__ import annotations

import io

import pytest

from course_utils.commands.recording import Outcome
from course_utils.commands.recording_progress import CourseProgress

EXPECTED = {"alpha": 20.0, "beta": 40.0, "gamma": 60.0}


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def recorded(lesson: str, seconds: float) -> Outcome:
    return Outcome(lesson, "recorded", seconds, 3)


def test_what_remains_follows_from_earlier_records_and_from_the_pace(clock):
    progress = CourseProgress(io.StringIO(), EXPECTED, clock)
    assert progress.remaining_s == 120
    progress("alpha", 1, 9, False)
    clock.now = 5
    assert progress.remaining_s == 115
    clock.now = 10
    progress.finish(recorded("alpha", 10.0))
    # Twice as quick as expected: so will the others be.
    assert progress.remaining_s == 50
    progress("beta", 1, 9, False)
    clock.now = 20
    assert progress.remaining_s == 40
    # Much longer than expected: it is never done before it is, and what follows stays.
    clock.now = 1000
    assert 30 < progress.remaining_s < 31


def test_skipped_and_failed_lessons_say_nothing_about_the_pace(clock):
    progress = CourseProgress(io.StringIO(), EXPECTED | {"alpha": 0.0}, clock)
    progress.finish(Outcome("alpha", "skipped", 12.0, 3, message="already recorded"))
    progress.finish(Outcome("beta", "failed", 1.0))
    assert progress.remaining_s == 60
    progress.finish(recorded("gamma", 60.0))
    assert progress.remaining_s == 0


def test_a_pipe_gets_a_line_every_few_seconds_and_one_for_each_lesson(clock):
    stream = io.StringIO()
    progress = CourseProgress(stream, EXPECTED, clock)
    for second in range(25):
        clock.now = float(second)
        progress("alpha", 1 + second // 3, 9, False)
    progress.finish(recorded("alpha", 24.0))
    progress.finish(Outcome("beta", "failed", 2.0))
    progress.close()
    assert stream.getvalue().splitlines() == [
        "1 of 3, 0:10, about 1:50 left · alpha, cell 4 of 9",
        "1 of 3, 0:20, about 1:40 left · alpha, cell 7 of 9",
        "alpha: recorded in 24 s",
        "beta: failed after 2 s",
    ]


def test_a_lesson_past_its_time_is_judged_by_the_cells_that_are_left(clock):
    stream = io.StringIO()
    progress = CourseProgress(stream, {"alpha": 20.0, "beta": 40.0}, clock)
    for clock.now, cell in ((19.0, 3), (40.0, 5), (100.0, 5), (110.0, 8)):
        progress("alpha", cell, 9, False)
    progress("alpha", 9, 9, True)
    assert progress.remaining_s == 40
    assert stream.getvalue().splitlines() == [
        "1 of 2, 0:19, about 0:41 left · alpha, cell 3 of 9",
        "1 of 2, 0:40, about 1:30 left, longer than expected · alpha, cell 5 of 9",
        "1 of 2, 1:40, about 2:45 left, longer than expected · alpha, cell 5 of 9",
        "1 of 2, 1:50, about 1:11 left, longer than expected · alpha, cell 8 of 9",
    ]
    progress.finish(recorded("alpha", 110.0))
    assert "longer" not in progress._times()


def test_a_terminal_gets_one_bar_that_goes_away(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    progress = CourseProgress(stream, EXPECTED, clock)
    progress("alpha", 1, 9, False)
    clock.now = 12
    progress("alpha", 4, 9, False)
    last = stream.getvalue().split("\r")[-1]
    assert last.endswith(" 1 of 3, 0:12, about 1:48 left · alpha, cell 4 of 9")
    progress.finish(recorded("alpha", 20.0))
    assert "alpha: recorded in 20 s\n" in stream.getvalue()
    progress.close()
    progress.close()
    # Nothing but blanks is left of the bar.
    assert not stream.getvalue().split("\r")[-2].strip()


def test_nothing_to_record_needs_no_bar_of_length_zero(clock):
    progress = CourseProgress(Terminal(), {"alpha": 0.0}, clock)
    progress.finish(Outcome("alpha", "skipped", 12.0, 3, message="already recorded"))
    assert progress.remaining_s == 0
    progress.close()
