"""The page that says what is recorded, where and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from authoring.claims import SPEAKS_OF, Judgement
from authoring.lesson_files import LessonFile
from authoring.pages.generated import markdown_table, page
from course_utils.records import store
from course_utils.records.lessons import NEEDS, experiments, find_lessons, needs
from course_utils.records.store import LessonRecord


def records_below(root: Path) -> list[LessonRecord]:
    """All records, machine by machine."""
    return [store.load_lesson(path) for path in sorted(root.glob("*/*.json")) if not path.name.startswith(".")]


def _machines(records: Sequence[LessonRecord]) -> list[str]:
    return sorted({record.environment.machine for record in records})


def _machines_table(records: Sequence[LessonRecord]) -> str:
    rows = []
    for machine in _machines(records):
        mine = sorted((r for r in records if r.environment.machine == machine), key=lambda r: r.recorded_at)
        latest = mine[-1].environment
        device = f"{latest.gpu_count} × {latest.device_name}" if latest.gpu_count > 1 else latest.device_name
        if latest.device_kind == "cpu":
            device = f"{latest.device_name}, {latest.cpu_cores} cores"
        software = [f"torch {latest.torch}", f"Python {latest.python}"]
        software += [f"CUDA {latest.cuda}"] if latest.device_kind == "cuda" else []
        software += [f"driver {latest.driver}"] if latest.driver else []
        memory_bytes = latest.gpu_memory_bytes or latest.memory_bytes
        memory = f"{memory_bytes / 2**30:.0f} GiB" if memory_bytes else ""
        day = mine[-1].recorded_at[:10]
        rows.append([f"`{machine}`", device, memory, "<br>".join(software), str(len(mine)), day])
    return markdown_table(["Machine", "Device", "Memory", "Software", "Lessons", "Last recorded"], rows)


def _lessons_table(lessons: Sequence[LessonFile], records: Sequence[LessonRecord]) -> str:
    machines = _machines(records)
    recorded = {(record.lesson, record.environment.machine): record for record in records}
    seconds = dict.fromkeys(machines, 0.0)
    rows = []
    for lesson in lessons:
        cells = []
        for machine in machines:
            record = recorded.get((lesson.slug, machine))
            seconds[machine] += record.seconds if record else 0
            day_size_seconds = record and (record.recorded_at[:10], record.environment.size, f"{record.seconds:.0f} s")
            cells.append(", ".join(day_size_seconds) if day_size_seconds else "not yet")
        rows.append([f"[{lesson.name}](../notebooks/{lesson.stem}.ipynb)", *cells])
    rows.append(["Together", *(f"{seconds[machine]:.0f} s" for machine in machines)])
    return markdown_table(["Lesson", *(f"`{machine}`" for machine in machines)], rows)


def _not_recorded(records: Sequence[LessonRecord]) -> dict[str, str]:
    """The experiments that no machine has recorded, with what each needs, in words."""
    recorded = {name for record in records for name in record.experiments}
    missing = {}
    for lesson in find_lessons():
        needed = needs(lesson)
        for name in experiments(lesson):
            if name not in recorded:
                tags = needed.get(name, ())
                # Two GPUs are one GPU as well.
                words = [NEEDS[tag] for tag in tags if not (tag == "cuda" and "two-gpus" in tags)]
                missing[name] = " and ".join(words)
    return missing


def _waiting(records: Sequence[LessonRecord], judgements: Sequence[Judgement]) -> str:
    """What waits for which hardware: experiments that no machine has run, claims that no record decides."""
    by_need: dict[str, tuple[list[str], list[str]]] = {}
    for name, needed in _not_recorded(records).items():
        if needed:
            by_need.setdefault(needed, ([], []))[0].append(f"`{name}`")
    for judgement in judgements:
        for judged in judgement.parts:
            link = f"[{judgement.claim.id}](claims.md#{judgement.claim.id.lower()})"
            if judged.verdict == "open" and judged.part.rule:
                claims = by_need.setdefault(SPEAKS_OF[judged.part.speaks_of], ([], []))[1]
                claims += [] if link in claims else [link]
    rows = [[needed, ", ".join(names), ", ".join(claims)] for needed, (names, claims) in by_need.items()]
    return markdown_table(["Needs", "Experiments", "Claims"], rows) if rows else "Nothing.\n"


def _experiments_table(records: Sequence[LessonRecord]) -> str:
    missing = _not_recorded(records)
    rows = [
        [f"`{name}`", "", "*not recorded yet*" + (f": needs {missing[name]}" if missing[name] else "")]
        for name in missing
    ]
    for name in {name for record in records for name in record.experiments}:
        holding = [record for record in records if name in record.experiments]
        kinds = sorted({record.experiments[name].kind for record in holding})
        where = [f"`{record.environment.machine}`{_change(record, name)}" for record in holding]
        rows.append([f"`{name}`", ", ".join(kinds), "<br>".join(where)])
    return markdown_table(["Experiment", "Kind", "Recorded on"], sorted(rows))


def _change(record: LessonRecord, name: str) -> str:
    now, then = store.current_fingerprint(record.lesson, name), record.experiments[name]
    if now is None or now.parameters_hash != then.parameters_hash:
        return " (the notebook has changed: record it again)"
    return "" if now.code_hash == then.code_hash else " (its code has changed since)"


def status_page(lessons: Sequence[LessonFile], judgements: Sequence[Judgement] = ()) -> str:
    """What is recorded, where and when, and what waits for which hardware, as Markdown."""
    records = records_below(store.reference_root())
    on_gpu = {record.lesson for record in records if record.environment.device_kind != "cpu"}
    built = [lesson for lesson in lessons if lesson.built]
    return page(
        "status.md",
        records=records,
        own=records_below(store.results_root()),
        on_gpu=on_gpu,
        not_on_gpu=[lesson for lesson in built if lesson.slug not in on_gpu],
        built=len(built),
        planned=len(lessons) - len(built),
        machines_table=_machines_table,
        lessons_table=lambda of: _lessons_table(built, of),
        waiting=_waiting(records, judgements),
        example=next((name for record in records for name in record.experiments), None),
        experiments_table=_experiments_table(records),
    )
