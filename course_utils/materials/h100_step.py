"""Steps of a real training on eight H100s, before and after its gradients were sent during the backward pass.

Others measured this (see ``source`` in ``h100_step.json``). The numbers are worked out from the two profiler traces
that they published. A device event belongs to the step that launched it (its correlation id says which), whenever it
ran: the device lags behind. A step lasts until the next one's first device event; the last, until its own end. Totals
are worked out from all events; in the lanes, neighbours closer than ``merged_below_us`` are one.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.show.canvas import ResultFigure
from course_utils.show.colours import BLUE, GREEN, ORANGE
from course_utils.show.lanes import Span, lanes_figure

PATH = Path(__file__).with_suffix(".json")
_COLOURS = {"computes or copies": BLUE, "NCCL, hidden": GREEN, "NCCL, exposed": ORANGE}
Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Step:
    """What rank 0 did in one step, in seconds from the step's first device event.

    Attributes:
        number: odd steps run both optimizers, even ones only one: never average over both kinds.
        span_s: until the next step's first device event.
        busy_s: in which anything ran.
        compute_s: in which the stream that computes and copies did so.
        nccl_s: in which the stream of the communication ran. A kernel of NCCL also waits for the other ranks there.
        overlapped_s: the part of ``nccl_s`` in which something computed or copied.
        exposed_s: the rest of it.
        backward_ends_s: the end of the last computation that was launched before an optimizer's step.
        compute: when it computed. Here and below, gaps of a few microseconds are closed; in the totals they are not.
        hidden: when it communicated and something computed or copied.
        exposed: when it only communicated.
    """

    number: int
    span_s: float
    busy_s: float
    compute_s: float
    nccl_s: float
    overlapped_s: float
    exposed_s: float
    backward_ends_s: float
    compute: Spans
    hidden: Spans
    exposed: Spans

    def lanes(self, lead_s: float) -> dict[str, list[Span]]:
        """Its spans, in seconds since the end of its backward pass, from ``lead_s`` before that."""
        zero = self.backward_ends_s
        return {
            what: [Span(max(-lead_s, a - zero), b - zero, what) for a, b in spans if b - zero > -lead_s]
            for what, spans in zip(_COLOURS, (self.compute, self.hidden, self.exposed), strict=True)
        }


@dataclass(frozen=True)
class H100Steps:
    """The same steps of two versions of a program: ``print`` shows the numbers, a notebook the lanes.

    Attributes:
        before: gradients are sent in the optimizer's ``step()``.
        after: they are sent in backward hooks, as soon as each is there.
        source: whose the traces are, and where and when they were made.
        runs: times of whole runs of an earlier version of the program, with and without the same change.
        closed_below_s: gaps in the lanes that are shorter than that are closed.

    Example:
        >>> [step.number for step in h100_steps().before]
        [10, 11, 12, 13]
    """

    before: tuple[Step, ...]
    after: tuple[Step, ...]
    source: Mapping[str, Any]
    runs: Mapping[str, Any]
    closed_below_s: float

    def changes_s(self, what: str) -> dict[int, float]:
        """By how much a total (``overlapped_s``, say) changed, by the number of the step."""
        return {old.number: getattr(new, what) - getattr(old, what) for (_, old), (_, new) in self._pairs()}

    def saved_in_runs_s(self) -> tuple[float, float, float]:
        """Seconds that whole runs saved in a step: the difference of the means, and its 95% interval (Welch's)."""
        from scipy.stats import ttest_ind

        runs, steps = self.runs, self.runs["steps"]
        test = ttest_ind(runs["before_s"], runs["after_s"], equal_var=False)
        difference = statistics.fmean(runs["before_s"]) - statistics.fmean(runs["after_s"])
        return tuple(seconds / steps for seconds in (difference, *test.confidence_interval(0.95)))

    @property
    def reading(self) -> str:
        """What these steps can confirm, and what they cannot."""
        odd, even = self._hidden_more_s()
        exposed, span = (list(self.changes_s(what).values()) for what in ("exposed_s", "span_s"))
        mean, low, high = self.saved_in_runs_s()
        n = [len(self.runs[f"{when}_s"]) for when in ("before", "after")]
        text = (
            f"More is hidden in both odd steps ({_list(odd)} ms). Even steps, which the change leaves alone, are the "
            f"control ({_list(even)} ms). Exposed time changes by {_ms(statistics.fmean(exposed), '+')} ms a step, but "
            f"by {_ms(min(exposed), '+')} to {_ms(max(exposed), '+')} ms in single ones: NCCL also waits for the other "
            f"ranks, and this is rank 0 alone. Whole runs saved {_ms(mean)} ms a step ({_ms(low)} to {_ms(high)}, 95%; "
            f"n = {n[0]} and {n[1]}; an earlier version, another day). So {len(exposed)} steps confirm the mechanism "
            "and the order of magnitude, no more. The change of the steps' spans, "
            f"{_ms(statistics.fmean(span), '+')} ms, overstates it."
        )
        return "\n".join(textwrap.wrap(text, 72))

    def plot(self) -> ResultFigure:
        """Draw the end of each odd step, before and after, from shortly before its backward pass was done."""
        rows = [(when, step) for pair in self._pairs() for when, step in pair if step.number % 2]
        odd, even = self._hidden_more_s()
        lead_s = 1.25 * max(step.backward_ends_s - min(step.hidden[0][0], step.exposed[0][0]) for _, step in rows)
        left_out_s = min(step.backward_ends_s for _, step in rows) - lead_s
        panels = {
            f"step {step.number} {when}: {_ms(step.overlapped_s)} ms hidden, {_ms(step.exposed_s)} ms exposed": step
            for when, step in rows
        }
        return lanes_figure(
            f"Sent during the backward pass, {_ms(statistics.fmean(odd))} ms more communication is hidden",
            {title: step.lanes(lead_s) for title, step in panels.items()},
            _COLOURS,
            f"Lanes of rank 0 at the end of a step: computation above, communication below. {'; '.join(panels)}. "
            "Before the change communication begins when the backward pass is done; after it, the first of it begins "
            f"earlier and lies beside the end of the backward pass. {self._caption}",
            "At 0 the backward pass is done. Only after the change is anything sent before that.",
            f"The control, even steps, which the change leaves alone: {_list(even)} ms.",
            "Exposed time varies in either direction: NCCL also waits for the other ranks.",
            f"Not drawn: the first {_ms(left_out_s, digits=0)} ms, and gaps under {1e6 * self.closed_below_s:.0f} µs.",
            self._caption,
        )

    def _pairs(self) -> Iterator[tuple[tuple[str, Step], tuple[str, Step]]]:
        return ((("before", old), ("after", new)) for old, new in zip(self.before, self.after, strict=True))

    def _hidden_more_s(self) -> tuple[list[float], list[float]]:
        """By how much more is hidden in odd and in even steps."""
        changes = self.changes_s("overlapped_s")
        return tuple([change for number, change in changes.items() if number % 2 == kind] for kind in (1, 0))

    @property
    def _caption(self) -> str:
        of = self.source
        return f"Published: {of['repository']}, {of['hardware']}, {of['measured']}."

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.plot()._repr_mimebundle_(include, exclude)

    def __repr__(self) -> str:
        columns = ("span", "busy", "compute", "nccl", "overlapped", "exposed")
        lines = ["milliseconds".ljust(15) + "".join(f"{name:>12}" for name in columns)]
        for when, step in itertools.chain(*self._pairs()):
            cells = "".join(f"{_ms(getattr(step, f'{name}_s')):>12}" for name in columns)
            lines.append(f"step {step.number} {when}".ljust(15) + cells)
        return "\n".join([*lines, "", self.reading, self._caption])


@functools.cache
def h100_steps(path: Path = PATH) -> H100Steps:
    """The stored steps.

    Raises:
        ValueError: if the file is damaged, or another one.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        steps = [tuple(_step(of) for of in stored[when]) for when in ("before", "after")]
        if [step.number for step in steps[0]] != [step.number for step in steps[1]]:
            raise ValueError("it does not have the same steps before and after")
        return H100Steps(*steps, stored["source"], stored["runs"], stored["merged_below_us"] / 1e6)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} does not hold the lanes of steps: {error!r}") from error


def _step(of: Mapping[str, Any]) -> Step:
    totals = {f"{name}_s": length / 1e6 for name, length in of["totals_us"].items()}
    lanes = {
        lane: tuple((start / 1e6, end / 1e6) for start, end in of[f"{lane}_us"])
        for lane in ("compute", "hidden", "exposed")
    }
    return Step(of["number"], **totals, backward_ends_s=of["backward_ends_us"] / 1e6, **lanes)


def _ms(seconds: float, sign: str = "-", digits: int = 2) -> str:
    return f"{1e3 * seconds:{sign}.{digits}f}".replace("-", "−")


def _list(changes_s: Sequence[float]) -> str:
    return " and ".join(_ms(change, "+") for change in changes_s)
