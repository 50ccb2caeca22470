"""Runs a lesson's cells for a GPU that none has run as they are, as on a machine that has one; says which fail.

python -m tests.played_cuda host_device_syncs
python -m tests.played_cuda --serve            # for the tests: notebooks' paths in, outcomes as JSON out
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

import matplotlib.pyplot  # noqa: F401 - most lessons draw: before the forks, it is loaded once

os.environ |= {"COURSE_SIZE": "test", "COURSE_PROGRESS": "0"}

from course_utils.lesson_notebooks import find_lesson
from tests.played_cuda.lessons import Outcome, play

SLOW_S = 5.0


def serve() -> None:
    """Play each notebook in a fork of this process: torch is imported once, and what the stand-in changes is undone."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what torch itself prints is no answer
    for line in sys.stdin:
        path = Path(line.strip())
        child = os.fork()
        if child == 0:
            try:
                os.environ["COURSE_NOTEBOOKS"] = str(path.parent)
                outcomes = [asdict(outcome) for outcome in play(find_lesson(path.stem))]
                os.write(answers, (json.dumps(outcomes) + "\n").encode())
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            died = Outcome(0, "", f"the process ended with {os.waitstatus_to_exitcode(status)}")
            os.write(answers, (json.dumps([asdict(died)]) + "\n").encode())


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lesson", nargs="?", help="its name or number")
    parser.add_argument("--serve", action="store_true", help="play the notebooks that standard input names")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if not options.lesson:
        parser.error("name a lesson")
    outcomes = play(lesson := find_lesson(options.lesson))
    for outcome in outcomes:
        if outcome.error:
            print(outcome)
        elif outcome.seconds > SLOW_S:
            print(f"cell {outcome.cell} ({outcome.id}) takes {outcome.seconds:.0f} s: give it a smaller size for tests")
    failed = sum(bool(outcome.error) for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"{lesson.path.name}: {failed} of {len(outcomes)} failed, {seconds:.0f} s")


if __name__ == "__main__":
    main()
