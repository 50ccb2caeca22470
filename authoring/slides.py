"""Slides of a lesson: one HTML page that needs no network, made from the same notebook.

A cell tagged ``slide`` or ``subslide`` begins a slide; the code cell right after it is on that slide, too. A cell that
measures shows its code there. A stable cell shows its stored output, one slide for each figure and table; nothing is
run. Text that is too long for one slide goes on below, on the next one.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from authoring.excerpts import Question, asked, ends_left_out, excerpt, heading_of, lines_with_fences, opening
from authoring.normal_form import KERNELSPEC
from course_utils.records.lessons import Lesson, notebooks_root
from course_utils.records.notebook_files import read_notebook

STARTS = ("slide", "subslide")
ASSETS = "assets"
_PAGE = 140  # words that a slide holds at full size
_CAPTION = 60  # words that leave room for a figure or a short piece of code
_SHORT_CODE = 12  # lines
_LINES = 24  # of printed text on one slide
_LINES_OF_CODE = 22
_ROWS = 9  # of a table on one slide
_TABLE = re.compile(r"(<table\b.*?</table>)", re.DOTALL)
_CITATION = re.compile(r"(`+[^`]+`+)|[ \n]*\[\d+(?:, ?\d+)*\](?![(\[:\w])")
_LINE_OF_CODE, _ROW = 9, 10  # words of text that take as much room
_TITLE_ENDS = "**You need"
_ITEM = re.compile(r"(?:[-*+]|\d+[.)]) ")
_FORMULA = re.compile(r"\$\$|\\\(|(?<![\w$\\])\$(?=\S)[^$\n]*\S\$(?!\w)")


class SlidesError(Exception):
    """Slides cannot be made. The message says what to do."""


def slides_notebook(lesson: Lesson) -> dict[str, Any]:
    """Returns the slides of a lesson as a notebook, one cell for each part, with nbconvert's slide types.

    Args:
        lesson: the lesson.

    Raises:
        SlidesError: if no cell is tagged ``slide``.

    Example:
        >>> from course_utils.records.lessons import find_lesson
        >>> deck = slides_notebook(find_lesson("pinned_memory"))
        >>> deck["cells"][0]["source"].splitlines()[0]
        '# 04 · Pinned memory'
        >>> any("Exercise" in cell["source"] or "Solution" in cell["source"] for cell in deck["cells"])
        False
    """
    cells = read_notebook(lesson.path)["cells"]
    made: list[dict[str, Any]] = []
    heading = ""
    question: Question | None = None
    for before, cell in zip([None, *cells], cells, strict=False):
        section, heading = heading, _last_heading(cell, heading)
        begins = _start(cell)
        if made and question and cell["source"].startswith("## Verdict"):
            made.append(_page(_recorded_answer(lesson, question), "slide"))
        question = question or (asked(cell["source"]) if cell["cell_type"] == "code" else None)
        if begins:
            text = cell["source"] if made else opening(cell["source"], _TITLE_ENDS)
            pages = list(_pages(_without_citations(excerpt(text)), section if made else ""))
            made += [_page(page, begins if not index else "subslide") for index, page in enumerate(pages)]
        elif before is not None and _follows(cell, before):
            made += _code(cell, heading, room=_weight(made[-1]["source"]) <= _CAPTION)
    if not made:
        raise SlidesError(f"{lesson.name} has no slides: tag its cells slide or subslide (CONTRIBUTING.md says which).")
    for number, cell in enumerate(made):
        cell["id"] = f"part-{number}"
    formulas = any(_has_formulas(cell["source"]) for cell in made if cell["cell_type"] == "markdown")
    title = f"{lesson.number:02d} · {lesson.title}"
    metadata = {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}}
    metadata |= {"title": title, "has_formulas": formulas}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _recorded_answer(lesson: Lesson, question: Question) -> str:
    """What the room predicted, and what was recorded, before the verdict."""
    from authoring.teaching import expectations

    found = [f"- {each.say}: **{each.words}**. *{each.caption}*" for each in expectations(lesson)]
    return "\n\n".join([f"## Your prediction: recorded\n\n> {question.words}", "\n".join(found)])


def _follows(cell: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a code cell is on the slide of the cell before it. Imports, exercises and solutions are on none."""
    is_title = before["source"].startswith("# ")
    return cell["cell_type"] == "code" and bool(_start(before)) and not is_title and not ends_left_out(before["source"])


def _start(cell: dict[str, Any]) -> str:
    return next((tag for tag in cell["metadata"].get("tags", []) if tag in STARTS), "")


def _page(source: str, slide_type: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {"slideshow": {"slide_type": slide_type}}, "source": source}


def _code(cell: dict[str, Any], heading: str, room: bool) -> Iterator[dict[str, Any]]:
    """What a code cell puts on slides. ``room`` says whether the slide before has some left."""
    question = asked(cell["source"])
    if question:
        yield _page(f"> **Your prediction?** {question.words}", "-")
        return
    outputs = cell["outputs"] if "stable" in cell["metadata"].get("tags", []) else []
    if not outputs:
        room = room and cell["source"].count("\n") < _SHORT_CODE
        if not room:
            yield _page(_where(heading), "subslide")
        for index, piece in enumerate(_pieces(cell["source"].split("\n"), _LINES_OF_CODE)):
            if index:
                yield _page(_where(heading), "subslide")
            yield _code_cell("\n".join(piece), [])
    for group in _groups(outputs):
        is_tall = any({"<script", "<table"} <= set(re.findall(r"<script|<table", _html_of(one))) for one in group)
        if not room or is_tall:
            yield _page(_where(heading), "subslide")
        yield _code_cell(cell["source"], group, hidden=True)
        room = False


def _groups(outputs: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """One slide for each figure and table. Two short ones share a slide, and a heading is with what follows it."""
    group: list[dict[str, Any]] = []
    room = _PAGE
    for output in _cut(outputs):
        words = _words(output)
        if group and words > room:
            yield group
            group, room = [], _PAGE
        group.append(output)
        room -= words
    if group:
        yield group


def _cut(outputs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Outputs, long texts in pieces: at an empty line if there is one. Each table is a piece, long ones are several."""
    for output in itertools.chain.from_iterable(map(_tables, outputs)):
        if output["output_type"] != "stream":
            yield output
            continue
        for piece in _pieces(output["text"].rstrip().split("\n"), _LINES):
            yield {**output, "text": "\n".join(piece) + "\n"}


def _pieces(lines: list[str], longest: int) -> Iterator[list[str]]:
    """Lines in pieces that a slide holds, cut at an empty line if there is one."""
    while len(lines) > longest:
        at = max((index for index in range(longest // 3, longest + 1) if not lines[index].strip()), default=longest)
        yield _stripped(lines[:at])
        lines = _stripped(lines[at:])
    if lines:
        yield lines


def _stripped(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip("\n").split("\n")


def _tables(output: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The tables of an output, each with what stands before it; a short text after the last one stays with it.

    What a script after it may fill stays with the script.
    """
    text = output.get("data", {}).get("text/html", "")
    parts = _TABLE.split(text)
    if any("<script" in part for part in parts[1:]):
        fixed = next(index for index, part in enumerate(parts) if " id=" in part or "<script" in part) // 2 * 2
        parts = [*parts[:fixed], "".join(parts[fixed:])]
        if len(parts) > 1:
            yield {**output, "data": {"text/html": "".join(parts[:-1])}}
        yield {**output, "data": {"text/html": parts[-1]}}
        return
    if len(parts) == 1:
        yield output
        return
    pieces = [parts[0]] if re.search("<svg|<script", parts[0]) else []
    before = "" if pieces else parts[0]
    for table, after in zip(parts[1::2], parts[2::2], strict=True):
        pieces += [before + part for part in _rows_apart(table)]
        before = after
    if len(before.split()) > _CAPTION and "<tr" in pieces[-1]:
        pieces.append(before)  # more than a line or two on how to read it
    else:
        pieces[-1] += before
    for piece in pieces:
        yield {**output, "data": {"text/html": piece}}


def _rows_apart(table: str) -> list[str]:
    """A table in pieces of equal length that a slide holds, each with its caption and its header."""
    start, body, end = re.fullmatch(r"(.*?<tbody>\n?)(.*)(</tbody>.*)", table, flags=re.DOTALL).groups()
    rows = re.findall(r"<tr\b.*?</tr>\n?", body, flags=re.DOTALL)
    words = len(re.sub(r"<[^>]*>", " ", body).split())
    count = max(math.ceil(len(rows) / _ROWS), math.ceil(words / _PAGE), 1)
    size = math.ceil(len(rows) / count)
    heads = [start, *[start.replace("</caption>", " (continued)</caption>")] * (count - 1)]
    return [head + "".join(rows[size * index : size * (index + 1)]) + end for index, head in enumerate(heads)]


def _html_of(output: dict[str, Any]) -> str:
    return output.get("data", {}).get("text/html", "")


def _words(output: dict[str, Any]) -> int:
    """How much of a slide an output takes: all of it, or what its text takes."""
    data = output.get("data", {})
    if output["output_type"] == "stream" or "image/png" in data or "<script" in data.get("text/html", ""):
        return _PAGE
    if "text/markdown" in data:
        return 0
    rows = data.get("text/html", "").count("<tr")
    return rows * _ROW + len(re.sub(r"<[^>]*>", " ", data.get("text/html", "")).split()) // 2


def _without_citations(markdown: str) -> str:
    """Text without its ``[1, 2]``: slides have no list of sources."""
    lines = []
    for is_code, group in itertools.groupby(lines_with_fences(markdown), key=lambda pair: pair[1]):
        text = "\n".join(line for line, _ in group)
        lines.append(text if is_code else _CITATION.sub(lambda found: found[1] or "", text))
    return "\n".join(lines)


def _where(heading: str) -> str:
    """What stands over a figure: the section that it belongs to."""
    return f"### {heading} <small>continued</small>" if heading else ""


def _last_heading(cell: dict[str, Any], before: str) -> str:
    """The words of the last heading up to and with this cell."""
    if cell["cell_type"] != "markdown":
        return before
    found = [heading_of(line) for line, is_code in lines_with_fences(cell["source"]) if not is_code]
    words = [heading[1] for heading in found if heading]
    return re.sub(r" <small>.*</small>", "", words[-1]) if words else before


def _code_cell(source: str, outputs: list[dict[str, Any]], hidden: bool = False) -> dict[str, Any]:
    metadata = {"slideshow": {"slide_type": "-"}, "tags": ["only-output"] if hidden else []}
    # On a slide nobody can run a cell, so its number would say nothing.
    outputs = [{**output, "execution_count": None} if "execution_count" in output else output for output in outputs]
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": outputs, "execution_count": None}


# Text, cut into pages


def _pages(markdown: str, before: str = "") -> Iterator[str]:
    """Cuts text at paragraphs, items of lists and headings. A page that goes on repeats its heading with a number.

    ``before`` is the heading that the text goes on under, if it begins without one.
    """
    heading = before and f"## {before}"
    for section in _sections(markdown):
        number = 1
        if heading_of(section[0]):
            heading = section[0]
        elif heading:
            number += 1
            section[0] = f"{_continued(heading, number)}\n\n{section[0]}"
        for page in _spread(section):
            if page[0] is not section[0] and heading:
                number += 1
                page = [_continued(heading, number), *page]
            yield _joined(page)


def _sections(markdown: str) -> Iterator[list[str]]:
    """Blocks up to the next heading. A heading that stands alone is with the one below it."""
    section: list[str] = []
    for block in _blocks(markdown):
        if heading_of(block) and not all(heading_of(part) for part in section):
            yield section
            section = []
        section.append(block)
    if section:
        yield section


def _spread(section: Sequence[str]) -> list[list[str]]:
    """Blocks on pages that are filled one after the other. A small rest goes onto the page before it."""
    pages: list[list[str]] = [[]]
    for block in section:
        # A heading stays with its text, however long that is.
        if not all(map(heading_of, pages[-1])) and sum(map(_weight, pages[-1])) + _weight(block) > _PAGE:
            pages.append([])
        pages[-1].append(block)
    rest = sum(map(_weight, pages[-1]))
    if len(pages) > 1 and rest < _PAGE / 4:
        pages[-2:] = [pages[-2] + pages[-1]]
    return pages


def _continued(heading: str, number: int) -> str:
    found = heading_of(heading)
    words = found[1] if found else heading
    return f"## {words} <small>{number}</small>"


def _joined(blocks: Sequence[str]) -> str:
    text = blocks[0]
    for before, block in itertools.pairwise(blocks):
        text += ("\n" if _ITEM.match(before) and _ITEM.match(block) else "\n\n") + block
    return text


def _blocks(markdown: str) -> Iterator[str]:
    """Paragraphs, headings, tables and pieces of code; each item of a list by itself."""
    block: list[str] = []
    in_code = False
    for line, is_code in lines_with_fences(markdown):
        starts = not is_code and (not line.strip() or _ITEM.match(line) or heading_of(line))
        if block and (starts or is_code != in_code):
            yield "\n".join(block)
            block = []
        in_code = is_code
        if is_code or line.strip():
            block.append(line)
            if not is_code and heading_of(line):
                yield "\n".join(block)
                block = []
    if block:
        yield "\n".join(block)


def _weight(markdown: str) -> int:
    """Words of a page, where a line of code and a row of a table count for as many as they take the room of."""
    weight = 0
    for line, is_code in lines_with_fences(markdown):
        weight += (
            _LINE_OF_CODE if is_code else max(_ROW, len(line.split())) if line.startswith("|") else len(line.split())
        )
    return weight


def _has_formulas(markdown: str) -> bool:
    text = "\n".join(line for line, is_code in lines_with_fences(markdown) if not is_code)
    return _FORMULA.search(re.sub(r"`[^`]*`", "", text)) is not None


# The page


def write_slides(
    lessons: Sequence[Lesson], folder: Path, assets: str | None = None, say: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Writes the slides of lessons, one HTML page each.

    Args:
        lessons: the lessons.
        folder: made if it is not there.
        assets: where reveal.js and MathJax are, as seen from a page, such as ``../_static``. By default they are copied
            into ``folder``, so that it can be taken elsewhere as it is.
        say: is told each page as it is written.

    Returns:
        The pages, in the order of the lessons.

    Raises:
        SlidesError: if a lesson has no slides, or if this is no clone of the repository.
    """
    folder.mkdir(parents=True, exist_ok=True)
    decks = [slides_notebook(lesson) for lesson in lessons]
    if assets is None:
        _copy_assets(folder / ASSETS, formulas=any(deck["metadata"]["has_formulas"] for deck in decks))
        assets = ASSETS
    exporter = _exporter(assets)
    written = []
    for lesson, deck in zip(lessons, decks, strict=True):
        page = folder / f"{lesson.name}.html"
        page.write_text(_html(exporter, deck, assets), encoding="utf-8", newline="\n")
        written.append(page)
        say(str(page))
    return written


def _copy_assets(folder: Path, formulas: bool) -> None:
    kept = notebooks_root().resolve().parent / "book" / "_static"
    for name in ("reveal", *(["mathjax"] if formulas else [])):
        if not (kept / name).is_dir():
            raise SlidesError("reveal.js is in book/_static of the repository: work in a clone of it.")
        shutil.copytree(kept / name, folder / name, dirs_exist_ok=True)


def _exporter(assets: str) -> Any:
    from nbconvert.exporters import SlidesExporter
    from traitlets.config import Config

    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_input_tags = {"only-output"}
    return SlidesExporter(
        config=config,
        template_name="slides",
        extra_template_basedirs=[str(Path(__file__).parent / "templates")],
        reveal_url_prefix=f"{assets}/reveal",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )


def _html(exporter: Any, deck: dict[str, Any], assets: str) -> str:
    import nbformat

    notebook = nbformat.from_dict(deck)
    notebook.metadata.mathjax = f"{assets}/mathjax/es5/tex-chtml-full.js"
    notebook.metadata.script = (Path(__file__).parent / "templates" / "slides" / "slides.js").read_text(
        encoding="utf-8"
    )
    html, _ = exporter.from_notebook_node(notebook)
    return "\n".join(line.rstrip() for line in html.splitlines()) + "\n"


def slides_folder() -> Path:
    """Returns where ``course slides`` writes: ``slides/`` beside the notebooks, which git ignores."""
    return notebooks_root().resolve().parent / "slides"
