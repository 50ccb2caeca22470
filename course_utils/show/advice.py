"""One entry of a plan: what to change, what speaks for it, what it saves, and the lesson that shows how."""

from __future__ import annotations

from dataclasses import dataclass

from course_utils import lesson_order


@dataclass(frozen=True)
class Advice:
    """What to change in a program, and why.

    Attributes:
        change: what to do, as a short order without a full stop: ``compile the model``.
        because: what was seen that speaks for it, with its numbers: one or two sentences.
        lesson: the lesson that shows how: ``torch_compile``.
        saves: the share that it saves, from 0 to 1; None where no number can be given honestly.
        known: how the share is known: ``at most`` (no more can be gained), ``about`` (worked out), ``tried`` (the
            change was made, and this came out) or ``simulated``.
        of: what the share is of, such as ``a step`` or ``the peak``.
        low: the lower end of the saving's interval, where it was tried with one.
        high: its upper end.

    Example:
        >>> Advice("compile the model", "The GPU waited for launches.", "torch_compile", 0.061, of="a step").saving
        'at most 6.1% of a step'
    """

    change: str
    because: str
    lesson: str
    saves: float | None = None
    known: str = "at most"
    of: str = "a step"
    low: float | None = None
    high: float | None = None

    @property
    def saving(self) -> str:
        """What it saves, in words; empty where no number is known."""
        if self.saves is None:
            return ""
        interval = "" if self.low is None else f" ({_percent(self.low)} to {_percent(self.high)})"
        comma = "," if self.known in ("tried", "simulated") else ""
        return f"{self.known}{comma} {_percent(self.saves)} of {self.of}{interval}"

    @property
    def notebook(self) -> str:
        """The lesson's notebook, without its ending: its number in the course and its slug."""
        return lesson_order.file_name(self.lesson)

    @property
    def lesson_number(self) -> str:
        """The lesson's number, as the course counts."""
        return f"{lesson_order.number(self.lesson):02d}"


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):.15g}%"
