"""The form of a lesson: how long it may be, and what comes in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from authoring.figures_in_text import lesson_minutes, shown_minutes
from authoring.markdown_texts import ANCHOR
from authoring.slides import slides_notebook
from course_utils.lesson_notebooks import Lesson, find_lessons, read_notebook

FORM = "Predict", "Why", "The technique", "When it does not help", "In your own program", "Exercise", "What people say"
ON_THE_DEMO = "Predict", "What people say"
COLUMNS = 80
LINES = 12
FIRST_NUMBER = 100  # words before it


@dataclass(frozen=True)
class Limits:
    """How much a lesson may hold at most, by the names that `lengths` gives."""

    cells: int = 24
    visible_words: int = 1100
    folded_words: int = 400
    folds: int = 3
    minutes: int = 20
    slides: int = 8
    folder_lines: int = 270  # of Python


# They are about programs of several processes; the last one trains a GPT in all the course's ways.
LONGER = {slug: Limits(cells=30, visible_words=1400, minutes=30) for slug in ("ddp", "fsdp")}
LONGER["capstone"] = Limits(cells=30, visible_words=1400, minutes=30, folder_lines=640)


def text_of(cell: dict[str, Any]) -> str:
    """What a reader sees of a Markdown cell, folds included."""
    return re.sub(rf"<!--.*?-->|{ANCHOR}", "", cell["source"], flags=re.S)


def unfolded(text: str) -> str:
    return re.sub(r"<details>.*?</details>", "", text, flags=re.S)


def lengths(lesson: Lesson) -> dict[str, int]:
    cells = read_notebook(lesson.path)["cells"]
    texts = [text_of(cell) for cell in cells if cell["cell_type"] == "markdown"]
    visible = sum(len(unfolded(text).split()) for text in texts)
    slides = [cell["metadata"]["slideshow"]["slide_type"] for cell in slides_notebook(lesson)["cells"]]
    return {
        "cells": len(cells),
        "visible_words": visible,
        "folded_words": sum(len(text.split()) for text in texts) - visible,
        "folds": sum(text.count("<details>") for text in texts),
        "minutes": shown_minutes(lesson_minutes(lesson)),
        "slides": sum(each in ("slide", "subslide") for each in slides),
        "folder_lines": sum(len(path.read_text("utf-8").splitlines()) for path in folder(lesson).rglob("*.py")),
    }


def folder(lesson: Lesson) -> Path:
    return Path(__file__).resolve().parents[2] / "course_utils" / "lessons" / lesson.slug


def words_before_the_number(cells: Sequence[dict[str, Any]]) -> int:
    """Words before the first figure of a record or of a published row."""
    before = cells[0]["source"].partition("<!--=")[0]
    return len(text_of({"source": before}).split())


def problems(lesson: Lesson) -> Iterator[str]:
    """What is wrong with the form of a lesson."""
    cells = read_notebook(lesson.path)["cells"]
    most = LONGER.get(lesson.slug, Limits())
    for what, length in lengths(lesson).items():
        if length > getattr(most, what):
            yield f"it has {length} {what.replace('_', ' ')}; a lesson has {getattr(most, what)} at most"
    if (before := words_before_the_number(cells)) > FIRST_NUMBER:
        yield f"{before} words stand before its first measured number; {FIRST_NUMBER} at most"
    for number, cell in enumerate(cells, start=1):
        if cell["cell_type"] == "code":
            yield from _problems_of_code(number, cell["source"])
    yield from _problems_of_text(lesson, cells)
    yield from _problems_of_tags(cells)


def _problems_of_code(number: int, source: str) -> Iterator[str]:
    # Blank lines do not count: ruff puts two after each function. Imports are folded.
    lines = [line for line in source.split("\n") if line.strip() and not line.startswith(("import ", "from "))]
    if len(lines) > LINES:
        yield f"cell {number} has {len(lines)} lines of code; {LINES} at most"
    for line in source.split("\n"):
        if len(line) > COLUMNS:
            yield f"cell {number} has a line of {len(line)} characters, and the page cuts it at {COLUMNS}: {line}"


def _problems_of_text(lesson: Lesson, cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not re.match(rf"# {lesson.number:02d} · \S.*\n\n\*[^*]+\?\*", cells[0]["source"]):
        yield f"it does not begin with '# {lesson.number:02d} · Title' and the question in italics"
    if "**You need**" not in cells[0]["source"]:
        yield "its opening does not say what '**You need**'"
    whole = "\n".join(text_of(cell) for cell in cells if cell["cell_type"] == "markdown")
    headings = [heading.partition(" · ")[0] for heading in re.findall(r"^## (.+?)\s*$", whole, re.M)]
    if [heading for heading in headings if heading in FORM] != [*FORM]:
        yield f"its sections are not these, in this order: {', '.join(FORM)}"
    if not re.search(r"^## Exercise · .+ · \d+ min$", whole, re.M):
        yield "its exercise is not headed '## Exercise · name · 4 min'"
    if f"../book/reference/{lesson.slug}.md" not in whole:
        yield "it does not link its reference page"
    if "\nNext: [" not in whole and lesson.slug != find_lessons()[-1].slug:
        yield "it does not end with 'Next: [05 · ...](...)'"


def _problems_of_tags(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    tags = [set(cell["metadata"].get("tags", [])) for cell in cells]
    shown = "\n".join(cell["source"] for cell, its in zip(cells, tags, strict=True) if "demo" in its)
    for heading in ON_THE_DEMO:
        if f"## {heading}\n" not in shown:
            yield f"no cell of '## {heading}' is tagged demo"
    for what, call in (("reveals the prediction", ".reveal("), ("shows a record", "recorded(")):
        if call not in shown:
            yield f"its five-minute path never {what}"
    if not any("standalone" in its for its in tags):
        yield "no cell is tagged standalone: code to paste, free of course_utils"
    solution = next((cell["source"] for cell in reversed(cells) if "hide-cell" in cell["metadata"].get("tags", [])), "")
    if not solution.startswith("# Solution\n"):
        yield "its folded solution does not begin with '# Solution'"
    for number, (cell, its) in enumerate(zip(cells, tags, strict=True), start=1):
        if "standalone" in its and "course_utils" in cell["source"]:
            yield f"cell {number} is tagged standalone and names course_utils"
