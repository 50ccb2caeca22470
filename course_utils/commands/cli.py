"""The command line: ``course check``, ``copy``, ``record``, ``report`` and ``compare``."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from course_utils.show.suggestions import did_you_mean, typed

if TYPE_CHECKING:
    from tqdm import tqdm

    from course_utils.commands.recording import Outcome

FAILED = 1
WRONG_USE = 2
STOPPED = 128 + signal.SIGINT
_SIZES = ("smoke", "full")
_TIMEOUT_S = 600.0
Verb = Callable[..., Callable[..., argparse.Action]]  # takes a function, a summary and more; adds arguments


class _WrongUse(Exception):  # noqa: N818 - becomes a message, never a traceback
    """The command line makes no sense. The message is one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        help_ = typed(f"{self.prog} --help".removeprefix("course "))
        raise _WrongUse(f"{message}. {help_} shows what there is.")


def _parser(add_verbs: Callable[[Verb], None]) -> tuple[_Parser, list[str]]:
    parser = _Parser(prog="course", description="Check this machine, record its results, report and compare them.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)

    def verb(run: Callable[[argparse.Namespace], int], summary: str, more: str = "") -> Callable[..., argparse.Action]:
        added = verbs.add_parser(
            run.__name__[1:], help=summary, description=f"{summary[0].upper()}{summary[1:]}. {more}"
        )
        added.set_defaults(run=run)
        return added.add_argument

    verb(_check, "say what this machine is, which lessons run live here, what is missing and how to get it")

    add = verb(
        _copy,
        "put lessons into this folder, with the programs that they run",
        "For a course that came as a wheel. A file that is here already stays as it is.",
    )
    add("lessons", nargs="+", metavar="LESSON", help="number, name or file of a lesson")

    add = verb(
        _record,
        "run lessons and keep what they measure",
        "Each runs in a kernel of its own, and the records go to results/<machine>/. Without names: all lessons that "
        "are not recorded yet as they are now.",
    )
    add("lessons", nargs="*", metavar="LESSON", help="number, name or file of a lesson; default: all")
    add("--reference", action="store_true", help="write the course's reference records (course_utils/records/)")
    add("--allow-busy", action="store_true", help="let a reference record hold what was measured under load")
    add("--force", action="store_true", help="measure again what is already recorded")
    add("--size", choices=_SIZES, help="problem sizes; default: full with a CUDA GPU, smoke without")
    add("--timeout", type=_seconds, default=_TIMEOUT_S, metavar="SECONDS", help="the longest one cell may take (600)")
    add("--traceback", action="store_true", help="show the traceback of a cell that fails")

    page = "one HTML page: this machine's results beside the recorded machines'"
    add = verb(_report, page, "It goes lesson by lesson, and needs no network.")
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
    return parser, list(verbs.choices)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


_seconds.__name__ = "number of seconds"  # argparse puts it into its message


def main(argv: Sequence[str] | None = None, add_verbs: Callable[[Verb], None] = lambda verb: None) -> int:
    """Run the command line: 0, 1 if something failed, 2 if the command makes no sense, 130 after Ctrl-C.

    Args:
        argv: the arguments; by default those of the program.
        add_verbs: gets a function that adds a verb, for a package on top of this one.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parser, verbs = _parser(add_verbs)
        if arguments and not arguments[0].startswith("-") and arguments[0] not in verbs:
            near = did_you_mean(arguments[0], verbs)
            raise _WrongUse(f"there is no {arguments[0]!r}{near}. There are: {', '.join(verbs)}.")
        options = parser.parse_args(arguments)
        _check_size()
        return options.run(options)
    except SystemExit as leaving:  # --help
        return int(leaving.code or 0)
    except _WrongUse as error:
        return complain(str(error), WRONG_USE)
    except KeyboardInterrupt:
        return complain("stopped", STOPPED)
    except BrokenPipeError:
        # The reader of our output has gone (`course check | head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def complain(message: str, status: int) -> int:
    """Say in one line what is wrong, and give the exit status back."""
    print("course: " + " ".join(message.split()), file=sys.stderr)
    return status


def _check_size() -> None:
    size = os.environ.get("COURSE_SIZE", "").strip().lower()
    if size and size not in (*_SIZES, "test"):
        raise _WrongUse(f"COURSE_SIZE={size!r} is not a size: set it to 'smoke' or 'full', or unset it")


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 100)


def _wrapped(start: str, text: str, indent: int) -> str:
    """Text after ``start``, which is ``indent`` characters wide, wrapped under itself."""
    room = max(_width() - indent, 30)
    return start + ("\n" + " " * indent).join(textwrap.wrap(text, room, break_on_hyphens=False) or [""])


# course check


def _check(options: argparse.Namespace) -> int:
    from course_utils.commands import machine_check

    check = machine_check.look()
    for line in check.machine_lines():
        print(_wrapped(line[:12], line[12:], 12) if line.startswith(" ") else line)
    if check.lessons:
        print("Lessons")
        width = max(map(len, check.lessons))
        for name, lesson in check.lessons.items():
            for words in filter(None, (lesson.question, lesson.how)):
                print(_wrapped(f"  {name:<{width}}  ", words, width + 4))
                name = ""
        print()
    print("What the lessons use")
    width = max(len(facility.name) for facility in check.facilities)
    for facility in check.facilities:
        about = ". ".join(filter(None, (facility.details, facility.advice)))
        print(_wrapped(f"  {facility.state:<7}  {facility.name:<{width}}  ", about, width + 13))
    print(f"\n{check.conclusion}")
    return FAILED if check.broken else 0


# course copy


def _copy(options: argparse.Namespace) -> int:
    from course_utils.files import write_whole
    from course_utils.lesson_notebooks import LessonError, find_lesson

    try:
        chosen = [find_lesson(name).path for name in options.lessons]
    except LessonError as error:
        return complain(str(error), WRONG_USE)
    for notebook in dict.fromkeys(chosen):
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


# course record


def _record(options: argparse.Namespace) -> int:
    from course_utils.commands import recording
    from course_utils.lesson_notebooks import LessonError, find_lesson, find_lessons
    from course_utils.results import store

    try:
        chosen = [find_lesson(name) for name in options.lessons] if options.lessons else find_lessons()
    except LessonError as error:
        return complain(str(error), WRONG_USE)
    if not chosen:
        return complain("there are no lessons to record: work in a clone of the repository", FAILED)
    chosen = list(dict.fromkeys(chosen))
    root = store.reference_root() if options.reference else store.results_root()
    outcomes: list[Outcome] = []
    named = bool(options.force or options.lessons)
    # A kill ends this program as Ctrl-C does: with the kernel gone and finished lessons kept.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        here = recording.environment_here(options.size)
        print(f"Recording {_count(len(chosen), 'lesson')} on {here.title}, {here.size} size.", file=sys.stderr)
        with _bar(len(chosen)) as bar:
            more = {"reference": options.reference, "allow_busy": options.allow_busy}
            more |= {"timeout_s": options.timeout, "on_cell": bar.set_postfix_str}
            for outcome in recording.record_lessons(chosen, root, here, repeat=named, **more):
                outcomes.append(outcome)
                bar.update()
                reason = "" if outcome.state == "skipped" else f" after {outcome.seconds:.0f} s"
                # Now, and not only in the table at the end: a run that is stopped before keeps it.
                reason += f" ({outcome.message})" if outcome.message and outcome.state != "recorded" else ""
                bar.write(f"{outcome.lesson}: {outcome.state}{reason}", file=sys.stderr)
                if options.traceback and outcome.traceback:
                    bar.write(outcome.traceback, file=sys.stderr)
    except (recording.RecordingError, store.RecordError) as error:
        return complain(str(error), FAILED)
    except KeyboardInterrupt:
        kept = [outcome.lesson for outcome in outcomes if outcome.record]
        left = [lesson.slug for lesson in chosen if lesson.slug not in kept] if named else []
        print(f"\nStopped. Kept: {', '.join(kept) or 'nothing'}; earlier records of the others are as they were.")
        print(f"Go on with: {_go_on_command(options, left)}")
        return STOPPED
    _show_outcomes(options, outcomes, root / here.machine)
    return 0 if all(outcome.record for outcome in outcomes) else FAILED


def _bar(lessons: int) -> tqdm:
    """One bar for the whole course; none where nobody looks."""
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no watcher thread beside a measurement

    look = "{bar:20} {n_fmt} of {total_fmt} lessons, {elapsed}{postfix}"
    return Bar(total=lessons, leave=False, dynamic_ncols=True, bar_format=look, disable=None)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _show_outcomes(options: argparse.Namespace, outcomes: Sequence[Outcome], folder: Path) -> None:
    print("", *_outcome_table(outcomes), "", sep="\n")
    for outcome in outcomes:
        if outcome.message and outcome.state != "skipped":
            print(_wrapped("  ", f"{outcome.lesson}: {outcome.message}", 4))
    counts = Counter(outcome.state for outcome in outcomes)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    seconds = sum(outcome.seconds for outcome in outcomes if outcome.state != "skipped")
    print(f"{_count(len(outcomes), 'lesson')}: {states}, in {seconds:.0f} s.")
    if failed := [outcome.lesson for outcome in outcomes if not outcome.record]:
        print(f"{_count(len(failed), 'lesson')} failed; earlier records of {', '.join(failed)} are as they were.")
        print(f"Mend that, then go on with: {_go_on_command(options, failed)}")
    if len(failed) < len(outcomes):
        shown = folder.resolve()
        shown = shown.relative_to(Path.cwd()) if shown.is_relative_to(Path.cwd()) else folder
        print(f"Records are in {shown}. {typed('report')} puts them beside the other machines'.")


def _outcome_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One line for each lesson; verdicts are counted, for example ``3 faster, 1 same``."""
    from course_utils.commands.recording import verdicts_of

    counted = [verdicts_of(outcome.record) if outcome.record else {} for outcome in outcomes]
    words = [", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "–" for verdicts in counted]
    width = max(len("lesson"), *(len(outcome.lesson) for outcome in outcomes))
    wide = max(len("verdicts"), *map(len, words))
    yield f"{'lesson':<{width}}  seconds  experiments  {'verdicts':<{wide}}  state"
    for outcome, verdicts in zip(outcomes, words, strict=True):
        experiments = len(outcome.record.experiments) if outcome.record else "–"
        numbers = f"{outcome.seconds:>7.1f}  {experiments:>11}  {verdicts:<{wide}}"
        yield f"{outcome.lesson:<{width}}  {numbers}  {outcome.state}"


def _go_on_command(options: argparse.Namespace, left: Sequence[str]) -> str:
    command = ["record", *left]
    command += ["--reference"] if options.reference else []
    command += ["--allow-busy"] if options.allow_busy else []
    command += ["--size", options.size] if options.size else []
    command += ["--timeout", f"{options.timeout:g}"] if options.timeout != _TIMEOUT_S else []
    return typed(shlex.join(command)).strip("`")


# course report


def _report(options: argparse.Namespace) -> int:
    from course_utils.commands import report

    try:
        where, unread = report.build(options.output)
    except report.ReportError as error:
        return complain(str(error), FAILED)
    print(where)
    if unread:
        print(unread, file=sys.stderr)
    return FAILED if unread else 0


# course compare


def _compare(options: argparse.Namespace) -> int:
    from course_utils.commands import record_changes

    try:
        a, b = record_changes.read_records(options.a), record_changes.read_records(options.b)
        changes = record_changes.compare_records(a, b)
    except record_changes.RecordChangesError as error:
        return complain(str(error), WRONG_USE)
    print(record_changes.changes_text(changes, _width()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
