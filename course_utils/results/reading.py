"""What a reader of a program says: of a trace, a memory snapshot, or a step that it measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from course_utils.results.environment import Environment
from course_utils.results.result import Fact, Result
from course_utils.show.advice import Advice
from course_utils.show.cards import Axis, Card, Row, Toned
from course_utils.show.tables import Grid, Sheet


@dataclass(frozen=True, repr=False)
class Reading(Result):
    """A card that was made once, with its plan: what `read_trace`, `read_snapshot` or `diagnose` said in a notebook."""

    kind: ClassVar[str] = "reading"

    said: tuple[Toned, ...]  # the sentence, part by part
    environment: Environment
    rows: tuple[Row, ...] = ()
    axis: Axis | None = None
    heads: tuple[str, str] = ("", "")
    table: Grid | None = None
    plan: tuple[Advice, ...] = ()
    warning: str = ""
    sheet: Sheet | None = None  # all numbers

    @classmethod
    def of(cls, card: Card, environment: Environment, name: str | None, worked_by: str) -> Self:
        """What a card says, with where it was made."""
        said = tuple(part if isinstance(part, Toned) else Toned(part, "plain") for part in card.parts)
        shown = {key: getattr(card, key) for key in ("rows", "axis", "heads", "table", "plan", "warning", "notes")}
        return cls(said, environment, **shown, sheet=card.numbers, name=name, worked_by=worked_by)

    def card(self) -> Card:
        """The card as it was."""
        said = [part.text if part.tone == "plain" else part for part in self.said]
        shown = {"table": self.table, "plan": self.plan, "warning": self.warning, "notes": self.notes}
        shown |= {"numbers": self.sheet, **self.stamp(self.busy)}
        return Card(self.says or said, self.rows, self.axis, self.heads, **shown)

    def facts(self) -> Iterator[Fact]:
        """What stands out, and each advice with its saving."""
        words = "".join(part.text for part in self.said)
        yield Fact("what stands out", words, words)
        for advice in self.plan:
            words = advice.saving or "no number"
            yield Fact(advice.change, advice.saves, words, f"{advice.change}: {words}", advice.because, unit="percent")
