"""What is told in one column of a card: the steps of one kind on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_utils.show.formats import format_seconds
from own_program.traces.anomaly import AnomalyMode, anomaly_mode
from own_program.traces.cpu import COMPILING as CPU_COMPILING
from own_program.traces.cpu import CpuShares, cpu_shares
from own_program.traces.events import MARK, Trace, without_collecting
from own_program.traces.loading import Loading, loading_of
from own_program.traces.origin import Origin, origin_of
from own_program.traces.shares import COMPILING, START, DeviceShares, StepShares, device_shares, devices_of
from own_program.traces.steps import Kind, marked_steps

Amount = Callable[[StepShares], float]


@dataclass
class Column:
    """The steps of one kind on one device."""

    name: str  # in words: steps 10 and 12
    kind: Kind
    shares: list[StepShares]  # where their time went, step by step
    device: int | None  # which GPU; None for the CPU

    @property
    def lasts(self) -> float:
        """Microseconds of all steps."""
        return sum(each.lasts for each in self.shares)

    @property
    def each(self) -> float:
        """Microseconds of a step."""
        return self.lasts / len(self.shares)

    @property
    def whole(self) -> bool:
        """Whether it is a whole recording, without steps."""
        return self.kind.steps[0].number is None

    @property
    def warms_up(self) -> bool:
        """Whether first uses and compiling are the largest part."""
        warm = (START, COMPILING, CPU_COMPILING)
        rest = {place for shares in self.shares for place in shares.places if place not in warm}
        most = max(self.share(lambda shares, place=place: shares.get(place)) for place in rest)
        return self.share(lambda shares: sum(map(shares.get, warm))) > most

    def mean(self, amount: Amount) -> float:
        """Microseconds a step."""
        return sum(map(amount, self.shares)) / len(self.shares)

    def times(self, amount: Amount) -> str:
        """The mean of its steps in words, and from where to where they went: ``3 ms (2 ms to 4 ms)``."""
        amounts = [amount(each) for each in self.shares]
        low, high, mean = (format_seconds(each / 1e6) for each in (min(amounts), max(amounts), self.mean(amount)))
        return mean if low == high else f"{mean} ({low} to {high})"

    def share(self, amount: Amount) -> float:
        """What part of their time it is, from 0 to 1."""
        return sum(map(amount, self.shares)) / self.lasts if self.lasts else 0.0


@dataclass
class Reading:
    """What was read from one trace: of each device, or of the CPU where no device ran."""

    trace: Trace
    devices: list[DeviceShares]
    cpu: CpuShares | None
    columns: list[Column]
    anomaly: AnomalyMode
    origin: Origin
    loading: Loading

    @property
    def parts(self) -> list[DeviceShares] | list[CpuShares]:
        """What each column belongs to: the devices, or the CPU."""
        return self.devices or [self.cpu]  # type: ignore[list-item]

    @property
    def one_kind(self) -> bool:
        """Whether there is one kind of steps, on one device."""
        return sum(len(part.steps.kinds) for part in self.parts) == 1

    def without_warm_up(self) -> Reading:
        """It without the kinds of steps that mostly warm up: no other share of those says a thing."""
        return replace(self, columns=[column for column in self.columns if not column.warms_up])

    @property
    def marks(self) -> int:
        """How many steps the profiler marked, also those that are left out."""
        return len(marked_steps(self.trace.events[MARK]))


@without_collecting()
def reading(trace: Trace) -> Reading:
    """Read a trace's devices, or its CPU."""
    anomaly, origin = anomaly_mode(trace), origin_of(trace)
    devices = [device_shares(trace, device, anomaly, origin) for device in devices_of(trace)]
    found = Reading(trace, devices, None, [], anomaly, origin, loading_of(trace))
    if not devices:
        found.cpu = cpu_shares(trace, anomaly, origin)
    for part in found.parts:
        device = part.device if isinstance(part, DeviceShares) else None
        before = f"GPU {device}, " if len(devices) > 1 else ""
        found.columns += [
            Column(before + kind.name, kind, [part.of[id(step)] for step in kind.steps], device)
            for kind in part.steps.kinds
        ]
    return found


def total(columns: Sequence[Column], amount: Amount) -> float:
    """A share of all columns' time together, from 0 to 1."""
    lasts = sum(column.lasts for column in columns)
    return sum(column.share(amount) * column.lasts for column in columns) / lasts if lasts else 0.0
