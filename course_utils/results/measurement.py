"""Raw times of one piece of code."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils.results.serialization import Serialized
from course_utils.show.formats import format_bytes, format_rate, format_seconds, listed

# The unit of each rate that a measurement may have.
WORK_UNITS = {"bytes": "B/s", "flops": "FLOP/s", "items": "items/s"}
# Over the rows' queued-ahead times, beside their times per call.
OWN_WORK = "GPU's own work"
# Of more that wait for Python, a note counts them and names one.
_NAMED = 3


@dataclass(frozen=True)
class Measurement(Serialized):
    """Raw times of one piece of code."""

    label: str
    # seconds for one call, one value a round: from before the call until the device is idle (or, with a cold
    # cache on a GPU, between events). The time that is compared.
    elapsed_s: tuple[float, ...]
    calls: int = 1  # calls in one timing; ``elapsed_s`` is already divided by it
    # seconds for one call until Python has it back, without waiting for the device. Empty on a CPU.
    enqueue_s: tuple[float, ...] = ()
    # seconds for one call between device events on the current stream, gaps included. Empty on a CPU.
    device_s: tuple[float, ...] = ()
    # device seconds for one call when the work was queued before the device began, so without gaps. None where it
    # was not needed or cannot be had (the code itself waits for the device).
    prequeued_s: float | None = None
    first_call_s: float | None = None  # the very first call, with compilation, allocation and lazy loading in it
    warmup_s: tuple[float, ...] = ()  # the calls between the first and the measured ones
    # the most memory that one call held at once on top of what was there before it
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None  # the most that the caching allocator had taken from the device (CUDA)
    items: float | None = None  # items (samples, tokens, images) that one call processes; so ``flops`` and ``bytes``
    flops: float | None = None
    bytes: float | None = None

    @property
    def rounds(self) -> int:
        """Number of timings."""
        return len(self.elapsed_s)

    @property
    def median_s(self) -> float:
        """Median of the times of one call, in seconds."""
        return statistics.median(self.elapsed_s)

    @property
    def enqueue_median_s(self) -> float | None:
        """Median time until Python has the call back, in seconds; None on a CPU."""
        return statistics.median(self.enqueue_s) if self.enqueue_s else None

    @property
    def device_median_s(self) -> float | None:
        """Median time between device events, in seconds; None on a CPU."""
        return statistics.median(self.device_s) if self.device_s else None

    @property
    def launch_bound(self) -> bool | None:
        """Whether the device waits for Python: with the work queued ahead, it needs under 80% of its usual time.

        Enqueue time close to event time only raises the suspicion, since event time includes the gaps. None where there
        is no device, or where the suspicion could not be tested.
        """
        if not self.device_s:
            return None
        suspicious = self.enqueue_median_s >= 0.8 * self.device_median_s
        if not suspicious:
            return False
        return None if self.prequeued_s is None else self.prequeued_s < 0.8 * self.device_median_s

    @property
    def queued_ahead_s(self) -> float | None:
        """Queued-ahead time: what one call takes of the device when its work was queued before the device began.

        Device seconds, without the time that Python needs to launch the work: the GPU's own work. Where Python was
        ahead anyway, the time between device events. None on a CPU, and where it cannot be had.

        Example:
            >>> Measurement("add", (9e-6,), enqueue_s=(9e-6,), device_s=(8e-6,), prequeued_s=2e-6).queued_ahead_s
            2e-06
        """
        if self.prequeued_s is not None:
            return self.prequeued_s
        return self.device_median_s if self.launch_bound is False else None

    def rate(self, of: str) -> float | None:
        """Items, operations (``flops``) or bytes per second at the median time; None if a call's work is not known."""
        work = getattr(self, of)
        return None if work is None else work / self.median_s

    def rate_text(self, of: str) -> str:
        """A rate with its unit; empty if the work of a call is not known."""
        rate = self.rate(of)
        return "" if rate is None else format_rate(rate, WORK_UNITS[of])

    @classmethod
    def to_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Fields that say nothing are left out, and series of times are whole numbers: files stay small."""
        packed = {key: _packed(values[key]) for key in _SERIES if values[key]}
        said = {key: value for key, value in values.items() if value is not False and value not in (None, [], {}, "")}
        return said | packed

    @classmethod
    def from_file(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The seconds from :meth:`to_file`'s whole numbers."""
        return {key: _unpacked(value) if key in _SERIES else value for key, value in record.items()}


_SERIES = ("elapsed_s", "enqueue_s", "device_s", "warmup_s")


def _packed(seconds: Sequence[float]) -> dict[str, Any]:
    """Seconds as whole numbers of a unit that gives the shortest of them five digits: clocks tell no more of 0.1 ms."""
    _, _, exponent = f"{min(filter(None, map(abs, seconds)), default=1.0):.4e}".partition("e")
    per_second = 10 ** (4 - int(exponent)) if int(exponent) < 4 else 1
    return {"per_second": per_second, "times": [round(second * per_second) for second in seconds]}


def _unpacked(series: Any) -> Any:
    if not series["per_second"] > 0:
        raise ValueError(f"{series['per_second']!r} is no number of units in a second")
    return [time / series["per_second"] for time in series["times"]]


def rounds_and_calls(measurements: Sequence[Measurement]) -> str:
    """How often something was timed, for example ``24 rounds x 8 calls``."""
    rounds = measurements[0].rounds
    low, high = min(m.calls for m in measurements), max(m.calls for m in measurements)
    calls = f"{low} call{'s' if low > 1 else ''}" if low == high else f"{low} to {high} calls"
    return f"{rounds} round{'s' if rounds != 1 else ''} x {calls}"


def waiting_line(timed: Sequence[tuple[str, Measurement]]) -> list[str]:
    """One line about what waits for the CPU, and how little of its time is the GPU's own work; none if nothing does."""
    bound = [(name, each) for name, each in timed if each.launch_bound]
    if not bound:
        return []
    if len(bound) <= _NAMED:
        own, taken = (
            [format_seconds(getattr(each, key)) for _, each in bound] for key in ("queued_ahead_s", "median_s")
        )
        verb, their = ("waits", "its") if len(bound) == 1 else ("wait", "their")
        names = listed(name for name, _ in bound)
        needs = f"queued ahead, the GPU needs {listed(own)} of {their} {listed(taken)} a call"
        return [f"{names} {verb} for the CPU (launch-bound): {needs}."]
    name, most = min(bound, key=lambda each: each[1].queued_ahead_s / each[1].median_s)
    needs = f"queued ahead, {name} needs the GPU for {format_seconds(most.queued_ahead_s)}"
    of = f"{format_seconds(most.median_s)} a call"
    return [f"{len(bound)} of {len(timed)} cases wait for the CPU (launch-bound): {needs} of its {of}."]


def seconds_text(seconds: float | None) -> str:
    """A time, or nothing."""
    return "" if seconds is None else format_seconds(seconds)


def bytes_text(count: int | None) -> str:
    """An amount of memory, or nothing."""
    return "" if count is None else format_bytes(count)
