"""One HTML page that puts this machine's results beside the recorded machines', lesson by lesson.

The page holds everything it shows: style, figures and numbers. It asks for nothing from a network or another file.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import io
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from authoring import claims
from authoring.claims import Claim, ClaimError, MachineJudgement
from course_utils.records import lessons, store
from course_utils.records.kinds.environment import Environment
from course_utils.records.result import Finding, NothingToDrawError
from course_utils.records.store import LessonRecord, RecordError

_TEMPLATE = "report.html.j2"
# The interval plots of one experiment share a scale that shows at least this much to either side of 1.
_MIN_SCALE = math.log(1.1)


class ReportError(RuntimeError):
    """The report could not be written. The message says what to do."""


@dataclass(frozen=True)
class Mark:
    """An interval plot: positions from 0 (faster) to 100 (slower); 50 is as fast as the baseline."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Column:
    """One machine's record of a lesson.

    Attributes:
        record: the record.
        own: whether it is from the results folder, and not a reference.
        whose: ``this machine``, ``yours`` or ``recorded``.
    """

    record: LessonRecord
    own: bool
    whose: str

    @property
    def environment(self) -> Environment:
        """Where it was measured."""
        return self.record.environment

    @property
    def date(self) -> str:
        """The day of the recording."""
        return self.record.recorded_at[:10]


@dataclass(frozen=True)
class Shown:
    """One experiment on one machine.

    Attributes:
        column: the machine.
        cells: by row.
        notices: what keeps it from being compared, if anything.
        table: the full table.
        figure: a data URI; empty where there is none.
    """

    column: Column
    cells: dict[str, Finding]
    notices: list[str]
    table: str = ""
    figure: str = ""


@dataclass(frozen=True)
class ExperimentSection:
    """One experiment on all machines."""

    name: str
    machines: list[Shown]
    marks: dict[tuple[str, int], Mark]

    @property
    def title(self) -> str:
        """The experiment's name, for people."""
        return self.name.partition("/")[2].replace("_", " ").capitalize()

    @property
    def anchor(self) -> str:
        """Its id in the page."""
        return self.name.replace("/", "-")

    @property
    def rows(self) -> list[str]:
        """Rows that any machine has, in the order of the first that has them."""
        return list(dict.fromkeys(row for shown in self.machines for row in shown.cells))


@dataclass(frozen=True)
class LessonSection:
    """One lesson on all machines."""

    slug: str
    title: str
    number: int | None
    columns: list[Column]
    experiments: list[ExperimentSection]
    notices: list[str] = field(default_factory=list)

    @property
    def own(self) -> bool:
        """Whether this machine has recorded it."""
        return any(column.own for column in self.columns)


@dataclass(frozen=True)
class JudgedHere:
    """A claim of the ledger, judged from one machine's own records.

    Attributes:
        claim: the claim, with the verdict that the ledger states.
        here: what follows from this machine's records alone.
    """

    claim: Claim
    here: MachineJudgement

    @property
    def agrees(self) -> bool:
        """Whether this machine bears the ledger out."""
        return self.here.verdict == self.claim.verdict


def write_report(output: Path) -> Path:
    """Write the report.

    Args:
        output: the file; a folder gets ``report.html``.

    Returns:
        The file.

    Raises:
        ReportError: if it cannot be written; an earlier page is untouched.
    """
    path = output / "report.html" if output.is_dir() else output
    page = render()
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(page)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise ReportError(f"cannot write {path}: {error.strerror}. Choose another place with --output.") from error
    return path


def render(today: datetime.date | None = None) -> str:
    """The page as HTML.

    Args:
        today: the day that the page bears; by default today.

    Returns:
        The same bytes for the same records and day.
    """
    import jinja2

    problems: list[str] = []
    records = [*_records(store.results_root(), True, problems), *_records(store.reference_root(), False, problems)]
    sections = _sections(records, problems)
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).get_template(_TEMPLATE)
    judged = _judged_here(problems) if any(column.own for column in records) else []
    return template.render(
        judged=judged,
        machines=_machines(records),
        sections=sections,
        problems=problems,
        any_own=any(column.own for column in records),
        today=(today or datetime.datetime.now(datetime.UTC).date()).isoformat(),
    )


def _records(root: Path, own: bool, problems: list[str]) -> list[Column]:
    found = []
    for path in sorted(root.glob("*/*.json")):
        if path.name.startswith("."):
            continue
        try:
            record = store.load_lesson(path)
        except RecordError as error:
            problems.append(str(error))
            continue
        if (record.lesson, record.environment.machine) != (path.stem, path.parent.name):
            problems.append(
                f"{path.parent.name}/{path.name} holds the record of lesson {record.lesson!r} on "
                f"{record.environment.machine}: it was moved or renamed. Put it back, or delete it."
            )
            continue
        found.append(record)
    several = len({record.environment.machine for record in found}) > 1
    whose = ("yours" if several else "this machine") if own else "recorded"
    # Accelerators first: they are what a lesson is about.
    found.sort(key=lambda record: (record.environment.device_kind == "cpu", record.environment.machine))
    return [Column(record, own, whose) for record in found]


def _machines(records: Sequence[Column]) -> list[tuple[Column, int]]:
    """Each machine once, with the number of its lessons; its newest record speaks for it."""
    groups: dict[tuple[bool, str], list[Column]] = {}
    for column in records:
        groups.setdefault((column.own, column.environment.machine), []).append(column)
    return [(max(group, key=lambda column: column.record.recorded_at), len(group)) for group in groups.values()]


def _judged_here(problems: list[str]) -> list[JudgedHere]:
    """The claims that records of one's own decide. Those that need a call to be run are left to the ledger's page."""
    if not claims.claims_path().is_file():
        return []  # the package may be installed without the book
    try:
        ledger = [claim for claim in claims.load_claims() if claim.experiments and not claim.calls]
        return [
            JudgedHere(claim, here)
            for claim in ledger
            for here in claims.judge(claim, store.results_root()).machines
            if here.verdict != "open"
        ]
    except (ClaimError, RecordError) as error:
        problems.append(str(error))
        return []


def _sections(records: Sequence[Column], problems: list[str]) -> list[LessonSection]:
    try:
        known = {lesson.slug: lesson for lesson in lessons.find_lessons()}
    except lessons.LessonError as error:
        known = {}
        problems.append(str(error))
    recorded = dict.fromkeys(column.record.lesson for column in records)
    sections = []
    for slug in [*known, *sorted(set(recorded) - set(known))]:
        columns = [column for column in records if column.record.lesson == slug]
        lesson = known.get(slug)
        section = LessonSection(
            slug,
            lesson.title if lesson else slug.replace("_", " ").capitalize(),
            lesson.number if lesson else None,
            columns,
            _experiments(slug, columns, problems),
        )
        if lesson is None and known:
            section.notices.append("Your copy of the course has no such lesson.")
        sections.append(section)
    return sections


def _experiments(slug: str, columns: Sequence[Column], problems: list[str]) -> list[ExperimentSection]:
    names = dict.fromkeys(name for column in columns for name in column.record.experiments)
    order = []
    with contextlib.suppress(lessons.LessonError):
        order = lessons.experiments(lessons.find_lesson(slug))
    sections = []
    for name in sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name)):
        machines = []
        for column in columns:
            if name in column.record.experiments:
                try:
                    # The first machine's figure is shown; more would make the page heavy without saying more.
                    machines.append(_shown(column, name, with_figure=not machines))
                except RecordError as error:
                    problems.append(str(error))
        if machines:
            sections.append(ExperimentSection(name, machines, _marks(machines)))
    return sections


def _shown(column: Column, name: str, with_figure: bool) -> Shown:
    result = column.record.result(name)
    try:
        cells = {finding.label: finding for finding in result.findings()}
        table = result._repr_html_()
        picture = _picture(result) if with_figure else ""
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"experiment {name!r} of {column.environment.machine} cannot be shown ({error}): its data is damaged. "
            f"Restore the file from git or run `course record {column.record.lesson}`."
        ) from error
    return Shown(column, cells, _notices(column.record, name, result), table, picture)


def _notices(record: LessonRecord, name: str, result: Any) -> list[str]:
    notices = []
    if getattr(result, "interrupted", False):
        notices.append("Interrupted before all its rounds were done.")
    now = store.current_fingerprint(record.lesson, name)
    experiment = record.experiments[name]
    if now is None:
        return notices
    if now.parameters_hash != experiment.parameters_hash:
        notices.append("Measured with other problem sizes than the lesson has now: do not compare.")
    elif now.code_hash != experiment.code_hash:
        notices.append("The experiment's code has changed since.")
    return notices


def _marks(machines: Sequence[Shown]) -> dict[tuple[str, int], Mark]:
    """Interval plots of one experiment on one logarithmic scale, by row and machine."""
    ratios = {
        (row, number): cell.ratio
        for number, shown in enumerate(machines)
        for row, cell in shown.cells.items()
        if cell.ratio
    }
    reach = max([_MIN_SCALE, *(abs(math.log(value)) for ends in ratios.values() for value in ends)])

    def position(value: float) -> float:
        return round(50 + 48 * math.log(value) / reach, 1)

    return {key: Mark(*map(position, ends)) for key, ends in ratios.items()}


def _picture(result: Any) -> str:
    """A result's figure as a data URI, or nothing. A PNG: with every sample, an SVG is more than twice as large."""
    buffer = io.BytesIO()
    try:
        drawn = result.plot()
    except NothingToDrawError:
        return ""
    # Without the drawing program's version, the same record gives the same bytes.
    drawn.savefig(buffer, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
