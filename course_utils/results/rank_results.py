"""What the ranks of a launch reported."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from course_utils.results import paired
from course_utils.results.comparison import Comparison
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from course_utils.results.result import Fact, Named, Result
from course_utils.results.table import Table
from course_utils.show.cards import Card
from course_utils.show.formats import format_seconds, listed
from course_utils.show.tables import Sheet


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
        return Named(self.reports[rank].values)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[report.rank] for report in self.reports)

    def values(self, key: str) -> dict[int, Any]:
        """One value, by rank, of all ranks that reported it. Raises KeyError if none did."""
        if key not in self.keys:
            raise KeyError(f"no rank reported {key!r}; there are: {', '.join(self.keys) or 'none'}")
        return {report.rank: report.values[key] for report in self.reports if key in report.values}

    @property
    def table(self) -> Table:
        """One row a rank, with the plain values; what is nested is read by ``run[rank][name]``."""
        cells = {key: self.values(key) for key in self.keys}
        # A list or a dictionary fits into no cell.
        plain = [key for key, of_rank in cells.items() if not any(isinstance(v, dict | list) for v in of_rank.values())]
        nested = [key for key in self.keys if key not in (*plain, *self.rounds)]
        notes = () if plain or not nested else (f"Nested values: {', '.join(nested)}; read them by run[rank][name].",)
        columns = {key: words_and_unit(key) for key in plain}
        return Table(
            columns=("rank", *(words for words, _ in columns.values())),
            rows=tuple((report.rank, *(cells[key].get(report.rank) for key in plain)) for report in self.reports),
            units={words: unit for words, unit in columns.values() if unit},
            environment=self.environment,
            name=self.name or self.program,
            parameters=self.parameters,
            notes=(*self.notes, *notes),
            worked_by=self.worked_by,
            whose=self.whose,
        )

    def comparison(self, key: str) -> Comparison:
        """What :func:`course_utils.ranks.programs.timed_rounds` timed, compared: in each round the slowest rank counts.

        ``key`` is the ``name`` that the program gave to its rounds.
        """
        if key not in self.rounds:
            raise KeyError(f"{key!r} was not timed by timed_rounds(); there are: {', '.join(self.rounds) or 'none'}")
        ranks = list(self.values(key).values())
        first = ranks[0]
        labels = tuple(first["labels"])

        def slowest(label: str) -> Measurement:
            firsts = [rank["first_call_s"][label] for rank in ranks if rank["first_call_s"].get(label) is not None]
            return Measurement(
                label,
                _slowest([rank["seconds"][label] for rank in ranks]),
                calls=first["calls"],
                first_call_s=max(firsts, default=None),
                items=first["items"].get(label),
            )

        cases = tuple(map(slowest, labels))
        control = f"{labels[0]} again"
        return Comparison(
            cases=cases,
            control=Measurement(control, _slowest([rank["control"] for rank in ranks]), calls=first["calls"]),
            environment=self.environment,
            name=f"{self.name or self.program}, {key}",
            parameters=self.parameters,
            clock=f"host clock, the slowest of {self.ranks} ranks" if self.ranks > 1 else "host clock",
            agreement=first["agreement"] or "not checked",
            practical=first.get("practical", paired.PRACTICAL),
            confidence=first.get("confidence", paired.DECISION_CONFIDENCE),
            spent_s=self.seconds,
            notes=self.notes,
            busy=self.busy,
            worked_by=self.worked_by,
            whose=self.whose,
            behind=self.behind.comparison(key) if self.behind and key in self.behind.rounds else None,
        )

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
        """What was timed side by side, or else the table of what they reported."""
        how = f"{self.ranks} rank{'s' if self.ranks > 1 else ''} on {self.backend}"
        if self.rounds:
            shown = self.comparison(self.rounds[0]).card()
            more = [f"{key}: {self.comparison(key).card().words}" for key in self.rounds[1:]]
            shown = dataclasses.replace(shown, notes=(*more, *shown.notes))
        else:
            shown = self.table.card()
            words = listed(self.keys) if self.keys else "nothing"
            shown = dataclasses.replace(shown, sentence=f"What {how} report: {words}.")
        provenance = f"{shown.provenance} · {how} · {format_seconds(self.seconds)} from start to end"
        more = {"provenance": provenance, "numbers": self._numbers(), "title": self.name or ""}
        return dataclasses.replace(shown, sentence=self.says or shown.sentence, **more)

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


def words_and_unit(key: str) -> tuple[str, str | None]:
    """``step_s`` is "step", in seconds."""
    for ending, unit in (("_s", "s"), ("_bytes", "bytes")):
        if key.endswith(ending) and key != ending:
            return key.removesuffix(ending).replace("_", " "), unit
    return key.replace("_", " "), None


def _is_rounds(value: Any) -> bool:
    """Whether a value is what ``timed_rounds`` reports."""
    return isinstance(value, Mapping) and {"labels", "seconds", "control"} <= value.keys()


def _slowest(series: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Round by round the longest time of the ranks that had something to do."""
    return tuple(map(max, zip(*(seconds for seconds in series if seconds), strict=True)))
