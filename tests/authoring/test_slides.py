"""Slides: what is on them, what is not, and that a browser shows them whole, without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from authoring.slides import slides_notebook, write_slides
from course_utils.lesson_notebooks import find_lesson, find_lessons
from tests.made_up_notebooks import lesson_of, text

FULL_LESSON = "profiler"  # a long table, a picture, printed text
SMALLEST_PX = 16
LOOK_AT_SLIDE = """() => {
    const slide = Reveal.getCurrentSlide();
    const right = (part) => part.getBoundingClientRect().right > innerWidth + 1;
    return {
        text: slide.innerText.slice(0, 60),
        fits: slide.scrollHeight <= slide.clientHeight + 1,
        cut: [...slide.querySelectorAll('pre, table, img, svg')].filter(right).length,
        smallest: Math.min(...[...slide.querySelectorAll('p, li, th, td, pre, code, small')]
            .filter((part) => part.innerText)
            .map((part) => parseFloat(getComputedStyle(part).fontSize) * Reveal.getScale())),
        headed: slide.querySelector('h1, h2, h3') !== null,
    };
}"""


def test_slides_show_what_is_for_the_room_and_the_records_after_the_guess():
    for lesson in find_lessons():
        deck = slides_notebook(lesson)["cells"]
        words = "\n".join(cell["source"] for cell in deck if cell["cell_type"] == "markdown")
        assert not re.search(r"^#+ (Exercise|Solution|Sources|Next)", words, re.MULTILINE), lesson.name
        assert not re.search(r"\]\((?!https?:)", words), "a link into the course would lead nowhere"
        first = next(index for index, cell in enumerate(deck) if "**Your prediction?**" in cell["source"])
        records = [index for index, cell in enumerate(deck) if cell["cell_type"] == "code" and cell["outputs"]]
        assert all(first < index for index in records), "it spoils the prediction"


def test_a_slide_is_a_heading_and_a_sentence_and_the_rest_is_said(tmp_path: Path):
    paragraphs = "\n\n".join(" ".join([f"word{n}"] * 80) + " [1, 2]." for n in range(3))
    source = f"# 05 · Things\n\n## A\n\n### B\n\n{paragraphs}\n\n## C\n\nShort.\n\n- one\n- two\n\n## D\n\nEnd $x^2$."
    deck = slides_notebook(lesson_of(tmp_path, text(source, "slide")))
    assert deck["metadata"]["has_formulas"]
    kinds = [cell["metadata"]["slideshow"]["slide_type"] for cell in deck["cells"]]
    assert kinds == ["slide", "notes", "subslide", "subslide"]
    first, notes, third, last = [cell["source"] for cell in deck["cells"]]
    assert re.fullmatch(r"# 05 · Things\n\n## A\n\n### B\n\n(word0 ?)+\.", first)
    assert re.fullmatch(r"(word1 ?)+\.\n\n(word2 ?)+\.", notes)
    assert third == "## C\n\nShort.\n\n- one\n- two"
    assert last == "## D\n\nEnd $x^2$."


@pytest.mark.browser
def test_slides_can_be_read_and_no_request_leaves_the_machine(tmp_path: Path, chromium: Any):
    deck = write_slides([find_lesson(FULL_LESSON)], tmp_path)[0]
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    requested, errors = [], []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(deck.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    seen = []
    for _ in range(page.evaluate("Reveal.getTotalSlides()")):
        seen.append(page.evaluate(LOOK_AT_SLIDE))
        page.evaluate("Reveal.next()")
    assert len(seen) > 5
    assert not page.locator(".speaker-notes").is_visible()
    page.keyboard.press("s")
    assert page.locator(".speaker-notes").is_visible()
    assert [slide for slide in seen if slide["cut"] or not slide["headed"]] == []
    assert [slide["text"] for slide in seen if not slide["fits"]] == []
    assert [slide for slide in seen if slide["smallest"] is not None and slide["smallest"] < SMALLEST_PX] == []
    assert [address for address in requested if not address.startswith(("file:", "data:"))] == []
    assert errors == []
