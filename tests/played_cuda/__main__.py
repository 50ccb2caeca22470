"""Runs a lesson's cells as on a machine with one GPU, and says which fail.

python -m tests.played_cuda 04                       # every cell; those tagged standalone by themselves, too
python -m tests.played_cuda path/to/04_lesson.ipynb
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

os.environ |= {"COURSE_SIZE": "test", "COURSE_PROGRESS": "0"}

from course_utils.records.lessons import find_lesson
from tests.played_cuda.lessons import paste, play

SLOW_S = 5.0


def main() -> None:
    """Run what is asked for, first what needs to see no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lesson", help="its number, or a notebook's path")
    parser.add_argument("--only", choices=("cells", "pasted"), help="all cells in order, or those to be pasted")
    parser.add_argument("--json", action="store_true", help="what became of every cell, for a program")
    options = parser.parse_args()
    path = Path(options.lesson) if options.lesson.endswith(".ipynb") else find_lesson(options.lesson).path
    outcomes = [] if options.only == "cells" else paste(path.resolve())
    outcomes += [] if options.only == "pasted" else play(path.resolve())
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes]))
        return
    for outcome in outcomes:
        if outcome.error:
            print(outcome)
        elif outcome.seconds > SLOW_S:
            print(f"cell {outcome.cell} ({outcome.id}) takes {outcome.seconds:.0f} s: give it a smaller size for tests")
    failed = sum(bool(outcome.error) for outcome in outcomes)
    print(f"{path.name}: {failed} of {len(outcomes)} failed, {sum(outcome.seconds for outcome in outcomes):.0f} s")


if __name__ == "__main__":
    main()
