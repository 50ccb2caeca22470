"""How many lines each room of the course has, beside what it may have: ``make counts``. The list is budgets.yml."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
_NOT_IN_THE_SUM = ("tests", "YAML of lessons")
_LISTED = ("*.py", "course_utils/lessons/*.yml")


class Room(NamedTuple):
    """A part of the course: its patterns of paths, the lines that it may have, and those that it has."""

    name: str
    paths: list[str]
    budget: int
    lines: int

    @property
    def over(self) -> str:
        """What to do, if the room has more than it may have; else empty."""
        if self.lines <= self.budget:
            return ""
        return (
            f"{self.name} has {self.lines - self.budget} lines more than its budget of {self.budget:,}: delete "
            "something in it, or raise the budget in tools/budgets.yml, and say in the commit why."
        )


def rooms() -> tuple[list[Room], list[str]]:
    """The rooms in the list's order, and the files that have none."""
    listed = yaml.safe_load(Path(__file__).with_name("budgets.yml").read_text(encoding="utf-8"))["rooms"]
    counted, without = Counter[str](), []
    # What git knows, and what is new and not ignored.
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_LISTED]
    for path in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        fitting = (name for name, room in listed.items() if any(fnmatch(path, pattern) for pattern in room["paths"]))
        name = next(fitting, None)
        if name is None:
            without.append(path)
        elif (ROOT / path).is_file():
            counted[name] += len((ROOT / path).read_text(encoding="utf-8").splitlines())
    return [Room(name, room["paths"], room["budget"], counted[name]) for name, room in listed.items()], without


def table(of: Sequence[Room]) -> str:
    """A line for each room, and before the last ones the sum of what stands outside of tests."""
    rows = [(room.name, f"{room.lines:,}", f"{room.budget:,}") for room in of]
    summed = [room for room in of if room.name not in _NOT_IN_THE_SUM]
    sums = (sum(room.lines for room in summed), sum(room.budget for room in summed))
    rows.insert(len(summed), ("outside of tests", *(f"{each:,}" for each in sums)))
    width = max(len(name) for name, *_ in rows)
    return "\n".join(
        f"{name:<{width}}{lines:>9}{budget:>9}" for name, lines, budget in [("room", "lines", "budget"), *rows]
    )


def main() -> int:
    """Print the table and what is wrong with it, and return the exit status."""
    of, without = rooms()
    print(table(of))
    wrong = [room.over for room in of if room.over] + [f"{path} has no room in tools/budgets.yml." for path in without]
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
