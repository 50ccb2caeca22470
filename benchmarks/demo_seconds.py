"""Time the five-minute path of each lesson, for the instructor's guide.

    python -m benchmarks.demo_seconds            # all lessons, some minutes on 2 cores
    python -m benchmarks.demo_seconds 04 09      # these alone; the others stay as they are

The result goes to ``benchmarks/records/demo_seconds/<machine>.json``.
"""

from __future__ import annotations

import argparse
import json

from authoring.demo import TIMES, code_hash, demo_notebook, time_demo
from course_utils.commands.recording import environment_here
from course_utils.records.files import write_whole
from course_utils.records.lessons import find_lesson, find_lessons


def main() -> None:
    """Run the paths, and write the record after each, so that an interrupted run keeps what it has."""
    parser = argparse.ArgumentParser(description="Time the five-minute path of each lesson.")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="number, name or file; default: all")
    chosen = parser.parse_args().lessons
    here = environment_here()
    path = TIMES / f"{here.machine}.json"
    timed = json.loads(path.read_text(encoding="utf-8"))["lessons"] if path.is_file() else {}
    for lesson in map(find_lesson, chosen) if chosen else find_lessons():
        set_up_s, cells_s = time_demo(lesson)
        rounded = {name: round(seconds, 2) for name, seconds in cells_s.items()}
        code = code_hash(demo_notebook(lesson))
        timed[lesson.slug] = {"code": code, "set_up_s": round(set_up_s, 2), "cells_s": rounded}
        record = {"environment": here.to_record(), "lessons": timed}
        write_whole(path, json.dumps(record, indent=1, sort_keys=True) + "\n")
        print(f"{lesson.name}: set-up {set_up_s:.1f} s, cells {sum(cells_s.values()):.1f} s", flush=True)


if __name__ == "__main__":
    main()
