"""How much Python there is, by part of the course: ``make counts``."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTENT = ("course_utils/lessons", "course_utils/materials", "notebooks/scripts")


def part(path: str) -> str:
    """Return the part of the course that a file belongs to: a package of course_utils, or a folder at the top."""
    folders = path.split("/")[:-1]
    depth = 2 if folders[:1] in (["course_utils"], ["notebooks"]) else 1
    return "/".join(folders[:depth]) or "."


def main() -> int:
    """Print the lines of every part, those outside of tests/, and those in it."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = Counter()
    for path in listed.stdout.splitlines():
        if (ROOT / path).exists():
            lines[part(path)] += len((ROOT / path).read_text(encoding="utf-8").splitlines())
    for name, count in sorted(lines.items()):
        print(f"{count:7,}  {name}")
    tests = lines["tests"]
    content = sum(lines[name] for name in CONTENT)
    print(f"{lines.total() - tests:7,}  outside of tests, {content:,} of it content of lessons\n{tests:7,}  in tests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
