"""Slides of a lesson: one HTML page that needs no network, made from the same notebook by nbconvert.

A cell tagged ``slide`` or ``subslide`` makes a slide of each of its headings: the heading, a sentence or two, and what
the next stable cell shows, or else its code. The rest of the text is the speaker's notes. ``slides.js`` shrinks what is
too tall.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import SlidesExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from traitlets.config import Config

from authoring.classroom_text import TextBlock, blocks, excerpt, opening
from authoring.notebook_form import KERNELSPEC, STARTS
from authoring.predictions import asked
from authoring.rendering import linked_to_pages
from course_utils.lesson_notebooks import Lesson, LessonError, notebooks_root, read_notebook
from course_utils.show.page import scripts, style

_TEMPLATES = Path(__file__).parent / "templates"
_WORDS = 60  # on a slide; the first block is shown however long it is
_LINES = 12  # of a table or of printed text, so many fill a slide
_CODE = r"```.*?```|`[^`]*`"
_CODE_OR_CITATION = re.compile(rf"({_CODE})|[ \n]*\[\d+(?:, ?\d+)*\](?![(\[:\w])", re.DOTALL)


def slides_notebook(lesson: Lesson) -> dict[str, Any]:
    """The slides of a lesson as a notebook, one cell for each part, with nbconvert's slide types."""
    parts: list[dict[str, Any]] = []
    heading = ""
    cells = read_notebook(lesson.path)["cells"]
    for index, cell in enumerate(cells):
        above = heading
        if cell["cell_type"] == "markdown":
            heading = [heading, *(block.heading for block in blocks(cell["source"]) if block.level)][-1]
        if begins := [tag for tag in cell["metadata"].get("tags", []) if tag in STARTS]:
            text = excerpt(cell["source"] if parts else opening(cell["source"]))
            # Slides have no list of sources to cite.
            text = _CODE_OR_CITATION.sub(lambda match: match[1] or "", text)
            if parts and not text.startswith("#"):
                text = f"## {above} <small>continued</small>\n\n{text}"
            for place, (shown, notes) in enumerate(_sections(text)):
                parts.append(_page(shown, "subslide" if place else begins[0]))
                if notes:
                    parts.append(_page(notes, "notes"))
            parts += _shown_after(cells[index + 1 :], heading)
    if not parts:
        raise LessonError(f"{lesson.name} has no slides: tag its cells slide or subslide (CONTRIBUTING.md says which).")
    texts = "\n".join(part["source"] for part in parts if part["cell_type"] == "markdown")
    metadata = {
        "kernelspec": KERNELSPEC,
        "title": f"{lesson.number:02d} · {lesson.title}",
        "has_formulas": "$" in re.sub(_CODE, "", texts, flags=re.DOTALL),
    }
    for number, part in enumerate(parts):
        part["id"] = f"part-{number}"
    return new_notebook(cells=parts, metadata=metadata)


def _page(source: str, slide_type: str) -> dict[str, Any]:
    return new_markdown_cell(source, metadata={"slideshow": {"slide_type": slide_type}})


def _sections(markdown: str) -> Iterator[tuple[str, str]]:
    """What is shown of each heading with its text, and the notes on it. A heading right below another stays with it."""
    sections: list[list[TextBlock]] = [[]]
    for block in blocks(markdown):
        if block.level and any(not each.level for each in sections[-1]):
            sections.append([])
        sections[-1].append(block)
    for section in sections:
        shown: list[str] = []
        words = 0
        for block in section:
            words += 0 if block.level else len(block.text.split())
            if words > _WORDS and any(not each.level for each in section[: len(shown)]):
                break
            shown.append(block.text)
        yield "\n\n".join(shown), "\n\n".join(block.text for block in section[len(shown) :])


def _shown_after(cells: Sequence[dict[str, Any]], heading: str) -> Iterator[dict[str, Any]]:
    """What the code cells right after a text put on its slide: outputs of the first stable one, a question, or code."""
    code = takewhile(lambda cell: cell["cell_type"] == "code", cells)
    code = [cell for cell in code if "hide-cell" not in cell["metadata"].get("tags", [])]
    stable = next((cell for cell in code if "stable" in cell["metadata"].get("tags", [])), None)
    if stable:
        lines = 0
        for output in stable["outputs"]:
            if lines and lines + _lines_of(output) > _LINES:
                yield _page(f"### {heading} <small>continued</small>", "subslide")
                lines = 0
            lines += _lines_of(output)
            metadata = {"slideshow": {"slide_type": "-"}, "tags": ["only-output"]}
            yield new_code_cell(stable["source"], metadata=metadata, outputs=[_revealed(output)])
    elif code and (prediction := asked(code[0]["source"])):
        yield _page(f"> **Your prediction?** {prediction.question}", "-")
    elif code:
        yield new_code_cell(code[0]["source"], metadata={"slideshow": {"slide_type": "-"}})


def _lines_of(output: dict[str, Any]) -> int:
    html = output.get("data", {}).get("text/html", "")
    is_picture = "image/png" in output.get("data", {}) or html.startswith("<img") or "course-viewer" in html
    return _LINES if is_picture else output.get("text", "").count("\n") + html.count("<tr")


def _revealed(output: dict[str, Any]) -> dict[str, Any]:
    """An output as a room sees it that has predicted: of a reveal, what is below the answer, or else the answer."""
    html = output.get("data", {}).get("text/html", "")
    if 'class="course-predict"' not in html:
        return output
    answer, _, below = html.partition("</summary>")[2].rpartition("</details>")[0].partition('<div class="below">')
    return {**output, "data": {**output["data"], "text/html": below.rpartition("</div>")[0] or answer}}


# The page


def write_slides(lessons: Sequence[Lesson], folder: Path, assets: str | None = None) -> list[Path]:
    """Write the slides of lessons, and return the pages, one for each.

    ``assets`` is where reveal.js and MathJax are, as seen from a page, such as ``../_static``. By default they are
    copied into ``folder``, so that it can be taken elsewhere as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if assets is None:
        assets = "assets"
        for name in ("reveal", "mathjax"):
            kept = notebooks_root().resolve().parent / "book" / "_static" / name
            shutil.copytree(kept, folder / assets / name, dirs_exist_ok=True)
    exporter = SlidesExporter(
        config=Config(TagRemovePreprocessor={"enabled": True, "remove_input_tags": {"only-output"}}),
        template_name="slides",
        extra_template_basedirs=[str(_TEMPLATES)],
        reveal_url_prefix=f"{assets}/reveal",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )
    script = (_TEMPLATES / "slides" / "slides.js").read_text(encoding="utf-8")
    mathjax = f"{assets}/mathjax/es5/tex-chtml-full.js"
    pages = [folder / f"{lesson.name}.html" for lesson in lessons]
    for lesson, page in zip(lessons, pages, strict=True):
        notebook = nbformat.from_dict(slides_notebook(lesson))
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        drawing = scripts("".join(output.get("data", {}).get("text/html", "") for output in outputs))
        notebook.metadata |= {"mathjax": mathjax, "style": style(), "drawing": drawing, "script": script}
        html, _ = exporter.from_notebook_node(notebook)
        html = linked_to_pages(html, {lesson.name for lesson in lessons}.__contains__)
        page.write_text(html, encoding="utf-8", newline="\n")
    return pages
