"""The pictures of a memory trace: what is drawn is what was traced."""

from __future__ import annotations

import pytest

from course_utils.show.formats import format_bytes
from tests.example_results import RESULTS
from tests.figure_checks import problems_of_texts, visible_texts

TRACE = RESULTS["trace"]


def test_areas_are_stacked_to_the_totals() -> None:
    panel = TRACE.plot().axes[-1]
    scale = 2**20
    tops = []
    for area in panel.collections[: len(TRACE.by_kind())]:
        ends = area.get_paths()[0].vertices
        tops.append(max(y for _, y in ends))
    by_kind, sums = TRACE.by_kind(), [0] * TRACE.moments
    for top, values in zip(tops, by_kind.values(), strict=True):
        sums = [a + b for a, b in zip(sums, values, strict=True)]
        assert top == pytest.approx(max(sums) / scale)
    assert max(tops) == pytest.approx(TRACE.peak_bytes / scale)
    assert any(text.get_text() == f"peak {format_bytes(TRACE.peak_bytes)}" for text in panel.texts)


@pytest.mark.parametrize(
    ("name", "by"), [("trace", "kind"), ("trace on a GPU", "module"), ("trace of nothing", "kind")]
)
def test_no_text_is_cut_off_or_overlaps(name: str, by: str) -> None:
    fig = RESULTS[name].plot(by=by)
    assert problems_of_texts(fig) == []
    shown = {item.get_text() for item, _ in visible_texts(fig)}
    groups = RESULTS[name].by_kind() if by == "kind" else []
    assert set(groups) <= shown
