"""The generated part of the instructor's guide, and the slides that it links."""

from __future__ import annotations

from pathlib import Path

from authoring.rendering import rendered
from authoring.slides import write_slides
from authoring.teaching import routes
from course_utils.records.lessons import find_lessons

SLIDES = "slides"


def generated() -> dict[str, str]:
    """The part that ``book/instructors.md`` includes, by file name."""
    return {"instructors_routes.md": rendered("instructors_routes.md", routes=routes(), slides=SLIDES)}


def add_slides(html: Path) -> None:
    """Write the slides beside the pages of the book, where they share its copy of reveal.js and MathJax."""
    write_slides(find_lessons(), html / SLIDES, assets="../_static")
