"""The page that says what is recorded, where and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from authoring.claims import SPEAKS_OF, Judgement
from authoring.pages.generated import ROOT, markdown_table
from authoring.pages.lesson_list import Lesson
from course_utils.records import store
from course_utils.records.lessons import NEEDS, experiments, find_lessons, needs


def _records(root: Path) -> list[store.LessonRecord]:
    return [store.load_lesson(path) for path in sorted(root.glob("*/*.json")) if not path.name.startswith(".")]


def _gib(size_bytes: int | None) -> str:
    return "" if not size_bytes else f"{size_bytes / 2**30:.0f} GiB"


def _machines_table(records: Sequence[store.LessonRecord]) -> str:
    rows = []
    for machine in sorted({record.environment.machine for record in records}):
        mine = sorted((r for r in records if r.environment.machine == machine), key=lambda r: r.recorded_at)
        latest = mine[-1].environment
        if latest.device_kind == "cpu":
            device = f"{latest.device_name}, {latest.cpu_cores} cores"
        else:
            count = f"{latest.gpu_count} × " if latest.gpu_count > 1 else ""
            device = f"{count}{latest.device_name}"
        software = [f"torch {latest.torch}", f"Python {latest.python}"]
        software += [f"CUDA {latest.cuda}"] if latest.device_kind == "cuda" else []
        software += [f"driver {latest.driver}"] if latest.driver else []
        rows.append(
            [
                f"`{machine}`",
                device,
                _gib(latest.gpu_memory_bytes or latest.memory_bytes),
                "<br>".join(software),
                str(len(mine)),
                mine[-1].recorded_at[:10],
            ]
        )
    return markdown_table(["Machine", "Device", "Memory", "Software", "Lessons", "Last recorded"], rows)


def _lessons_recorded(lessons: Sequence[Lesson], records: Sequence[store.LessonRecord]) -> str:
    machines = sorted({record.environment.machine for record in records})
    found = {(record.lesson, record.environment.machine): record for record in records}
    rows = []
    for lesson in (lesson for lesson in lessons if lesson.built):
        cells = []
        for machine in machines:
            record = found.get((lesson.slug, machine))
            cells.append(
                f"{record.recorded_at[:10]}, {record.environment.size}, {record.seconds:.0f} s" if record else "not yet"
            )
        rows.append([f"[{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.stem}.ipynb)", *cells])
    slugs = {lesson.slug for lesson in lessons if lesson.built}
    mine = [record for (slug, _), record in found.items() if slug in slugs]
    total = [sum(record.seconds for record in mine if record.environment.machine == machine) for machine in machines]
    rows.append(["Together", *(f"{seconds:.0f} s" for seconds in total)])
    return markdown_table(["Lesson", *(f"`{machine}`" for machine in machines)], rows)


def _waiting(records: Sequence[store.LessonRecord], judgements: Sequence[Judgement]) -> str:
    """What waits for which hardware: experiments that no machine has run, claims that no record decides."""
    recorded = {name for record in records for name in record.experiments}
    experiments_by: dict[str, list[str]] = {}
    for lesson in find_lessons(ROOT / "notebooks"):
        for name, needed in needs(lesson).items():
            if name not in recorded:
                # Two GPUs are one GPU as well.
                words = [NEEDS[need] for need in needed if not (need == "cuda" and "two-gpus" in needed)]
                experiments_by.setdefault(" and ".join(words), []).append(f"`{name}`")
    claims_by: dict[str, list[str]] = {}
    for judgement in judgements:
        for judged in judgement.parts:
            if judged.verdict == "open" and judged.part.rule:
                link = f"[{judgement.claim.id}](claims.md#{judgement.claim.id.lower()})"
                claims_by.setdefault(SPEAKS_OF[judged.part.speaks_of], []).append(link)
    rows = [
        [kind, ", ".join(experiments_by.get(kind, [])), ", ".join(dict.fromkeys(claims_by.get(kind, [])))]
        for kind in dict.fromkeys([*experiments_by, *claims_by])
    ]
    return markdown_table(["Needs", "Experiments", "Claims"], rows) if rows else "Nothing.\n"


def _experiments_table(records: Sequence[store.LessonRecord]) -> str:
    rows = []
    for name in sorted({name for record in records for name in record.experiments}):
        holding = [record for record in records if name in record.experiments]
        kinds = sorted({record.experiments[name].kind for record in holding})
        where = []
        for record in holding:
            now = store.current_fingerprint(record.lesson, name)
            then = record.experiments[name]
            if now is None or now.parameters_hash != then.parameters_hash:
                where.append(f"`{record.environment.machine}` (the notebook has changed: record it again)")
            elif now.code_hash != then.code_hash:
                where.append(f"`{record.environment.machine}` (its code has changed since)")
            else:
                where.append(f"`{record.environment.machine}`")
        rows.append([f"`{name}`", ", ".join(kinds), "<br>".join(where)])
    recorded = {name for record in records for name in record.experiments}
    for lesson in find_lessons(ROOT / "notebooks"):
        for name in experiments(lesson):
            if name not in recorded:
                needed = " and ".join(NEEDS[need] for need in needs(lesson).get(name, ()))
                rows.append([f"`{name}`", "", f"*not recorded yet*{f': needs {needed}' if needed else ''}"])
    rows.sort()
    return markdown_table(["Experiment", "Kind", "Recorded on"], rows)


def status_page(lessons: Sequence[Lesson], judgements: Sequence[Judgement] = ()) -> str:
    """What is recorded, where and when, as Markdown.

    Args:
        lessons: all lessons.
        judgements: of the claims, for what they wait for.

    Returns:
        The page. It names what is missing as plainly as what is there.

    Raises:
        course_utils.records.store.RecordError: if a record is damaged.
    """
    records = _records(store.reference_root())
    own = _records(store.results_root())
    on_gpu = {record.lesson for record in records if record.environment.device_kind != "cpu"}
    built = [lesson for lesson in lessons if lesson.built]
    page = [
        "# What is recorded",
        "",
        "Every figure and every number in this course comes from a **record**: the raw samples of a run, with the "
        "machine, the versions and the day. This page is made from the records each time the book is built.",
        "",
    ]
    if not on_gpu:
        page += [
            "> **No GPU run is recorded yet.** Lessons that need a GPU show what a CPU can show, and say so. To add "
            "yours, run `course record --reference` on a machine with a GPU.",
            "",
        ]
    if records:
        page += ["## Machines", "", _machines_table(records), "## Lessons", ""]
        page += [
            "The day, the problem sizes, and how long the whole lesson ran.",
            "",
            _lessons_recorded(lessons, records),
        ]
        missing = [lesson for lesson in built if lesson.slug not in on_gpu]
        if on_gpu and missing:
            page += ["Not recorded on a GPU yet: " + ", ".join(lesson.title for lesson in missing) + ".", ""]
    else:
        page += ["Nothing is recorded at all yet. `make record` makes a record on this machine.", ""]
    planned = len(lessons) - len(built)
    if planned:
        page += [f"{len(built)} of {len(lessons)} lessons are built; {planned} are planned and have no records.", ""]
    page += ["## What waits for hardware", "", _waiting(records, judgements)]
    if records:
        page += [
            "## Experiments",
            "",
            "Each experiment can be opened under its name, in a notebook or in a terminal, for example with "
            f'`recorded("{next(name for record in records for name in record.experiments)}")`.',
            "",
            _experiments_table(records),
        ]
    if own:
        page += [
            "## Your own runs",
            "",
            "These come from `results/` on the machine that built this book. They are not part of the course.",
            "",
            _machines_table(own),
            _lessons_recorded(lessons, own),
        ]
    return "\n".join(page)
