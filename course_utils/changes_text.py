"""What changed between two sets of records, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from course_utils.display.quantities import format_percent
from course_utils.record_changes import QUIET, Change, Changes, Kind, RecordSet

# Of the numbers without an interval that differ in one experiment, so many are shown unless all are asked for.
_FEW = 3
_EXPLAINED = {
    Kind.CHANGED: "another verdict, and the 99% intervals are apart",
    Kind.MOVED: "no other verdict, but the 99% intervals are apart by more than matters",
    Kind.WITHIN_NOISE: "another verdict, but the 99% intervals overlap",
    Kind.DIFFERS: "a value without an interval that is not alike",
}


def changes_text(changes: Changes, *, everything: bool = False) -> str:
    """What changed, and how much of that may be chance.

    Args:
        changes: from :func:`course_utils.record_changes.compare_records`.
        everything: whether to show what is the same and what cannot be compared as well.

    Returns:
        Lines of text.
    """
    lines = [_side("A", changes.a), _side("B", changes.b)]
    lines += [f"   {problem}" for side in (changes.a, changes.b) for problem in side.problems]
    lines += [f"Note: {notice}" for notice in changes.notices]
    shown = [change for change in changes.changes if everything or _is_news(change)]
    if shown:
        lines += ["", "A ratio is the time relative to the baseline's, with its 99% interval: below 1 is faster."]
    for experiment, group in groupby(shown, key=lambda change: change.experiment):
        lines += ["", experiment, *_experiment(list(group), everything)]
    lines += ["", *_claims(changes), *_summary(changes, everything)]
    return "\n".join(lines)


def _side(letter: str, side: RecordSet) -> str:
    lessons = f"{len(side.records)} lesson{'s' * (len(side.records) != 1)}"
    return f"{letter}: {side.name} ({side.where}, {lessons}), {side.environment.caption}"


def _is_news(change: Change) -> bool:
    return change.kind not in (*QUIET, Kind.NOT_COMPARABLE)


def _experiment(group: Sequence[Change], everything: bool) -> Iterator[str]:
    """One experiment: rows with a verdict or an interval in full, of the other values a few."""
    left_out = 0
    order = list(Kind)
    differing = 0
    for change in sorted(group, key=lambda change: order.index(change.kind)):
        if change.kind is Kind.DIFFERS:
            differing += 1
            if differing > _FEW and not everything:
                left_out += 1
                continue
        yield f"  {change.kind}: {change.row}".rstrip(": ") + (f" ({change.note})" if change.note else "")
        sides = [(letter, told.words) for letter, told in (("A", change.a), ("B", change.b)) if told]
        yield from (f"    {letter}  {words}" for letter, words in sides)
    if left_out:
        yield f"  differs: {left_out} more value{'s' * (left_out != 1)}; --all shows them"


def _claims(changes: Changes) -> Iterator[str]:
    if changes.claims:
        yield "Claims of the ledger that these records judge differently"
        for claim in changes.claims:
            yield f"  {claim.claim}  A: {claim.a}, B: {claim.b}  {claim.words}"
        yield ""


def _summary(changes: Changes, everything: bool) -> Iterator[str]:
    if changes.same_runs:
        yield f"The same run on both sides: {', '.join(changes.same_runs)}."
    for letter, only in (("A", changes.only_a), ("B", changes.only_b)):
        if only:
            yield f"Only in {letter}: {', '.join(only)}."
    counts = changes.counts
    if not counts:
        yield "There is nothing to compare."
        return
    width = max(len(kind) for kind in counts)
    for kind in Kind:
        if counts[kind]:
            about = f"  {_EXPLAINED[kind]}" if kind in _EXPLAINED else _reasons(changes) * (kind is Kind.NOT_COMPARABLE)
            yield f"{counts[kind]:>5}  {kind:<{width}}{about}".rstrip()
    if pairs := changes.intervals_compared:
        yield (
            f"{pairs} pair{'s' * (pairs != 1)} of 99% intervals compared: had nothing changed, chance would take apart "
            f"at most {changes.apart_by_chance:.2g} of them."
        )
        yield (
            "The intervals cover the noise within a run. Runs of one machine differ by more: record it twice and "
            "compare those, before you make much of a small move."
        )
    if any(change.kind is Kind.DIFFERS for change in changes.changes):
        yield f"Values without an interval count as alike up to {format_percent(changes.tolerance)} (--tolerance)."
    if not everything and any(not _is_news(change) for change in changes.changes):
        yield "--all shows the rest as well."


def _reasons(changes: Changes) -> str:
    return "  " + "; ".join(
        dict.fromkeys(change.note for change in changes.changes if change.kind is Kind.NOT_COMPARABLE)
    )
