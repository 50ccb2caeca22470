"""Time the five-minute path of each lesson, for the instructor's routes and notes.

    python -m benchmarks.demo_seconds            # all lessons, some minutes on 2 cores
    python -m benchmarks.demo_seconds 04 09      # these alone; the others stay as they are

The result goes to ``benchmarks/records/demo_seconds.json``.
"""

from __future__ import annotations

import argparse
import json

from authoring.demo import TIMES, demo_times, time_demo
from course_utils.commands.recording import environment_here
from course_utils.records.files import write_whole
from course_utils.records.lessons import find_lesson, find_lessons


def main() -> None:
    """Run the paths, and write the record after each, so that an interrupted run keeps what it has."""
    parser = argparse.ArgumentParser(description="Time the five-minute path of each lesson.")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="number, name or file; default: all")
    chosen = parser.parse_args().lessons
    here = environment_here().caption
    times = dict(demo_times())
    for lesson in map(find_lesson, chosen) if chosen else find_lessons():
        timed = times[lesson.slug] = time_demo(lesson) | {"timed_on": here}
        write_whole(TIMES, json.dumps(times, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        print(f"{lesson.name}: set-up {timed['set_up_s']} s, cells {sum(timed['cells_s'].values()):.1f} s", flush=True)


if __name__ == "__main__":
    main()
