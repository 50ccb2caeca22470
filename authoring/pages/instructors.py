"""The generated parts of the instructor's guide, and the slides that it links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from authoring.demo import DemoTime, demo_times
from authoring.evidence import in_words
from authoring.slides import write_slides
from authoring.teaching import demo_minutes, expectations, routes, wrong_turns
from course_utils.records.lessons import Lesson, find_lessons
from course_utils.records.store import package_root

SLIDES = "slides"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(each.replace("|", "\\|") for each in line) + " |" for line in lines] + [""]


def _name(lesson: Lesson) -> str:
    return f"{lesson.number:02d} · {lesson.title}"


def _link(lesson: Lesson) -> str:
    return f"[{_name(lesson)}](../notebooks/{lesson.path.name})"


def _routes() -> str:
    page = []
    for route in routes():
        page += [f"### {route.name}", "", route.about, ""]
        for number, (day, minutes) in enumerate(zip(route.days, route.planned_minutes, strict=True), start=1):
            rows = []
            for stop in day:
                what = stop.what.replace(_name(stop.lesson), _link(stop.lesson)) if stop.lesson else f"*{stop.what}*"
                rows.append([what, str(stop.minutes)])
            rows.append(["**Together**", f"**{minutes}**"])
            page += _table([f"Day {number}" if len(route.days) > 1 else "Part", "Minutes"], rows)
        spare = " and ".join(str(route.minutes - minutes) for minutes in route.planned_minutes)
        a_day = " a day" if len(route.days) > 1 else ""
        page += [f"The room is taken to be free for {route.minutes} minutes{a_day}; {spare} are spare.", ""]
    return "\n".join(page)


def _demos() -> str:
    timed = {lesson: {each.machine: each for each in demo_times(lesson)} for lesson in find_lessons()}
    captions = {name: each.caption for times in timed.values() for name, each in times.items()}
    rows = []
    for lesson, times in timed.items():
        slides = f'<a href="../{SLIDES}/{lesson.name}.html">slides</a>'
        seconds = [_seconds(times.get(machine)) for machine in captions]
        minutes = f"{demo_minutes(lesson):.0f}"
        rows.append([_link(lesson), f"`course demo {lesson.number:02d}`", minutes, *seconds, slides])
    page = _table(["Lesson", "Opens it", "Minutes", *(f"On `{machine}`" for machine in captions), "Slides"], rows)
    page += [f"- `{machine}`: {caption}" for machine, caption in captions.items()]
    return "\n".join(page) + "\n"


def _seconds(timed: DemoTime | None) -> str:
    if timed is None:
        return "not timed yet"
    return in_words(timed.seconds, "s") + ("" if timed.as_it_is else " (its code has changed since)")


def _expectations() -> str:
    page = []
    for lesson in find_lessons():
        found = expectations(lesson)
        if not found:
            continue
        page += [f"### {_link(lesson)}", ""]
        page += _table(["What", "Machine", "Recorded"], [[each.say, f"`{each.machine}`", each.words] for each in found])
    return "\n".join(page)


def _wrong_turns() -> str:
    page = []
    for lesson in find_lessons():
        page += [f"### {_link(lesson)}", ""]
        for exercise, turns in groupby(wrong_turns(lesson), key=lambda turn: turn.exercise):
            page += [f"**{exercise}**", ""]
            page += [f"- *{turn.turn}*: {turn.hint}" for turn in turns]
            page += [""]
    return "\n".join(page)


def generated() -> dict[str, str]:
    """Returns the parts that ``book/instructors.md`` includes, by file name.

    Raises:
        EvidenceError: if a number that the guide names is recorded nowhere.
        LessonError: if a lesson or ``book/instructors.yml`` cannot be read.
        RecordError: if a record is damaged.
    """
    return {
        "instructors_routes.md": _routes(),
        "instructors_demos.md": _demos(),
        "instructors_expectations.md": _expectations(),
        "instructors_wrong_turns.md": _wrong_turns(),
    }


def add_slides(html: Path) -> None:
    """Writes the slides beside the pages of the book, where they share its copy of reveal.js and MathJax.

    Only what is older than its notebook, or than the code that makes slides, is made again.

    Args:
        html: the folder of the book's pages.

    Raises:
        SlidesError: if a lesson has no slides.
    """
    folder = html / SLIDES
    lessons = find_lessons()
    for page in set(folder.glob("*.html")) - {folder / f"{lesson.name}.html" for lesson in lessons}:
        page.unlink()  # of a lesson that is gone
    makers = [package_root().parent / "authoring" / name for name in ("slides.py", "excerpts.py", "teaching.py")]
    makers.append(package_root().parent / "book" / "instructors.yml")
    makers += (package_root().parent / "authoring" / "templates" / "slides").iterdir()
    newest = max(path.stat().st_mtime for path in makers)

    def is_old(lesson: Lesson) -> bool:
        page = folder / f"{lesson.name}.html"
        return not page.is_file() or page.stat().st_mtime < max(newest, lesson.path.stat().st_mtime)

    stale = [lesson for lesson in lessons if is_old(lesson)]
    if stale:
        write_slides(stale, folder, assets="../_static")
