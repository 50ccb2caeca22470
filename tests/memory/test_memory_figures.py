"""The pictures of a memory trace: what is drawn is what was traced."""

from __future__ import annotations

import pytest

from course_utils.show.formats import format_bytes
from tests.example_results import RESULTS
from tests.figure_checks import problems_of_texts, visible_texts

TRACE = RESULTS["trace"]


def test_areas_are_stacked_to_the_totals_and_named() -> None:
    fig = TRACE.plot()
    panel = fig.axes[-1]
    areas = panel.collections[: len(TRACE.by_kind())]
    tops = [max(y for _, y in area.get_paths()[0].vertices) for area in areas]
    sums = [0] * TRACE.moments
    for top, values in zip(tops, TRACE.by_kind().values(), strict=True):
        sums = [a + b for a, b in zip(sums, values, strict=True)]
        assert top == pytest.approx(max(sums) / 2**20)
    assert any(text.get_text() == f"peak {format_bytes(TRACE.peak_bytes)}" for text in panel.texts)
    assert problems_of_texts(fig) == []
    assert set(TRACE.by_kind()) <= {item.get_text() for item, _ in visible_texts(fig)}


@pytest.mark.parametrize(("name", "by"), [("trace", "module"), ("trace of nothing", "kind")])
def test_no_text_is_cut_off_or_overlaps(name: str, by: str) -> None:
    assert problems_of_texts(RESULTS[name].plot(by=by)) == []
