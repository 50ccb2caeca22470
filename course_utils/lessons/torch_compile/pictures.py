"""The lesson's pictures: what pieces and reads cost, and at which step a compiled training is even."""

from __future__ import annotations

import itertools
from typing import Any

from course_utils import recorded
from course_utils.lessons.torch_compile.cases import pays_at
from course_utils.show.cards import Bar, Card, Row, amount_axis
from course_utils.show.formats import format_seconds, plain_number


def parts(breaks: Any) -> Card:
    """What ten reads and twenty pieces add to the compiled model, end to end; below them the eager one."""
    ends = [0.0, *(breaks[name].median_s for name in ("read once", "fullgraph=True", "compiled, with breaks"))]
    names = "compiled, read once", "+ nine more reads", "+ nineteen more pieces", "eager, ten reads"
    spans = [*itertools.pairwise(ends), (0.0, breaks["eager"].median_s)]
    times = [(format_seconds(end - begin), format_seconds(end)) for begin, end in spans]
    rows = tuple(Row(n, "", t[0], bar=Bar(*span), second=t[1]) for n, t, span in zip(names, times, spans, strict=True))
    says = f"Twenty pieces in place of one cost {rows[2].value}; ten reads in place of one, {rows[1].value}."
    return Card(says, rows, amount_axis(ends, format_seconds), ("", "part"), second="time per call", **breaks.stamp())


def even(case: Any, break_even: Any) -> Card:
    """At which step the compiled training has caught up with the eager one, by what one waits for before it."""
    firsts = {"empty": break_even["training step"]["first of all calls"], "filled": case.measurement.first_call_s}
    imports = recorded("torch_compile/start", machine="nvidia-h200")
    waits = {f"import, {cache} cache": imports[cache]["torch.compile()"] + first for cache, first in firsts.items()}
    rows = ()
    for name, wait_s in (waits | {"no import, empty cache": firsts["empty"]}).items():
        at = pays_at(wait_s, case)["pays at call"]
        rows += (Row(name, "", format_seconds(wait_s), bar=Bar(0.0, at), second=plain_number(at)),)
    says = f"With the import you are even at step {rows[0].second}; with the cache filled, at step {rows[1].second}."
    axis, stamp = amount_axis([rows[0].bar.high], plain_number), break_even.stamp("worked out; compiled last of three")
    return Card(says, rows, axis, ("", "you wait"), second="even at step", **stamp)
