"""What the landing page shows of the records: one result, and its figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import yaml

from authoring.pages.generated import BOOK
from authoring.pages.lesson_list import Lesson
from course_utils.records import store


def _headline_result(lessons: Sequence[Lesson]) -> Any | None:
    """The result that the landing page shows: the first name in ``lessons.yml`` that has a record, GPUs first."""
    wanted = yaml.safe_load((BOOK / "lessons.yml").read_text(encoding="utf-8"))["headline"]
    records = {lesson.slug: store.records_of(lesson.slug, store.reference_root()) for lesson in lessons}
    holding = [
        (name, record) for name in wanted for record in records[name.split("/")[0]] if name in record.experiments
    ]
    holding.sort(key=lambda pair: pair[1].environment.device_kind == "cpu")
    return store.recorded(holding[0][0], machine=holding[0][1].environment.machine) if holding else None


def headline(lessons: Sequence[Lesson]) -> tuple[str, Any | None]:
    """The landing page's example of a result, as Markdown, and its figure.

    Returns:
        The Markdown, and a matplotlib figure or None when nothing is recorded.

    Raises:
        course_utils.records.store.RecordError: if the record is damaged.
    """
    result = _headline_result(lessons)
    if result is None:
        missing = (
            "Nothing is recorded yet. `course record --reference` makes the first record; the next build shows it.\n"
        )
        return missing, None
    lesson = next(lesson for lesson in lessons if lesson.slug == result.name.split("/")[0])
    text = [
        f"![Recorded result of {result.name}](_generated/headline.svg)",
        "",
        f"From lesson [{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.stem}.ipynb). "
        f"{' '.join(result.notes)} {result.environment.caption}.",
        "",
    ]
    # A sweep is told at its last value: the figure shows the others.
    shown = result.points[-1].comparison if result.kind == "sweep" else result
    if result.kind == "sweep":
        text += [f"At {result.over} = {result.points[-1].value}, against {shown.baseline}:", ""]
    if shown.kind == "comparison":
        text += [f"- **{case.label}**: {case.words}" for case in shown if not case.is_baseline] + [""]
    return "\n".join(text), result.plot()


def svg(figure: Any) -> str:
    """A matplotlib figure as SVG: the same record gives the same text."""
    import matplotlib as mpl

    buffer = io.StringIO()
    # Fixed ids and no date.
    with mpl.rc_context({"svg.hashsalt": "course", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return buffer.getvalue()
