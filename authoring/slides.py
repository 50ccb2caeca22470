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

import nbformat
from nbconvert.exporters import SlidesExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from traitlets.config import Config

from authoring.execution import KERNELSPEC
from authoring.room_text import ends_left_out, excerpt, heading_of, lines_with_fences, opening
from authoring.teaching import asked, expectations
from course_utils.records.lessons import Lesson, LessonError, notebooks_root
from course_utils.records.notebook_files import read_notebook

STARTS = ("slide", "subslide")
ASSETS = "assets"
_TEMPLATES = Path(__file__).parent / "templates"
_PAGE = 140  # words that a slide holds at full size
_CAPTION = 60  # words that leave room for a figure or a short piece of code
_SHORT_CODE = 12  # lines
_LINES = 22  # of code or printed text on one slide
_ROWS = 9  # of a table on one slide
_LINE_OF_CODE, _ROW = 9, 10  # words of text that take as much room
_TITLE_ENDS = "**You need"
_TABLE = re.compile(r"(<table\b.*?</table>)", re.DOTALL)
_CITATION = re.compile(r"(`+[^`]+`+)|[ \n]*\[\d+(?:, ?\d+)*\](?![(\[:\w])")
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_ITEM = re.compile(r"(?:[-*+]|\d+[.)]) ")


def slides_notebook(lesson: Lesson) -> dict[str, Any]:
    """Returns the slides of a lesson as a notebook, one cell for each part, with nbconvert's slide types.

    Raises:
        LessonError: if no cell is tagged ``slide``.
    """
    parts: list[dict[str, Any]] = []
    heading = question = ""
    before: dict[str, Any] | None = None
    for cell in read_notebook(lesson.path)["cells"]:
        section, heading = heading, _last_heading(cell) or heading
        if question and cell["source"].startswith("## Verdict"):
            parts.append(_page(_recorded_answer(lesson, question), "slide"))
        prediction = asked(cell["source"]) if cell["cell_type"] == "code" else None
        question = question or (prediction.words if prediction else "")
        if begins := _start(cell):
            text = excerpt(cell["source"] if parts else opening(cell["source"], _TITLE_ENDS))
            pages = _pages(_without_citations(text), section if parts else "")
            parts += [_page(page, "subslide" if index else begins) for index, page in enumerate(pages)]
        elif before is not None and _follows(cell, before):
            if prediction:
                parts.append(_page(f"> **Your prediction?** {prediction.words}", "-"))
            else:
                parts += _code(cell, heading, has_room=_weight(parts[-1]["source"]) <= _CAPTION)
        before = cell
    if not parts:
        raise LessonError(f"{lesson.name} has no slides: tag its cells slide or subslide (CONTRIBUTING.md says which).")
    for number, part in enumerate(parts):
        part["id"] = f"part-{number}"
    metadata = {
        "kernelspec": KERNELSPEC,
        "language_info": {"name": "python"},
        "title": f"{lesson.number:02d} · {lesson.title}",
        "has_formulas": any("$" in _CODE.sub("", part["source"]) for part in parts if part["cell_type"] == "markdown"),
    }
    return new_notebook(cells=parts, metadata=metadata)


def _recorded_answer(lesson: Lesson, question: str) -> str:
    """What the room predicted, and what was recorded, before the verdict."""
    answers = [f"- {each.say}: **{each.words}**. *{each.caption}*" for each in expectations(lesson)]
    return "\n\n".join([f"## Your prediction: recorded\n\n> {question}", "\n".join(answers)])


def _start(cell: dict[str, Any]) -> str:
    return next((tag for tag in cell["metadata"].get("tags", []) if tag in STARTS), "")


def _follows(cell: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a code cell is on the slide of the cell before it. Imports, exercises and solutions are on none."""
    is_title = before["source"].startswith("# ")
    return cell["cell_type"] == "code" and bool(_start(before)) and not is_title and not ends_left_out(before["source"])


def _last_heading(cell: dict[str, Any]) -> str:
    if cell["cell_type"] != "markdown":
        return ""
    headings = [heading_of(line) for line, is_code in lines_with_fences(cell["source"]) if not is_code]
    return ([""] + [heading[1] for heading in headings if heading])[-1]


def _page(source: str, slide_type: str) -> dict[str, Any]:
    return new_markdown_cell(source, metadata={"slideshow": {"slide_type": slide_type}})


# Code and its outputs


def _code(cell: dict[str, Any], heading: str, has_room: bool) -> Iterator[dict[str, Any]]:
    """What a code cell puts on slides. ``has_room`` says whether the slide before has some left."""
    above = f"### {heading} <small>continued</small>" if heading else ""
    outputs = cell["outputs"] if "stable" in cell["metadata"].get("tags", []) else []
    lines = cell["source"].split("\n")
    if outputs:
        slides = [(cell["source"], group) for group in _groups(outputs)]
    else:
        slides = [("\n".join(piece), []) for piece in _pieces(lines, _LINES)]
        has_room = has_room and len(lines) <= _SHORT_CODE
    for source, group in slides:
        if not has_room or any("<script" in _html(each) and "<table" in _html(each) for each in group):
            yield _page(above, "subslide")
        metadata = {"slideshow": {"slide_type": "-"}, "tags": ["only-output"] if group else []}
        # On a slide nobody can run a cell, so its number would say nothing.
        shown = [{**each, "execution_count": None} if "execution_count" in each else each for each in group]
        yield new_code_cell(source, metadata=metadata, outputs=shown)
        has_room = False


def _groups(outputs: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """One slide for each figure and table. Two short ones share a slide, and a heading is with what follows it."""
    group: list[dict[str, Any]] = []
    room = _PAGE
    for output in itertools.chain.from_iterable(map(_cut, outputs)):
        words = _words(output)
        if group and words > room:
            yield group
            group, room = [], _PAGE
        group.append(output)
        room -= words
    yield group


def _html(output: dict[str, Any]) -> str:
    return output.get("data", {}).get("text/html", "")


def _words(output: dict[str, Any]) -> int:
    """How much of a slide an output takes: all of it, or what its text takes."""
    if "text" in output or "image/png" in output["data"] or "<script" in _html(output):
        return _PAGE
    return _html(output).count("<tr") * _ROW + len(re.sub(r"<[^>]*>", " ", _html(output)).split()) // 2


def _cut(output: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An output in pieces that a slide holds: each table with what stands before it, and long texts and tables cut."""
    if output["output_type"] == "stream":
        for piece in _pieces(output["text"].rstrip().split("\n"), _LINES):
            yield {**output, "text": "\n".join(piece) + "\n"}
        return
    for piece in _tables(_TABLE.split(_html(output))):
        yield {**output, "data": {"text/html": piece}} if piece != _html(output) else output


def _tables(parts: list[str]) -> list[str]:
    """Tables, each with what stands before it; a picture before them, and a long text after the last one, are apart."""
    if any("<script" in part for part in parts[1:]):  # what it fills stays with it
        first = next(index for index, part in enumerate(parts) if "<script" in part or " id=" in part) // 2 * 2
        return [piece for piece in ("".join(parts[:first]), "".join(parts[first:])) if piece]
    pieces = [""]
    for text, table in zip(parts[::2], parts[1::2], strict=False):
        first, *others = _rows_apart(table)
        pieces += [text, first, *others] if re.search("<svg|<script", text) else [text + first, *others]
    is_long = len(parts[-1].split()) > _CAPTION
    pieces[-1:] = [pieces[-1], parts[-1]] if is_long else [pieces[-1] + parts[-1]]
    return [piece for piece in pieces if piece] or [""]


def _rows_apart(table: str) -> list[str]:
    """A table in pieces of equal length that a slide holds, each with its caption and its header."""
    start, body, end = re.fullmatch(r"(.*?<tbody>\n?)(.*)(</tbody>.*)", table, flags=re.DOTALL).groups()
    rows = re.findall(r"<tr\b.*?</tr>\n?", body, flags=re.DOTALL)
    words = len(re.sub(r"<[^>]*>", " ", body).split())
    size = math.ceil(len(rows) / max(math.ceil(len(rows) / _ROWS), math.ceil(words / _PAGE)))
    starts = itertools.chain([start], itertools.repeat(start.replace("</caption>", " (continued)</caption>")))
    return ["".join([next(starts), *rows[at : at + size], end]) for at in range(0, len(rows), size)]


def _pieces(lines: list[str], longest: int) -> Iterator[list[str]]:
    """Lines in pieces that a slide holds, cut at an empty line if there is one."""
    while len(lines) > longest:
        at = max((index for index in range(longest // 3, longest + 1) if not lines[index].strip()), default=longest)
        yield "\n".join(lines[:at]).strip("\n").split("\n")
        lines = "\n".join(lines[at:]).strip("\n").split("\n")
    yield lines


# Text, cut into pages


def _without_citations(markdown: str) -> str:
    """Text without its ``[1, 2]``: slides have no list of sources."""
    lines = []
    for is_code, group in itertools.groupby(lines_with_fences(markdown), key=lambda pair: pair[1]):
        text = "\n".join(line for line, _ in group)
        lines.append(text if is_code else _CITATION.sub(lambda match: match[1] or "", text))
    return "\n".join(lines)


def _pages(markdown: str, heading: str = "") -> Iterator[str]:
    """Cuts text at paragraphs, items of lists and headings. A page that goes on repeats its heading with a number.

    ``heading`` is what the text goes on under, if it begins without one.
    """
    page: list[str] = []
    number = 1
    for block in _blocks(markdown):
        own = heading_of(block)
        # A heading stays with its text, however long that is, and with a heading right below it.
        if not all(map(heading_of, page)) and (own or sum(map(_weight, page)) + _weight(block) > _PAGE):
            yield "\n\n".join(page)
            page = []
        if own:
            heading, number = own[1], 1
        elif not page and heading:
            number += 1
            page.append(f"## {heading} <small>{number}</small>")
        if page and _ITEM.match(page[-1]) and _ITEM.match(block):
            page[-1] += "\n" + block
        else:
            page.append(block)
    if page:
        yield "\n\n".join(page)


def _blocks(markdown: str) -> Iterator[str]:
    """Paragraphs, headings, tables and pieces of code; each item of a list by itself."""
    block: list[str] = []
    was_code = False
    for line, is_code in lines_with_fences(markdown):
        begins = not is_code and (not line.strip() or _ITEM.match(line) or heading_of(line))
        if block and (begins or is_code != was_code):
            yield "\n".join(block)
            block = []
        if is_code or line.strip():
            block.append(line)
        was_code = is_code
    if block:
        yield "\n".join(block)


def _weight(markdown: str) -> int:
    """Words of a page, where a line of code and a row of a table count for as many as they take the room of."""
    weight = 0
    for line, is_code in lines_with_fences(markdown):
        words = len(line.split())
        weight += _LINE_OF_CODE if is_code else max(_ROW, words) if line.startswith("|") else words
    return weight


# The page


def write_slides(
    lessons: Sequence[Lesson], folder: Path, assets: str | None = None, say: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Writes the slides of lessons, and returns the pages, one for each.

    Args:
        lessons: one page is written for each.
        folder: where to.
        assets: where reveal.js and MathJax are, as seen from a page, such as ``../_static``. By default they are copied
            into ``folder``, so that it can be taken elsewhere as it is.
        say: is told each page as it is written.

    Raises:
        LessonError: if a lesson has no slides.
    """
    folder.mkdir(parents=True, exist_ok=True)
    decks = [slides_notebook(lesson) for lesson in lessons]
    if assets is None:
        kept = notebooks_root().resolve().parent / "book" / "_static"
        for name in ("reveal", *(["mathjax"] if any(deck["metadata"]["has_formulas"] for deck in decks) else [])):
            shutil.copytree(kept / name, folder / ASSETS / name, dirs_exist_ok=True)
    exporter = _exporter(assets or ASSETS)
    pages = [folder / f"{lesson.name}.html" for lesson in lessons]
    for page, deck in zip(pages, decks, strict=True):
        notebook = nbformat.from_dict(deck)
        notebook.metadata.mathjax = f"{assets or ASSETS}/mathjax/es5/tex-chtml-full.js"
        notebook.metadata.script = (_TEMPLATES / "slides" / "slides.js").read_text(encoding="utf-8")
        html, _ = exporter.from_notebook_node(notebook)
        text = "\n".join(line.rstrip() for line in html.splitlines()) + "\n"
        page.write_text(text, encoding="utf-8", newline="\n")
        say(str(page))
    return pages


def _exporter(assets: str) -> SlidesExporter:
    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_input_tags = {"only-output"}
    return SlidesExporter(
        config=config,
        template_name="slides",
        extra_template_basedirs=[str(_TEMPLATES)],
        reveal_url_prefix=f"{assets}/reveal",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )


def slides_folder() -> Path:
    """Returns where slides are written: ``slides/`` beside the notebooks, which git ignores."""
    return notebooks_root().resolve().parent / "slides"
