"""One HTML page that puts this machine's results beside the recorded machines', lesson by lesson.

The page holds everything it shows. It asks for nothing from a network or another file.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from course_utils import lesson_notebooks
from course_utils.commands import CommandError
from course_utils.commands.recording import busy_experiments
from course_utils.files import write_whole
from course_utils.lesson_notebooks import Lesson
from course_utils.results import store
from course_utils.results.environment import titles
from course_utils.results.result import Fact
from course_utils.results.store import LessonRecord, RecordError
from course_utils.show import tables
from course_utils.show.cards import MARKS
from course_utils.show.colours import SHEET
from course_utils.show.suggestions import typed

# The interval plots of one experiment share a scale that shows at least this much to either side of 1.
_MIN_SCALE = math.log(1.1)


class MachineColumn(NamedTuple):
    """One machine's record of a lesson: ``yours``, ``recorded`` or of ``this machine``."""

    record: LessonRecord
    own: bool
    whose: str


class MachineResult(NamedTuple):
    """One experiment on one machine: its facts by row, what keeps it from being compared, and all its numbers."""

    column: MachineColumn
    cells: dict[str, list[Fact]]
    notices: list[str]
    table: str
    worked_by: str  # who did the work, where that is not the machine as the page calls it


def build(output: Path, claims: str = "") -> tuple[str, str]:
    """Write the report into a file, or as ``report.html`` into a folder.

    ``claims`` is HTML that comes before the lessons: what one's own records say of the course's claims.

    Returns:
        Where it is and how to open it, and what is not on it because it could not be read; empty if everything is.

    Raises:
        CommandError: if it cannot be written; an earlier page is untouched.
    """
    path = output / "report.html" if output.is_dir() else output
    problems: list[str] = []
    try:
        write_whole(path, render(claims=claims, problems=problems))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}. Choose another place with --output.") from error
    where = f"{path.resolve()}\nOpen it in a browser: {path.resolve().as_uri()}"
    return where, "\n  ".join(["Not on the page, because it cannot be read:", *problems]) if problems else ""


def render(today: datetime.date | None = None, claims: str = "", problems: list[str] | None = None) -> str:
    """The page as HTML: the same bytes for the same records and day. What cannot be shown goes to the problems, too."""
    import jinja2

    problems = [] if problems is None else problems
    columns = [*_columns(store.results_root(), True, problems), *_columns(store.reference_root(), False, problems)]
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).get_template("report.html.j2")
    return template.render(
        colours=SHEET,
        called=titles(column.record.environment for column in columns),
        machines=_machines(columns),
        marks=MARKS,
        typed=lambda command: typed(command).strip("`"),
        sections=_sections(columns, problems),
        claims=claims,
        problems=problems,
        any_own=any(column.own for column in columns),
        today=(today or datetime.datetime.now(datetime.UTC).date()).isoformat(),
    )


def _columns(root: Path, own: bool, problems: list[str]) -> list[MachineColumn]:
    records = []
    for path in sorted(root.glob("*/[!.]*.json")):
        try:
            records.append(store.load_lesson(path))
        except RecordError as error:
            problems.append(str(error))
    several = len({record.environment.machine for record in records}) > 1
    whose = ("yours" if several else "this machine") if own else "recorded"
    # Accelerators first: they are what a lesson is about.
    records.sort(key=lambda record: (record.environment.device_kind == "cpu", record.environment.machine))
    return [MachineColumn(record, own, whose) for record in records]


def _machines(columns: Sequence[MachineColumn]) -> list[tuple[MachineColumn, int]]:
    groups: dict[tuple[bool, str], list[MachineColumn]] = {}
    for column in columns:
        groups.setdefault((column.own, column.record.environment.machine), []).append(column)
    return [(max(group, key=lambda column: column.record.recorded_at), len(group)) for group in groups.values()]


def _sections(columns: Sequence[MachineColumn], problems: list[str]) -> list[dict[str, Any]]:
    """What the template shows of each lesson: of the course first, then of those that only records know."""
    known: dict[str, Lesson] = {}
    try:
        known = {lesson.slug: lesson for lesson in lesson_notebooks.find_lessons()}
    except lesson_notebooks.LessonError as error:
        problems.append(str(error))
    sections = []
    for slug in dict.fromkeys([*known, *sorted(column.record.lesson for column in columns)]):
        lesson, own_columns = known.get(slug), [column for column in columns if column.record.lesson == slug]
        sections.append(
            {
                "slug": slug,
                "title": f"{lesson.number:02d} {lesson.title}" if lesson else slug.replace("_", " ").capitalize(),
                "is_unknown": bool(known) and lesson is None,
                "is_recorded": bool(own_columns),
                "own": any(column.own for column in own_columns),
                "experiments": _experiments(lesson, own_columns, problems),
            }
        )
    return sections


def _experiments(lesson: Lesson | None, columns: Sequence[MachineColumn], problems: list[str]) -> list[dict[str, Any]]:
    in_order: list[str] = []
    with contextlib.suppress(lesson_notebooks.LessonError):
        in_order = lesson_notebooks.experiments(lesson) if lesson else []
    recorded = sorted({name for column in columns for name in column.record.experiments})
    sections = []
    for name in sorted(recorded, key=lambda name: in_order.index(name) if name in in_order else len(in_order)):
        results: list[MachineResult] = []
        for column in columns:
            try:
                if name in column.record.experiments:
                    results.append(_result_of(column, name))
            except RecordError as error:
                problems.append(str(error))
        if results:
            section = {
                "name": name,
                "title": name.partition("/")[2].replace("_", " ").capitalize(),
                "anchor": name.replace("/", "-"),
                "machines": results,
                "rows": list(dict.fromkeys(row for result in results for row in result.cells)),
                "marks": _marks(results),
            }
            sections.append(section)
    return sections


def _result_of(column: MachineColumn, name: str) -> MachineResult:
    result = column.record.result(name)
    cells: dict[str, list[Fact]] = {}
    for fact in result.facts():
        cells.setdefault(fact.row or fact.label, []).append(fact)
    notices = [busy_experiments(column.record).get(name, "")]
    if getattr(result, "interrupted", False):
        notices.append("Interrupted before all its rounds were done.")
    if store.code_has_changed(column.record, name):
        notices.append(store.CODE_HAS_CHANGED)
    who = "" if result.who == result.environment.title else result.who
    table = tables.html(result.numbers) if result.numbers else ""
    return MachineResult(column, cells, list(filter(None, notices)), table, who)


def _marks(machines: Sequence[MachineResult]) -> dict[tuple[str, int], list[float]]:
    """Interval plots of one experiment on one logarithmic scale, by row and machine.

    Each is low, middle and high of the speed, from 0 (slower) to 100 (faster); 50 is as fast as the baseline.
    """
    ratios = {
        (label, number): (1 / interval.high, 1 / fact.value, 1 / interval.low)
        for number, shown in enumerate(machines)
        for label, (fact, *_) in shown.cells.items()
        if (interval := fact.ratio_interval)
    }
    reach = max([_MIN_SCALE, *(abs(math.log(value)) for ends in ratios.values() for value in ends)])
    return {key: [round(50 + 48 * math.log(value) / reach, 1) for value in ends] for key, ends in ratios.items()}
