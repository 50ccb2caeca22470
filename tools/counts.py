"""How many lines each room of the course has, beside what it may have: ``make counts``. The list is budgets.yml."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
_NOT_IN_THE_SUM = ("tests", "YAML of lessons")
# What git knows, and what is new and not ignored.
_LIST = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "course_utils/lessons/*.yml")


def counted() -> tuple[list[tuple[str, int, int]], list[str]]:
    """Each room with its lines and its budget, and what is wrong, in sentences."""
    rooms = yaml.safe_load(Path(__file__).with_name("budgets.yml").read_text(encoding="utf-8"))["rooms"]
    lines, wrong = Counter[str](), []
    for path in subprocess.run(_LIST, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        fitting = (name for name, room in rooms.items() if any(fnmatch(path, pattern) for pattern in room["paths"]))
        if (name := next(fitting, None)) is None:
            wrong.append(f"{path} has no room in tools/budgets.yml.")
        elif (ROOT / path).is_file():
            lines[name] += len((ROOT / path).read_text(encoding="utf-8").splitlines())
    wrong += [
        f"{name} has {lines[name] - room['budget']} lines more than its budget of {room['budget']:,}: delete something "
        "in it, or raise the budget in tools/budgets.yml, and say in the commit why."
        for name, room in rooms.items()
        if lines[name] > room["budget"]
    ]
    return [(name, lines[name], room["budget"]) for name, room in rooms.items()], wrong


def main() -> int:
    """Print the table and what is wrong with it, and return the exit status."""
    rooms, wrong = counted()
    summed = [room for room in rooms if room[0] not in _NOT_IN_THE_SUM]
    sums = ("outside of tests", sum(lines for _, lines, _ in summed), sum(budget for *_, budget in summed))
    print(f"{'room':<30}{'lines':>9}{'budget':>9}")
    for name, lines, budget in [*summed, sums, *rooms[len(summed) :]]:
        print(f"{name:<30}{lines:>9,}{budget:>9,}")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
