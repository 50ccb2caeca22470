"""What each rank of a simulated cluster holds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from course_utils.records.kinds.cluster_check import CLUSTER_PARTS, ClusterCheck, MethodError
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.table import Table
from course_utils.records.result import Fact, Result, structured
from course_utils.records.unrecorded import Unrecorded
from course_utils.show.cards import Bar, Card, Row, Toned, amount_axis
from course_utils.show.colours import GREY_BB
from course_utils.show.formats import format_bytes, format_count, listed
from course_utils.show.tables import Column, Grid, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class GPTShape:
    """The size of a ``materials.models.GPT``; with ``hidden``, of a ``materials.models.Llama``."""

    width: int  # size of a token's vector
    layers: int
    heads: int
    vocabulary: int = 256
    context: int = 256  # the longest sequence
    kv_heads: int | None = None  # of a Llama: heads of keys and values; as many as ``heads`` by default
    hidden: int | None = None  # of a Llama: width inside the MLP

    @property
    def family(self) -> str:
        """Which of the two models it is."""
        return "Llama" if self.hidden else "GPT"

    @property
    def parameters(self) -> int:
        """Number of parameters. A GPT's output layer shares the embedding's; a Llama has no biases."""
        width = self.width
        if self.hidden:
            shared = (self.kv_heads or self.heads) / self.heads
            block = round(2 * width**2 * (1 + shared)) + 3 * width * self.hidden + 2 * width
            return (2 * self.vocabulary + 1) * width + self.layers * block
        return (self.vocabulary + self.context + 2) * width + self.layers * (12 * width**2 + 13 * width)


@dataclass(frozen=True)
class ClusterPoint:
    """Memory of the rank that holds most, in one training step under one strategy on one number of ranks."""

    strategy: str  # how the model is spread over the ranks
    ranks: int  # how many there are
    weights_bytes: int  # parameters as they lie between steps. This and the next four are each part's own largest size.
    gradients_bytes: int  # gradients as they lie between ``backward`` and ``zero_grad``
    optimizer_bytes: int  # the optimizer's state
    gathered_bytes: int  # parameters and gradients that are put together or sent, and the buffers for that
    activations_bytes: int  # all else: what is kept for the backward pass, and temporaries
    peak_bytes: int  # the most that all parts took together
    at_peak: Mapping[str, int]  # what each part took then
    peak_phase: str  # what ran then: ``forward``, ``backward`` or ``optimizer step``

    @property
    def label(self) -> str:
        """Strategy and ranks in words."""
        return f"{self.strategy}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"

    def __getitem__(self, part: str) -> int:
        """The largest size of one of ``CLUSTER_PARTS``, or ``peak``."""
        return getattr(self, f"{part}_bytes")


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
class ClusterPlan(Result):
    """Memory per rank on clusters that need not exist, simulated. Made by :func:`course_utils.simulate_cluster`.

    The ``parameters`` are the model's shape and the settings of the step.
    """

    kind: ClassVar[str] = "cluster_plan"

    points: tuple[ClusterPoint, ...]  # one for each strategy and number of ranks
    errors: tuple[MethodError, ...]  # how well the method met real ranks, by strategy
    environment: Environment
    worked_by: str = field(default="simulation", kw_only=True)

    def __post_init__(self) -> None:
        if not self.points or any(set(point.at_peak) != set(CLUSTER_PARTS) for point in self.points):
            raise ValueError("a plan has points, and each point all parts")
        if self.shape.parameters < 1:
            raise ValueError("a plan's model has parameters")

    @property
    def shape(self) -> GPTShape:
        """The model's size."""
        return structured(GPTShape, {f.name: self.parameters.get(f.name) for f in dataclasses.fields(GPTShape)})

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
        points = tuple(p for p in self.points if p.strategy == strategy and ranks in (None, p.ranks))
        if not points:
            raise KeyError(
                f"no {key!r} in this plan; there are: {', '.join(self.strategies)} on {', '.join(map(str, self.ranks))}"
            )
        return points if ranks is None else points[0]

    def trust(self, point: ClusterPoint) -> str:
        """How good the method is at a point: its deviation from measured points, or that none was measured there."""
        return trust_words(point, self.errors, self.shape.parameters)

    def against(self, check: ClusterCheck | Unrecorded) -> Self | Unrecorded:
        """The same plan with the error of your own points, from :func:`course_utils.ranks.cluster.check_cluster`."""
        if isinstance(check, Unrecorded):
            return check
        return dataclasses.replace(self, errors=check.errors)

    def plot(self) -> Figure:
        """Draw the memory at the peak as stacked bars, by strategy and ranks; see :meth:`Result.plot`."""
        points = sorted(self.points, key=lambda point: point.ranks)
        rows = tuple((point.label, *(point.at_peak[part] for part in CLUSTER_PARTS)) for point in points)
        units = dict.fromkeys(CLUSTER_PARTS, "bytes")
        table = Table(("", *CLUSTER_PARTS), rows, self.environment, units=units, worked_by=self.worked_by)
        figure = table.plot(CLUSTER_PARTS, stacked=True)
        panel = figure.axes[0]
        panel.set_xlabel(panel.get_xlabel().replace("memory", "memory at the peak"))
        for row, (point, next_point) in enumerate(itertools.pairwise(points)):
            if point.ranks != next_point.ranks:
                panel.axhline(row + 0.5, color=GREY_BB, lw=0.8, zorder=1)
        title = f"{self._model}: a rank's memory, simulated"
        figure.texts[0].set_text(title)
        figure.alt = f"{title}. {figure.alt}"
        return figure

    @property
    def _model(self) -> str:
        return f"{self.shape.family} of {format_count(self.shape.parameters)} parameters"

    def card(self) -> Card:
        """Which strategy needs least on the most ranks; the peak of each point as a bar."""
        points = sorted(self.points, key=lambda point: point.ranks)
        on_most = [point for point in points if point.ranks == points[-1].ranks]
        least, most = (pick(on_most, key=lambda point: point.peak_bytes) for pick in (min, max))
        parts = [Toned(least.label), " peaks at ", Toned(format_bytes(least.peak_bytes)), " on a rank"]
        if least is not most:
            parts.append(f", {most.strategy} at {format_bytes(most.peak_bytes)}")
        return Card(
            self.says or [*parts, f": a {self._model}, simulated."],
            tuple(
                Row(p.label, p.peak_phase, format_bytes(p.peak_bytes), "", Bar(0.0, float(p.peak_bytes)))
                for p in points
            ),
            amount_axis((point.peak_bytes for point in points), format_bytes),
            heads=("peak in", "on a rank"),
            notes=(self._trust(points), *self.notes),
            numbers=self._numbers(),
            **self.stamp(),
        )

    def _trust(self, points: Sequence[ClusterPoint]) -> str:
        """How far the simulation can be trusted, in one line."""
        words: dict[str, list[str]] = {}
        for point in points:
            words.setdefault(self.trust(point), []).append(point.strategy)
        several = len(words) > 1
        said = (f"{listed(dict.fromkeys(names))}: {trust}" if several else trust for trust, names in words.items())
        return f"Against real ranks: {'; '.join(said)}."

    def _numbers(self) -> Sheet:
        points = self.points
        columns = [Column(part, tuple(format_bytes(p.at_peak[part]) for p in points)) for part in CLUSTER_PARTS]
        columns.append(Column("peak", tuple(format_bytes(point.peak_bytes) for point in points)))
        columns.append(Column("at its peak", tuple(point.peak_phase for point in points), numeric=False))
        key = Column("", tuple(point.label for point in points), numeric=False)
        trust = Column("the prediction is", tuple(map(self.trust, points)), numeric=False)
        settings = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
        lines = [
            f"{e.strategy}: {e.words}, on up to {e.ranks} ranks and with up to {e.parameters:,} parameters."
            for e in self.errors
            if e.strategy in self.strategies
        ]
        tables = (Grid("Memory on a rank", (key, *columns)), Grid("Against real ranks", (key, trust)))
        return Sheet(tables, tuple(lines), (settings, self.where))

    def facts(self) -> Iterator[Fact]:
        """Every point's peak, and how far it can be trusted."""
        for point in self:
            size = point.peak_bytes
            yield Fact(point.label, size, format_bytes(size), detail=self.trust(point), unit="bytes")
