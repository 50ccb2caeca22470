"""The order of the lessons: ``lessons/order.yml`` is the one list, and a lesson's number is its place in it.

Only the standard library reads it: the readers of traces and snapshots, which name lessons, run in a browser as well.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

ORDER = Path(__file__).with_name("lessons") / "order.yml"
_PART = re.compile(r"(?P<title>\w.*):")
_LESSON = re.compile(r"  - (?P<slug>[a-z][a-z0-9_]*)")


class OrderError(ValueError):
    """The list cannot be used, or has no such lesson. The message says what to do."""


def parts(path: Path = ORDER) -> Mapping[str, tuple[str, ...]]:
    """The parts of the course in order: the title of each, with the slugs of its lessons.

    Raises:
        OrderError: if a line is neither a part nor a lesson, or a lesson stands in the list twice.
        OSError: if the list cannot be read.

    Example:
        >>> list(parts())[0], parts()["Measure before you optimise"][0]
        ('Measure before you optimise', 'measuring')
    """
    return _parsed(path.read_text(encoding="utf-8"))


def slugs(path: Path = ORDER) -> tuple[str, ...]:
    """All lessons in order, planned ones included."""
    return tuple(slug for lessons in parts(path).values() for slug in lessons)


def number(slug: str, path: Path = ORDER) -> int:
    """A lesson's place in the course, from 0.

    Raises:
        OrderError: if the list has no such lesson.

    Example:
        >>> number("measuring")
        0
    """
    if slug not in slugs(path):
        raise OrderError(f"lessons/order.yml has no lesson {slug!r}: put it where it belongs.")
    return slugs(path).index(slug)


def part(slug: str, path: Path = ORDER) -> str:
    """The title of the part that a lesson stands in; an OrderError if the list has no such lesson."""
    number(slug, path)
    return next(title for title, lessons in parts(path).items() if slug in lessons)


def file_name(slug: str, path: Path = ORDER) -> str:
    """What a lesson's notebook is called, without the ending."""
    return f"{number(slug, path):02d}_{slug}"


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    known: set[str] = set()
    for place, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].rstrip()
        if part := _PART.fullmatch(line):
            found.setdefault(part["title"], ())
        elif found and (lesson := _LESSON.fullmatch(line)):
            if lesson["slug"] in known:
                raise OrderError(f"order.yml, line {place}: {lesson['slug']} stands in the list twice.")
            known.add(lesson["slug"])
            found[[*found][-1]] += (lesson["slug"],)
        elif line:
            raise OrderError(f"order.yml, line {place}: {line!r} is no part ('Title:') and no lesson ('  - slug').")
    return found
