"""The form of a lesson: how long it may be, and what comes in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from authoring.figures_in_text import lesson_minutes, shown_minutes
from authoring.markdown_texts import ANCHOR
from authoring.slides import slides_notebook
from course_utils.lesson_notebooks import Lesson, find_lessons, read_notebook

FORM = ["Predict", "Why", "The technique", "When it does not help", "In your own program", "Exercise"]
FORM += ["What people say"]
COLUMNS = 80
LINES = 12
LIMITS = {"cells": 24, "visible words": 1100, "folded words": 400, "folds": 3, "minutes": 20, "slides": 8}
LIMITS |= {"words before the first number": 100, "lines of Python in its folder": 270}
# They are about programs of several processes; the last one trains a GPT in all the course's ways.
LONGER = {slug: LIMITS | {"cells": 30, "visible words": 1400, "minutes": 30} for slug in ("ddp", "fsdp", "capstone")}
LONGER["capstone"]["lines of Python in its folder"] = 640


def text_of(source: str) -> str:
    """What a reader sees of a Markdown cell, folds included."""
    return re.sub(rf"<!--.*?-->|{ANCHOR}", "", source, flags=re.S)


def lengths(lesson: Lesson, cells: list[dict[str, Any]], text: str) -> dict[str, int]:
    visible = len(re.sub(r"<details>.*?</details>", "", text, flags=re.S).split())
    slides = [cell["metadata"]["slideshow"]["slide_type"] for cell in slides_notebook(lesson)["cells"]]
    folder = Path(__file__).resolve().parents[2] / "course_utils" / "lessons" / lesson.slug
    return {
        "cells": len(cells),
        "visible words": visible,
        "folded words": len(text.split()) - visible,
        "folds": text.count("<details>"),
        "minutes": shown_minutes(lesson_minutes(lesson)),
        "slides": sum(each in ("slide", "subslide") for each in slides),
        "words before the first number": len(text_of(cells[0]["source"].partition("<!--=")[0]).split()),
        "lines of Python in its folder": sum(
            len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py")
        ),
    }


def problems(lesson: Lesson) -> Iterator[str]:
    """What is wrong with the form of a lesson."""
    cells = read_notebook(lesson.path)["cells"]
    text = "\n\n".join(text_of(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    most = LONGER.get(lesson.slug, LIMITS)
    for what, length in lengths(lesson, cells, text).items():
        if length > most[what]:
            yield f"it has {length} {what}; a lesson has {most[what]} at most"
    for number, cell in enumerate(cells, start=1):
        if cell["cell_type"] == "code":
            yield from _problems_of_code(number, cell)
    headings = [heading.partition(" · ")[0] for heading in re.findall(r"^## (.+?)\s*$", text, re.M)]
    if [heading for heading in headings if heading in FORM] != FORM:
        yield f"its sections are not these, in this order: {', '.join(FORM)}"
    on_the_path = "\n".join(cell["source"] for cell in cells if "demo" in _tags(cell))
    needed = (
        (
            rf"\A# {lesson.number:02d} · \S.*\n\n\*[^*]+\?\*",
            cells[0]["source"],
            "its title, and the question in italics",
        ),
        (r"\*\*You need\*\*", cells[0]["source"], "'**You need**' in its opening"),
        (r"^## Exercise · .+ · \d+ min$", text, "an exercise headed '## Exercise · name · 4 min'"),
        (re.escape(f"../book/reference/{lesson.slug}.md"), text, "a link to its reference page"),
        (r"^## Predict$", on_the_path, "the prediction on its five-minute path"),
        (r"\.reveal\(", on_the_path, "the answer to it on its five-minute path"),
        (r"recorded\(", on_the_path, "a record on its five-minute path"),
    )
    for pattern, where, what in needed:
        if not re.search(pattern, where, re.M):
            yield f"it lacks {what}"
    if "\nNext: [" not in text and lesson.slug != find_lessons()[-1].slug:
        yield "it does not end with 'Next: [05 · ...](...)'"
    if not any("standalone" in _tags(cell) for cell in cells):
        yield "no cell is tagged standalone: code to paste, free of course_utils"


def _tags(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def _problems_of_code(number: int, cell: dict[str, Any]) -> Iterator[str]:
    # Blank lines do not count: ruff puts two after each function. Imports are folded.
    every = cell["source"].split("\n")
    lines = [line for line in every if line.strip() and not line.startswith(("import ", "from "))]
    if len(lines) > LINES:
        yield f"cell {number} has {len(lines)} lines of code; {LINES} at most"
    for line in every:
        if len(line) > COLUMNS:
            yield f"cell {number} has a line of {len(line)} characters, and the page cuts it at {COLUMNS}: {line}"
    if "standalone" in _tags(cell) and "course_utils" in cell["source"]:
        yield f"cell {number} is tagged standalone and names course_utils"
