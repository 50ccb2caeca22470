"""The generated parts of the instructor's guide, and the slides that it links."""

from __future__ import annotations

from pathlib import Path

from authoring.pages.generated import markdown_table
from authoring.rendering import rendered
from authoring.slides import write_slides
from authoring.teaching import plans, routes
from course_utils.lesson_notebooks import find_lessons

SLIDES = "slides"


def generated() -> dict[str, str]:
    """The parts that ``book/instructors.md`` includes, by file name."""
    rows = [
        (
            f"[{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.path.name})"
            f'<br><a href="../{SLIDES}/{lesson.name}.html">slides</a>',
            "<br>".join(f"{n}. {question}" for n, question in enumerate(plans()["questions"][lesson.slug], start=1)),
        )
        for lesson in find_lessons()
    ]
    return {
        "instructors_routes.md": rendered("instructors_routes.md", routes=routes()),
        "instructors_questions.md": markdown_table(["Lesson", "To open with"], rows),
    }


def add_slides(html: Path) -> None:
    """Write the slides beside the pages of the book, where they share its copy of reveal.js and MathJax."""
    write_slides(find_lessons(), html / SLIDES, assets="../_static")
