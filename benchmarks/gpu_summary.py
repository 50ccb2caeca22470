"""What a run of ``benchmarks.gpu_run`` has found so far, as a text.

Everything is read from the run's folder, so that a run that was cut short is summed up like a whole one.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from authoring import shares
from course_utils.commands.recording import verdicts_of
from course_utils.lessons.measuring import timer_trial
from course_utils.records import store
from course_utils.records.store import LessonRecord
from course_utils.show.formats import format_percent, format_rate

ROOT = Path(__file__).resolve().parents[1]


def summary(folder: Path, dry_run: bool) -> str:
    """Sum up a run from its output; a dry run is a rehearsal on a CPU."""
    machine = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    outcomes = json.loads((folder / "state.json").read_text(encoding="utf-8"))["parts"]
    records = [store.load_lesson(path) for path in sorted((folder / "records").glob("*/[!.]*.json"))]
    title = f"{machine['device_name']}, torch {machine['torch']}"
    lines = [title + (", dry run: nothing here is a result" if dry_run else "")]
    for heading, section in (
        ("Parts", [f"{part['state']:<10} {part['seconds']:7.1f} s  {name}" for name, part in outcomes.items()]),
        ("Tests", _tests(folder)),
        ("Lessons", _lessons(records)),
        ("Shares of the ceilings", _shares(records)),
        ("Timers", _timers(folder / "timer_quality.json")),
        ("To keep the records, from the repository's root:", [] if dry_run else _copy_commands(folder, records)),
    ):
        if section := list(section):
            lines += ["", heading, *(f"  {line}" for line in section)]
    return "\n".join(lines) + "\n"


def _tests(folder: Path) -> Iterator[str]:
    """Counts, failures with their messages, reasons for skipping, and what tests noted."""
    counts: Counter[str] = Counter()
    details = []
    for file in sorted(folder.glob("test_gpu_*.xml")):
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            # The file alone says what is meant: pytest writes the path with dots.
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            counts["passed" if problem is None else problem.tag] += 1
            if problem is not None:
                message = problem.get("message", "").partition("\n")[0]
                details.append(f"{problem.tag} {name}: {message[:160]}")
            details += [f"{name}: {each.get('name')}: {each.get('value')}" for each in case.iter("property")]
    if counts:
        yield ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    yield from sorted(details)


def _lessons(records: Sequence[LessonRecord]) -> Iterator[str]:
    for record in records:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts_of(record).items())
        yield f"{record.lesson}: {record.seconds:.1f} s, {len(record.experiments)} experiments; {verdicts}"
    if records:
        yield f"{sum(record.seconds for record in records):.0f} s in all; what failed is in parts/lessons.txt"


def _shares(records: Sequence[LessonRecord]) -> Iterator[str]:
    """Every rate in the records beside the ceiling that it is bound by."""
    for row in shares.shares(records, shares.load_limits()):
        if row.share is not None:
            bound = ", launch-bound" if row.launch_bound else ""
            rate = format_rate(row.rate, row.unit)
            yield f"{format_percent(row.share):>6} of {row.ceiling:<17} {rate:>14}  {row.where}, {row.case}{bound}"


def _timers(path: Path) -> list[str]:
    return repr(timer_trial.load(path)).splitlines() if path.exists() else []


def _copy_commands(folder: Path, records: Sequence[LessonRecord]) -> Iterator[str]:
    """How the records get into the course."""
    folder = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    for machine in sorted({record.environment.machine for record in records}):
        target = f"course_utils/records/{machine}"
        yield f"mkdir -p {target} && cp {folder / 'records' / machine}/*.json {target}/"
        if (folder / "timer_quality.json").exists():
            target = f"course_utils/lessons/measuring/timer_trials/{machine}.json"
            yield f"cp {folder / 'timer_quality.json'} {target}"
