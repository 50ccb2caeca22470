"""The limits of one machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from course_utils.results.environment import Environment
from course_utils.results.measurement import WORK_UNITS
from course_utils.results.result import Fact, NothingToDrawError, Result, by_name
from course_utils.show.cards import Axis, Bar, Card, Row
from course_utils.show.colours import BLUE, SKY
from course_utils.show.formats import axis_unit, format_rate, format_seconds, listed
from course_utils.show.tables import Column, Grid, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ceiling:
    """One limit of a machine, from raw samples."""

    name: str
    unit: str  # ``B/s``, ``FLOP/s`` or ``s``
    work: float  # bytes or operations of one sample; 1 for a latency
    samples_s: tuple[float, ...]  # seconds of each sample, for one repetition of the work

    def __post_init__(self) -> None:
        if not self.samples_s or min(self.samples_s) <= 0:
            raise ValueError(f"{self.name!r} has no samples, or samples that are not positive")

    @property
    def value(self) -> float:
        """The limit: the best rate seen, or the median latency in seconds."""
        return statistics.median(self.samples_s) if self.unit == "s" else self.work / min(self.samples_s)

    @property
    def samples(self) -> list[float]:
        """Every sample in the unit of the value: seconds, or work per second."""
        return list(self.samples_s) if self.unit == "s" else [self.work / sample for sample in self.samples_s]

    @property
    def limits(self) -> str | None:
        """Which kind of work it limits, ``bytes`` or ``flops``; None for a latency."""
        return next((of for of, unit in WORK_UNITS.items() if unit == self.unit), None)

    def text(self, value: float) -> str:
        """A value with the ceiling's unit."""
        return format_seconds(value) if self.unit == "s" else format_rate(value, self.unit)

    def in_words(self, unit: str | None = None) -> str:
        """The limit with its unit."""
        return self.text(self.value)


@dataclass(frozen=True, repr=False)
class Ceilings(Result):
    """The limits of one machine: what any program can reach at best, in the order in which they are shown."""

    kind: ClassVar[str] = "ceilings"

    entries: tuple[Ceiling, ...]
    environment: Environment

    def __getitem__(self, name: str) -> Ceiling:
        return by_name({e.name: e for e in self.entries}, name, f"ceiling {name!r} on this machine")

    def __iter__(self) -> Iterator[Ceiling]:
        return iter(self.entries)

    def card(self) -> Card:
        """The limits, one a row; a bar sets a rate against others of its unit, and against the recorded machine's."""
        entries = self.entries
        names = {entry.name for entry in entries}
        behind = {entry.name: entry for entry in self.behind or () if entry.name in names}
        most: dict[str, float] = {}
        for entry in (*entries, *behind.values()):
            most[entry.unit] = max(most.get(entry.unit, 0.0), entry.value)
        several = {entry.unit for entry in entries if entry.name in behind}
        several |= {unit for unit in most if sum(entry.unit == unit for entry in entries) > 1}

        def bar(entry: Ceiling | None) -> Bar | None:
            return Bar(0.0, entry.value / most[entry.unit]) if entry and entry.unit in several else None

        rows = tuple(Row(e.name, "", e.in_words(), "", bar(e), bar(behind.get(e.name))) for e in entries)
        limits = listed(f"{entry.name} {entry.in_words()}" for entry in entries) if entries else "nothing was measured"
        return Card(
            self.says or f"At best on {self.measured_on.device_name}: {limits}.",
            rows,
            Axis(0.0, 1.0) if several else None,
            notes=self.notes,
            numbers=self._numbers(),
            **self.stamp("rates: the best seen; latencies: the median", self.busy, grey=bool(several and behind)),
        )

    def _numbers(self) -> Sheet:
        entries = self.entries
        spread = tuple(f"{e.text(min(e.samples))} to {e.text(max(e.samples))}" for e in entries)
        table = Grid(
            f"Limits of {self.measured_on.device_name}",
            (
                Column("limit", tuple(entry.name for entry in entries), numeric=False),
                Column("value", tuple(entry.in_words() for entry in entries)),
                Column("samples from", spread),
                Column("samples", tuple(str(len(entry.samples_s)) for entry in entries)),
            ),
        )
        return Sheet((table,), (), (self.where,))

    def facts(self) -> Iterator[Fact]:
        """Every limit."""
        return (Fact(entry.name, entry.value, entry.in_words(), unit=entry.unit) for entry in self.entries)

    def plot(self) -> Figure:
        """Draw each limit as a bar, with every sample; see :meth:`Result.plot`."""
        from course_utils.show import canvas

        groups: dict[str, list[Ceiling]] = {}
        for entry in self.entries:
            groups.setdefault(entry.unit, []).append(entry)
        if not groups:
            raise NothingToDrawError("these ceilings hold no entry: nothing was measured that could be drawn")
        with canvas.style():
            row_in = canvas.row_in([entry.name for entry in self.entries], 0.36)
            how = "Every sample is a dot; the bar is the limit: the best rate, the median latency."
            panels_in = row_in * len(self.entries) + 0.68 * len(groups)
            title = f"What {self.measured_on.device_name} can do at best"
            fig = canvas.titled_figure(title, panels_in, how, self.caption)
            heights = [len(group) for group in groups.values()]
            panels = fig.subplots(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
            for panel, group in zip(panels, groups.values(), strict=True):
                _draw_group(panel, group)
            limits = "; ".join(f"{entry.name} {entry.in_words()}" for entry in self.entries)
            fig.alt = f"Limits of {self.measured_on.device_name}: {limits}. {self.caption}."
            return fig


def _draw_group(ax: Axes, group: Sequence[Ceiling]) -> None:
    """The ceilings of one unit: a bar up to the limit, and every sample."""
    from course_utils.show import canvas

    unit = group[0].unit
    scale, name = axis_unit(unit, statistics.median([entry.value for entry in group]))
    rows = [[value / scale for value in entry.samples] for entry in group]
    flat = [value for row in rows for value in row]
    log = canvas.span(flat) > 20
    for y, (row, entry) in enumerate(zip(rows, group, strict=True)):
        if not log:
            ax.barh(y, entry.value / scale, height=0.62, color=SKY, alpha=0.35, lw=0, zorder=1)
        canvas.strip(ax, y, row, BLUE, at=entry.value / scale)
        canvas.label_right(ax, y, entry.in_words())
    canvas.scale_axis(ax, "x", flat if log else [0, *flat], log=log, count=6)
    if not log:
        ax.set_xlim(left=0)
    canvas.name_rows(ax, [entry.name for entry in group])
    canvas.grid(ax, "x")
    what = {"B/s": "bandwidth", "FLOP/s": "compute rate", "s": "latency"}.get(unit, "rate")
    ax.set_xlabel(f"{what} ({name}{', log scale' if log else ''})")
