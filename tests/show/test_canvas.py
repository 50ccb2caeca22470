"""What figures have in common."""

from __future__ import annotations

import pytest

from course_utils.show.canvas import titled_figure
from tests.figure_checks import problems_of_texts


@pytest.mark.parametrize("word", ["SLOWER at WWW, ", "illicit ", "two threads: UNCLEAR, takes 0.745 to 1.59; "])
def test_a_long_title_and_long_notes_stay_inside_the_figure(word: str):
    figure = titled_figure(20 * word, 2.0, 20 * word, 3 * word)
    figure.subplots()
    assert problems_of_texts(figure) == []
    assert 1 < len(figure.texts[0].get_text().splitlines()) <= 3
