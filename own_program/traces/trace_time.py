"""Where the time of a trace went: by device, and there by the kinds of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from course_utils.show.formats import format_seconds, listed
from own_program.traces.anomaly import AnomalyMode, anomaly_mode
from own_program.traces.cpu_time import CPU_PLACES, CpuTime, cpu_time
from own_program.traces.data_loader import DataLoaderTime, data_loader_time
from own_program.traces.events import DEVICE, MARK, Trace
from own_program.traces.gpu_time import GPU_PLACES, GpuTime, gpu_time
from own_program.traces.origin import Origin, origin_of
from own_program.traces.profiled_steps import ProfiledStep, marked_steps

Amount = Callable[[ProfiledStep], float]


@dataclass
class StepGroup:
    """The steps of one kind on one device: a column of the card."""

    name: str  # in words: steps 10 and 12
    steps: list[ProfiledStep]
    device: int | None  # which GPU; None for the CPU

    @property
    def lasts(self) -> float:
        """Microseconds of all steps."""
        return sum(step.lasts for step in self.steps)

    @property
    def whole(self) -> bool:
        """Whether it is a whole recording, without steps."""
        return self.steps[0].number is None

    def mean(self, amount: Amount) -> float:
        """Microseconds a step."""
        return sum(map(amount, self.steps)) / len(self.steps)

    def times(self, amount: Amount) -> str:
        """The mean of its steps in words, and from where to where they went: ``3 ms (2 ms to 4 ms)``."""
        amounts = [amount(step) for step in self.steps]
        low, high, mean = (format_seconds(each / 1e6) for each in (min(amounts), max(amounts), self.mean(amount)))
        return mean if low == high else f"{mean} ({low} to {high})"

    def share(self, amount: Amount) -> float:
        """What part of their time it is, from 0 to 1."""
        return sum(map(amount, self.steps)) / self.lasts if self.lasts else 0.0


@dataclass
class TraceTime:
    """What was read from one trace: of each device, or of the CPU where no device ran."""

    trace: Trace
    gpus: list[GpuTime]
    cpu: CpuTime | None
    groups: list[StepGroup]
    anomaly: AnomalyMode
    origin: Origin
    loader: DataLoaderTime

    @property
    def parts(self) -> list[GpuTime] | list[CpuTime]:
        """What each group belongs to: the devices, or the CPU."""
        return self.gpus or [self.cpu]  # type: ignore[list-item]

    @property
    def places(self) -> tuple[str, ...]:
        """The places that its time can have."""
        return CPU_PLACES if self.cpu else GPU_PLACES

    @property
    def largest(self) -> str:
        """The place with the most time."""
        return max(self.places, key=self.share)

    def share(self, what: str) -> float:
        """What part of all its time a place has, or what is told beside; from 0 to 1."""
        return total(self.groups, lambda step: step.get(what))

    @property
    def marked(self) -> bool:
        """Whether the trace marks steps."""
        return self.parts[0].steps.marked

    @property
    def marks(self) -> int:
        """How many steps the profiler marked, also those that are left out."""
        return len(marked_steps(self.trace.events[MARK]))


def trace_time(trace: Trace) -> TraceTime:
    """Work out where the time of a trace's devices went, or of its CPU."""
    anomaly, origin = anomaly_mode(trace), origin_of(trace)
    devices = sorted({event.device for kind in DEVICE for event in trace.events[kind] if event.end > event.start})
    found = TraceTime(trace, [], None, [], anomaly, origin, data_loader_time(trace))
    found.gpus = [gpu_time(trace, device, anomaly) for device in devices]
    found.cpu = None if devices else cpu_time(trace, anomaly, origin)
    for part in found.parts:
        device = part.device if isinstance(part, GpuTime) else None
        before = f"GPU {device}, " if len(devices) > 1 else ""
        found.groups += [StepGroup(before + _named(steps), steps, device) for steps in part.steps.kinds]
    return found


def total(groups: Sequence[StepGroup], amount: Amount) -> float:
    """A share of all groups' time together, from 0 to 1."""
    lasts = sum(group.lasts for group in groups)
    return sum(group.share(amount) * group.lasts for group in groups) / lasts if lasts else 0.0


def _named(steps: Sequence[ProfiledStep]) -> str:
    """``steps 10 and 12``, and three or more in a row as a range."""
    numbers = sorted(step.number for step in steps if step.number is not None)
    if not numbers:
        return "the recording"
    runs: list[str] = []
    for _, each in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in each]
        runs += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    if len(runs) > 4:
        return f"steps {runs[0]}, {runs[1]}, … {runs[-1]} ({len(numbers)} of them)"
    return f"step{'s' * (len(numbers) > 1)} {listed(runs)}"
