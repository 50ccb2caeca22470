"""What an instructor wants to know: routes, times, what to expect on each machine, and where people go wrong.

Routes are in ``book/instructors.yml``, and what to expect is in each lesson.yml. Everything else comes from records,
from the lessons and from their checks.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from authoring.demo import SET_UP_ID, demo_notebook, demo_times
from authoring.evidence import EvidenceError, environment_of, evaluate, in_words, machines
from authoring.excerpts import Question, asked
from authoring.figures_in_text import figure, reading_minutes
from authoring.lesson_files import read_lesson
from course_utils.records.kinds.comparison import Case
from course_utils.records.lessons import Lesson, LessonError, find_lesson, notebooks_root
from course_utils.records.notebook_files import read_notebook
from course_utils.records.store import package_root

_HALF_A_DAY = 300  # minutes; a longer day has lunch


@dataclass(frozen=True)
class Expectation:
    """One number that the room will see, on one machine.

    Attributes:
        say: what is measured.
        machine: where it was recorded.
        caption: machine, versions and date.
        words: the result, with its interval.
    """

    say: str
    machine: str
    caption: str
    words: str


@dataclass(frozen=True)
class WrongTurn:
    """A misconception that a check recognises.

    Attributes:
        exercise: the exercise's name.
        turn: the misconception in a few words.
        hint: what the check answers.
    """

    exercise: str
    turn: str
    hint: str


@dataclass(frozen=True)
class Stop:
    """One part of a route.

    Attributes:
        what: its name.
        lesson: the lesson that is taught, or None for a break and the like.
        minutes: how long it takes.
    """

    what: str
    lesson: Lesson | None
    minutes: int


@dataclass(frozen=True)
class Route:
    """A way through the course.

    Attributes:
        name: such as "Half a day".
        minutes: how long the room is free on each day.
        about: what it is for, in a sentence.
        days: the parts of each day, in order, with breaks.
    """

    name: str
    minutes: int
    about: str
    days: tuple[tuple[Stop, ...], ...]

    @property
    def stops(self) -> tuple[Stop, ...]:
        """The parts of all days."""
        return tuple(itertools.chain(*self.days))

    @property
    def planned_minutes(self) -> tuple[int, ...]:
        """Minutes of each day."""
        return tuple(sum(stop.minutes for stop in day) for day in self.days)


@cache
def _plans(path: Path) -> dict[str, Any]:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise LessonError(f"{path.name} cannot be read: {error}. Restore it from git.") from error


def plans() -> dict[str, Any]:
    """Returns what ``book/instructors.yml`` holds.

    Raises:
        LessonError: if it is missing or damaged.
    """
    return _plans(notebooks_root().resolve().parent / "book" / "instructors.yml")


def stated_minutes(lesson: Lesson) -> int:
    """Returns the minutes that the lesson itself states: reading, exercises and one run."""
    return int(figure(f"time {lesson.number:02d}").split()[0])


def demo_minutes(lesson: Lesson) -> float:
    """Returns how long a five-minute path takes: its words at reading speed, and its cells on the slowest machine.

    Args:
        lesson: the lesson.

    Example:
        >>> demo_minutes(find_lesson("pinned_memory")) < 8
        True
    """
    shown = [cell["source"] for cell in demo_notebook(lesson)["cells"] if not cell["id"].startswith(SET_UP_ID)]
    return reading_minutes(shown) + max((timed.seconds for timed in demo_times(lesson)), default=0) / 60


def routes() -> list[Route]:
    """Returns the routes, with the minutes that lessons and five-minute paths take now.

    Example:
        >>> [route.name for route in routes()]
        ['Half a day', 'Half a day without a GPU', 'One day', 'Two days']
        >>> all(minutes <= route.minutes for route in routes() for minutes in route.planned_minutes)
        True
    """
    planned = plans()
    return [
        Route(each["name"], each["minutes"], each["about"], tuple(_days(each, planned["plan"])))
        for each in planned["routes"]
    ]


def _days(route: dict[str, Any], plan: dict[str, int]) -> Iterator[tuple[Stop, ...]]:
    discussion = route.get("discussion", plan["discussion"])
    for number, day in enumerate(route["days"], start=1):
        stops = [Stop("Welcome", None, plan["welcome"])] if number == 1 else []
        for lesson in map(find_lesson, sorted([*day["lessons"], *day["demos"]])):
            name = f"{lesson.number:02d} · {lesson.title}"
            if lesson.number in day["lessons"]:
                stops.append(Stop(f"{name}, with discussion", lesson, stated_minutes(lesson) + discussion))
            else:
                stops.append(Stop(f"{name}, five-minute path", lesson, math.ceil(demo_minutes(lesson))))
        if number == len(route["days"]):
            stops.append(Stop("What will you measure in your own program?", None, plan["wrap_up"]))
        yield tuple(_with_breaks(stops, plan, has_lunch=route["minutes"] > _HALF_A_DAY))


def _with_breaks(stops: Sequence[Stop], plan: dict[str, int], has_lunch: bool) -> Iterator[Stop]:
    """Breaks where the room would sit for too long. Lunch is the one that is nearest to the middle."""
    sitting = passed = 0
    before: dict[int, int] = {}  # the minutes before each stop that comes after a break
    for index, stop in enumerate(stops):
        if index and sitting + stop.minutes > plan["without_break"]:
            before[index], sitting = passed, 0
        sitting += stop.minutes
        passed += stop.minutes
    lunch = min(before, key=lambda index: abs(before[index] - passed / 2), default=None) if has_lunch else None
    for index, stop in enumerate(stops):
        if index in before:
            yield Stop("Lunch", None, plan["lunch"]) if index == lunch else Stop("Break", None, plan["break"])
        yield stop


def expectations(lesson: Lesson) -> list[Expectation]:
    """Returns the numbers to expect, on each machine that has recorded them.

    Args:
        lesson: the lesson.

    Raises:
        EvidenceError: if no machine at all has a number that its lesson.yml names.

    Example:
        >>> found = expectations(find_lesson("pinned_memory"))
        >>> found[0].say
        'Through the staging buffer, 64 KiB'
        >>> "times as long" in found[0].words
        True
    """
    question = question_of(lesson)
    found = []
    for each in read_lesson(package_root() / "lessons" / lesson.slug / "lesson.yml").expect:
        problem: EvidenceError | None = None
        before = len(found)
        for machine in machines():
            try:
                words = _answer(evaluate(each.value, machine), each.unit, question)
                caption = environment_of(each.value, machine).caption
            except EvidenceError as error:  # this machine has no record of it, or one of another size
                problem = error
            else:
                found.append(Expectation(each.say, machine, caption, words))
        if problem and len(found) == before:
            raise problem
    return found


def question_of(lesson: Lesson) -> Question:
    """Returns what a lesson asks the room to predict.

    Raises:
        LessonError: if no cell asks.

    Example:
        >>> question_of(find_lesson("fsdp")).direction
        'times as fast'
    """
    for cell in read_notebook(lesson.path)["cells"]:
        question = asked(cell["source"]) if cell["cell_type"] == "code" else None
        if question:
            return question
    raise LessonError(f"{lesson.name} asks for no prediction: add a cell with predict().")


def _answer(value: Any, unit: str | None, question: Question) -> str:
    """A result as the room sees it when the prediction is revealed: in the question's direction, with its unit."""
    if isinstance(value, Case):
        return in_words(value, question.direction or None)
    words = in_words(value, unit)
    return words if unit or not question.unit else f"{words} {question.unit}"


def wrong_turns(lesson: Lesson) -> list[WrongTurn]:
    """Returns what the checks of a lesson recognise, with the hint that each gives.

    Args:
        lesson: the lesson.

    Example:
        >>> wrong_turns(find_lesson("pinned_memory"))[0].exercise
        'Is it worth it?'
    """
    return [
        WrongTurn(name, key.replace("_", " "), hint)
        for name, hints in _checks(package_root() / "lessons" / lesson.slug / "checks.py")
        for key, hint in hints.items()
    ]


def _checks(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and hints of each check, read from the text of its module: importing it would import torch."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "exercise":
                hints = next(keyword.value for keyword in call.keywords if keyword.arg == "hints")
                yield ast.literal_eval(call.args[0]), ast.literal_eval(hints)


def presenter_notes(lesson: Lesson) -> str:
    """Returns Markdown for whoever gives the five-minute path: times, what to expect, where people go wrong.

    Args:
        lesson: the lesson.
    """
    parts = ["Fold this away before the room comes in. Ask for the prediction first, then run cell after cell.", ""]
    first_lines = {
        cell["id"]: cell["source"].split("\n", 1)[0] for cell in demo_notebook(lesson)["cells"] if cell["source"]
    }
    for timed in demo_times(lesson):
        about = "" if timed.as_it_is else " The code has changed since."
        parts += [f"**Time** on {timed.caption}: {in_words(timed.seconds, 's')} in all.{about}", ""]
        slow = {name: seconds for name, seconds in timed.cells_s.items() if seconds >= 1 and name in first_lines}
        parts += [f"- {in_words(seconds, 's')}: `{first_lines[name]}`" for name, seconds in slow.items()]
        parts += [""]
    parts += ["**Expect**", ""]
    parts += [f"- {each.say}: {each.words}. *{each.caption}*" for each in expectations(lesson)]
    parts += ["", "**Where people go wrong**, and the hint that helps", ""]
    parts += [f"- *{turn.exercise}*, {turn.turn}: {turn.hint}" for turn in wrong_turns(lesson)]
    return "\n".join(parts)
