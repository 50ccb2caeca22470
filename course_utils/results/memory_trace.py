"""Memory over time, allocation by allocation, by the line of code that asked for it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate, pairwise
from operator import sub
from typing import TYPE_CHECKING, Any, ClassVar, Self

from course_utils.results.environment import Environment
from course_utils.results.result import Fact, Result
from course_utils.show.cards import Bar, Card, Row, Toned, amount_axis
from course_utils.show.formats import format_bytes, plain_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of a longer trace a record holds so many moments, which is some 16 kB.
MOST_MOMENTS = 400
_MOST_LINES = 7  # that a picture tells apart
_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


@dataclass(frozen=True)
class MemoryBlock:
    """One allocation, or several that are alike in a trace that was condensed."""

    size_bytes: int  # of all together if there are several
    born: int  # the moment from which on it is there; 0 if it was there before
    died: int  # the moment from which on it is gone; the number of moments if it is there at the end
    line: str = ""  # ``file:line function`` that asked for it
    count: int = 1  # how many allocations it stands for


_COLUMNS = tuple(field.name for field in fields(MemoryBlock))


@dataclass(frozen=True, repr=False)
class MemoryTrace(Result):
    """Every allocation and release, over time.

    A moment is the start (moment 0), and each allocation or release after it.
    """

    kind: ClassVar[str] = "memory_trace"

    label: str
    device: str
    times_us: tuple[int, ...]  # from the start to each moment
    blocks: tuple[MemoryBlock, ...]  # every block that was there at any moment
    environment: Environment
    allocations: int = 0  # after the start, all of them
    condensed: bool = False  # whether blocks were put together or left out to keep the record small

    @classmethod
    def from_blocks(cls, *, times_us: Sequence[int], blocks: Sequence[MemoryBlock], **more: Any) -> Self:
        """Make a trace that is small enough for a record, from all moments and blocks.

        Of a long one only some moments are kept: the first, the last, and of each stretch between them the one with
        most memory. Blocks that are alike are put together. At every moment that is kept, every sum is exact.
        """
        more["allocations"] = sum(block.born > 0 for block in blocks)
        if len(times_us) > MOST_MOMENTS:
            kept = _highest(_totals_of(blocks, len(times_us)))
            times_us, blocks = [times_us[moment] for moment in kept], _merged(blocks, kept)
            more["condensed"] = True
        return cls(times_us=tuple(times_us), blocks=tuple(blocks), **more)

    @property
    def moments(self) -> int:
        """Number of moments."""
        return len(self.times_us)

    @cached_property
    def totals_bytes(self) -> tuple[int, ...]:
        """Bytes that were allocated at each moment."""
        return _totals_of(self.blocks, self.moments)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were allocated at once, those from before the start included."""
        return max(self.totals_bytes)

    @property
    def peak_moment(self) -> int:
        """The first moment at which the peak was reached."""
        return self.totals_bytes.index(self.peak_bytes)

    def by_line(self) -> dict[str, tuple[int, ...]]:
        """Bytes at each moment for every line that asked, those that hold most at the peak first."""
        groups: dict[str, list[MemoryBlock]] = {}
        for block in self.blocks:
            groups.setdefault(block.line, []).append(block)
        sums = {line: _totals_of(group, self.moments) for line, group in groups.items()}
        ranked = sorted(sums, key=lambda line: (-sums[line][self.peak_moment], -max(sums[line]), line))
        return {line: sums[line] for line in ranked}

    @classmethod
    def to_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Blocks as columns, texts once, times as steps; ``line`` is called ``module`` there."""
        columns: dict[str, Any] = {key: [block[key] for block in values["blocks"]] for key in _COLUMNS}
        lines = columns.pop("line")
        number = {text: i for i, text in enumerate(dict.fromkeys(lines))}
        columns["module"] = {"texts": list(number), "of": [number[line] for line in lines]}
        # The first value and the differences that follow: shorter in a file.
        times = map(sub, values["times_us"], (0, *values["times_us"]))
        return {**values, "times_us": list(times), "blocks": columns}

    @classmethod
    def from_file(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields' values from :meth:`to_file`'s columns and steps."""
        lines = record["blocks"]["module"]
        columns = {**record["blocks"], "line": [lines["texts"][i] for i in lines["of"]]}
        rows = zip(*(columns[key] for key in _COLUMNS), strict=True)
        blocks = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        return {**record, "times_us": list(accumulate(record["times_us"])), "blocks": blocks}

    def card(self) -> Card:
        """How high the peak is, and who asked for it: a row a line."""
        at_peak = {line: sizes[self.peak_moment] for line, sizes in self.by_line().items()}
        rows = [Row(line, "", format_bytes(size), "", Bar(0.0, float(size))) for line, size in at_peak.items() if size]
        above = f"{format_bytes(self.peak_bytes - self.totals_bytes[0])} above the start."
        return Card(
            self.says or [f"Peak of {self.label}: ", Toned(format_bytes(self.peak_bytes)), f", {above}"],
            tuple(rows),
            amount_axis(at_peak.values(), format_bytes),
            heads=("", "at the peak"),
            notes=self.notes,
            **self.stamp(f"on {self.device}", self.busy),
        )

    def facts(self) -> Iterator[Fact]:
        """The peak."""
        before, after = (format_bytes(self.totals_bytes[at]) for at in (0, -1))
        detail = f"{before} before, {after} after"
        yield Fact(f"peak of {self.label}", self.peak_bytes, format_bytes(self.peak_bytes), detail=detail, unit="bytes")

    def plot(self, *, by: str = "module") -> Figure:
        """Draw memory over time as stacked areas, a band for each line that asked; ``by`` has one value.

        Each allocation and release has the same width, as in PyTorch's viewer.
        """
        from matplotlib.patches import Patch

        from course_utils.show import canvas

        with canvas.style():
            bands = self._bands()
            colours = [canvas.case_colour(i + 1) for i in range(len(bands))]
            names = [canvas.wrapped(line, 70, most=1) for line in bands]
            longest_in = max((canvas.text_width_in(name, 9.5) for name in names), default=0.0)
            columns = max(1, min(len(names), int((canvas.WIDTH_IN - 0.4) / (longest_in + 0.5))))
            title = self.titled(f"memory of {self.label} on {self.device}")
            fig = canvas.titled_figure(title, 4.0 + 0.24 * -(-len(names) // columns), self.caption)
            room, panel = fig.subplots(2, height_ratios=(0.24, 3.1))  # room between the legend and the panel
            room.set_axis_off()
            canvas.legend(fig, [Patch(facecolor=colour, edgecolor="white") for colour in colours], names, columns)
            self._draw(panel, bands, colours)
            held = [f"{line} {format_bytes(size)}" for line, all_ in bands.items() if (size := all_[self.peak_moment])]
            before, after = (format_bytes(self.totals_bytes[at]) for at in (0, -1))
            fig.alt = (
                f"Memory of {self.label} over time, stacked by {by}: {before} before the call, "
                f"{format_bytes(self.peak_bytes)} at the peak ({', '.join(held) or 'nothing'}), "
                f"{after} after it. {self.caption}."
            )
            return fig

    def _bands(self) -> dict[str, tuple[int, ...]]:
        """Bytes at each moment for the lines that hold most at the peak, and for all others."""
        lines = list(self.by_line().items())
        bands = dict(lines[:_MOST_LINES])
        if rest := lines[_MOST_LINES:]:
            bands["all others"] = tuple(map(sum, zip(*(sizes for _, sizes in rest), strict=True)))
        return bands

    def _draw(self, panel: Axes, bands: Mapping[str, Sequence[int]], colours: Sequence[str]) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        from course_utils.show import canvas
        from course_utils.show.colours import GREY_11

        scale, unit = next(each for each in _UNITS if self.peak_bytes >= each[0] or each[0] == 1)
        if bands:
            layers = [[size / scale for size in (*sizes, sizes[-1])] for sizes in bands.values()]
            panel.stackplot(range(self.moments + 1), layers, colors=colours, step="post", lw=0, zorder=2)
        middle, height = self.peak_moment + 0.5, self.peak_bytes / scale
        panel.plot([0, self.moments], [height, height], color=GREY_11, lw=0.8, ls=(0, (1, 2)), zorder=2.6)
        panel.plot(middle, height, "v", color=GREY_11, ms=7, zorder=3, clip_on=False)
        right = middle > 0.6 * self.moments
        panel.annotate(
            f"peak {format_bytes(self.peak_bytes)}",
            (middle, height),
            (-9 if right else 9, 3),
            textcoords="offset points",
            ha="right" if right else "left",
            va="bottom",
            fontsize=9.5,
            weight="bold",
            zorder=3,
            bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
        )
        panel.set_xlim(0, self.moments)
        panel.set_ylim(0, 1.13 * height or 1)
        panel.set_ylabel(f"memory ({unit})")
        panel.set_xlabel(f"{'moments that were kept' if self.condensed else 'allocations and releases'} (count)")
        panel.yaxis.set_major_locator(MaxNLocator(6))
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(FuncFormatter(plain_number))
        canvas.grid(panel, "y")


def _totals_of(blocks: Iterable[MemoryBlock], moments: int) -> tuple[int, ...]:
    """Bytes of some blocks at each moment."""
    changes = [0] * (moments + 1)
    for block in blocks:
        changes[block.born] += block.size_bytes
        changes[block.died] -= block.size_bytes
    return tuple(accumulate(changes[:moments]))


def _highest(totals: Sequence[int]) -> list[int]:
    """As many moments as a record holds: the first, the last, and the highest of each stretch between them."""
    last, stretches = len(totals) - 1, MOST_MOMENTS - 2
    edges = [1 + round(i * (last - 1) / stretches) for i in range(stretches + 1)]
    highest = (max(range(start, end), key=totals.__getitem__) for start, end in pairwise(edges) if start < end)
    return sorted({0, last, *highest})


def _merged(blocks: Sequence[MemoryBlock], kept: Sequence[int]) -> list[MemoryBlock]:
    """The blocks that were there at any of these moments, those that are alike put together."""
    sums: dict[tuple[int, int, str], list[int]] = {}
    for block in blocks:
        born, died = bisect.bisect_left(kept, block.born), bisect.bisect_left(kept, block.died)
        if born < died:
            both = sums.setdefault((born, died, block.line), [0, 0])
            both[0] += block.size_bytes
            both[1] += 1
    return [MemoryBlock(size, *key, count) for key, (size, count) in sums.items()]
