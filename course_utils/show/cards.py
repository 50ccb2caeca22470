"""The card: how every result shows itself, in a notebook, in a page and in a terminal.

One sentence, one line a case with its bar on a common axis, where it was measured, and all numbers, folded.
"""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.show import tables
from course_utils.show.advice import Advice
from course_utils.show.formats import unbroken
from course_utils.show.page import dressed
from course_utils.show.tables import Grid, Sheet

if TYPE_CHECKING:
    import jinja2

# What stands before a verdict, so that its colour is not all there is. The keys are the tones of cards.css.
MARKS = {"faster": "▲", "slower": "▼", "same": "■", "unclear": "○"}
_TEXT_WIDTH = 100
_LABEL_WIDTH, _WORDS_WIDTH, _BAR_WIDTH = 26, 30, 37  # letters of a line in a terminal
_GAP = "  "
_NICE = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # names in a file may hold what a terminal would obey


@dataclass(frozen=True)
class Toned:
    """A part of a sentence that stands out, in the colour of a tone: a key of `MARKS`, or none."""

    text: str
    tone: str = ""


def plain(part: str | Toned) -> str:
    """A part of a sentence as plain text."""
    return part.text if isinstance(part, Toned) else part


@dataclass(frozen=True)
class Bar:
    """What is drawn of one row, in the units of the axis: an interval, a dot in it, or both."""

    low: float | None = None
    high: float | None = None
    dot: float | None = None

    @property
    def values(self) -> list[float]:
        """All that must find room on the axis."""
        return [value for value in (self.low, self.high, self.dot) if value is not None]


@dataclass(frozen=True)
class Axis:
    """The axis that the bars of a card have in common."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()  # places and what stands there
    line: float | None = None  # where a dashed line is, such as the baseline's
    band: tuple[float, float] | None = None  # what counts as on the line
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        low, high, value = (math.log(each) if self.log else each for each in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True)
class Row:
    """One line of a card: what it is about, its bar, the verdict in a few words, and a value."""

    label: str
    words: str = ""
    value: str = ""
    tone: str = ""  # a key of `MARKS`; empty where nothing is judged
    bar: Bar | None = None
    behind: Bar | None = None  # the recorded machine's, in grey
    second: str = ""  # another value, under the card's `second`


def ends_of(rows: Iterable[Row]) -> list[float]:
    """All values that must find room on the axis of some rows."""
    return [value for row in rows for bar in (row.bar, row.behind) if bar for value in bar.values]


@dataclass(frozen=True, repr=False)
class Card:
    """What a result shows: text in a terminal, HTML in a notebook or a page. The same card gives the same bytes."""

    sentence: str | Sequence[str | Toned]
    rows: tuple[Row, ...] = ()
    axis: Axis | None = None
    heads: tuple[str, str] = ("", "")  # over the rows' words and values
    table: Grid | None = None  # where there is more to a row than a bar and a value
    plan: tuple[Advice, ...] = ()  # what to change, the most first
    warning: str = ""  # one line: what is unclear, or was cut short, and what would help
    notes: tuple[str, ...] = ()  # what else a reader must know
    provenance: str = ""  # where and when it was measured, and how noisy it was there
    numbers: Sheet | None = None  # folded
    title: str = ""  # small, beside the head: such as a record's name
    head: str = ""  # who and when, before all else: "You, just now", "Recorded: H200, 27 Nov 2026", "Worked out"
    is_recorded: bool = False  # a recorded run, which a tint tells from a live one
    second: str = ""  # over the rows' second values; empty if they have none

    @property
    def parts(self) -> list[str | Toned]:
        """The sentence, part by part."""
        return [self.sentence] if isinstance(self.sentence, str) else list(self.sentence)

    @property
    def words(self) -> str:
        """The sentence as plain text."""
        return "".join(map(plain, self.parts))

    def __repr__(self) -> str:
        said = [*_wrapped(" · ".join(filter(None, (self.head, self.title)))), *_wrapped(self.words)]
        notes = [line for note in (self.warning, *self.notes) for line in _wrapped(note)]
        table = tables.text(Sheet((self.table,))).splitlines() if self.table else []
        blocks = [said, self._rows_as_text(), table, self._plan_as_text(), notes, _wrapped(self.provenance)]
        return _CONTROL.sub("", "\n\n".join("\n".join(block) for block in blocks if block))

    def _repr_html_(self) -> str:
        return dressed(self.html())

    def html(self, lessons: str = "{}.ipynb") -> str:
        """The card for a page that has the course's style.

        ``lessons`` is where a page finds the lesson of an advice, with ``{}`` for its name.
        """
        parts = [part if isinstance(part, Toned) else Toned(part, "plain") for part in self.parts]
        # Both escape what they hold.
        numbers = tables.html(self.numbers) if self.numbers else ""
        table = tables.html(Sheet((self.table,))) if self.table else ""
        shown = {"parts": parts, "table": table, "numbers": numbers, "percent": self.percent}
        shown |= {"links": [lessons.format(advice.notebook) for advice in self.plan]}
        return _CONTROL.sub("", _template().render(card=self, axis=self.axis, **shown))

    def percent(self, value: float) -> float:
        """Where a value lies on the axis, in percent; a margin keeps dots at its ends whole."""
        return round(3 + 94 * self.axis.place(value), 1)

    def _rows_as_text(self) -> list[str]:
        judged = _GAP if any(row.tone for row in self.rows) else ""  # room for the marks
        grid = [(["", ""], "", [judged * bool(self.heads[0]) + self.heads[0]], (self.heads[1], self.second))]
        for row in self.rows:
            words = textwrap.wrap(row.words, _WORDS_WIDTH) or [""]
            marked = [MARKS.get(row.tone, " ") + " " + words[0], *(judged + line for line in words[1:])]
            labels = textwrap.wrap(row.label, _LABEL_WIDTH) or [""]
            grid.append((labels, row, marked if judged else words, (row.value, row.second)))
        label, said = (max(len(line) for cells in grid for line in cells[i]) for i in (0, 2))
        widths = [width for i in (0, 1) if (width := max(len(cells[3][i]) for cells in grid)) or i == 0]
        numbers_width = sum(widths) + len(_GAP) * (len(widths) - 1)
        room = min(_BAR_WIDTH, _TEXT_WIDTH - label - said - numbers_width - 3 * len(_GAP)) if self.axis else 0
        lines = []
        for labels, row, words, numbers in grid:
            drawn = "" if not room else self._drawn(row, room) if row else self._ticks_as_text(room)
            for i in range(max(len(labels), len(words))):
                first = i == 0
                cells = [(labels[i] if i < len(labels) else "").ljust(label)]
                cells += [(drawn if first else "").ljust(room)] if room else []
                cells += [(words[i] if i < len(words) else "").ljust(said)] if said else []
                cells += [
                    (number if first else "").rjust(width) for number, width in zip(numbers, widths, strict=False)
                ]
                lines.append(_GAP.join(cells).rstrip())
        return [line for line in lines if line]

    def _plan_as_text(self) -> list[str]:
        lines = []
        for number, advice in enumerate(self.plan, 1):
            saving = f": {advice.saving}" if advice.saving else ""
            lines += textwrap.wrap(f"{number}. {advice.change[0].upper()}{advice.change[1:]}{saving}.", _TEXT_WIDTH)
            reason = f"{advice.because} Lesson {advice.lesson_number}: notebooks/{advice.notebook}.ipynb"
            lines += textwrap.wrap(reason, _TEXT_WIDTH, initial_indent="   ", subsequent_indent="   ")
        return lines

    def _drawn(self, row: Row, room: int) -> str:
        """The bar of a row, in letters."""
        letters = [" "] * room

        def at(value: float) -> int:
            return round(self.axis.place(value) * (room - 1))

        if self.axis.line is not None:
            letters[at(self.axis.line)] = "┊"
        for bar, line, dot in ((row.behind, "░", "░"), (row.bar, "━", "○" if row.tone == "unclear" else "●")):
            if bar and bar.low is not None and bar.high is not None:
                span = range(at(bar.low), at(bar.high) + 1)
                letters[span.start : span.stop] = [line] * len(span)
            if bar and bar.dot is not None:
                letters[at(bar.dot)] = dot
        return "".join(letters)

    def _ticks_as_text(self, room: int) -> str:
        letters = [" "] * room
        for place, text in self.axis.ticks:
            start = min(max(0, round(self.axis.place(place) * (room - 1)) - len(text) // 2), room - len(text))
            if start >= 0 and not "".join(letters[max(0, start - 1) : start + len(text) + 1]).strip():
                letters[start : start + len(text)] = text
        return "".join(letters)


class Shown:
    """What shows itself as a card: text in a terminal, HTML in a notebook or a page."""

    def card(self) -> Card:
        """What it shows."""
        raise NotImplementedError

    @property
    def numbers(self) -> Sheet | None:
        """All numbers: what the card has folded."""
        return self.card().numbers

    def __repr__(self) -> str:
        return repr(self.card())

    def _repr_html_(self) -> str:
        return self.card()._repr_html_()


def speed_axis(speeds: Iterable[float], practical: float | None = None, narrow: bool = False) -> Axis:
    """An axis of speeds relative to a baseline: right is faster, and what it says is never below 1.

    ``practical`` is the relative difference that counts as the same, if any does; ``narrow`` says that the rows have a
    second value, and the axis less room.
    """
    # At least two percent to each side, so that a narrow interval around 1 looks narrow.
    speeds = [1 / 1.02, 1.02, *speeds]
    reach = math.log(max(speeds) / min(speeds))
    low, high = math.log(min(speeds)) - 0.12 * reach, math.log(max(speeds)) + 0.12 * reach
    place = -low / (high - low)  # of the baseline; near an end there is room for one of the words
    ticks = [(1.0, "1× ▸ faster" if place < 0.25 else "slower ◂ 1×" if place > 0.75 else "slower ◂ 1× ▸ faster")]
    for room, sign in ((-low, -1), (high, 1)):
        decade = 10 ** math.floor(room / math.log(10))
        nice = [number for scale in {1, decade} for number in (each * scale for each in _NICE) if number > 1]
        fitting = [number for number in nice if math.log(number) <= room]
        # A tick beside the one at 1 needs room for its words.
        if fitting and math.log(max(fitting)) > (0.75 if narrow else 0.45) * (high - low):
            ticks.append((max(fitting) ** sign, f"{max(fitting):,.15g}× as {'fast' if sign > 0 else 'long'}"))
    band = (1 / (1 + practical), 1 + practical) if practical else None
    return Axis(math.exp(low), math.exp(high), tuple(sorted(ticks)), 1.0, band, log=True)


def amount_axis(amounts: Iterable[float], text: Callable[[float], str]) -> Axis:
    """An axis of amounts, from nothing to the largest, which stands at its end."""
    most = max(amounts, default=0.0) or 1.0
    return Axis(0.0, most, ((0.0, "0"), (most, text(most))))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _TEXT_WIDTH)


@functools.cache
def _template() -> jinja2.Template:
    import jinja2

    files = jinja2.FileSystemLoader(Path(__file__).parent)
    here = jinja2.Environment(loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    here.filters["unbroken"] = unbroken
    here.filters["code"] = _with_code
    return here.get_template("card.html.j2", globals={"marks": MARKS})


def _with_code(text: str) -> str:
    """HTML in which what stands between backticks is code."""
    import markupsafe

    return markupsafe.Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))
