"""How far a recording is: one display for all lessons, with an estimate of what remains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from course_utils.commands.recording import Outcome

# In a pipe or a log file there is a line at most this often.
_LINE_EVERY_S = 10.0
# A lesson that runs longer than expected is never shown as done.
_ALMOST = 0.98


class CourseProgress:
    """One bar for the whole course in a terminal; in a pipe a plain line every few seconds.

    Args:
        stream: where to write.
        expected_s: seconds that each lesson will take, by slug, in order; 0 for one that will be skipped.
        clock: seconds, from any start.
    """

    def __init__(
        self, stream: TextIO, expected_s: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._expected_s = dict(expected_s)
        self._clock = clock
        self._started = self._lesson_started = self._line_at = clock()
        self._lesson = ""
        self._where = "starting"
        self._cells_done, self._cells = 0, 0
        self._done: dict[str, float] = {}
        self._bar: Any = None
        if stream.isatty():
            self._bar = self._new_bar()
            self._draw()

    def _new_bar(self) -> Any:
        from tqdm import tqdm

        class Bar(tqdm):
            monitor_interval = 0  # no watcher thread beside a measurement

        return Bar(
            total=sum(self._expected_s.values()) or 1.0,
            file=self._stream,
            leave=False,
            dynamic_ncols=True,
            mininterval=0,
            bar_format="{bar:20} {desc}",
        )

    @property
    def remaining_s(self) -> float:
        """Seconds that are left, judged from earlier recordings and from the pace of this one."""
        left = sum(seconds for lesson, seconds in self._expected_s.items() if lesson not in self._done)
        if self._is_overdue() and self._cells_done:
            # Its earlier record says nothing any more: the cells that are left do.
            others = left - self._expected_s[self._lesson]
            return others * self._pace() + self._elapsed_s() * (self._cells - self._cells_done) / self._cells_done
        return max(left - self._position_s(), 0.0) * self._pace()

    def _elapsed_s(self) -> float:
        """Since the end of the lesson before."""
        return self._clock() - self._lesson_started

    def _is_overdue(self) -> bool:
        """Whether the lesson that runs now takes longer than expected."""
        if not self._lesson or self._lesson in self._done:
            return False
        return self._elapsed_s() / self._pace() > self._expected_s.get(self._lesson, 0.0)

    def _pace(self) -> float:
        """How much longer lessons take now than they were expected to."""
        timed = {lesson: seconds for lesson, seconds in self._done.items() if seconds > 0}
        expected = sum(self._expected_s[lesson] for lesson in timed)
        return sum(timed.values()) / expected if expected else 1.0

    def _position_s(self) -> float:
        """How much of its expected time the lesson that runs now has behind it."""
        if not self._lesson or self._lesson in self._done:
            return 0.0
        elapsed = self._elapsed_s() / self._pace()
        return min(elapsed, _ALMOST * self._expected_s.get(self._lesson, 0.0))

    def __call__(self, lesson: str, cell: int, cells: int, done: bool) -> None:
        """What runs now; see :func:`course_utils.commands.recording.record_lessons`."""
        now = self._clock()
        self._lesson = lesson
        self._where = f"{lesson}, cell {cell} of {cells}"
        self._cells_done, self._cells = cell if done else cell - 1, cells
        if self._bar is not None:
            self._draw()
        elif now - self._line_at >= _LINE_EVERY_S:
            self._line_at = now
            print(f"{self._place()}, {self._times()} · {self._where}", file=self._stream, flush=True)

    def _place(self) -> str:
        return f"{min(len(self._done) + 1, len(self._expected_s))} of {len(self._expected_s)}"

    def _times(self) -> str:
        late = ", longer than expected" if self._is_overdue() else ""
        return f"{clock_text(self._clock() - self._started)}, about {clock_text(self.remaining_s)} left{late}"

    def _draw(self) -> None:
        finished = sum(self._expected_s[lesson] for lesson in self._done)
        self._bar.n = min(finished + self._position_s(), self._bar.total)
        # A narrow terminal cuts the end off.
        self._bar.set_description_str(f"{self._place()}, {self._times()} · {self._where}", refresh=True)

    def finish(self, outcome: Outcome) -> None:
        """Say what became of a lesson, in a line that stays.

        Args:
            outcome: the lesson's.
        """
        self._done[outcome.lesson] = outcome.seconds if outcome.state == "recorded" else 0.0
        # The next one begins with the start of its kernel, before its first cell.
        self._lesson, self._lesson_started, self._where = "", self._clock(), "starting"
        self._cells_done = 0
        line = f"{outcome.lesson}: {outcome.state}"
        if outcome.state == "skipped":
            line += f" ({outcome.message})"
        elif outcome.seconds:
            line += f" in {outcome.seconds:.0f} s" if outcome.state == "recorded" else f" after {outcome.seconds:.0f} s"
        self.say(line)

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.clear()
        print(line, file=self._stream, flush=True)
        if self._bar is not None:
            self._draw()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def clock_text(seconds: float) -> str:
    """A time as on a stopwatch.

    Args:
        seconds: the time.

    Returns:
        Minutes and seconds, with hours where there are any.

    Example:
        >>> clock_text(7.4), clock_text(399.6), clock_text(3725)
        ('0:07', '6:40', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
