"""The steps of a trace: where each begins on the device's clock, and which are of one kind."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from own_program.traces.events import CALL, MARK, OP, Event, Trace
from own_program.traces.intervals import Span

_STEP = re.compile(r"ProfilerStep\s*#?(\d{1,9})$")
# Two steps of one kind differ in at most this share of what they ran: the least that leaves kinds of several steps.
_ALIKE = (0.01, 0.05, 0.2)
_FEW = 3  # so few steps do not show which of them recur
_BEHIND_US = 100.0  # a launch takes less: what starts later waited for other work
_SLOW_START = 1.5  # times as long as the slowest of the others: a first step that warms up


@dataclass
class ProfiledStep:
    """One step, or the whole of a recording without steps, and where its time went, in microseconds."""

    number: int | None  # as the profiler counts; None for a whole recording
    span: Span  # on the device's clock, or on the CPU's where no device ran
    names: Counter[str] = field(default_factory=Counter)  # of what ran in it
    places: dict[str, float] = field(default_factory=dict)  # their sum is the step
    beside: dict[str, float] = field(default_factory=dict)  # what lies in these places and is told as well
    # What ran, by its place and name: how often, and for how long by itself.
    ran: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))

    @property
    def lasts(self) -> float:
        """How long it lasts."""
        return self.span[1] - self.span[0]

    def get(self, what: str) -> float:
        """The time of a place, or of what is told beside."""
        return self.places.get(what, self.beside.get(what, 0.0))


@dataclass
class ProfiledSteps:
    """The steps of one device, by their kind, and how they were found."""

    kinds: list[list[ProfiledStep]]  # steps that run the same; the kind with the most time first
    basis: str  # which span was read, as a sentence without a full stop
    notes: list[str] = field(default_factory=list)  # which steps were left out and why, each a sentence
    marked: bool = True  # whether the trace marks steps at all

    @property
    def all(self) -> list[ProfiledStep]:
        """Those of all kinds, in their order."""
        return sorted((step for kind in self.kinds for step in kind), key=lambda step: step.span)


def marked_steps(events: Iterable[Event]) -> list[tuple[int, Span]]:
    """The steps that the profiler marked, by their number: the longest mark of each."""
    found: dict[int, Span] = {}
    for event in events:
        if match := _STEP.match(event.name):
            number = int(match[1])
            if number not in found or event.end - event.start > found[number][1] - found[number][0]:
                found[number] = event.span
    return sorted(found.items(), key=lambda step: step[1])


def device_steps(trace: Trace, work: Sequence[Event]) -> ProfiledSteps:
    """The steps as a device saw them, whose work is given in its order.

    What ran on the device belongs to the step whose call started it, whenever it ran: a device lags behind. It begins
    with its first work there; or with the CPU's mark, where the device had run dry by then. The marks on the device's
    own side are not used: they leave out what another thread starts, such as a backward pass, and what another
    annotation encloses.
    """
    marks = marked_steps(trace.events[MARK])
    calls = {call.correlation: call.start for call in trace.events[CALL] if call.correlation is not None}
    own: dict[int, list[Event]] = defaultdict(list)
    starts = [span[0] for _, span in marks]
    before = 0.0  # when what no step of the trace started has ended
    for event in work:
        at = calls.get(event.correlation)
        place = bisect_right(starts, at) - 1 if at is not None else -1
        if place >= 0 and at <= marks[place][1][1]:
            own[place].append(event)
        elif (at is None or place < 0) and not own:
            before = max(before, event.end)
    if own:
        first = own[min(own)][0]
        if first.start - calls[first.correlation] > _BEHIND_US:
            # It waited for work that is not in the recording, which began in the middle of that.
            before = max(before, first.start)
        basis = "Steps as the GPU saw them: from the first work of a step to the first of the next"
        return _sorted(_by_calls(marks, own, before), basis) or _whole(work)
    beside = marks if marks and work[-1].end > marks[0][1][0] and work[0].start < marks[-1][1][1] else []
    basis = "Steps by the CPU's marks: no call that started the GPU's work was recorded in one"
    return _sorted(_by_marks(beside, work), basis) or _whole(work)


def cpu_steps(trace: Trace) -> ProfiledSteps:
    """The steps by the CPU's marks, for a trace in which no device ran."""
    steps = _by_marks(marked_steps(trace.events[MARK]), trace.events[OP])
    basis = "Steps as the CPU saw them: from one mark to the next"
    return _sorted(steps, basis) or _whole([*trace.events[OP], *trace.events[MARK]])


def _whole(events: Sequence[Event]) -> ProfiledSteps:
    span = min(event.start for event in events), max(event.end for event in events)
    basis = "The whole recording, from its first work to its last: no step is marked"
    return ProfiledSteps([[ProfiledStep(None, span)]], basis, marked=False)


def _by_calls(marks: Sequence[tuple[int, Span]], own: dict[int, list[Event]], before: float) -> list[ProfiledStep]:
    places = sorted(own)
    begins = []
    for place in places:
        begins.append(min(own[place][0].start, max(marks[place][1][0], before)))
        before = max(before, *(event.end for event in own[place]))
    steps = []
    for place, start, following in zip(places, begins, [*begins[1:], None], strict=True):
        end, number = following, marks[place][0]
        if end is None or marks[place + 1][0] != number + 1:
            # The last ends with its work, or with the CPU's part of it; so does one after which marks are missing.
            last = max(marks[place][1][1], *(event.end for event in own[place]))
            end = last if end is None else min(end, last)
        if start < end:
            steps.append(ProfiledStep(number, (start, end), Counter(event.name for event in own[place])))
    return steps


def _by_marks(marks: Sequence[tuple[int, Span]], work: Sequence[Event]) -> list[ProfiledStep]:
    edges = [span[0] for _, span in marks] + [max((span[1] for _, span in marks), default=0.0)]
    spans = zip(marks, pairwise(edges), strict=True)
    steps = [ProfiledStep(number, span) for (number, _), span in spans if span[0] < span[1]]
    starts = [step.span[0] for step in steps]
    for event in work:
        place = bisect_right(starts, event.start) - 1
        if place >= 0 and event.start < steps[place].span[1]:
            steps[place].names[event.name] += 1
    return steps


def _sorted(steps: list[ProfiledStep], basis: str) -> ProfiledSteps | None:
    """The steps by their kind, without those that only begin, end or warm up."""
    notes = []
    kinds = _kinds(steps)
    for step, when in ((steps[0], "first"), (steps[-1], "last")) if len(steps) > 2 else ():
        others = [each for each in steps if each is not step]
        partial = [step] in kinds and step.names.total() < 0.9 * min(each.names.total() for each in others)
        slow = when == "first" and step.lasts > _SLOW_START * max(each.lasts for each in others)
        if len(steps) > 2 and (partial or slow):
            why = "only in part in the recording" if partial else "slower than all others, as a warm-up is"
            notes.append(f"Step {step.number}, the {when}, is left out: it is {why}.")
            steps = others
            kinds = _kinds(steps)
    kinds.sort(key=lambda kind: -sum(step.lasts for step in kind))
    return ProfiledSteps(kinds, basis, notes) if steps else None


def _kinds(steps: Sequence[ProfiledStep]) -> list[list[ProfiledStep]]:
    kinds: list[list[ProfiledStep]] = []
    for alike in _ALIKE if len(steps) > _FEW else _ALIKE[:1]:
        kinds = []
        for step in steps:
            near = min(kinds, key=lambda kind: difference(step, kind[0]), default=[])
            if near and difference(step, near[0]) <= alike:
                near.append(step)
            else:
                kinds.append([step])
        if len(kinds) <= len(steps) / 2:
            break
    return kinds


def difference(one: ProfiledStep, other: ProfiledStep) -> float:
    """The share of what two steps ran that only one of them did, from 0 to 1.

    Example:
        >>> difference(*(ProfiledStep(1, (0, 9), Counter(names)) for names in ("ggg", "gggcc")))
        0.25
    """
    differing = sum(abs(one.names[name] - other.names[name]) for name in one.names | other.names)
    return differing / max(1, one.names.total() + other.names.total())
