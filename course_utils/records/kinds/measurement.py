"""Raw times of one piece of code."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from course_utils.records import paired
from course_utils.records.kinds.environment import Environment
from course_utils.records.paired import Interval
from course_utils.records.result import Result, built, compact, tuples

# The unit of each rate that a measurement may have.
WORK_UNITS = {"bytes": "B/s", "flops": "FLOP/s", "items": "items/s"}


@dataclass(frozen=True, repr=False)
class Measurement(Result):
    """Raw times of one piece of code.

    Attributes:
        label: what was measured.
        elapsed_s: seconds for one call, one value a round: from before the call until the device is idle (or, with a
            cold cache on a GPU, between events). The time that is compared.
        calls: calls in one timing; ``elapsed_s`` is already divided by it.
        enqueue_s: seconds for one call until Python has it back, without waiting for the device. Empty on a CPU.
        device_s: seconds for one call between device events on the current stream, gaps included. Empty on a CPU.
        prequeued_s: device seconds for one call when the work was queued before the device began, so without gaps.
            None where it was not needed or cannot be had (the code itself waits for the device).
        first_call_s: the very first call, with compilation, allocation and lazy loading in it.
        warmup_s: the calls between the first and the measured ones.
        peak_allocated_bytes: the most memory that one call held at once on top of what was there before it.
        peak_reserved_bytes: the most that the caching allocator had taken from the device (CUDA).
        items: items (samples, tokens, images) that one call processes.
        flops: floating-point operations of one call.
        bytes: bytes that one call moves.
        environment: machine and software; None for a part of a Comparison, which has it once for all.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "measurement"

    label: str
    elapsed_s: tuple[float, ...]
    calls: int = 1
    enqueue_s: tuple[float, ...] = ()
    device_s: tuple[float, ...] = ()
    prequeued_s: float | None = None
    first_call_s: float | None = None
    warmup_s: tuple[float, ...] = ()
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    items: float | None = None
    flops: float | None = None
    bytes: float | None = None
    environment: Environment | None = None
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """Number of timings."""
        return len(self.elapsed_s)

    @property
    def median_s(self) -> float:
        """Median of the times of one call, in seconds."""
        return statistics.median(self.elapsed_s)

    @property
    def interval_s(self) -> Interval:
        """95% interval of the median time, in seconds; infinite below 6 rounds."""
        return paired.median_interval(self.elapsed_s, paired.SHOWN_CONFIDENCE)

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

    def rate(self, of: str) -> float | None:
        """Work per second at the median time.

        Args:
            of: ``items``, ``flops`` or ``bytes``.

        Returns:
            Items, operations or bytes per second; None if the work of a call is not known.
        """
        work = getattr(self, of)
        return None if work is None else work / self.median_s

    def to_record(self) -> dict[str, Any]:
        """The measurement as plain JSON types; fields that say nothing are left out."""
        record = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "environment"}
        record = {key: value for key, value in record.items() if value not in (None, (), {})}
        if self.environment is not None:
            record["environment"] = self.environment.to_record()
        return compact(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The measurement from :meth:`to_record`'s dictionary."""
        values = tuples(record, ("elapsed_s", "enqueue_s", "device_s", "warmup_s", "notes"))
        if values.get("environment") is not None:
            values["environment"] = Environment.from_record(values["environment"])
        result = built(cls, values)
        if not result.elapsed_s or min(result.elapsed_s) <= 0:
            raise ValueError(f"{result.label!r} has no times, or times that are not positive")
        if {len(result.enqueue_s), len(result.device_s)} - {0, result.rounds}:
            raise ValueError(f"{result.label!r} has other numbers of device times and of rounds")
        return result
