"""Slides: what is on them, what is not, and that a browser shows them whole, without a network."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from authoring import __main__ as command
from authoring import slides
from authoring.room_text import excerpt
from authoring.slides import slides_notebook, write_slides
from authoring.teaching import expectations
from course_utils.records.lessons import Lesson, LessonError, find_lesson, find_lessons
from course_utils.records.notebook_files import read_notebook
from tests.made_up_notebooks import lesson_of, text

LESSONS = find_lessons()
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
BROWSER_LESSON = "12"
FULL_LESSONS = ("12", "18")  # long tables, pictures, an explorer with a script, printed text
SMALLEST_PX = 16
LOOK_AT_SLIDE = """() => {
    const slide = Reveal.getCurrentSlide();
    const right = (part) => part.getBoundingClientRect().right > innerWidth + 1;
    return {
        text: slide.innerText.slice(0, 60),
        fits: slide.scrollHeight <= slide.clientHeight + 1,
        cut: [...slide.querySelectorAll('pre, table, img, svg')].filter(right).length,
        size: parseFloat(getComputedStyle(slide).fontSize),
        smallest: Math.min(...[...slide.querySelectorAll('p, li, th, td, pre, code, small')]
            .filter((part) => part.innerText)
            .map((part) => parseFloat(getComputedStyle(part).fontSize) * Reveal.getScale())),
        headed: slide.querySelector('h1, h2, h3') !== null,
        empty: slide.innerText.trim() === '' && !slide.querySelector('img'),
    };
}"""


def parts(lesson: Lesson) -> list[dict[str, Any]]:
    return slides_notebook(lesson)["cells"]


@each_lesson
def test_neither_exercises_nor_solutions_nor_sources_are_on_slides(lesson: Lesson):
    hidden = {
        cell["source"]
        for cell in read_notebook(lesson.path)["cells"]
        if "hide-cell" in cell["metadata"].get("tags", []) or "check_" in cell["source"].split("\n")[-1]
    }
    deck = parts(lesson)
    assert not hidden & {cell["source"] for cell in deck}
    text = "\n".join(cell["source"] for cell in deck if cell["cell_type"] == "markdown")
    assert not re.search(r"^#+ (Exercise|Solution|Sources|Next)", text, re.MULTILINE)
    assert not re.search(r"\]\((?!https?:)", text), "a link into the course would lead nowhere"


@each_lesson
def test_every_recorded_figure_and_table_under_a_tagged_cell_is_on_one_slide(lesson: Lesson):
    shown = [output for cell in parts(lesson) for output in cell.get("outputs", [])]
    cells = read_notebook(lesson.path)["cells"]
    tagged = [
        cell
        for before, cell in itertools.pairwise(cells)
        if {"slide", "subslide"} & set(before["metadata"].get("tags", []))
        and "stable" in cell["metadata"].get("tags", [])
    ]
    wanted = [
        output["data"]
        for cell in tagged
        if "hide-cell" not in cell["metadata"]["tags"]
        for output in cell["outputs"]
        if "data" in output
    ]
    assert wanted

    def contents(found: list[dict[str, Any]]) -> list[str]:
        """Rows of tables, pictures and texts; a table's header is repeated where it goes on."""
        text = "\n".join(str(each.get("text/html") or sorted(each.items())) for each in found)
        return re.findall(r"<tr><t[hd](?! scope=.col).*?</tr>|<svg|image/png|text/markdown", text, re.DOTALL)

    assert contents([output["data"] for output in shown if "data" in output]) == contents(wanted)


@each_lesson
def test_what_the_room_predicted_is_answered_before_the_verdict(lesson: Lesson):
    texts = [cell["source"] for cell in parts(lesson)]
    answer = next(index for index, text in enumerate(texts) if text.startswith("## Your prediction: recorded"))
    assert texts[answer + 1].startswith("## Verdict")
    assert all(each.words in texts[answer] for each in expectations(lesson))


def test_text_that_is_too_long_goes_on_below_with_its_heading():
    long = "## Reading\n\n" + "\n\n".join(" ".join([f"word{n}"] * 60) for n in range(6))
    pages = list(slides._pages(long))
    assert len(pages) > 2
    assert pages[0].startswith("## Reading\n\nword0")
    assert pages[1].startswith("## Reading <small>2</small>\n\nword")
    assert " ".join(re.findall(r"word\d", " ".join(pages))) == " ".join(re.findall(r"word\d", long))


def test_a_heading_is_never_alone_and_lists_stay_lists():
    pages = list(slides._pages("## A\n\n### B\n\n" + "word " * 200 + "\n\n- one\n- two\n\n## C\n\nEnd."))
    assert pages[0].startswith("## A\n\n### B\n\nword")
    assert any("- one\n- two" in page for page in pages)
    assert pages[-1] == "## C\n\nEnd."


def test_long_printed_text_is_cut_at_an_empty_line():
    text = "\n".join(["a"] * 20 + [""] + ["b"] * 20)
    pieces = [piece["text"] for piece in slides._cut({"output_type": "stream", "name": "stdout", "text": text})]
    assert pieces == ["a\n" * 20, "b\n" * 20]


def test_a_long_table_goes_on_with_its_caption_and_header():
    rows = "".join(f"<tr><td>{n}</td></tr>\n" for n in range(20))
    table = f"<table>\n<caption>a</caption>\n<thead><tr><th>n</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>"
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": f"{table}\n{table}\n<p>End.</p>"}}
    pieces = [piece["data"]["text/html"] for piece in slides._cut(output)]
    assert [piece.count("<td>") for piece in pieces] == [7, 7, 6] * 2
    assert ["(continued)" in piece for piece in pieces] == [False, True, True] * 2
    assert all(piece.count("<thead>") == 1 for piece in pieces)
    assert "End." in pieces[-1]


def test_citations_are_not_on_slides_and_code_is_as_it_was():
    text = "It is so [1, 2]. `a[1]` and [link](http://x) stay [3].\n```\nb [1]\n```"
    assert slides._without_citations(text) == "It is so. `a[1]` and [link](http://x) stay.\n```\nb [1]\n```"


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("## Verdict\n\nYes.\n\n### Sources\n\n- [1]\n\n### Next lesson\n\n05", "## Verdict\n\nYes."),
        ("## Verdict\n\nYes.\n\n## Exercises\n\nThree.\n\n## Solutions", "## Verdict\n\nYes."),
        ("### Sources\n\n- [1]\n\n## Recap\n\n- one", "## Recap\n\n- one"),
        ("```\n## Solutions\n```\n\nStays.", "```\n## Solutions\n```\n\nStays."),
        ("A [lesson](04_a.ipynb#b), a [term](../book/glossary.md#c).", "A lesson, a term."),
        (
            "The [docs](https://a.org), `x[i](y)` and ![](a.png).",
            "The [docs](https://a.org), `x[i](y)` and ![](a.png).",
        ),
    ],
)
def test_what_is_not_for_a_room_is_left_out(markdown: str, expected: str):
    assert excerpt(markdown) == expected


def test_a_lesson_without_slides_is_an_error(tmp_path: Path):
    with pytest.raises(LessonError, match="tag its cells slide or subslide"):
        slides_notebook(lesson_of(tmp_path, text("# 05 · Things", "demo")))


def test_formulas_are_found(tmp_path: Path):
    for words, has in (("The error is $x^2$.", True), ("`$HOME`\n```\n$x$\n```", False)):
        deck = slides_notebook(lesson_of(tmp_path, text(f"# 05 · Things\n\n{words}", "slide")))
        assert deck["metadata"]["has_formulas"] == has


# The pages


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    return write_slides([find_lesson(BROWSER_LESSON)], folder)[0]


def test_a_page_asks_for_nothing_but_the_copied_files(deck: Path):
    page = BeautifulSoup(deck.read_text(encoding="utf-8"), "html.parser")
    wanted = [each.get("src") or each.get("href") for each in page.select("script[src], link[href], img[src]")]
    files = [address for address in wanted if not address.startswith("data:")]
    assert files
    assert all((deck.parent / address).is_file() for address in files), files
    assert (deck.parent / "assets" / "reveal" / "LICENSE").is_file()
    assert not (deck.parent / "assets" / "mathjax").exists(), "no slide of this lesson has a formula"


def test_in_the_book_the_slides_share_its_files(tmp_path: Path):
    page = write_slides([find_lesson("04")], tmp_path / "slides", assets="../_static")[0]
    assert [path.name for path in (tmp_path / "slides").iterdir()] == [page.name]
    assert '"../_static/reveal/reveal.js"' in page.read_text(encoding="utf-8")


def test_slides_are_written_by_name(tmp_path: Path):
    assert command.main(["slides", "4", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "04_pinned_memory.html").is_file()


@pytest.mark.browser
@pytest.mark.parametrize("name", FULL_LESSONS)
def test_every_slide_fits_and_no_request_leaves_the_machine(name: str, tmp_path: Path, chromium: Any):
    deck = write_slides([find_lesson(name)], tmp_path)[0]
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
    assert len(seen) > 10
    assert [slide for slide in seen if slide["cut"] or slide["empty"] or not slide["headed"]] == []
    assert [slide for slide in seen if not slide["fits"]] == []
    assert [slide for slide in seen if slide["smallest"] is not None and slide["smallest"] < SMALLEST_PX] == []
    assert sum(slide["size"] < 20 for slide in seen) <= len(seen) / 5, "most slides can be read from the last row"
    assert [address for address in requested if not address.startswith(("file:", "data:"))] == []
    assert errors == []
