"""The memory of one call, allocation by allocation."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import sub
from typing import TYPE_CHECKING, Any, ClassVar, Self

from course_utils.results.environment import Environment
from course_utils.results.result import Fact, Result
from course_utils.show.cards import Bar, Card, Row, Toned, amount_axis
from course_utils.show.formats import format_bytes, format_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What a block of memory is for, in the order in which a picture stacks them: what comes and goes is on top.
MEMORY_KINDS = ("weights", "optimizer state", "gradients", "other", "activations", "temporaries")
# A record holds at most this many blocks and moments of a trace: some 40 kB. See `MemoryTrace.from_blocks`.
MOST_BLOCKS, MOST_MOMENTS = 1000, 1500


@dataclass(frozen=True)
class MemoryBlock:
    """One allocation, or several that are alike in a trace that was condensed."""

    size_bytes: int  # of all together if there are several
    born: int  # the moment from which on it is there; 0 if it was there before the traced call
    died: int  # the moment from which on it is gone; the number of moments if it outlives the traced call
    kind: str  # one of `MEMORY_KINDS`
    module: str = ""  # such as ``GPT.blocks.0.mlp.1``; empty outside of modules
    line: str = ""  # ``file:line function`` of the user's code that allocated it; empty if it was there before
    op: str = ""  # such as ``addmm``
    count: int = 1  # how many allocations it stands for


@dataclass(frozen=True)
class MemoryPhase:
    """A part of the traced call: ``forward``, ``backward`` or ``optimizer step``."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, repr=False)
class MemoryTrace(Result):
    """Every allocation and release of one call, over time.

    A moment is the start (moment 0), and each allocation or release after it.
    """

    kind: ClassVar[str] = "memory_trace"

    label: str
    device: str
    times_us: tuple[int, ...]  # from the start of the call to each moment
    blocks: tuple[MemoryBlock, ...]  # every block that was there at any moment
    environment: Environment
    phases: tuple[MemoryPhase, ...] = ()
    reserved_bytes: tuple[int, ...] = ()  # what the caching allocator had taken at each moment; empty on a CPU
    device_allocs: int | None = None  # how often it asked the device for memory (cudaMalloc)
    alloc_retries: int | None = None  # how often it had to give cached memory back and try again
    meter: str = ""  # an independent meter of the peak, in words; empty if none was asked
    meter_bytes: int | None = None  # the most above the start by that meter
    metered_bytes: int | None = None  # and by the trace, in the very call that the meter watched
    allocations: int = 0  # during the call, all of them
    condensed: bool = False  # whether blocks were put together or left out to keep the record small

    def __post_init__(self) -> None:
        moments = self.moments
        if not moments or list(self.times_us) != sorted(self.times_us):
            raise ValueError(f"{self.label!r} has no moments, or moments that are out of order")
        for block in self.blocks:
            if block.kind not in MEMORY_KINDS or not 0 <= block.born < block.died <= moments or block.size_bytes < 0:
                raise ValueError(f"{self.label!r} has a block that makes no sense: {block}")
        if len(self.reserved_bytes) not in (0, moments):
            raise ValueError(f"{self.label!r} has series of different lengths")

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
        """Make a trace that is small enough for a record, from all moments and blocks.

        Of a long call only some moments are kept: the first, the last, and of each stretch between them the one with
        most memory. Blocks that are alike are put together. At every moment that is kept, every sum is exact.
        """
        fields = {"allocations": sum(block.count for block in blocks if block.born), **fields}
        kept: Sequence[int] = range(len(times_us))
        if len(blocks) > most_blocks or len(times_us) > most_moments:
            kept, blocks = _condensed(blocks, len(times_us), most_blocks, most_moments)
            fields["condensed"] = True
        spans = [
            (phase.name, bisect.bisect_left(kept, phase.first), bisect.bisect_right(kept, phase.last) - 1)
            for phase in phases
        ]
        return cls(
            times_us=tuple(times_us[moment] for moment in kept),
            blocks=tuple(blocks),
            phases=tuple(MemoryPhase(*span) for span in spans if span[1] <= span[2]),
            reserved_bytes=tuple(reserved_bytes[moment] for moment in kept) if reserved_bytes else (),
            **fields,
        )

    @property
    def moments(self) -> int:
        """Number of moments."""
        return len(self.times_us)

    @functools.cached_property
    def totals_bytes(self) -> tuple[int, ...]:
        """Bytes that were allocated at each moment."""
        return totals_of(self.blocks, self.moments)

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
    def scratch_bytes(self) -> int | None:
        """How far the meter saw the peak above the trace's: memory that no operation returns. None without a meter."""
        if self.meter_bytes is None or self.metered_bytes is None:
            return None
        return self.meter_bytes - self.metered_bytes

    def by_kind(self) -> dict[str, tuple[int, ...]]:
        """Bytes at each moment for every kind that occurs, in the order of `MEMORY_KINDS`."""
        sums = self._by(lambda block: block.kind)
        return {kind: sums[kind] for kind in MEMORY_KINDS if kind in sums}

    def by_module(self) -> dict[str, tuple[int, ...]]:
        """Bytes at each moment for every part of the model; the empty name is memory outside of modules."""
        return self._by(lambda block: _part_of_model(block.module))

    def _by(self, key: Callable[[MemoryBlock], str]) -> dict[str, tuple[int, ...]]:
        groups: dict[str, list[MemoryBlock]] = {}
        for block in self.blocks:
            groups.setdefault(key(block), []).append(block)
        return {name: totals_of(group, self.moments) for name, group in groups.items()}

    def plot(self, *, by: str = "kind") -> Figure:
        """Draw memory over time as stacked areas, by ``kind``, or by ``module`` for the parts of the model.

        Each allocation and release has the same width, as in PyTorch's viewer.
        """
        from course_utils.results.memory_pictures import memory_figure

        return memory_figure(self, by)

    @classmethod
    def to_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Blocks as columns, texts once, series as steps; fields that say nothing are left out."""
        blocks = values["blocks"]
        columns: dict[str, Any] = {}
        for f in dataclasses.fields(MemoryBlock):
            column = [block[f.name] for block in blocks]
            if f.name in ("kind", "module", "line", "op"):
                number = {text: i for i, text in enumerate(dict.fromkeys(column))}
                columns[f.name] = {"texts": list(number), "of": [number[text] for text in column]}
            else:
                columns[f.name] = column
        # The first value and the differences that follow: shorter in a file.
        steps = {name: list(map(sub, values[name], (0, *values[name]))) for name in ("times_us", "reserved_bytes")}
        phases = [list(phase.values()) for phase in values["phases"]]
        record = {**values, **steps, "phases": phases, "blocks": columns}
        return {key: value for key, value in record.items() if value not in (None, [], {}, "")}

    @classmethod
    def from_file(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields' values from :meth:`to_file`'s columns and steps."""
        names = [f.name for f in dataclasses.fields(MemoryBlock)]
        columns = []
        for name in names:
            column = record["blocks"][name]
            columns.append([column["texts"][i] for i in column["of"]] if isinstance(column, Mapping) else column)
        phases = [f.name for f in dataclasses.fields(MemoryPhase)]
        return {
            **record,
            **{name: tuple(accumulate(record.get(name, ()))) for name in ("times_us", "reserved_bytes")},
            "phases": [dict(zip(phases, row, strict=True)) for row in record.get("phases", ())],
            "blocks": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)],
        }

    def card(self) -> Card:
        """How high the peak is, and what it is made of: a row a kind."""
        at_peak = {kind: values[self.peak_moment] for kind, values in self.by_kind().items()}
        rows = [Row(kind, "", format_bytes(size), "", Bar(0.0, float(size))) for kind, size in at_peak.items() if size]
        above = f"{format_bytes(self.extra_peak_bytes)} above the start."
        return Card(
            self.says or [f"Peak of {self.label}: ", Toned(format_bytes(self.peak_bytes)), f", {above}"],
            tuple(rows),
            amount_axis(at_peak.values(), format_bytes),
            heads=("", "at the peak"),
            notes=self.notes,
            **self.stamp(f"on {self.device}", self._met, self.busy),
        )

    @property
    def _met(self) -> str:
        """How an independent meter met the peak, in few words."""
        if self.scratch_bytes is None:
            return ""
        away = abs(self.scratch_bytes) / self.meter_bytes if self.meter_bytes else 0.0
        return f"{self.meter}: {f'{format_percent(away)} off' if away else 'the same peak'}"

    def facts(self) -> Iterator[Fact]:
        """The peak, and what each kind holds there."""
        before = f"{format_bytes(self.start_bytes)} before, {format_bytes(self.end_bytes)} after"
        yield Fact(f"peak of {self.label}", self.peak_bytes, format_bytes(self.peak_bytes), detail=before, unit="bytes")
        for kind, values in self.by_kind().items():
            size = values[self.peak_moment]
            yield Fact(f"{kind} at the peak", size, format_bytes(size), unit="bytes")


def totals_of(blocks: Iterable[MemoryBlock], moments: int) -> tuple[int, ...]:
    """Bytes of some blocks at each moment."""
    changes = [0] * (moments + 1)
    for block in blocks:
        changes[block.born] += block.size_bytes
        changes[block.died] -= block.size_bytes
    return tuple(accumulate(changes[:moments]))


def _condensed(
    blocks: Sequence[MemoryBlock], moments: int, most_blocks: int, most_moments: int
) -> tuple[list[int], list[MemoryBlock]]:
    """The moments to keep, and the blocks put together: fewer moments, then fewer names, until they fit."""
    totals, least = totals_of(blocks, moments), max(8, most_moments // 8)
    kept = _highest(totals, most_moments)
    merged = _merged(blocks, kept)
    while len(merged) > most_blocks and most_moments > least:
        most_moments //= 2
        kept = _highest(totals, most_moments)
        merged = _merged(blocks, kept)
    for name in ("op", "line", "module"):
        if len(merged) > most_blocks:
            merged = _merged([dataclasses.replace(block, **{name: ""}) for block in merged], range(len(kept)))
    return kept, merged


def _highest(totals: Sequence[int], many: int) -> list[int]:
    """At most ``many`` moments: the first, the last, and the highest of each stretch between them."""
    last = len(totals) - 1
    stretches = max(1, many - 2)
    edges = [1 + round(i * (last - 1) / stretches) for i in range(stretches + 1)]
    chosen = {0, last}
    for start, end in pairwise(edges):
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


def _part_of_model(module: str) -> str:
    """``GPT.blocks.0`` for ``GPT.blocks.0.mlp``: numbered parts count with the list that holds them."""
    parts = module.split(".")
    end = 2
    while len(parts) > end and parts[end].isdigit():
        end += 1
    return ".".join(parts[:end])
