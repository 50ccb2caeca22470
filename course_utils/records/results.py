"""What a measurement returns: raw samples in frozen dataclasses, with statistics as properties.

Nothing here measures, reads a file or draws. Every result shows itself as text in a terminal, as a table in a notebook,
draws itself with ``.plot()``, and turns into a plain dictionary with ``.to_record()`` and back with ``.from_record()``.
Times are seconds for one call, memory is bytes.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import html
import itertools
import math
import shlex
import statistics
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from course_utils.records import paired
from course_utils.records.paired import Interval, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_T = TypeVar("_T")

# The unit of each rate that a measurement may have.
WORK_UNITS = {"bytes": "B/s", "flops": "FLOP/s", "items": "items/s"}
# What the numbers in a table can be: how they are shown follows from it.
TABLE_UNITS = ("bytes", "s", "B/s", "FLOP/s", "relative", "ratio", "percent", "count")
# What the memory of a rank is for. The last one is all that is none of the others.
CLUSTER_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")


class NothingToDrawError(ValueError):
    """A result holds no numbers that a figure could show."""


def _compact(value: Any) -> Any:
    """Make a value fit for a record: six significant digits are far below any timer's noise and keep files small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple | list):
        return [_compact(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _compact(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    # Parameters may be numpy's numbers, or torch's dtypes and devices.
    return _compact(value.tolist()) if hasattr(value, "tolist") else str(value)


def _fields_of(result: Any) -> dict[str, Any]:
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is of the type that a field is declared with."""
    inner = typing.get_args(hint)
    if hint is Any:
        return True
    if typing.get_origin(hint) is types.UnionType:
        return any(_fits(value, one) for one in inner)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, typing.get_origin(hint) or hint)


def _built(cls: type[_T], values: Mapping[str, Any]) -> _T:
    """Make a result from a record's values.

    Raises:
        TypeError: if a field is missing, unknown, or of another type than it is declared with.
    """
    result = cls(**values)
    for f in dataclasses.fields(cls):
        if not _fits(getattr(result, f.name), _hints(cls)[f.name]):
            raise TypeError(f"{cls.__name__}.{f.name} cannot be {str(values[f.name])[:60]!r}")
    return result


class _Result:
    """What all results share: how they show themselves, and how they become records."""

    kind: ClassVar[str]

    def to_record(self) -> dict[str, Any]:
        """The result as plain JSON types, raw samples included."""
        raise NotImplementedError

    def __repr__(self) -> str:
        from course_utils.show import text

        return text(self)

    def _repr_html_(self) -> str:
        from course_utils import show as display

        return display.html(self)

    def plot(self, ax: Any = None) -> Figure:
        """Draw the result.

        Args:
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        from course_utils.show import figure

        return figure(self, ax=ax)


@dataclass(frozen=True, repr=False)
class Environment(_Result):
    """The machine and the software that a result was measured with. No host name, user or path.

    Attributes:
        machine: short name used for folders, for example ``amd-epyc-2-cores`` or ``nvidia-h200``.
        device_kind: ``cpu``, ``cuda`` or ``mps``: what the lessons measure on.
        device_name: the accelerator's name; the CPU's where there is none.
        cpu_model: the CPU's name.
        cpu_cores: cores that this process may use.
        cpu_flags: instruction sets that matter for the lessons (``avx2``, ``avx512_bf16``, ``amx_bf16``...).
        memory_bytes: main memory.
        gpu_count: accelerators that are visible.
        gpu_memory_bytes: memory of the first accelerator, if any.
        compute_capability: of the first CUDA device, for example ``9.0``.
        driver: version of the NVIDIA driver.
        cuda: CUDA (or ``rocm 6.x``) version that torch was built for.
        power_limit_w: the accelerator's power limit in watts.
        sm_clock_mhz: the accelerator's clock when the environment was read, in MHz.
        os: operating system and processor architecture.
        python: version.
        torch: version, with the build's suffix.
        torch_threads: threads that one CPU operation may use.
        size: ``smoke`` or ``full``: which problem sizes the lessons use.
        date: day of the measurement, ISO 8601.
        commit: commit of the course, if known.
    """

    kind: ClassVar[str] = "environment"

    machine: str
    device_kind: str
    device_name: str
    cpu_model: str
    cpu_cores: int
    memory_bytes: int
    os: str
    python: str
    torch: str
    size: str
    date: str
    cpu_flags: tuple[str, ...] = ()
    gpu_count: int = 0
    gpu_memory_bytes: int | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    torch_threads: int = 1
    commit: str | None = None

    @property
    def caption(self) -> str:
        """One line for under a figure: machine, software, date."""
        cores = f", {self.cpu_cores} cores" if self.device_kind == "cpu" else ""
        return f"{self.device_name}{cores} · torch {self.torch} · {self.date}"

    def to_record(self) -> dict[str, Any]:
        """The environment as plain JSON types."""
        return _compact(dataclasses.asdict(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The environment from :meth:`to_record`'s dictionary. Unknown keys are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        values["cpu_flags"] = tuple(values.get("cpu_flags", ()))
        result = _built(cls, values)
        if result.device_kind not in ("cpu", "cuda", "mps"):
            raise ValueError(f"there is no device {result.device_kind!r}")
        return result


def _tuples(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: tuple(value) if key in names else value for key, value in values.items()}


@dataclass(frozen=True, repr=False)
class Measurement(_Result):
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
        return _compact(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The measurement from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("elapsed_s", "enqueue_s", "device_s", "warmup_s", "notes"))
        if values.get("environment") is not None:
            values["environment"] = Environment.from_record(values["environment"])
        result = _built(cls, values)
        if not result.elapsed_s or min(result.elapsed_s) <= 0:
            raise ValueError(f"{result.label!r} has no times, or times that are not positive")
        if {len(result.enqueue_s), len(result.device_s)} - {0, result.rounds}:
            raise ValueError(f"{result.label!r} has other numbers of device times and of rounds")
        return result


@dataclass(frozen=True)
class Ceiling:
    """One limit of a machine, from raw samples.

    Attributes:
        name: for example ``copy`` or ``matmul bfloat16``.
        unit: ``B/s``, ``FLOP/s`` or ``s``.
        work: bytes or operations of one sample; 1 for a latency.
        samples_s: seconds of each sample, for one repetition of the work.
    """

    name: str
    unit: str
    work: float
    samples_s: tuple[float, ...]

    @property
    def value(self) -> float:
        """The limit: the best rate seen, or the median latency in seconds."""
        return statistics.median(self.samples_s) if self.unit == "s" else self.work / min(self.samples_s)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The ceiling from its dictionary."""
        result = _built(cls, _tuples(record, ("samples_s",)))
        if not result.samples_s or min(result.samples_s) <= 0:
            raise ValueError(f"{result.name!r} has no samples, or samples that are not positive")
        return result


@dataclass(frozen=True, repr=False)
class Ceilings(_Result):
    """The limits of one machine: what any program can reach at best.

    Attributes:
        entries: the ceilings, in the order in which they are shown.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "ceilings"

    entries: tuple[Ceiling, ...]
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Ceiling:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(f"no ceiling {name!r} on this machine; there are: {', '.join(e.name for e in self.entries)}")

    def __iter__(self) -> Iterator[Ceiling]:
        return iter(self.entries)

    def to_record(self) -> dict[str, Any]:
        """The ceilings as plain JSON types."""
        return _compact(
            {
                "entries": [dataclasses.asdict(entry) for entry in self.entries],
                "environment": self.environment.to_record(),
                "name": self.name,
                "parameters": self.parameters,
                "notes": self.notes,
            }
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The ceilings from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("notes",))
        values["entries"] = tuple(Ceiling.from_record(entry) for entry in record["entries"])
        values["environment"] = Environment.from_record(record["environment"])
        return _built(cls, values)


@dataclass(frozen=True)
class Case:
    """One case of a comparison, seen against its baseline.

    Attributes:
        measurement: the case's raw samples.
        comparison: the comparison that it belongs to.
    """

    measurement: Measurement
    comparison: Comparison

    @property
    def label(self) -> str:
        """What the case is called."""
        return self.measurement.label

    @property
    def is_baseline(self) -> bool:
        """Whether this is the case that the others are compared with."""
        return self.label == self.comparison.baseline

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Per-round log of time over the baseline's; the baseline's own are those of the A/A control."""
        timed = self.comparison.control if self.is_baseline else self.measurement
        return tuple(paired.log_ratios(timed.elapsed_s, self.comparison.cases[0].elapsed_s))

    @property
    def ratio(self) -> float:
        """Median of the case's time over the baseline's, round by round: 0.5 takes half the time."""
        return math.exp(statistics.median(self.log_ratios))

    @property
    def speedup(self) -> float:
        """The baseline's time over the case's: 2 is twice as fast."""
        return 1 / self.ratio

    def interval_at(self, confidence: float) -> Interval:
        """Interval of :attr:`ratio` at a confidence between 0 and 1."""
        return paired.ratio_interval(self.log_ratios, confidence)

    @property
    def interval(self) -> Interval:
        """The 95% interval of :attr:`ratio`: the one to show."""
        return self.interval_at(paired.SHOWN_CONFIDENCE)

    @property
    def decision_interval(self) -> Interval:
        """The 99% interval of :attr:`ratio`: the one that the verdict rests on."""
        return self.interval_at(paired.DECISION_CONFIDENCE)

    @property
    def verdict(self) -> Verdict:
        """FASTER, SLOWER, SAME or UNCLEAR; see :func:`paired.decide`. The baseline is SAME as itself."""
        if self.is_baseline:
            return Verdict.SAME
        return paired.decide(self.ratio, self.decision_interval, self.comparison.noise, self.comparison.practical)

    @property
    def block_rounds(self) -> int:
        """Rounds merged into one because neighbours were not independent; 1 is none."""
        return paired.block(self.log_ratios)[1]

    @property
    def median_s(self) -> float:
        """Median time of one call, in seconds."""
        return self.measurement.median_s

    @property
    def break_even_calls(self) -> int | None:
        """Calls after which a dearer first call has paid for itself, against the baseline.

        None if the first call is not dearer, or if the case is not FASTER: then it never pays.
        """
        mine, base = self.measurement, self.comparison.cases[0]
        if self.verdict is not Verdict.FASTER or mine.first_call_s is None or base.first_call_s is None:
            return None
        extra = mine.first_call_s - base.first_call_s
        return math.ceil(extra / (base.median_s * (1 - self.ratio))) + 1 if extra > 0 else None

    @property
    def words(self) -> str:
        """The verdict as a sentence, with its interval."""
        from course_utils.show import verdict_sentence

        return verdict_sentence(self)

    def __repr__(self) -> str:
        return f"{self.label}: {self.words}"


@dataclass(frozen=True, repr=False)
class Comparison(_Result):
    """Cases timed side by side, round by round.

    Attributes:
        cases: raw samples of each case; the first is the baseline.
        control: the baseline's second timing in each round: the A/A control.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        cache: ``warm`` or ``cold``: what the caches held before a call.
        clock: how ``elapsed_s`` was read, in words.
        agreement: how it was checked that the cases compute the same thing, in words.
        practical: relative difference below which nobody cares.
        planned_rounds: rounds that the pilot asked for.
        spent_s: seconds that the whole comparison took.
        interrupted: whether it was stopped before all planned rounds were done.
        ceiling: the machine's limit that rates are shown against, if any.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "comparison"

    cases: tuple[Measurement, ...]
    control: Measurement
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "warm"
    clock: str = "host clock"
    agreement: str = "not checked"
    practical: float = paired.PRACTICAL
    planned_rounds: int = 0
    spent_s: float = 0.0
    interrupted: bool = False
    ceiling: Ceiling | None = None
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        """Label of the case that the others are compared with."""
        return self.cases[0].label

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of all cases, the baseline first."""
        return tuple(case.label for case in self.cases)

    @property
    def rounds(self) -> int:
        """Rounds that were measured."""
        return self.control.rounds

    @property
    def noise(self) -> Interval:
        """99% interval of the A/A control's ratio: differences inside it are noise."""
        return Case(self.cases[0], self).decision_interval

    def __getitem__(self, label: str) -> Case:
        for case in self.cases:
            if case.label == label:
                return Case(case, self)
        raise KeyError(f"no case {label!r} in this comparison; there are: {', '.join(self.labels)}")

    def __iter__(self) -> Iterator[Case]:
        return (Case(case, self) for case in self.cases)

    def to_record(self) -> dict[str, Any]:
        """The comparison as plain JSON types, raw samples included."""
        record = _fields_of(self)
        record["cases"] = [case.to_record() for case in self.cases]
        record["control"] = self.control.to_record()
        record["environment"] = self.environment.to_record()
        record["ceiling"] = None if self.ceiling is None else dataclasses.asdict(self.ceiling)
        return _compact(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The comparison from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("notes",))
        values["cases"] = tuple(Measurement.from_record(case) for case in record["cases"])
        values["control"] = Measurement.from_record(record["control"])
        values["environment"] = Environment.from_record(record["environment"])
        if record.get("ceiling") is not None:
            values["ceiling"] = Ceiling.from_record(record["ceiling"])
        result = _built(cls, values)
        if len(set(result.labels)) < max(2, len(result.cases)):
            raise ValueError("a comparison has two cases or more, of different names")
        if {case.rounds for case in result.cases} != {result.rounds}:
            raise ValueError("the cases have different numbers of rounds")
        return result


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep: the value of the parameter that varies, and the comparison there."""

    value: Any
    comparison: Comparison


@dataclass(frozen=True, repr=False)
class Sweep(_Result):
    """The same comparison over a range of one parameter.

    Attributes:
        over: name of the parameter that varies.
        points: a comparison for each value, in order.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings that do not vary.
        interrupted: whether it was stopped before the last value.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "sweep"

    over: str
    points: tuple[SweepPoint, ...]
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    def __getitem__(self, value: Any) -> Comparison:
        for point in self.points:
            if point.value == value:
                return point.comparison
        raise KeyError(f"no point {self.over}={value!r} in this sweep; there are: {', '.join(map(str, self.values))}")

    def __iter__(self) -> Iterator[SweepPoint]:
        return iter(self.points)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the parameter that was varied."""
        return tuple(point.value for point in self.points)

    def first(self, label: str, verdict: str) -> Any | None:
        """The first value at which a case gets a verdict.

        Args:
            label: the case.
            verdict: ``FASTER``, ``SLOWER``, ``SAME`` or ``UNCLEAR``.

        Returns:
            The value; None if no point has that verdict.
        """
        return next((p.value for p in self.points if p.comparison[label].verdict == verdict), None)

    def to_record(self) -> dict[str, Any]:
        """The sweep as plain JSON types, raw samples included."""
        points = []
        for point in self.points:
            record = point.comparison.to_record()
            del record["environment"]  # the sweep has it once
            points.append({"value": point.value, "comparison": record})
        return _compact(
            {
                "over": self.over,
                "points": points,
                "environment": self.environment.to_record(),
                "name": self.name,
                "parameters": self.parameters,
                "interrupted": self.interrupted,
                "notes": self.notes,
            }
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The sweep from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("notes",))
        values["environment"] = Environment.from_record(record["environment"])
        values["points"] = tuple(
            SweepPoint(
                point["value"],
                Comparison.from_record({**point["comparison"], "environment": record["environment"]}),
            )
            for point in record["points"]
        )
        return _built(cls, values)


@dataclass(frozen=True, repr=False)
class Table(_Result):
    """What a notebook found out and did not time: one row for each thing that was looked at.

    Attributes:
        columns: names; the first column names the rows.
        rows: the values, one tuple a row: texts, numbers, truth values, or None where there is nothing to say.
        units: of a column's numbers, by the column's name: a key of :data:`TABLE_UNITS`.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "table"

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    environment: Environment
    units: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[Any, ...]:
        """What the rows are called."""
        return tuple(row[0] for row in self.rows)

    def __getitem__(self, label: Any) -> dict[str, Any]:
        for row in self.rows:
            if row[0] == label:
                return dict(zip(self.columns, row, strict=True))
        raise KeyError(f"no row {label!r} in this table; there are: {', '.join(map(str, self.labels))}")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def plot(self, columns: str | Sequence[str] | None = None, *, stacked: bool = False, ax: Any = None) -> Figure:
        """Draw columns as horizontal bars, one group for each row.

        Args:
            columns: which, of one unit; by default the first with numbers and all others of its unit.
            stacked: whether the columns are parts of a whole.
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.

        Raises:
            ValueError: if a column is unknown, holds no numbers, or has another unit than the first.
        """
        from course_utils.show.table_figures import table_figure

        return table_figure(self, columns, stacked=stacked, ax=ax)

    def to_record(self) -> dict[str, Any]:
        """The table as plain JSON types."""
        return _compact({**_fields_of(self), "environment": self.environment.to_record()})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The table from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("columns", "notes"))
        values["rows"] = tuple(tuple(row) for row in record["rows"])
        values["environment"] = Environment.from_record(record["environment"])
        result = _built(cls, values)
        if not result.columns or any(len(row) != len(result.columns) for row in result.rows):
            raise ValueError("a table has a value for each column in each row")
        if len(set(result.labels)) < len(result.rows):
            raise ValueError("each row of a table has a name of its own")
        return result


@dataclass(frozen=True)
class Curve:
    """One line of :class:`Curves`.

    Attributes:
        label: what it shows.
        x: where it was read off, ascending.
        y: what was read off there; None for a value that is not finite.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]

    @property
    def final(self) -> float | None:
        """The last value; None if it is not finite."""
        return self.y[-1]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The curve from its dictionary."""
        result = _built(cls, _tuples(record, ("x", "y")))
        if not result.x or len(result.x) != len(result.y):
            raise ValueError(f"{result.label!r} has no points, or other numbers of x and of y")
        return result


@dataclass(frozen=True, repr=False)
class Curves(_Result):
    """Values that change over the course of a run, such as the loss over the steps of a training.

    Attributes:
        curves: the lines.
        x_label: what x is.
        y_label: what y is, with its unit.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "curves"

    curves: tuple[Curve, ...]
    x_label: str
    y_label: str
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What the lines are called."""
        return tuple(curve.label for curve in self.curves)

    def __getitem__(self, label: str) -> Curve:
        for curve in self.curves:
            if curve.label == label:
                return curve
        raise KeyError(f"no curve {label!r}; there are: {', '.join(self.labels)}")

    def __iter__(self) -> Iterator[Curve]:
        return iter(self.curves)

    def plot(self, *, log_y: bool = False, ax: Any = None) -> Figure:
        """Draw all lines into one panel.

        Args:
            log_y: whether y is logarithmic; values that are not positive are left out then.
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        from course_utils.show.table_figures import curves_figure

        return curves_figure(self, log_y=log_y, ax=ax)

    def to_record(self) -> dict[str, Any]:
        """The curves as plain JSON types."""
        record = {**_fields_of(self), "environment": self.environment.to_record()}
        record["curves"] = [dataclasses.asdict(curve) for curve in self.curves]
        return _compact(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The curves from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("notes",))
        values["curves"] = tuple(Curve.from_record(curve) for curve in record["curves"])
        values["environment"] = Environment.from_record(record["environment"])
        result = _built(cls, values)
        if not result.curves or len(set(result.labels)) < len(result.curves):
            raise ValueError("there is at least one curve, and each has a name of its own")
        return result


# What a block of memory is for, in the order in which a picture stacks them: what comes and goes is on top.
MEMORY_KINDS = ("weights", "optimizer state", "gradients", "other", "activations", "temporaries")
# A record holds at most this many blocks and moments of a trace: some 40 kB. See `MemoryTrace.from_blocks`.
MOST_BLOCKS = 1000
MOST_MOMENTS = 1500


@dataclass(frozen=True)
class MemoryBlock:
    """One allocation, or several that are alike in a trace that was condensed.

    Attributes:
        size_bytes: its size, of all together if there are several.
        born: the moment from which on it is there; 0 if it was there before the traced call.
        died: the moment from which on it is gone; the number of moments if it outlives the traced call.
        kind: one of `MEMORY_KINDS`.
        module: the module that it belongs to, such as ``GPT.blocks.0.mlp.1``; empty outside of modules.
        line: ``file:line function`` of the user's code that allocated it; empty if it was there before.
        op: the operation that allocated it, such as ``addmm``.
        count: how many allocations it stands for.
    """

    size_bytes: int
    born: int
    died: int
    kind: str
    module: str = ""
    line: str = ""
    op: str = ""
    count: int = 1


@dataclass(frozen=True)
class MemoryPhase:
    """A part of the traced call: ``forward``, ``backward`` or ``optimizer step``.

    Attributes:
        name: which.
        first: its first moment.
        last: its last moment.
    """

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class MemoryRow:
    """Blocks of one kind, module, line and operation that were there at one moment, added up.

    Attributes:
        kind: one of `MEMORY_KINDS`.
        module: the module they belong to; empty outside of modules.
        line: the line that allocated them.
        op: the operation that allocated them.
        size_bytes: bytes in all.
        count: number of blocks.
    """

    kind: str
    module: str
    line: str
    op: str
    size_bytes: int
    count: int


@dataclass(frozen=True, repr=False)
class MemoryTrace(_Result):
    """Every allocation and release of one call, over time.

    A moment is the start (moment 0), and each allocation or release after it.

    Attributes:
        label: what was traced.
        device: ``cpu``, ``cuda:0``...
        times_us: microseconds from the start of the call to each moment.
        blocks: every block that was there at any moment.
        environment: machine and software.
        phases: what the call did when.
        reserved_bytes: what the caching allocator had taken from the device at each moment (CUDA); empty on a CPU.
        device_allocs: how often the caching allocator asked the device for memory (cudaMalloc); None on a CPU.
        alloc_retries: how often it had to give cached memory back and try again; None on a CPU.
        meter: an independent meter of the peak, in words; empty if none was asked.
        meter_bytes: the most above the start by that meter.
        metered_bytes: the most above the start by the trace, in the very call that the meter watched.
        plain_s: seconds of calls without a trace.
        traced_s: seconds of calls with a trace, each right before or after the call in the same place of ``plain_s``.
        allocations: allocations during the call, all of them.
        condensed: whether blocks were put together or left out to keep the record small.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "memory_trace"

    label: str
    device: str
    times_us: tuple[int, ...]
    blocks: tuple[MemoryBlock, ...]
    environment: Environment
    phases: tuple[MemoryPhase, ...] = ()
    reserved_bytes: tuple[int, ...] = ()
    device_allocs: int | None = None
    alloc_retries: int | None = None
    meter: str = ""
    meter_bytes: int | None = None
    metered_bytes: int | None = None
    plain_s: tuple[float, ...] = ()
    traced_s: tuple[float, ...] = ()
    allocations: int = 0
    condensed: bool = False
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def from_blocks(
        cls,
        *,
        times_us: Sequence[int],
        blocks: Sequence[MemoryBlock],
        phases: Sequence[MemoryPhase] = (),
        reserved_bytes: Sequence[int] = (),
        most_blocks: int = MOST_BLOCKS,
        most_moments: int = MOST_MOMENTS,
        **fields: Any,
    ) -> Self:
        """Make a trace that is small enough for a record.

        A long call has more blocks and moments than a record should hold. Then only some moments are kept: the first,
        the last, and of each stretch between them the one with most memory, so the peak is always among them. Blocks
        that were there at none of these are left out, and blocks that are alike (same kind, module, line and operation,
        there at the same moments) are put together. At every moment that is kept, every sum is exact.

        Args:
            times_us: of all moments.
            blocks: all blocks.
            phases: what the call did when.
            reserved_bytes: at all moments, or empty.
            most_blocks: blocks to keep at most.
            most_moments: moments to keep at most.
            **fields: the other attributes.

        Returns:
            The trace.
        """
        fields = {"allocations": sum(block.count for block in blocks if block.born), **fields}
        if len(blocks) <= most_blocks and len(times_us) <= most_moments:
            return cls(
                times_us=tuple(times_us),
                blocks=tuple(blocks),
                phases=tuple(phases),
                reserved_bytes=tuple(reserved_bytes),
                **fields,
            )
        totals = _sums(((block.size_bytes, block.born, block.died) for block in blocks), len(times_us))
        many = most_moments
        while True:
            kept = _highest(totals, many)
            merged = _merged(blocks, kept)
            if len(merged) > most_blocks and many <= most_moments // 4:
                merged = _merged([dataclasses.replace(block, op="") for block in blocks], kept)
            if len(merged) <= most_blocks or many <= 8:
                break
            many //= 2
        for unnamed in ({"op": "", "line": ""}, {"op": "", "line": "", "module": ""}):
            if len(merged) > most_blocks:
                merged = _merged([dataclasses.replace(block, **unnamed) for block in blocks], kept)
        return cls(
            times_us=tuple(times_us[moment] for moment in kept),
            blocks=tuple(merged),
            phases=tuple(
                MemoryPhase(phase.name, first, last)
                for phase in phases
                if (first := bisect.bisect_left(kept, phase.first))
                <= (last := bisect.bisect_right(kept, phase.last) - 1)
            ),
            reserved_bytes=tuple(reserved_bytes[moment] for moment in kept) if reserved_bytes else (),
            condensed=True,
            **fields,
        )

    @property
    def moments(self) -> int:
        """Number of moments."""
        return len(self.times_us)

    @functools.cached_property
    def totals_bytes(self) -> tuple[int, ...]:
        """Bytes that were allocated at each moment."""
        return _sums(((block.size_bytes, block.born, block.died) for block in self.blocks), self.moments)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were allocated at once, those from before the call included."""
        return max(self.totals_bytes)

    @property
    def peak_moment(self) -> int:
        """The first moment at which the peak was reached."""
        return self.totals_bytes.index(self.peak_bytes)

    @property
    def start_bytes(self) -> int:
        """What was there before the call."""
        return self.totals_bytes[0]

    @property
    def end_bytes(self) -> int:
        """What is still there after the call, once its result is dropped."""
        return self.totals_bytes[-1]

    @property
    def extra_peak_bytes(self) -> int:
        """How far the peak rises above what was there before the call."""
        return self.peak_bytes - self.start_bytes

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most that the caching allocator had taken from the device; None on a CPU."""
        return max(self.reserved_bytes, default=None)

    @property
    def scratch_bytes(self) -> int | None:
        """How far the meter saw the peak above the trace's: memory that no operation returns. None without a meter."""
        if self.meter_bytes is None or self.metered_bytes is None:
            return None
        return self.meter_bytes - self.metered_bytes

    @property
    def overhead(self) -> float | None:
        """Time of a traced call over that of a plain one, the median of the pairs; None if it was not measured."""
        if not self.plain_s:
            return None
        return statistics.median(traced / plain for plain, traced in zip(self.plain_s, self.traced_s, strict=True))

    def by_kind(self) -> dict[str, tuple[int, ...]]:
        """Bytes at each moment for every kind that occurs, in the order of `MEMORY_KINDS`."""
        found = self._by(lambda block: block.kind)
        return {kind: found[kind] for kind in MEMORY_KINDS if kind in found}

    def by_module(self, depth: int = 1) -> dict[str, tuple[int, ...]]:
        """Bytes at each moment for every module.

        Args:
            depth: how far to go into the model: 0 for whole models, 1 for their parts, and so on. Numbered parts count
                with the list that holds them: ``GPT.blocks.0`` is one step into ``GPT``.

        Returns:
            Module to bytes; the empty name is memory outside of modules.

        Raises:
            ValueError: if ``depth`` is negative.
        """
        if depth < 0:
            raise ValueError(f"depth is 0 or more, got {depth}: 0 is the whole model, 1 its parts")
        return self._by(lambda block: _module_at_depth(block.module, depth))

    def _by(self, key: Callable[[MemoryBlock], str]) -> dict[str, tuple[int, ...]]:
        groups: dict[str, list[MemoryBlock]] = {}
        for block in self.blocks:
            groups.setdefault(key(block), []).append(block)
        return {
            name: _sums(((block.size_bytes, block.born, block.died) for block in group), self.moments)
            for name, group in groups.items()
        }

    def at(self, moment: int) -> tuple[MemoryRow, ...]:
        """What was there at one moment, the largest first.

        Args:
            moment: its number.

        Returns:
            A row for each kind, module, line and operation.

        Raises:
            IndexError: if there is no such moment.
        """
        if not 0 <= moment < self.moments:
            raise IndexError(f"moment {moment} is not in this trace: it has moments 0 to {self.moments - 1}")
        sums: dict[tuple[str, str, str, str], list[int]] = {}
        for block in self.blocks:
            if block.born <= moment < block.died:
                row = sums.setdefault((block.kind, block.module, block.line, block.op), [0, 0])
                row[0] += block.size_bytes
                row[1] += block.count
        rows = [MemoryRow(*key, size_bytes=size, count=count) for key, (size, count) in sums.items()]
        return tuple(sorted(rows, key=lambda row: (-row.size_bytes, row.kind, row.module, row.line, row.op)))

    @property
    def at_peak(self) -> tuple[MemoryRow, ...]:
        """What was there at the peak, the largest first."""
        return self.at(self.peak_moment)

    def plot(self, *, by: str = "kind", x: str = "event", ax: Any = None) -> Figure:
        """Draw memory over time as stacked areas.

        Args:
            by: ``kind``, or ``module`` for the parts of the model.
            x: ``event`` gives each allocation and release the same width, as PyTorch's viewer does; ``time`` is in ms.
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.

        Raises:
            ValueError: if ``by`` or ``x`` is another one.
        """
        from course_utils.show.memory_figures import memory_figure

        return memory_figure(self, by=by, x=x, ax=ax)

    def explore(self) -> Any:
        """The picture to zoom into, with every block's name under the pointer.

        Returns:
            Something that shows itself in a notebook and in a page without a kernel, with all that it needs inside.
        """
        from course_utils.show.memory_figures import MemoryExplorer

        return MemoryExplorer(self)

    def to_record(self) -> dict[str, Any]:
        """The trace as plain JSON types: blocks as columns, texts once."""
        record = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        record["environment"] = self.environment.to_record()
        record["times_us"] = _steps(self.times_us)
        record["reserved_bytes"] = _steps(self.reserved_bytes)
        record["phases"] = [[phase.name, phase.first, phase.last] for phase in self.phases]
        columns: dict[str, Any] = {}
        for f in dataclasses.fields(MemoryBlock):
            values = [getattr(block, f.name) for block in self.blocks]
            if f.name in ("kind", "module", "line", "op"):
                texts = list(dict.fromkeys(values))
                number = {text: i for i, text in enumerate(texts)}
                columns[f.name] = {"texts": texts, "of": [number[value] for value in values]}
            else:
                columns[f.name] = values
        record["blocks"] = columns
        return _compact({key: value for key, value in record.items() if value not in (None, (), [], {}, "")})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The trace from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("plain_s", "traced_s", "notes"))
        values["environment"] = Environment.from_record(record["environment"])
        values["times_us"] = _from_steps(record["times_us"])
        values["reserved_bytes"] = _from_steps(record.get("reserved_bytes", ()))
        values["phases"] = tuple(_built_of(MemoryPhase, phase) for phase in record.get("phases", ()))
        columns = []
        for f in dataclasses.fields(MemoryBlock):
            column = record["blocks"][f.name]
            columns.append([column["texts"][i] for i in column["of"]] if isinstance(column, Mapping) else column)
        values["blocks"] = tuple(_built_of(MemoryBlock, row) for row in zip(*columns, strict=True))
        result = _built(cls, values)
        moments = result.moments
        if not moments or list(result.times_us) != sorted(result.times_us):
            raise ValueError(f"{result.label!r} has no moments, or moments that are out of order")
        for block in result.blocks:
            if block.kind not in MEMORY_KINDS or not 0 <= block.born < block.died <= moments or block.size_bytes < 0:
                raise ValueError(f"{result.label!r} has a block that makes no sense: {block}")
        if any(not 0 <= phase.first <= phase.last < moments for phase in result.phases):
            raise ValueError(f"{result.label!r} has a phase outside of its moments")
        if len(result.reserved_bytes) not in (0, moments) or len(result.plain_s) != len(result.traced_s):
            raise ValueError(f"{result.label!r} has series of different lengths")
        return result


def _built_of(cls: type[_T], row: Sequence[Any]) -> _T:
    return _built(cls, dict(zip((f.name for f in dataclasses.fields(cls)), row, strict=True)))


def _steps(values: Sequence[int]) -> list[int]:
    """The first value and the differences that follow: shorter in a file."""
    return [later - earlier for earlier, later in itertools.pairwise((0, *values))]


def _from_steps(steps: Sequence[int]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(steps))


def _sums(spans: Iterable[tuple[int, int, int]], moments: int) -> tuple[int, ...]:
    """Adds up sizes at each moment, from (size, born, died)."""
    changes = [0] * (moments + 1)
    for size, born, died in spans:
        changes[born] += size
        changes[died] -= size
    return tuple(itertools.accumulate(changes[:moments]))


def _highest(totals: Sequence[int], many: int) -> list[int]:
    """At most ``many`` moments: the first, the last, and the highest of each stretch between them."""
    last = len(totals) - 1
    stretches = max(1, many - 2)
    edges = [1 + round(i * (last - 1) / stretches) for i in range(stretches + 1)]
    chosen = {0, last}
    for start, end in itertools.pairwise(edges):
        if start < end:
            chosen.add(max(range(start, end), key=totals.__getitem__))
    return sorted(chosen)


def _merged(blocks: Sequence[MemoryBlock], kept: Sequence[int]) -> list[MemoryBlock]:
    """The blocks that were there at any of these moments, those that are alike put together."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for block in blocks:
        born, died = bisect.bisect_left(kept, block.born), bisect.bisect_left(kept, block.died)
        if born < died:
            key = (born, died, block.kind, block.module, block.line, block.op)
            both = sums.setdefault(key, [0, 0])
            both[0] += block.size_bytes
            both[1] += block.count
    return [MemoryBlock(size, *key, count=count) for key, (size, count) in sums.items()]


def _module_at_depth(module: str, depth: int) -> str:
    """``GPT.blocks.0.mlp`` is ``GPT`` at depth 0 and ``GPT.blocks.0`` at depth 1."""
    parts, steps = module.split("."), 0
    for i, part in enumerate(parts[1:], start=1):
        if not part.isdigit() or parts[i - 1] == parts[0]:
            steps += 1
        if steps > depth:
            return ".".join(parts[:i])
    return module


@dataclass(frozen=True)
class GPTShape:
    """The size of a ``materials.models.GPT``.

    Attributes:
        width: size of a token's vector.
        layers: number of blocks.
        heads: attention heads of each block.
        vocabulary: number of tokens.
        context: the longest sequence.
    """

    width: int
    layers: int
    heads: int
    vocabulary: int = 256
    context: int = 256

    @property
    def parameters(self) -> int:
        """Number of parameters; the output layer shares the embedding's."""
        width = self.width
        return (self.vocabulary + self.context + 2) * width + self.layers * (12 * width**2 + 13 * width)


@dataclass(frozen=True)
class ClusterPoint:
    """Memory of the rank that holds most, in one training step under one strategy on one number of ranks.

    Attributes:
        strategy: how the model is spread over the ranks.
        ranks: how many there are.
        weights_bytes: parameters as they lie between steps. This and the next four are each part's own largest size.
        gradients_bytes: gradients as they lie between ``backward`` and ``zero_grad``.
        optimizer_bytes: the optimizer's state.
        gathered_bytes: parameters and gradients that are put together or sent, and the buffers for that.
        activations_bytes: all else: what is kept for the backward pass, and temporaries.
        peak_bytes: the most that all parts took together.
        at_peak: what each part took then.
        peak_phase: what ran then: ``forward``, ``backward`` or ``optimizer step``.
    """

    strategy: str
    ranks: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    activations_bytes: int
    peak_bytes: int
    at_peak: Mapping[str, int]
    peak_phase: str

    @property
    def label(self) -> str:
        """Strategy and ranks in words."""
        return f"{self.strategy}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"

    def __getitem__(self, part: str) -> int:
        """The largest size of one of ``CLUSTER_PARTS``, or ``peak``."""
        return getattr(self, f"{part}_bytes")


@dataclass(frozen=True)
class MethodError:
    """How well the simulation met what was measured on real ranks, for one strategy.

    Attributes:
        strategy: which.
        deviation: the largest relative deviation, of any part at any point.
        points: how many points were measured.
        ranks: the most ranks among them.
        parameters: the most parameters that a model among them had.
    """

    strategy: str
    deviation: float
    points: int
    ranks: int
    parameters: int

    @property
    def words(self) -> str:
        """The deviation, rounded up, and what it is drawn from."""
        bound = max(1, math.ceil(round(self.deviation * 1000, 6))) / 10
        return f"within {bound:.1f}% of {self.points} measured point{'s' if self.points > 1 else ''}"


def trust_words(point: ClusterPoint, errors: Iterable[MethodError], parameters: int) -> str:
    """How good the simulation of a model with so many parameters is at a point; see :meth:`ClusterPlan.trust`."""
    error = next((error for error in errors if error.strategy == point.strategy), None)
    if error is None:
        return "not validated"
    beyond = []
    if point.ranks > error.ranks:
        beyond.append(f"{error.ranks} ranks")
    if parameters > error.parameters:
        beyond.append(f"{error.parameters:,} parameters")
    if beyond:
        return f"not validated beyond {' and '.join(beyond)}"
    # One rank takes other code: nothing is gathered there.
    return error.words if point.ranks > 1 or error.ranks == 1 else "not validated on one rank"


@dataclass(frozen=True, repr=False)
class ClusterPlan(_Result):
    """Memory per rank on clusters that need not exist, simulated. Made by :func:`course_utils.simulate_cluster`.

    Attributes:
        points: one for each strategy and number of ranks.
        errors: how well the method met real ranks, by strategy.
        environment: machine and software of the simulation.
        name: the record's name, ``lesson/experiment``.
        parameters: the model's shape and the settings of the step.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "cluster_plan"

    points: tuple[ClusterPoint, ...]
    errors: tuple[MethodError, ...]
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> GPTShape:
        """The model's size."""
        return GPTShape(**{f.name: self.parameters[f.name] for f in dataclasses.fields(GPTShape)})

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that were simulated."""
        return tuple(dict.fromkeys(point.strategy for point in self.points))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of ranks that were simulated."""
        return tuple(dict.fromkeys(point.ranks for point in self.points))

    def __iter__(self) -> Iterator[ClusterPoint]:
        return iter(self.points)

    def __getitem__(self, key: str | tuple[str, int]) -> Any:
        """``plan["fsdp", 64]`` is one point, ``plan["fsdp"]`` all of a strategy."""
        strategy, ranks = key if isinstance(key, tuple) else (key, None)
        found = tuple(p for p in self.points if p.strategy == strategy and ranks in (None, p.ranks))
        if not found:
            raise KeyError(
                f"no {key!r} in this plan; there are: {', '.join(self.strategies)} on {', '.join(map(str, self.ranks))}"
            )
        return found if ranks is None else found[0]

    def trust(self, point: ClusterPoint) -> str:
        """How good the method is at a point, in words.

        Args:
            point: one of the plan's.

        Returns:
            The largest deviation from measured points, or that nothing was measured there.
        """
        return trust_words(point, self.errors, self.shape.parameters)

    def against(self, check: ClusterCheck | Unrecorded) -> Self | Unrecorded:
        """The same plan, with the error that your own measured points give.

        Args:
            check: from :func:`course_utils.ranks.cluster.check_cluster`.

        Returns:
            A new plan; or the check, if it is not recorded yet.
        """
        if isinstance(check, Unrecorded):
            return check
        return dataclasses.replace(self, errors=check.errors)

    def plot(self, *, memory_bytes: int | None = None, ax: Any = None) -> Figure:
        """Draw the memory at the peak as stacked bars, by strategy and ranks.

        Args:
            memory_bytes: a device's memory, to draw as a line.
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        from course_utils.show.cluster_figures import plan_figure

        return plan_figure(self, memory_bytes=memory_bytes, ax=ax)

    def to_record(self) -> dict[str, Any]:
        """The plan as plain JSON types."""
        return _compact(dataclasses.asdict(self) | {"environment": self.environment.to_record()})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The plan from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("notes",))
        values["environment"] = Environment.from_record(record["environment"])
        values["points"] = tuple(_built(ClusterPoint, point) for point in record["points"])
        values["errors"] = tuple(_built(MethodError, error) for error in record["errors"])
        result = _built(cls, values)
        if not result.points or any(set(point.at_peak) != set(CLUSTER_PARTS) for point in result.points):
            raise ValueError("a plan has points, and each point all parts")
        _built(GPTShape, dataclasses.asdict(result.shape))
        return result


@dataclass(frozen=True)
class CheckedPoint:
    """What was measured on real ranks, and what the simulation says of the same step.

    Attributes:
        strategy: how the model was spread over the ranks.
        ranks: how many there were.
        parameters: of the model.
        setting: the step's settings, in words.
        measured: bytes of one rank, by part and for the ``peak``, as far as they were measured.
        simulated: the same from the simulation.
    """

    strategy: str
    ranks: int
    parameters: int
    setting: str
    measured: Mapping[str, int]
    simulated: Mapping[str, int]

    @property
    def deviation(self) -> float:
        """The largest relative deviation. A part of under 1% of what is largest counts as if it had 1%."""
        floor = 0.01 * max(self.measured.values())
        return max(abs(self.simulated[part] - size) / max(size, floor) for part, size in self.measured.items())


@dataclass(frozen=True, repr=False)
class ClusterCheck(_Result):
    """Measured points beside simulated ones. Made by :func:`course_utils.ranks.cluster.check_cluster`.

    Attributes:
        points: one for each measured point.
        environment: machine and software.
        name: the record's name, ``lesson/experiment``.
        parameters: settings.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "cluster_check"

    points: tuple[CheckedPoint, ...]
    environment: Environment
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """The largest relative deviation of all."""
        return max(point.deviation for point in self.points)

    @property
    def errors(self) -> tuple[MethodError, ...]:
        """How well the method met the points of each strategy."""
        groups: dict[str, list[CheckedPoint]] = {}
        for point in self.points:
            groups.setdefault(point.strategy, []).append(point)
        return tuple(
            MethodError(
                strategy,
                max(point.deviation for point in group),
                len(group),
                max(point.ranks for point in group),
                max(point.parameters for point in group),
            )
            for strategy, group in groups.items()
        )

    def __iter__(self) -> Iterator[CheckedPoint]:
        return iter(self.points)

    def plot(self, ax: Any = None) -> Figure:
        """Draw measured and simulated peaks side by side.

        Args:
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        from course_utils.show.cluster_figures import check_figure

        return check_figure(self, ax=ax)

    def to_record(self) -> dict[str, Any]:
        """The points as plain JSON types."""
        return _compact(dataclasses.asdict(self) | {"environment": self.environment.to_record()})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The points from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("notes",))
        values["environment"] = Environment.from_record(record["environment"])
        values["points"] = tuple(_built(CheckedPoint, point) for point in record["points"])
        result = _built(cls, values)
        if not result.points or any(not p.measured or set(p.measured) - set(p.simulated) for p in result.points):
            raise ValueError("each checked point has measured sizes, and the same sizes simulated")
        return result


@dataclass(frozen=True)
class RankReport:
    """What one rank of a program reported.

    Attributes:
        rank: its number.
        values: plain values by name.
    """

    rank: int
    values: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class RankResults(_Result):
    """What the ranks of a torchrun program reported to :func:`course_utils.run_ranks`.

    Attributes:
        program: the program's path, as it was given.
        reports: what each rank reported, by rank.
        environment: machine and software.
        args: the program's own arguments.
        backend: ``nccl`` or ``gloo``: what the ranks talked through.
        threads_per_rank: threads that one operation of a rank may use.
        seconds: from the start of torchrun to its end.
        name: the record's name, ``lesson/experiment``.
        parameters: problem sizes and settings; ranks, arguments, backend and threads among them.
        notes: what a reader must know, in words.
    """

    kind: ClassVar[str] = "rank_results"

    program: str
    reports: tuple[RankReport, ...]
    environment: Environment
    args: tuple[str, ...] = ()
    backend: str = "gloo"
    threads_per_rank: int = 1
    seconds: float = 0.0
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.reports)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of all that was reported, in the order of the first report."""
        return tuple(dict.fromkeys(key for report in self.reports for key in report.values))

    @property
    def rounds(self) -> tuple[str, ...]:
        """Names of what ``timed_rounds`` timed: what :meth:`comparison` takes."""
        return tuple(key for key in self.keys if all(map(_is_rounds, self.values(key).values())))

    @property
    def command(self) -> str:
        """What starts the same program by hand, in a shell and in the folder of the notebook."""
        arguments = [self.program, *self.args]
        return f"torchrun --standalone --nproc-per-node={self.ranks} {shlex.join(arguments)}"

    def __getitem__(self, rank: int) -> Mapping[str, Any]:
        for report in self.reports:
            if report.rank == rank:
                return _Reported(report.values, f"rank {rank}")
        raise KeyError(f"there is no rank {rank!r}; there are 0 to {self.ranks - 1}")

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[report.rank] for report in self.reports)

    def values(self, key: str) -> dict[int, Any]:
        """One value of all ranks that reported it.

        Args:
            key: its name.

        Returns:
            Rank to value.

        Raises:
            KeyError: if no rank reported it.
        """
        if key not in self.keys:
            raise KeyError(f"no rank reported {key!r}; there are: {', '.join(self.keys) or 'none'}")
        return {report.rank: report.values[key] for report in self.reports if key in report.values}

    @property
    def table(self) -> Table:
        """One row a rank: the median of seconds, memory by kind, the last value of a series, and what else fits."""
        columns, units = ["rank"], {}
        cells: dict[str, dict[int, Any]] = {}

        def add(column: str, rank: int, value: Any, unit: str | None) -> None:
            if column not in cells:
                columns.append(column)
                cells[column] = {}
                if unit is not None:
                    units[column] = unit
            cells[column][rank] = value

        by_kind = [key for key in self.keys if all(is_memory_by_kind(key, v) for v in self.values(key).values())]
        for key in self.keys:
            words, unit = words_and_unit(key)
            if sum(words_and_unit(other)[0] == words for other in self.keys) > 1:
                words = key
            for rank, value in self.values(key).items():
                if key in by_kind:
                    for kind in memory_kinds(value):
                        add(kind if len(by_kind) == 1 else f"{words}: {kind}", rank, value[kind], "bytes")
                elif is_series(value):
                    numbers = [item for item in value if item is not None]
                    if unit == "s":
                        add(f"{words} (median)", rank, statistics.median(numbers) if numbers else None, unit)
                    else:
                        add(f"{words} (last)", rank, value[-1], unit)
                elif value is None or isinstance(value, bool | int | float | str):
                    number = isinstance(value, int | float) and not isinstance(value, bool)
                    add(words, rank, value, unit if number else None)
        rows = tuple(
            (report.rank, *(cells[column].get(report.rank) for column in columns[1:])) for report in self.reports
        )
        notes = self.notes
        if len(columns) == 1:
            # A column of numbers alone would look as if something had gone wrong.
            known = [key for key in self.keys if key not in self.rounds]
            told = f"Nested values, which no table holds: {', '.join(known)}; read them by run[rank][name]."
            notes = (*notes, *([told] if known else [] if self.keys else ["The ranks reported nothing."]))
        return Table(
            columns=tuple(columns),
            rows=rows,
            units=units,
            environment=self.environment,
            name=self.name or self.program,
            parameters=self.parameters,
            notes=notes,
        )

    def curves(self, key: str, x: str = "step", y: str | None = None) -> Curves:
        """A series of all ranks, such as the loss, as one line a rank.

        Args:
            key: its name.
            x: what the series goes along.
            y: what it is, with its unit; by default its name.

        Returns:
            The curves; x counts from 1.

        Raises:
            KeyError: if no rank reported it.
            ValueError: if it is not a series of numbers.
        """
        values = self.values(key)
        if not all(map(is_series, values.values())):
            raise ValueError(f"{key!r} is not a series of numbers: report(...) a list to draw it as a curve")
        return Curves(
            curves=tuple(
                Curve(f"rank {rank}", tuple(range(1, len(value) + 1)), tuple(value)) for rank, value in values.items()
            ),
            x_label=x,
            y_label=y or words_and_unit(key)[0],
            environment=self.environment,
            name=self.name,
            parameters=self.parameters,
            notes=self.notes,
        )

    def comparison(self, key: str = "rounds", practical: float = paired.PRACTICAL) -> Comparison:
        """What :func:`course_utils.ranks.launch.timed_rounds` timed in the program, compared.

        A case's time in a round is that of the slowest rank.

        Args:
            key: the ``name`` that the program gave to its rounds.
            practical: relative difference below which nobody cares: 0.01 is 1%.

        Returns:
            The comparison, with interval, A/A control and verdicts.

        Raises:
            KeyError: if no rank reported it.
            ValueError: if it does not come from ``timed_rounds``, or ranks timed other cases or numbers of rounds.
        """
        if not 0 < practical < 1:
            raise ValueError(f"practical is a relative difference between 0 and 1, got {practical!r}; 0.01 is 1%")
        told = list(self.values(key).values())
        if not all(map(_is_rounds, told)):
            raise ValueError(
                f"{key!r} does not come from timed_rounds(), which makes what can be compared; "
                f"these do: {', '.join(self.rounds) or 'none'}"
            )
        labels = tuple(told[0]["labels"])
        if any(tuple(one["labels"]) != labels for one in told):
            raise ValueError(f"the ranks timed other cases under {key!r}: each must name the same, in the same order")
        first = told[0]

        def slowest(label: str) -> Measurement:
            firsts = [one["first_call_s"][label] for one in told if one["first_call_s"].get(label) is not None]
            return Measurement(
                label,
                _slowest([one["seconds"][label] for one in told], label),
                calls=first["calls"],
                first_call_s=max(firsts, default=None),
                items=first["items"].get(label),
            )

        cases = tuple(map(slowest, labels))
        control = f"{labels[0]} again"
        several = self.ranks > 1
        return Comparison(
            cases=cases,
            control=Measurement(control, _slowest([one["control"] for one in told], control), calls=first["calls"]),
            environment=self.environment,
            name=f"{self.name or self.program}, {key}",
            parameters=self.parameters,
            clock=f"host clock, the slowest of {self.ranks} ranks" if several else "host clock",
            agreement=first["agreement"] or "not checked",
            practical=practical,
            planned_rounds=cases[0].rounds,
            spent_s=self.seconds,
            notes=self.notes,
        )

    def plot(self, key: str | None = None, *, log_y: bool = False, ax: Any = None) -> Figure:
        """Draw one thing that the ranks reported.

        Args:
            key: its name. A series of seconds is drawn sample by sample, another series as a curve, memory by kind as
                stacked bars, a number as bars. By default a curve if there is one, else memory, else seconds, else
                what ``timed_rounds`` timed.
            log_y: whether the y axis of a curve is logarithmic.
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.

        Raises:
            KeyError: if no rank reported it.
            ValueError: if it cannot be drawn.
        """
        from course_utils.show.rank_figures import rank_figure

        return rank_figure(self, key, log_y=log_y, ax=ax)

    def to_record(self) -> dict[str, Any]:
        """The results as plain JSON types, raw samples included."""
        record = {**_fields_of(self), "environment": self.environment.to_record()}
        # Pairs: files sort the keys of dictionaries, and the order of the columns would be lost.
        record["reports"] = [{"rank": one.rank, "values": list(one.values.items())} for one in self.reports]
        return _compact(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The results from :meth:`to_record`'s dictionary."""
        values = _tuples(record, ("args", "notes"))
        values["reports"] = tuple(
            _built(RankReport, {**report, "values": dict(report["values"])}) for report in record["reports"]
        )
        values["environment"] = Environment.from_record(record["environment"])
        result = _built(cls, values)
        if [report.rank for report in result.reports] != list(range(max(1, result.ranks))):
            raise ValueError("there is a report for each rank, in order")
        return result


class _Reported(dict[str, Any]):
    """What one rank reported: a dictionary that says what there is when a name is wrong."""

    def __init__(self, values: Mapping[str, Any], who: str) -> None:
        super().__init__(values)
        self._who = who

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"{self._who} reported no {key!r}; there are: {', '.join(self) or 'none'}")


def words_and_unit(key: str) -> tuple[str, str | None]:
    """``step_s`` is "step", in seconds."""
    for ending, unit in (("_s", "s"), ("_bytes", "bytes")):
        if key.endswith(ending) and key != ending:
            return key.removesuffix(ending).replace("_", " "), unit
    return key.replace("_", " "), None


def is_series(value: Any) -> bool:
    """Whether a value is a list of numbers."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(item is None or (isinstance(item, int | float) and not isinstance(item, bool)) for item in value)
    )


def memory_kinds(*sizes: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds in dictionaries of memory by kind, in the order in which pictures stack them."""
    kinds = dict.fromkeys(kind for one in sizes for kind in one)
    return (*(kind for kind in MEMORY_KINDS if kind in kinds), *sorted(kinds.keys() - set(MEMORY_KINDS)))


def is_memory_by_kind(key: str, value: Any) -> bool:
    """Whether a value is memory by kind: a dictionary of numbers under a name that ends with ``_bytes``."""
    return key.endswith("_bytes") and isinstance(value, Mapping) and is_series(list(value.values()))


def _is_rounds(value: Any) -> bool:
    """Whether a value is what ``timed_rounds`` reports."""
    return isinstance(value, Mapping) and {"labels", "seconds", "control"} <= value.keys()


def _slowest(series: Sequence[Sequence[float]], label: str) -> tuple[float, ...]:
    """Round by round the longest time of the ranks that had something to do."""
    timed = [one for one in series if one]
    if not timed or len({len(one) for one in timed}) > 1:
        raise ValueError(f"the ranks timed {label!r} in {sorted(map(len, series))} rounds: all must do the same number")
    return tuple(map(max, zip(*timed, strict=True)))


@dataclass(frozen=True)
class Unrecorded:
    """Stands for an experiment that a notebook has and no machine has recorded yet. It shows itself as that sentence.

    Attributes:
        name: the experiment, ``lesson/experiment``.
        needs: what a machine must have to run it, in words, such as ``a CUDA GPU``; empty if any machine will do.
    """

    name: str
    needs: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What is missing, and how to get it."""
        lesson = self.name.partition("/")[0]
        where = f"It needs {' and '.join(self.needs)}. On such a machine, run" if self.needs else "Run"
        return f"No run of {self.name} is recorded yet. {where} `course record {lesson} --reference`."

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.words)}</p>"

    def __getitem__(self, key: Any) -> Self:
        """A part of what is not recorded is not recorded: returns itself."""
        del key
        return self

    def __iter__(self) -> Iterator[Self]:
        """There are no cases or ranks to go through."""
        # Without this, Python would go through [0], [1], ... without end.
        return iter(())

    def first(self, label: str, verdict: str) -> Self:
        """As in a :class:`Sweep`; there is no first value either: returns itself."""
        del label, verdict
        return self

    def comparison(self, key: str = "", practical: float = 0.0) -> Self:
        """As in :class:`RankResults`; there is nothing to compare: returns itself."""
        del key, practical
        return self

    def curves(self, key: str, x: str = "", y: str | None = None) -> Self:
        """As in :class:`RankResults`; there are no curves: returns itself."""
        del key, x, y
        return self

    def against(self, check: object) -> Self:
        """As in a :class:`ClusterPlan`; there is no plan: returns itself."""
        del check
        return self

    @property
    def table(self) -> Self:
        """As in :class:`RankResults`; there is no table: itself."""
        return self

    def plot(self, *args: Any, **options: Any) -> Self:
        """There is nothing to draw: returns itself, so that the sentence is shown where the figure would be."""
        del args, options
        return self

    def explore(self) -> Self:
        """As in a :class:`MemoryTrace`; there is nothing to explore: returns itself."""
        return self


RESULT_TYPES: Mapping[str, type[_Result]] = {
    result.kind: result
    for result in (
        Environment,
        Measurement,
        Ceilings,
        Comparison,
        Sweep,
        Table,
        Curves,
        MemoryTrace,
        RankResults,
        ClusterPlan,
        ClusterCheck,
    )
}
