"""What changed between two sets of records, as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from course_utils.commands.record_changes import TOLERANCE, Change, Changes, Kind, RecordSet
from course_utils.show.formats import format_percent

# Of the numbers without an interval that differ in one experiment, so many are shown unless all are asked for.
_FEW = 3
_EXPLAINED = {
    Kind.CHANGED: "another verdict, and the 99% intervals are apart by more than either A/A control",
    Kind.MOVED: "the 99% intervals are apart by more than noise and than matters; the verdict, if there is one, stands",
    Kind.WITHIN_NOISE: "another verdict, but the 99% intervals overlap, or an A/A control differs as much",
    Kind.UNCLEAR: "the other side decides; a factor is given where the 99% intervals are apart all the same",
    Kind.DIFFERS: "a value without an interval is not alike",
    Kind.ONE_SIDE: "the other did not measure it",
    Kind.NOT_COMPARABLE: "measured by other code, or with other parameters",
    Kind.SAME: "the verdict stands, or the values are alike",
}
# Shown only when everything is asked for.
_NO_NEWS = (Kind.NOT_COMPARABLE, Kind.SAME)


def changes_text(changes: Changes, *, everything: bool = False, width: int = 110) -> str:
    """What changed, what matters most first, and how much of it may be chance; all of it with ``everything``.

    Example:
        >>> from course_utils.commands.record_changes import compare_records, read_records
        >>> a, b = read_records("amd-epyc-2-cores"), read_records("intel-xeon-processor-2-cores")
        >>> print(changes_text(compare_records(a, b)).partition(" (")[0])
        A: amd-epyc-2-cores
    """
    lines = [_side("A", changes.a), _side("B", changes.b)]
    lines += [problem for side in (changes.a, changes.b) for problem in side.problems]
    lines += changes.notices
    if changes.intervals_compared:
        lines.append("A ratio is the time relative to the baseline's, with its 99% interval: below 1 is faster.")
    for kind in Kind:
        group = [change for change in changes.changes if change.kind is kind]
        if group and (everything or kind not in _NO_NEWS):
            lines += ["", f"{kind}: {_EXPLAINED[kind]}", *_group(group, everything, width)]
    lines += ["", *_summary(changes, everything)]
    return "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(line: str, width: int) -> str:
    """A line, broken under its own indent where it is too long."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)


def _side(letter: str, side: RecordSet) -> str:
    lessons = f"{len(side.records)} lesson{'s' * (len(side.records) != 1)}"
    return f"{letter}: {side.name} ({side.where}, {lessons}), {side.environment.caption}"


def _group(group: Sequence[Change], everything: bool, width: int) -> Iterator[str]:
    """Rows of one kind; of values that differ without an interval only a few for each experiment."""
    for experiment, rows in groupby(group, key=lambda change: change.experiment):
        changes = list(rows)
        shown = changes if everything or changes[0].kind is not Kind.DIFFERS else changes[:_FEW]
        yield f"  {experiment}"
        for change in shown:
            row = change.row or "the whole experiment"
            yield f"    {row} ({change.note})" if change.note else f"    {row}"
            sides = [f"{letter}  {fact.words}" for letter, fact in (("A", change.a), ("B", change.b)) if fact]
            beside = "      " + "    ".join(sides)
            yield from [beside] if len(beside) <= width else [f"      {side}" for side in sides]
        if left_out := len(changes) - len(shown):
            yield f"    and {left_out} more; --all shows them"


def _summary(changes: Changes, everything: bool) -> Iterator[str]:
    if changes.same_runs:
        yield f"The same run on both sides: {', '.join(changes.same_runs)}."
    for letter, one, other in (("A", changes.a, changes.b), ("B", changes.b, changes.a)):
        if only := sorted(set(one.records) - set(other.records)):
            yield f"Only in {letter}: {', '.join(only)}."
    counts = changes.counts
    if not counts:
        yield "There is nothing to compare."
        return
    yield "; ".join(f"{counts[kind]} {kind}" for kind in Kind if counts[kind]) + "."
    if counts[Kind.NOT_COMPARABLE]:
        reasons = dict.fromkeys(change.note for change in changes.changes if change.kind is Kind.NOT_COMPARABLE)
        yield f"Not comparable: {'; '.join(reasons)}."
    if pairs := changes.intervals_compared:
        yield (
            f"{pairs} pair{'s' * (pairs != 1)} of 99% intervals compared: had nothing changed, chance would take apart "
            f"on average at most {changes.apart_by_chance:.2g} of them."
        )
        yield (
            "The intervals cover the noise within a run. Runs of one machine differ by more: record it twice and "
            "compare those, before you make much of a small move."
        )
    if counts[Kind.DIFFERS]:
        yield f"Values without an interval count as alike up to {format_percent(TOLERANCE)}."
    if not everything and set(counts) & set(_NO_NEWS):
        yield "--all shows the rest as well."
