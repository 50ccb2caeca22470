"""What the ranks of a launch reported."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from course_utils.results import paired
from course_utils.results.comparison import Comparison
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from course_utils.results.memory_trace import MEMORY_KINDS
from course_utils.results.table import Table
from course_utils.results.result import Fact, Result
from course_utils.show.cards import Bar, Card, Row, Toned, amount_axis
from course_utils.show.formats import format_bytes, format_seconds, is_number, listed
from course_utils.show.tables import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RankReport:
    """What one rank of a program reported."""

    rank: int
    values: Mapping[str, Any]  # plain values by name


@dataclass(frozen=True, repr=False)
class RankResults(Result):
    """What the ranks of a torchrun program reported to :func:`course_utils.ranks.launch.run_ranks`."""

    kind: ClassVar[str] = "rank_results"

    program: str  # the program's path, as it was given
    reports: tuple[RankReport, ...]  # what each rank reported, by rank
    environment: Environment
    args: tuple[str, ...] = ()  # the program's own arguments
    backend: str = "gloo"  # ``nccl`` or ``gloo``: what the ranks talked through
    threads_per_rank: int = 1  # threads that one operation of a rank may use
    seconds: float = 0.0  # from the start of torchrun to its end

    def __post_init__(self) -> None:
        if [report.rank for report in self.reports] != list(range(max(1, self.ranks))):
            raise ValueError("there is a report for each rank, in order")

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
        if rank not in range(self.ranks):
            raise KeyError(f"there is no rank {rank!r}; there are 0 to {self.ranks - 1}")
        return _Reported(self.reports[rank])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[report.rank] for report in self.reports)

    def values(self, key: str) -> dict[int, Any]:
        """One value, by rank, of all ranks that reported it. Raises KeyError if none did."""
        if key not in self.keys:
            raise KeyError(f"no rank reported {key!r}; there are: {', '.join(self.keys) or 'none'}")
        return {report.rank: report.values[key] for report in self.reports if key in report.values}

    @property
    def table(self) -> Table:
        """One row a rank: the median of seconds, memory by kind, the last value of a series, and what else fits."""
        cells: dict[str, dict[int, Any]] = {"rank": {report.rank: report.rank for report in self.reports}}
        units: dict[str, str] = {}
        for key in self.keys:
            for rank, value in self.values(key).items():
                for column, cell, unit in self._cells(key, value):
                    cells.setdefault(column, {})[rank] = cell
                    if unit is not None:
                        units[column] = unit
        notes = self.notes
        if len(cells) == 1:
            # A column of numbers alone would look as if something had gone wrong.
            nested = [key for key in self.keys if key not in self.rounds]
            if nested:
                words = f"Nested values, which no table holds: {', '.join(nested)}; read them by run[rank][name]."
                notes = (*notes, words)
            elif not self.keys:
                notes = (*notes, "The ranks reported nothing.")
        return Table(
            columns=tuple(cells),
            rows=tuple(tuple(column.get(report.rank) for column in cells.values()) for report in self.reports),
            units=units,
            environment=self.environment,
            name=self.name or self.program,
            parameters=self.parameters,
            notes=notes,
            worked_by=self.worked_by,
            whose=self.whose,
        )

    def _cells(self, key: str, value: Any) -> Iterator[tuple[str, Any, str | None]]:
        words, unit = words_and_unit(key)
        if sum(words_and_unit(other)[0] == words for other in self.keys) > 1:
            words = key
        if self._is_memory(key):
            alone = sum(map(self._is_memory, self.keys)) == 1
            for kind in memory_kinds(value):
                yield kind if alone else f"{words}: {kind}", value[kind], "bytes"
        elif is_series(value) and unit == "s":
            numbers = [item for item in value if item is not None]
            yield f"{words} (median)", statistics.median(numbers) if numbers else None, unit
        elif is_series(value):
            yield f"{words} (last)", value[-1], unit
        elif value is None or isinstance(value, bool | int | float | str):
            yield words, value, unit if is_number(value) else None

    def _is_memory(self, key: str) -> bool:
        """Whether all ranks reported memory by kind: a dictionary of numbers under a name that ends with ``_bytes``."""
        values = self.values(key).values()
        return key.endswith("_bytes") and all(isinstance(v, Mapping) and is_series(list(v.values())) for v in values)

    @property
    def _memory_key(self) -> str | None:
        return next(filter(self._is_memory, self.keys), None)

    def comparison(self, key: str = "rounds", practical: float | None = None) -> Comparison:
        """What :func:`course_utils.ranks.programs.timed_rounds` timed, compared: in each round the slowest rank counts.

        Args:
            key: the ``name`` that the program gave to its rounds.
            practical: relative difference below which nobody cares; by default the one that the program gave.

        Raises:
            ValueError: if it does not come from ``timed_rounds``, or ranks timed other cases or numbers of rounds.
        """
        ranks = list(self.values(key).values())
        if key not in self.rounds:
            raise ValueError(
                f"{key!r} does not come from timed_rounds(), which makes what can be compared; "
                f"these do: {', '.join(self.rounds) or 'none'}"
            )
        first = ranks[0]
        practical = first.get("practical", paired.PRACTICAL) if practical is None else practical
        if not 0 < practical < 1:
            raise ValueError(f"practical is a relative difference between 0 and 1, got {practical!r}; 0.01 is 1%")
        labels = tuple(first["labels"])
        if any(tuple(rank["labels"]) != labels for rank in ranks):
            raise ValueError(f"the ranks timed other cases under {key!r}: each must name the same, in the same order")

        def slowest(label: str) -> Measurement:
            firsts = [rank["first_call_s"][label] for rank in ranks if rank["first_call_s"].get(label) is not None]
            return Measurement(
                label,
                _slowest([rank["seconds"][label] for rank in ranks], label),
                calls=first["calls"],
                first_call_s=max(firsts, default=None),
                items=first["items"].get(label),
            )

        cases = tuple(map(slowest, labels))
        control = f"{labels[0]} again"
        return Comparison(
            cases=cases,
            control=Measurement(control, _slowest([rank["control"] for rank in ranks], control), calls=first["calls"]),
            environment=self.environment,
            name=f"{self.name or self.program}, {key}",
            parameters=self.parameters,
            clock=f"host clock, the slowest of {self.ranks} ranks" if self.ranks > 1 else "host clock",
            agreement=first["agreement"] or "not checked",
            practical=practical,
            confidence=first.get("confidence", paired.DECISION_CONFIDENCE),
            spent_s=self.seconds,
            notes=self.notes,
            busy=self.busy,
            worked_by=self.worked_by,
            whose=self.whose,
            behind=self.behind.comparison(key, practical) if self.behind and key in self.behind.rounds else None,
        )

    def plot(self) -> Figure:
        """Draw memory by kind if it was reported, else what was timed side by side, else numbers of one unit."""
        if key := self._memory_key:
            sizes = self.values(key)
            kinds = memory_kinds(*sizes.values())
            rows = tuple((f"rank {rank}", *map(of_rank.get, kinds)) for rank, of_rank in sizes.items())
            units = dict.fromkeys(kinds, "bytes")
            how = {"name": self.name, "worked_by": self.worked_by}
            return Table(("rank", *kinds), rows, self.environment, units, **how).plot(stacked=True)
        if self.rounds:
            return self.comparison(self.rounds[0]).plot()
        return self._named_table.plot()

    @property
    def _named_table(self) -> Table:
        table = self.table
        rows = tuple((f"rank {rank}", *values) for rank, *values in table.rows)
        return dataclasses.replace(table, columns=("", *table.columns[1:]), rows=rows)

    @classmethod
    def to_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What was reported as pairs: files sort the keys of dictionaries, and the order of columns would be lost."""
        reports = [{**report, "values": list(report["values"].items())} for report in values["reports"]]
        return {**values, "reports": reports}

    @classmethod
    def from_file(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields' values from :meth:`to_file`'s pairs."""
        reports = [{**report, "values": dict(report["values"])} for report in record["reports"]]
        return {**record, "reports": reports}

    def card(self) -> Card:
        """What was timed side by side, or the memory of each rank, or else the table of what they reported."""
        how = f"{self.ranks} rank{'s' if self.ranks > 1 else ''} on {self.backend}"
        if self.rounds:
            shown = self.comparison(self.rounds[0]).card()
            shown = dataclasses.replace(shown, notes=(*map(self._in_a_line, self.rounds[1:]), *shown.notes))
        elif key := self._memory_key:
            shown = self._memory_card(key)
        else:
            shown = self._named_table.card()
            words = shown.words if shown.table else f"{listed(self.keys)}." if self.keys else "nothing."
            shown = dataclasses.replace(shown, sentence=f"What {how} report: {words}")
        provenance = f"{shown.provenance} · {how} · {format_seconds(self.seconds)} from start to end"
        more = {"provenance": provenance, "numbers": self._numbers(), "title": self.name or ""}
        return dataclasses.replace(shown, sentence=self.says or shown.sentence, **more)

    def _in_a_line(self, key: str) -> str:
        """What was found out about one set of rounds."""
        comparison = self.comparison(key)
        is_decided = any(case.verdict is not paired.Verdict.UNCLEAR for case in comparison.others)
        return f"{key}: {comparison.card().words if is_decided else 'too close to call.'}"

    def _memory_card(self, key: str) -> Card:
        """A row a rank, its bar what it holds in all."""
        sizes = self.values(key)
        totals = {rank: float(sum(filter(None, of_rank.values()))) for rank, of_rank in sizes.items()}
        kinds = memory_kinds(*sizes.values())
        most = max(totals, key=totals.__getitem__)
        parts = listed(f"{format_bytes(sizes[most].get(kind))} of {kind}" for kind in kinds)
        words = "Each rank holds" if len(set(totals.values())) == 1 else f"Rank {most} holds most,"
        return Card(
            [f"{words} ", Toned(format_bytes(totals[most])), f": {parts}."],
            tuple(Row(f"rank {rank}", "", format_bytes(total), "", Bar(0.0, total)) for rank, total in totals.items()),
            amount_axis(totals.values(), format_bytes),
            notes=self.notes,
            **self.stamp(self.busy),
        )

    def _numbers(self) -> Sheet:
        table = self.table
        timed = [grid for key in self.rounds for grid in self.comparison(key).numbers.tables]
        threads = f"{self.threads_per_rank} thread{'s' if self.threads_per_rank > 1 else ''} each"
        tables = table.all_columns() if len(table.columns) > 1 else ()
        return Sheet((*tables, *timed), (), (threads, self.command, self.where))

    def facts(self) -> Iterator[Fact]:
        """Those of the table, and of everything that was timed side by side."""
        for prefix, part in (("rank", self.table), *((f"{key}:", self.comparison(key)) for key in self.rounds)):
            for fact in part.facts():
                row = f"{prefix} {fact.row}" if fact.row else ""
                yield dataclasses.replace(fact, label=f"{prefix} {fact.label}", row=row)


class _Reported(dict[str, Any]):
    def __init__(self, report: RankReport) -> None:
        super().__init__(report.values)
        self.rank = report.rank

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"rank {self.rank} reported no {key!r}; there are: {', '.join(self) or 'none'}")


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
        and all(item is None or is_number(item) for item in value)
    )


def memory_kinds(*sizes: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds in dictionaries of memory by kind, in the order in which pictures stack them."""
    kinds = set().union(*sizes)
    return (*(kind for kind in MEMORY_KINDS if kind in kinds), *sorted(kinds - set(MEMORY_KINDS)))


def _is_rounds(value: Any) -> bool:
    """Whether a value is what ``timed_rounds`` reports."""
    return isinstance(value, Mapping) and {"labels", "seconds", "control"} <= value.keys()


def _slowest(series: Sequence[Sequence[float]], label: str) -> tuple[float, ...]:
    """Round by round the longest time of the ranks that had something to do."""
    timed = [seconds for seconds in series if seconds]
    if len(set(map(len, timed))) != 1:
        raise ValueError(f"the ranks timed {label!r} in {sorted(map(len, series))} rounds: all must do the same number")
    return tuple(map(max, zip(*timed, strict=True)))
