"""The picture of memory over time: what is drawn is what was traced."""

from __future__ import annotations

import pytest

from course_utils.show.formats import format_bytes
from tests.example_results import RESULTS
from tests.figure_checks import problems_of_texts, visible_texts


def test_areas_are_stacked_to_the_totals_and_named() -> None:
    trace = RESULTS["trace"]
    fig = trace.plot()
    panel, shown = fig.axes[-1], list(trace.by_line())[:7]
    sums = [0] * trace.moments
    for area, line in zip(panel.collections, shown, strict=False):
        sums = [a + b for a, b in zip(sums, trace.by_line()[line], strict=True)]
        assert max(y for _, y in area.get_paths()[0].vertices) == pytest.approx(max(sums) / 2**20)
    assert any(text.get_text() == f"peak {format_bytes(trace.peak_bytes)}" for text in panel.texts)
    assert {*shown, "all others"} <= {item.get_text() for item, _ in visible_texts(fig)}
    assert problems_of_texts(RESULTS["trace of nothing"].plot()) == []
