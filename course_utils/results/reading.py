"""What a reader of a program says: of a trace, a memory snapshot, or a step that it measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from course_utils.results.environment import Environment
from course_utils.results.result import Fact, NothingToDrawError, Result
from course_utils.show.advice import Advice
from course_utils.show.cards import Axis, Card, Row, Toned
from course_utils.show.colours import BLUE
from course_utils.show.tables import Grid, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        shown = {"rows": card.rows, "axis": card.axis, "heads": card.heads, "table": card.table, "plan": card.plan}
        shown |= {"warning": card.warning, "sheet": card.numbers, "notes": card.notes}
        return cls(said, environment, **shown, name=name, worked_by=worked_by)

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

    def plot(self) -> Figure:
        """Draw the rows' bars; see :meth:`Result.plot`."""
        from course_utils.show import canvas

        rows = [row for row in self.rows if row.bar and row.bar.values]
        if not rows or self.axis is None:
            raise NothingToDrawError("this reading has no bars to draw")
        with canvas.style():
            row_in = canvas.row_in([row.label for row in rows], 0.38)
            fig = canvas.titled_figure(self.titled("what was found"), row_in * len(rows) + 0.5, self.caption)
            ax = fig.subplots()
            for y, row in enumerate(rows):
                low, high = min(row.bar.values), max(row.bar.values)
                ax.barh(y, high - low, 0.6, left=low, color=BLUE, alpha=0.6)
                canvas.label_right(ax, y, row.value or row.words)
            canvas.name_rows(ax, [row.label for row in rows])
            ax.set_xlim(self.axis.low, self.axis.high)
            places, texts = zip(*self.axis.ticks, strict=True) if self.axis.ticks else ((), ())
            ax.set_xticks(places, texts)
            ax.set_xlabel(f"what was found ({self.heads[1] or 'as on the card'})")
            canvas.grid(ax, "x")
            fig.alt = f"Bars. {'; '.join(f'{row.label}: {row.value or row.words}' for row in rows)}. "
            fig.alt += f"{self.caption}."
            return fig
