"""When a dearer first call has paid off: what cases take together with it, over the number of calls."""

from __future__ import annotations

from itertools import count, takewhile
from typing import TYPE_CHECKING

from course_utils.records.paired import Verdict
from course_utils.records.result import NothingToDrawError
from course_utils.records.verdicts import WORDS
from course_utils.show.cards import Bar, Card, Row, Toned, amount_axis
from course_utils.show.formats import format_seconds, format_times, plain_number
from course_utils.show.viewer import StoredView, slider

if TYPE_CHECKING:
    from course_utils.records.kinds.comparison import Case, Comparison

# The slider goes on to so many times as many calls as it takes; where nothing ever pays off, to so many.
_BEYOND = 10
_MOST = 100_000
_HOW = "strokes: the ends of the ratio's 99% interval · each first call was timed once"


def break_even_explorer(comparison: Comparison) -> StoredView:
    """A slider over the number of calls; for `Comparison.explore`."""
    if any(case.first_call_s is None for case in comparison.cases):
        raise NothingToDrawError("this comparison does not say how long the first calls took")
    pays = [calls for case in comparison.others if (calls := case.break_even_calls)]
    most = _BEYOND * max(pays) if pays else _MOST
    nice = takewhile(lambda calls: calls <= most, (step * 10**power for power in count() for step in (1, 2, 5)))
    cards = [(plain_number(calls), _after(calls, comparison)) for calls in sorted({*nice, *pays})]
    return slider("calls", cards, comparison.card())


def _after(calls: int, comparison: Comparison) -> Card:
    """What each case has taken after so many calls, the first one included."""
    base_s = _total_s(comparison[comparison.baseline], calls, 1.0)
    rows = [Row(comparison.baseline, "baseline", format_seconds(base_s), bar=Bar(0.0, base_s))]
    sentence: list[str | Toned] = [f"After {plain_number(calls)} call{'s' if calls > 1 else ''}, the first included"]
    for case in comparison.others:
        ratios = [case.ratio, *(case.interval.ends if case.interval.bounded else ())]
        total_s, *ends = (_total_s(case, calls, ratio) for ratio in ratios)
        verdict = Verdict.UNCLEAR
        if ends and not min(ends) <= base_s <= max(ends):
            verdict = Verdict.FASTER if total_s < base_s else Verdict.SLOWER
        words, verb = WORDS[verdict], "takes" if verdict is Verdict.SLOWER else "is"
        if verdict is not Verdict.UNCLEAR:
            words = format_times(total_s / base_s)
        tone = verdict.lower()
        bar = Bar(0.0, total_s, samples=tuple(ends))
        rows.append(Row(case.label, words.replace(" times", "×"), format_seconds(total_s), tone, bar))
        sentence += ["; " if len(rows) > 2 else ", ", Toned(case.label), f" {verb} ", Toned(words, tone)]
        sentence += [" as ", Toned(comparison.baseline)] if len(rows) == 2 and verdict is not Verdict.UNCLEAR else []
        sentence.append(_when(case))
    axis = amount_axis((end for row in rows for end in row.bar.values), format_seconds)
    return Card(
        [*sentence, "."],
        tuple(rows),
        axis,
        heads=("", "all calls so far"),
        **comparison.stamp(_HOW),
    )


def _total_s(case: Case, calls: int, ratio: float) -> float:
    return case.measurement.first_call_s + (calls - 1) * ratio * case.comparison.cases[0].median_s


def _when(case: Case) -> str:
    """From which call on a dearer first call has paid off."""
    if (calls := case.break_even_calls) is None:
        never = case.verdict in (Verdict.SAME, Verdict.SLOWER) and case.pays_at(0.0) is not None
        return ", and later calls are not faster" if never else ""
    early, late = (plain_number(case.pays_at(ratio)) for ratio in case.interval.ends)
    return f"; it is ahead from call {plain_number(calls)} on ({early} to {late} by the 99% interval)"
