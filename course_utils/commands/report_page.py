"""One HTML page that puts this machine's results beside the recorded machines', lesson by lesson.

Each result is the card that its notebook shows. The page holds everything that it shows: it asks for nothing from a
network or another file.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from course_utils.commands import CommandError
from course_utils.files import write_whole
from course_utils.lesson_notebooks import experiments, find_lessons
from course_utils.results import store
from course_utils.results.store import LessonRecord, RecordError
from course_utils.show.page import style
from course_utils.show.suggestions import typed


class ShownRecord(NamedTuple):
    """One machine's record of a lesson, and whether it is the reader's own."""

    record: LessonRecord
    own: bool

    def card(self, name: str) -> str:
        """The card of an experiment. Lessons that it names are further down, or above, on this page."""
        result = self.record.result(name)
        notes = [store.CODE_HAS_CHANGED] if store.code_has_changed(self.record, name) else []
        whose = "" if self.own else "recorded"
        return dataclasses.replace(result, notes=(*result.notes, *notes), whose=whose).card().html(lessons="#{}")


def build(output: Path) -> tuple[str, str]:
    """Write the report into a file, or as ``report.html`` into a folder.

    Returns:
        Where it is and how to open it, and what is not on it because it could not be read; empty if everything is.

    Raises:
        CommandError: if it cannot be written; an earlier page is untouched.
    """
    path = output / "report.html" if output.is_dir() else output
    page, problems = render()
    try:
        write_whole(path, page)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}. Choose another place with --output.") from error
    where = f"{path.resolve()}\nOpen it in a browser: {path.resolve().as_uri()}"
    return where, "\n  ".join(["Not on the page, because it cannot be read:", *problems]) if problems else ""


def render(today: datetime.date | None = None) -> tuple[str, list[str]]:
    """The page as HTML, the same bytes for the same records and day; and what could not be read, which it names."""
    import jinja2

    problems: list[str] = []
    records = [*_records(store.results_root(), True, problems), *_records(store.reference_root(), False, problems)]
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).get_template("report.html.j2")
    page = template.render(
        style=style("cards"),
        machines=_machines(records),
        typed=lambda command: typed(command).strip("`"),
        sections=_sections(records, problems),
        problems=problems,
        any_own=any(each.own for each in records),
        today=(today or datetime.datetime.now(datetime.UTC).date()).isoformat(),
    )
    return page, problems


def _records(root: Path, own: bool, problems: list[str]) -> list[ShownRecord]:
    found = []
    for path in sorted(root.glob("*/[!.]*.json")):
        try:
            found.append(ShownRecord(store.load_lesson(path), own))
        except RecordError as error:
            problems.append(str(error))
    # Accelerators first: they are what a lesson is about.
    return sorted(found, key=lambda each: each.record.environment.device_kind == "cpu")


def _machines(records: Sequence[ShownRecord]) -> list[tuple[ShownRecord, int]]:
    """The newest record of each machine, and of how many lessons it has one."""
    groups: dict[tuple[bool, str], list[ShownRecord]] = {}
    for each in records:
        groups.setdefault((each.own, each.record.environment.machine), []).append(each)
    return [(max(group, key=lambda each: each.record.recorded_at), len(group)) for group in groups.values()]


def _sections(records: Sequence[ShownRecord], problems: list[str]) -> list[dict[str, Any]]:
    """What the template shows of each lesson: the cards of its experiments, machine by machine."""
    sections = []
    for lesson in find_lessons():
        of_lesson = [each for each in records if each.record.lesson == lesson.slug]
        shown: dict[str, list[tuple[ShownRecord, str]]] = {}
        recorded = {name for each in of_lesson for name in each.record.experiments}
        # What only an older edition measured comes last.
        for name in dict.fromkeys([*experiments(lesson), *sorted(recorded)]):
            for each in of_lesson:
                try:
                    if name in each.record.experiments:
                        shown.setdefault(name, []).append((each, each.card(name)))
                except RecordError as error:
                    problems.append(str(error))
        own = any(each.own for each in of_lesson)
        sections.append({"lesson": lesson, "experiments": shown, "own": own})
    return sections
