"""How many lines each room of the course has, beside what it may have: ``make counts``. The list is budgets.yml."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = Path(__file__).with_name("budgets.yml")
_NOT_IN_THE_SUM = ("tests", "YAML of lessons")


@dataclass(frozen=True)
class Room:
    """A part of the course, the budget of the edition, and what the room has reached on the way there, in lines."""

    name: str
    paths: tuple[str, ...]
    budget: int
    reached: int


def rooms(budgets: Path = BUDGETS) -> list[Room]:
    """The rooms that the list has, in its order."""
    listed = yaml.safe_load(budgets.read_text(encoding="utf-8"))["rooms"]
    return [Room(name, tuple(room["paths"]), room["budget"], room["reached"]) for name, room in listed.items()]


def files(root: Path = ROOT) -> list[str]:
    """The Python of the course and the YAML of its lessons: what git knows, and what is new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "course_utils/lessons/*.yml"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for path in listed if (root / path).is_file()]


def room_of(path: str, of: Iterable[Room]) -> str | None:
    """The name of the first room of which a pattern fits; None if none does."""
    return next((room.name for room in of if any(fnmatch(path, pattern) for pattern in room.paths)), None)


def lines(of: Sequence[Room], root: Path = ROOT) -> Counter[str]:
    """Lines by the name of the room; a file without a room counts under the empty name."""
    counted = Counter[str]()
    for path in files(root):
        counted[room_of(path, of) or ""] += len((root / path).read_text(encoding="utf-8").splitlines())
    return counted


def over(of: Iterable[Room], counted: Mapping[str, int]) -> list[str]:
    """A sentence for each room that has more than it has reached: by how much, and what to do."""
    return [
        f"{room.name} has {counted[room.name] - room.reached} lines more than it has reached ({counted[room.name]:,}, "
        f"and {room.reached:,} are its most): delete something in it, or raise `reached` in tools/budgets.yml, and say "
        "in the commit why."
        for room in of
        if counted[room.name] > room.reached
    ]


def lower(counted: Mapping[str, int], budgets: Path = BUDGETS) -> list[str]:
    """Lower what rooms have reached to what they have, and return their names. Nothing is ever raised."""
    text, lowered = budgets.read_text(encoding="utf-8"), []
    for room in rooms(budgets):
        if counted[room.name] < room.reached:
            own = re.compile(rf"(^  {re.escape(room.name)}:\n.*?^    reached: )\d+$", re.DOTALL | re.MULTILINE)
            text = own.sub(rf"\g<1>{counted[room.name]}", text, count=1)
            lowered.append(room.name)
    budgets.write_text(text, encoding="utf-8")
    return lowered


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and what is over, and return the exit status: 1 if a room has more than it has reached."""
    parser = argparse.ArgumentParser(prog="python -m tools.counts", description="Count the lines of each room.")
    parser.add_argument("--write", action="store_true", help="lower what rooms have reached to what they have now")
    options = parser.parse_args(arguments)
    counted = lines(rooms())
    if options.write:
        print(f"Lowered: {', '.join(lower(counted)) or 'nothing'}.\n")
    those = rooms()
    rows = [(room.name, counted[room.name], room.reached, room.budget) for room in those]
    outside = [sum(column) for column in zip(*(row[1:] for row in rows if row[0] not in _NOT_IN_THE_SUM), strict=True)]
    rows.insert(len(rows) - len(_NOT_IN_THE_SUM), ("outside of tests", *outside))
    width = max(len(name) for name, *_ in rows)
    print(f"{'room':<{width}}    lines  reached   budget")
    for name, *numbers in rows:
        print(f"{name:<{width}}" + "".join(f"{number:9,}" for number in numbers))
    problems = over(those, counted)
    print("".join(f"\n{problem}" for problem in problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
