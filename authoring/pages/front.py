"""What README and the book open on: findings that surprise, as a picture and as a list with a source for each number.

``book/front.yml`` chooses them. Their verdicts and numbers are the ledger's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import cattrs
import yaml

from authoring import evidence
from authoring.claims import Judgement, PartJudgement
from authoring.evidence import ShownNumber
from authoring.pages.generated import BOOK, BookError, page
from authoring.verdicts import readers_word, signed
from course_utils.records import store
from course_utils.records.kinds.comparison import Case
from course_utils.records.paired import Verdict
from course_utils.records.verdicts import WORDS
from course_utils.show.canvas import CASE_COLOURS, ResultFigure, styled, text_width_in
from course_utils.show.formats import format_times
from course_utils.show.shapes import BLUE, EDGE, INK, NOTE, ORANGE, Pen

PICTURE = BOOK / "images" / "findings.png"
CHOSEN = BOOK / "front.yml"
_SURPRISES = {"refuted": ORANGE, "depends": CASE_COLOURS[5]}


@dataclass(frozen=True)
class _Shown:
    """A number to draw: its label in the claim's evidence, and a shorter one for the picture."""

    evidence: str
    label: str


@dataclass(frozen=True)
class _Chosen:
    claim: str
    machine: str
    said: str
    about: str
    shows: tuple[_Shown, ...]
    line: float | None = None  # what the claim promises, on the axis of its numbers


@dataclass(frozen=True)
class _Front:
    findings: tuple[_Chosen, ...]


@dataclass(frozen=True)
class Bar:
    label: str
    value: Any
    unit: str | None
    record: str  # the file that it comes from, as seen from the root of the repository

    @property
    def at(self) -> float:
        """Where it lies: a case's speed, or the value itself."""
        return self.value.speedup if isinstance(self.value, Case) else float(self.value)

    @property
    def start(self) -> float:
        """Where its bar begins: at the speed of the baseline, or at nothing."""
        return 1.0 if isinstance(self.value, Case) else 0.0

    @property
    def words(self) -> str:
        """The number, with its interval if it has one."""
        return evidence.in_words(self.value, self.unit)

    @property
    def short_words(self) -> str:
        """The number for a picture, in which its interval is drawn."""
        if isinstance(self.value, Case):
            same = self.value.verdict in (Verdict.SAME, Verdict.UNCLEAR)
            return WORDS[self.value.verdict] if same else format_times(self.value.ratio, tight=True)
        return self.words


@dataclass(frozen=True)
class Finding:
    """A claim that did not hold, or not everywhere, and the numbers that show it."""

    said: str
    about: str
    judgement: Judgement
    bars: tuple[Bar, ...]
    line: float | None
    caption: str  # what did the work, versions, date and problem sizes

    @property
    def verdict(self) -> str:
        return signed(self.judgement.verdict)


@cache
def _front() -> _Front:
    content = yaml.safe_load(CHOSEN.read_text(encoding="utf-8"))
    try:
        return cattrs.Converter(forbid_extra_keys=True).structure(content, _Front)
    except cattrs.BaseValidationError as error:
        raise BookError(f"book/front.yml: {'; '.join(cattrs.transform_error(error))}") from error


def findings(judgements: Sequence[Judgement]) -> list[Finding]:
    """The findings of ``book/front.yml``.

    Raises:
        BookError: if one of them is no longer refuted and does not depend on anything, or lacks a number.
    """
    by_id = {judgement.claim.id: judgement for judgement in judgements}
    return [_finding(chosen, by_id) for chosen in _front().findings]


def _finding(chosen: _Chosen, judgements: dict[str, Judgement]) -> Finding:
    machine = store.machine_named(chosen.machine, evidence.machines())
    if chosen.claim not in judgements:
        raise BookError(f"book/front.yml names {chosen.claim}, and the ledger has no such claim: choose another one")
    judgement = judgements[chosen.claim]
    numbers = {number.label: (judged, number) for judged, number in _numbers(judgement, machine)}
    bars, caption = [], ""
    for shown in chosen.shows:
        if shown.evidence not in numbers:
            labels = ", ".join(numbers) or "none"
            raise BookError(f"book/front.yml, {chosen.claim}: {machine} has no {shown.evidence!r}; it has: {labels}")
        judged, number = numbers[shown.evidence]
        for word in (judgement.verdict, judged.verdict):
            if word not in _SURPRISES:
                raise BookError(
                    f"book/front.yml, {chosen.claim}: its verdict is now {word!r}, and the front shows what is "
                    f"{' or '.join(_SURPRISES)}: choose another claim there"
                )
        value = evidence.evaluate(number.show, machine)
        # A sweep over one thing gives a list of one.
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        experiments = evidence.experiments_in(number.show)
        lesson = experiments[0].partition("/")[0]
        bars.append(Bar(shown.label, value, number.unit, f"course_utils/records/{machine}/{lesson}.json"))
        caption = evidence.newest_result(evidence.recorded(experiments, machine).values()).where
    return Finding(chosen.said, chosen.about, judgement, tuple(bars), chosen.line, caption)


def _numbers(judgement: Judgement, machine: str) -> Iterator[tuple[PartJudgement, ShownNumber]]:
    """The numbers that a machine has recorded for a claim, each with the part that it belongs to."""
    for judged in judgement.parts:
        for here in judged.machines:
            if here.machine == machine:
                have = {label for label, _ in here.numbers}
                yield from ((judged, number) for number in judged.part.evidence if number.label in have)


def front_text(judgements: Sequence[Judgement], root: str) -> str:
    """The picture, and a list in which each number leads to its record and each verdict to its claim, as Markdown.

    ``root`` is the way from the page to the root of the repository, such as ``..``.
    """
    found = findings(judgements)
    return page("findings.md", findings=found, alt=_alt(found), root=root)


def _captions(found: Sequence[Finding]) -> list[str]:
    """Where all of them come from: each machine once, with each of its dates; what was worked out has none."""
    dates: dict[str, set[str]] = {}
    for finding in found:
        where = re.sub(r"\d{4}-\d\d-\d\d", "{}", finding.caption)
        dates.setdefault(where, set()).update(re.findall(r"\d{4}-\d\d-\d\d", finding.caption))
    return [where.format(" and ".join(sorted(of))) for where, of in dates.items()]


def _alt(found: Sequence[Finding]) -> str:
    said = [
        f"“{each.said}” {readers_word(each.judgement.verdict)}. {each.about}: "
        + ", ".join(f"{bar.label} {bar.words}" for bar in each.bars)
        for each in found
    ]
    return f"What people say, and what was measured. {'. '.join(said)}. From: {'; '.join(_captions(found))}."


# The picture

_HEIGHT_IN, _DPI = 3.74, 220  # 16 to 9; twice the pixels of other figures, for it is shown larger
_LEFT, _BARS, _VALUES, _RIGHT = 0.12, 2.42, 4.92, 6.28  # in inches, where labels, bars and values begin
_TITLE, _ROW, _GAP = 0.41, 0.205, 0.09  # heights in inches
_SIZE, _SMALL = 12.0, 9.5


@styled
def picture(judgements: Sequence[Judgement]) -> ResultFigure:
    """The findings as bars. Its letters can be read at a phone's width; its ground is white in light and in dark."""
    found = findings(judgements)
    pen = Pen(_RIGHT + _LEFT, _HEIGHT_IN)
    y = _HEIGHT_IN - 0.1
    for finding in found:
        _draw(pen, finding, y)
        y -= _TITLE + _ROW * len(finding.bars) + _GAP
    notes = [*_captions(found), "line across a bar's end: 99% interval"]
    for line, note in enumerate(reversed(notes)):
        pen.write(_LEFT, 0.12 + 0.16 * line, note, NOTE, _SMALL)
    figure = pen.described(_alt(found))
    figure.set_dpi(_DPI)
    return figure


def _draw(pen: Pen, finding: Finding, top: float) -> None:
    pen.write(_LEFT, top - 0.1, f"“{finding.said}”", size=13, weight="bold")
    colour = _SURPRISES[finding.judgement.verdict]
    width = text_width_in(finding.verdict, _SIZE) + 0.12
    pen.area(_RIGHT - width, top - 0.21, width, 0.23, 0.04, fc=(colour, 0.16), ec=colour, lw=1)
    pen.write(_RIGHT - 0.06, top - 0.1, finding.verdict, size=_SIZE, ha="right")
    pen.write(_LEFT, top - 0.31, finding.about, NOTE, _SMALL)
    place = _axis(finding)
    rows = [top - _TITLE - _ROW * (index + 0.5) for index in range(len(finding.bars))]
    ends = (rows[-1] - _ROW / 2, rows[0] + _ROW / 2)
    start = place(finding.bars[0].start)
    pen.ax.plot([start, start], ends, color=EDGE, lw=1)
    for bar, y in zip(finding.bars, rows, strict=True):
        pen.write(_LEFT, y, bar.label, size=_SIZE)
        _bar(pen, bar, place, y)
        pen.write(_VALUES, y, bar.short_words, size=_SIZE, weight="bold")
    if finding.line is not None:
        x = place(finding.line)
        pen.ax.plot([x, x], ends, color=INK, lw=1.4, ls=(0, (3, 2)))


def _bar(pen: Pen, bar: Bar, place: Callable[[float], float], y: float) -> None:
    """From where nothing is lost or gained to the value, with its interval on top."""
    start, end = place(bar.start), place(bar.at)
    colour = BLUE if bar.at >= bar.start else ORANGE
    pen.ax.fill_betweenx([y - 0.075, y + 0.075], start, end, color=colour, lw=0)
    if isinstance(bar.value, Case) and bar.value.interval.bounded:
        low, high = map(place, bar.value.interval.inverse().ends)
        pen.ax.errorbar([end], [y], xerr=[[end - low], [high - end]], color=INK, lw=1.3, capsize=2.5)


def _axis(finding: Finding) -> Callable[[float], float]:
    """Where a value lies between the labels and the values: speeds by their logarithm, amounts from nothing."""
    promised = [] if finding.line is None else [finding.line]
    values = [*(bar.at for bar in finding.bars), finding.bars[0].start, *promised]
    if not isinstance(finding.bars[0].value, Case):
        return lambda value: _BARS + (_VALUES - 0.12 - _BARS) * value / max(values)
    ends = [end for bar in finding.bars for end in bar.value.interval.inverse().ends]
    low, high = math.log(min(*values, *ends)), math.log(max(*values, *ends))
    return lambda value: _BARS + (_VALUES - 0.12 - _BARS) * (math.log(value) - low) / (high - low)
