"""The command line. Each command imports what it needs when it runs: none but the measuring ones waits for torch."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.commands import CommandError
from course_utils.files import write_whole
from course_utils.lesson_notebooks import LessonError, find_lesson, find_lessons
from course_utils.results import store
from course_utils.show.suggestions import typed

if TYPE_CHECKING:
    from tqdm import tqdm

    from course_utils.commands.recording import Outcome

FAILED = 1
WRONG_USE = 2
STOPPED = 128 + signal.SIGINT
_LESSON = "number, name or file of a lesson"
Verb = Callable[..., Callable[..., argparse.Action]]  # takes a function, a summary and more; adds arguments


def _parser(add_verbs: Callable[[Verb], None]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("course", description="Check this machine, record its results, compare them.")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(run: Callable[[argparse.Namespace], int], summary: str, more: str = "") -> Callable[..., argparse.Action]:
        about = f"{summary[0].upper()}{summary[1:]}. {more}"
        added = verbs.add_parser(run.__name__[1:], help=summary, description=about)
        added.set_defaults(run=run)
        return added.add_argument

    verb(_check, "say what this machine is, which lessons run live here, what is missing and how to get it")

    add = verb(
        _copy,
        "put lessons into this folder, with the programs that they run",
        "For a course that came as a wheel. A file that is here already stays as it is.",
    )
    add("lessons", nargs="+", metavar="LESSON", help=_LESSON)

    add = verb(
        _record,
        "run lessons and keep what they measure",
        "Each runs in a kernel of its own, and the records go to results/<machine>/. Without names: all lessons that "
        "are not recorded yet as they are now. COURSE_SIZE=smoke or full chooses the problem sizes.",
    )
    add("lessons", nargs="*", metavar="LESSON", help=f"{_LESSON}; default: all")
    add("--reference", action="store_true", help="write the course's reference records (course_utils/records/)")
    add("--allow-busy", action="store_true", help="let a reference record hold what was measured under load")

    add = verb(_report, "one HTML page: this machine's results beside the recorded machines'", "It needs no network.")
    add("--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")

    add = verb(
        _compare,
        "which ratios and times changed between two machines or two dates, beyond noise",
        "A and B are each a machine (own:MACHINE or reference:MACHINE where you and the course have one of that name), "
        "or a machine's folder of records.",
    )
    add("a", metavar="A", help="what it was before, or one machine")
    add("b", metavar="B", help="what it is now, or another machine")

    add_verbs(verb)
    return parser


def main(argv: Sequence[str] | None = None, add_verbs: Callable[[Verb], None] = lambda verb: None) -> int:
    """Run the command line: 0, 1 if something failed, 2 if the command makes no sense, 130 after Ctrl-C.

    Args:
        argv: the arguments; by default those of the program.
        add_verbs: gets a function that adds a verb, for a package on top of this one.
    """
    try:
        options = _parser(add_verbs).parse_args(argv)
        return options.run(options)
    except SystemExit as leaving:  # --help, or wrong use
        return int(leaving.code or 0)
    except LessonError as error:
        return complain(str(error), WRONG_USE)
    except (CommandError, store.RecordError) as error:
        return complain(str(error), FAILED)
    except KeyboardInterrupt:
        return complain("stopped", STOPPED)
    except BrokenPipeError:  # who reads the output has seen enough: `course check | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def complain(message: str, status: int) -> int:
    """Say in one line what is wrong, and give the exit status back."""
    print("course: " + " ".join(message.split()), file=sys.stderr)
    return status


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 100)


def _check(_: argparse.Namespace) -> int:
    from course_utils.commands import machine_check

    check = machine_check.look()
    print(check.in_words(_width()))
    return 0 if check.environment else FAILED


def _copy(options: argparse.Namespace) -> int:
    for notebook in dict.fromkeys(find_lesson(name).path for name in options.lessons):
        runs_programs = b"scripts/" in notebook.read_bytes()
        programs = sorted(notebook.parent.glob("scripts/*.*")) if runs_programs else []
        for original in (notebook, *programs):
            here = original.relative_to(notebook.parent)
            content = original.read_bytes()
            if not here.exists():
                write_whole(here, content)
                print(here)
            elif here.read_bytes() != content:
                print(f"{here} is here already, and stays as it is")
    return 0


def _record(options: argparse.Namespace) -> int:
    from course_utils.commands import recording

    chosen = list(dict.fromkeys(find_lesson(name) for name in options.lessons)) or find_lessons()
    root = store.reference_root() if options.reference else store.results_root()
    outcomes: list[Outcome] = []
    # A kill ends this program as Ctrl-C does: with the kernel gone and finished lessons kept.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        here = recording.environment_here()
        print(f"Recording {len(chosen)} of the lessons on {here.title}, {here.size} size.", file=sys.stderr)
        with _progress_bar(len(chosen)) as bar:
            more = {"reference": options.reference, "allow_busy": options.allow_busy, "on_cell": bar.set_postfix_str}
            for outcome in recording.record_lessons(chosen, root, here, repeat=bool(options.lessons), **more):
                outcomes.append(outcome)
                bar.update()
                bar.write(f"{outcome.lesson}: {outcome.state}, {outcome.message}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nStopped.")
    kept = [outcome.lesson for outcome in outcomes if outcome.record]
    print(f"Kept: {', '.join(kept) or 'nothing'}. Earlier records of the others are as they were.")
    if kept:
        print(f"Records are in {root / here.machine}. {typed('report')} puts them beside the other machines'.")
    if len(kept) == len(chosen):
        return 0
    left = [lesson.slug for lesson in chosen if lesson.slug not in kept] if options.lessons else []
    flags = ["--reference"] * options.reference + ["--allow-busy"] * options.allow_busy
    print(f"Go on with {typed(' '.join(['record', *left, *flags]))}")
    return FAILED if len(outcomes) == len(chosen) else STOPPED


def _progress_bar(lessons: int) -> tqdm:
    """One bar for the whole course; none where nobody looks."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no watcher thread beside a measurement
    look = "{bar:20} {n_fmt} of {total_fmt} lessons, {elapsed}{postfix}"
    return tqdm(total=lessons, leave=False, dynamic_ncols=True, bar_format=look, disable=None)


def _report(options: argparse.Namespace) -> int:
    from course_utils.commands import report_page

    where, unread = report_page.build(options.output)
    print(where)
    if unread:
        print(unread, file=sys.stderr)
    return FAILED if unread else 0


def _compare(options: argparse.Namespace) -> int:
    from course_utils.commands import record_changes

    a, b = record_changes.read_records(options.a), record_changes.read_records(options.b)
    print(record_changes.compare_records(a, b).in_words(_width()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
