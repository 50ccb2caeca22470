"""The steps of a trace: where each begins on the device's clock, and which are of one kind."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from course_utils.show.formats import listed
from own_program.traces.events import CALL, DEVICE, GPU_MARK, KERNEL, MARK, OP, Event, Trace
from own_program.traces.intervals import Span
from own_program.traces.names import is_communication

_STEP = re.compile(r"ProfilerStep\s*#?(\d{1,9})$")
# Two steps of one kind differ in at most this share of what they ran: the least that leaves kinds of several steps.
_ALIKE = (0.01, 0.05, 0.2)
_FEW = 3  # so few steps do not show which of them recur
_BEHIND_US = 100.0  # a launch takes less: what starts later waited for other work
_LONGER, _APART = 0.2, 3.0  # of the shorter steps' time; of the steps' spread on either side
_SLOW_START = 1.5  # times as long as the slowest of the others: a first step that warms up


@dataclass
class Step:
    """One step, or the whole of a recording without steps."""

    number: int | None  # as the profiler counts; None for a whole recording
    span: Span  # on the device's clock, or on the CPU's where no device ran, in microseconds
    ran: Counter[str] = field(default_factory=Counter)  # by name
    kernels: float = 0.0  # microseconds of a device's kernels that compute

    @property
    def lasts(self) -> float:
        """How long it lasts, in microseconds."""
        return self.span[1] - self.span[0]

    def add(self, event: Event) -> None:
        """Count something that ran in it."""
        self.ran[event.name] += 1
        self.kernels += event.end - event.start if event.kind == KERNEL and not is_communication(event) else 0.0


@dataclass
class Kind:
    """Steps that run the same."""

    steps: list[Step]

    @property
    def name(self) -> str:
        """Its steps, in words: ``steps 10 and 12``, and three or more in a row as a range."""
        numbers = sorted(step.number for step in self.steps if step.number is not None)
        if not numbers:
            return "the recording"
        runs = []
        for _, each in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            run = [number for _, number in each]
            runs += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
        if len(runs) > 4:
            return f"steps {runs[0]}, {runs[1]}, … {runs[-1]} ({len(numbers)} of them)"
        return f"step{'s' * (len(numbers) > 1)} {listed(runs)}"


@dataclass
class Steps:
    """The steps of one device, by their kind, and how they were found."""

    kinds: list[Kind]  # the one with the most time first
    basis: str  # which span was read, as a sentence without a full stop
    notes: list[str]  # which steps were left out and why, each a sentence
    marked: bool  # whether the trace marks steps at all

    @property
    def all(self) -> list[Step]:
        """Those of all kinds, in their order."""
        return sorted((step for kind in self.kinds for step in kind.steps), key=lambda step: step.span)


def marked_steps(events: Iterable[Event]) -> list[tuple[int, Span]]:
    """The steps that the profiler marked, by their number: the longest mark of each."""
    found: dict[int, Span] = {}
    for event in events:
        if match := _STEP.match(event.name):
            number = int(match[1])
            if number not in found or event.end - event.start > found[number][1] - found[number][0]:
                found[number] = event.span
    return sorted(found.items(), key=lambda step: step[1])


def device_steps(trace: Trace, device: int) -> Steps:
    """The steps as a device saw them.

    What ran on the device belongs to the step whose call started it, whenever it ran: a device lags behind. It begins
    with its first work there; or with the CPU's mark, where the device had run dry by then. The marks on the device's
    own side are not used for that where calls were recorded: they leave out what another thread starts, such as a
    backward pass, and what another annotation encloses.
    """
    work = sorted((e for kind in DEVICE for e in trace.events[kind] if e.device == device), key=lambda e: e.start)
    marks = marked_steps(trace.events[MARK])
    on_device = marked_steps(event for event in trace.events[GPU_MARK] if event.device == device)
    calls = {call.correlation: call.start for call in trace.events[CALL] if call.correlation is not None}
    own: dict[int, list[Event]] = defaultdict(list)
    starts = [span[0] for _, span in marks]
    before = 0.0  # when what no step of the trace started has ended
    for event in work:
        at = calls.get(event.correlation)
        place = bisect_right(starts, at) - 1 if at is not None else -1
        if place >= 0 and at is not None and at <= marks[place][1][1]:
            own[place].append(event)
        elif at is None or place < 0:
            before = max(before, event.end) if not own else before
    basis = "Steps by the marks on the {}'s side: no call that started the GPU's work was recorded in one"
    if own:
        first = own[min(own)][0]
        if first.start - calls[first.correlation] > _BEHIND_US:
            # It waited for work that is not in the recording, which began in the middle of that.
            before = max(before, first.start)
        basis = "Steps as the GPU saw them: from the first work of a step to the first of the next"
        return _sorted(_by_calls(marks, own, before), basis) or _whole(work)
    if on_device:
        return _sorted(_by_marks(on_device, work), basis.format("GPU")) or _whole(work)
    if marks and any(event.end > marks[0][1][0] and event.start < marks[-1][1][1] for event in work):
        return _sorted(_by_marks(marks, work), basis.format("CPU")) or _whole(work)
    return _whole(work)


def cpu_steps(trace: Trace) -> Steps:
    """The steps by the CPU's marks, for a trace in which no device ran."""
    steps = _by_marks(marked_steps(trace.events[MARK]), trace.events[OP])
    basis = "Steps as the CPU saw them: from one mark to the next"
    return _sorted(steps, basis) or _whole([*trace.events[OP], *trace.events[MARK]])


def _whole(events: Sequence[Event]) -> Steps:
    span = min(event.start for event in events), max(event.end for event in events)
    step = Step(None, span, Counter(event.name for event in events))
    return Steps([Kind([step])], "The whole recording, from its first work to its last: no step is marked", [], False)


def _by_calls(marks: Sequence[tuple[int, Span]], own: dict[int, list[Event]], before: float) -> list[Step]:
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
            steps.append(Step(number, (start, end)))
            for event in own[place]:
                steps[-1].add(event)
    return steps


def _by_marks(marks: Sequence[tuple[int, Span]], work: Sequence[Event]) -> list[Step]:
    edges = [span[0] for _, span in marks] + [max((span[1] for _, span in marks), default=0.0)]
    steps = [Step(number, span) for (number, _), span in zip(marks, pairwise(edges), strict=True) if span[0] < span[1]]
    starts = [step.span[0] for step in steps]
    for event in work:
        place = bisect_right(starts, event.start) - 1
        if place >= 0 and event.start < steps[place].span[1]:
            steps[place].add(event)
    return steps


def _sorted(steps: list[Step], basis: str) -> Steps | None:
    """The steps by their kind, without those that only begin, end or warm up."""
    notes = []
    kinds = _kinds(steps)
    for step, when in ((steps[0], "first"), (steps[-1], "last")) if len(steps) > 2 else ():
        others = [each for each in steps if each is not step]
        partial = [step] in kinds and step.ran.total() < 0.9 * min(each.ran.total() for each in others)
        slow = when == "first" and step.lasts > _SLOW_START * max(each.lasts for each in others)
        if len(steps) > 2 and (partial or slow):
            why = "only in part in the recording" if partial else "slower than all others, as a warm-up is"
            notes.append(f"Step {step.number}, the {when}, is left out: it is {why}.")
            steps = others
            kinds = _kinds(steps)
    kinds.sort(key=lambda kind: -sum(step.lasts for step in kind))
    return Steps([Kind(kind) for kind in kinds], basis, notes, True) if steps else None


def _kinds(steps: Sequence[Step]) -> list[list[Step]]:
    kinds: list[list[Step]] = []
    for alike in _ALIKE if len(steps) > _FEW else _ALIKE[:1]:
        kinds = []
        for step in steps:
            near = min(kinds, key=lambda kind: difference(step.ran, kind[0].ran), default=[])
            if near and difference(step.ran, near[0].ran) <= alike:
                near.append(step)
            else:
                kinds.append([step])
        if len(kinds) <= len(steps) / 2:
            break
    return [part for kind in kinds for part in _by_length(kind)]


def _by_length(kind: list[Step]) -> list[list[Step]]:
    """Steps that run the same kernels on more data, as on longer texts, apart from the others, if that is clear."""
    ranked = sorted(kind, key=lambda step: step.kernels)
    times = [step.kernels for step in ranked]
    if len(times) < 4:  # a kind has two steps at least, and its steps lie near one another
        return [kind]
    at = max(range(2, len(times) - 1), key=lambda place: times[place] - times[place - 1])
    gap = times[at] - times[at - 1]
    spread = max(times[at - 1] - times[0], times[-1] - times[at])
    if gap <= _LONGER * times[at - 1] or gap <= _APART * spread:
        return [kind]
    return [sorted(part, key=lambda step: step.span) for part in (ranked[:at], ranked[at:])]


def difference(some: Counter[str], others: Counter[str]) -> float:
    """The share of what two steps ran that only one of them did, from 0 to 1.

    Example:
        >>> difference(Counter(gemm=3), Counter(gemm=3, copy=2))
        0.25
    """
    differing = sum(abs(some[name] - others[name]) for name in some.keys() | others.keys())
    return differing / max(1, some.total() + others.total())
