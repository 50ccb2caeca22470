"""What the landing page shows of the records: one result, and its figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from authoring.lesson_files import LessonFile, read_yaml
from authoring.pages.generated import BOOK, page
from course_utils.records import store


def headline(lessons: Sequence[LessonFile]) -> tuple[str, Any | None]:
    """The landing page's example of a result, as Markdown, and its figure.

    It is the first name under ``headline`` in book/parts.yml that has a record, GPUs first. Without any, there is no
    figure.
    """
    names = read_yaml(BOOK / "parts.yml")["headline"]
    holding = [
        (name, record.environment)
        for name in names
        for record in store.records_of(name.partition("/")[0], store.reference_root())
        if name in record.experiments
    ]
    if not holding:
        return page("headline.md", result=None), None
    name, environment = min(holding, key=lambda pair: pair[1].device_kind == "cpu")
    result = store.recorded(name, machine=environment.machine)
    lesson = next(lesson for lesson in lessons if lesson.slug == name.partition("/")[0])
    # A sweep is told at its last value: the figure shows the others.
    shown = result.points[-1].comparison if result.kind == "sweep" else result
    return page("headline.md", result=result, lesson=lesson, shown=shown), result.plot()


def svg(figure: Any) -> str:
    """A matplotlib figure as SVG: the same record gives the same text."""
    import matplotlib as mpl

    buffer = io.StringIO()
    # Fixed ids and no date.
    with mpl.rc_context({"svg.hashsalt": "course", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return buffer.getvalue()
