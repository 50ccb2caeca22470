"""The command line: ``course check``, ``record``, ``report``, ``compare``, ``demo`` and ``slides``."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from course_utils.commands.machine_check import MachineCheck
    from course_utils.commands.recording import Outcome
    from course_utils.records.lessons import Lesson

FAILED = 1
WRONG_USE = 2
_SIZES = ("smoke", "full")
_COLOURS = {
    "ok": "32",
    "recorded": "32",
    "skipped": "36",
    "missing": "33",
    "not run": "33",
    "broken": "31",
    "failed": "31",
}


class _WrongUse(Exception):  # noqa: N818 - becomes a message, never a traceback
    """The command line makes no sense. The message is one line."""


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise _WrongUse(f"{message}. `{self.prog} --help` shows what there is.")


def _parser() -> tuple[_Parser, list[str]]:
    parser = _Parser(prog="course", description="Check this machine, record its results, report them, teach.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)

    check = verbs.add_parser(
        "check",
        help="what this machine is, which lessons run live here, what is missing and how to get it",
        description="Say what this machine is, which lessons run live on it, what is missing and how to get it.",
    )
    check.add_argument("--json", action="store_true", help="print JSON instead of text")
    check.set_defaults(run=_check)

    record = verbs.add_parser(
        "record",
        help="run lessons and keep what they measure",
        description="Run lessons, each in a kernel of its own, and keep what they measure in results/<machine>/. "
        "Without names: all lessons that are not recorded yet as they are now.",
    )
    record.add_argument("lessons", nargs="*", metavar="LESSON", help="number, name or file of a lesson; default: all")
    record.add_argument(
        "--reference", action="store_true", help="write the course's reference records (course_utils/records/)"
    )
    record.add_argument("--force", action="store_true", help="measure again what is already recorded")
    record.add_argument("--size", choices=_SIZES, help="problem sizes; default: full with a CUDA GPU, smoke without")
    record.add_argument(
        "--timeout", type=_seconds, default=600.0, metavar="SECONDS", help="the longest one cell may take (600)"
    )
    record.set_defaults(run=_record)

    report = verbs.add_parser(
        "report",
        help="one HTML page: this machine's results beside the recorded machines'",
        description="Write one HTML page that puts this machine's results beside the recorded machines', lesson by "
        "lesson. It needs no network.",
    )
    report.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    report.add_argument("--open", action="store_true", help="open the page in a browser")
    report.set_defaults(run=_report)

    demo = verbs.add_parser(
        "demo",
        help="open a lesson's five-minute path in JupyterLab, in large type",
        description="Open a lesson's five-minute path in JupyterLab: one document, large type, set-up done. "
        "It is a copy in workspace/demo/, and needs no network and no GPU. What follows after -- goes to JupyterLab.",
    )
    demo.add_argument("lesson", metavar="LESSON", help="number, name or file of a lesson")
    demo.add_argument("--no-browser", action="store_true", help="start JupyterLab, and open its page yourself")
    demo.add_argument("--port", type=_port, metavar="PORT", help="the port of JupyterLab's page")
    demo.add_argument("--new", action="store_true", help="make the copy anew, also if you have edited it")
    demo.set_defaults(run=_demo)

    slides = verbs.add_parser(
        "slides",
        help="write the slides of lessons, as pages that need no network",
        description="Write the slides of lessons into slides/, one page each. The folder needs no network, and can be "
        "taken elsewhere as it is. Without names: all lessons.",
    )
    slides.add_argument("lessons", nargs="*", metavar="LESSON", help="number, name or file of a lesson; default: all")
    slides.add_argument("--output", type=Path, metavar="FOLDER", help="default: slides/ beside the notebooks")
    slides.set_defaults(run=_slides)
    compare = verbs.add_parser(
        "compare",
        help="which verdicts changed between two machines or two dates, beyond noise",
        description="Say which verdicts and values changed between two sets of records, beyond noise. A and B are each "
        "a machine (own:MACHINE or reference:MACHINE where you and the course have one of that name), REV:MACHINE for "
        "the reference records in a commit of git (HEAD~5:amd-epyc-2-cores), a folder of records, or a record's file.",
    )
    compare.add_argument("a", metavar="A", help="what it was before, or one machine")
    compare.add_argument("b", metavar="B", help="what it is now, or another machine")
    compare.add_argument("--all", action="store_true", help="show what is the same as well")
    compare.add_argument("--json", action="store_true", help="print JSON instead of text")
    compare.add_argument(
        "--tolerance",
        type=_fraction,
        metavar="FRACTION",
        help="relative difference up to which numbers without an interval count as alike (0.05)",
    )
    compare.set_defaults(run=_compare)
    return parser, list(verbs.choices)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError(text)
    return value


_fraction.__name__ = "fraction"
_seconds.__name__ = "number of seconds"  # argparse puts it into its message


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit status: 0, 1 if something failed, 2 if the command makes no sense, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parser, verbs = _parser()
        if arguments and not arguments[0].startswith("-") and arguments[0] not in verbs:
            raise _WrongUse(
                f"there is no {arguments[0]!r}{_nearest(arguments[0], verbs)}. There are: {', '.join(verbs)}."
            )
        # argparse has no way to keep what follows after "--" for another program.
        end = arguments.index("--") if arguments[:1] == ["demo"] and "--" in arguments else len(arguments)
        options = parser.parse_args(arguments[:end])
        options.for_jupyterlab = arguments[end + 1 :]
        _check_size()
        return options.run(options)
    except SystemExit as leaving:  # --help
        return int(leaving.code or 0)
    except _WrongUse as error:
        return _complain(str(error), WRONG_USE)
    except KeyboardInterrupt:
        return _complain("stopped", 128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output has gone (`course check | head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _complain(message: str, status: int) -> int:
    print("course: " + " ".join(message.split()), file=sys.stderr)
    return status


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: take a number from 1024 to 65535")
    return int(text)


def _cannot_write(error: OSError, what: str, advice: str) -> int:
    """One line about a folder that is a file, belongs to someone else, or is full."""
    where = f": {error.filename}" if error.filename else ""
    return _complain(f"{what} cannot be written ({error.strerror or error}{where}). {advice}", FAILED)


def _nearest(word: str, choices: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _check_size() -> None:
    size = os.environ.get("COURSE_SIZE", "").strip().lower()
    if size and size not in _SIZES:
        raise _WrongUse(f"COURSE_SIZE={size!r} is not a size: set it to 'smoke' or 'full', or unset it")


def _painted(text: str, state: str, stream: TextIO) -> str:
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m"


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 110)


def _wrapped(start: str, text: str, indent: int) -> str:
    """Text after ``start``, which is ``indent`` characters wide, wrapped under itself."""
    room = max(_width() - indent, 30)
    return start + ("\n" + " " * indent).join(textwrap.wrap(text, room, break_on_hyphens=False) or [""])


# course check


def _check(options: argparse.Namespace) -> int:
    from course_utils.commands import machine_check

    found = machine_check.look()
    if options.json:
        print(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        _show_check(found)
    return 0 if found.works else FAILED


def _show_check(found: MachineCheck) -> None:
    here = found.environment
    if here is not None:
        from course_utils.show.formats import format_bytes

        memory = format_bytes(here.memory_bytes)
        facts = {
            "CPU": f"{here.cpu_model}, {here.cpu_cores} core{'s' * (here.cpu_cores != 1)}, {memory}",
            "GPU": "none" if here.device_kind == "cpu" else here.device_name,
            "software": f"torch {here.torch}, Python {here.python}, {here.os}",
            "sizes": f"{here.size}; COURSE_SIZE={_SIZES[here.size == 'smoke']} chooses the other ones",
        }
        if here.gpu_memory_bytes:
            facts["GPU"] += f", {format_bytes(here.gpu_memory_bytes)}"
        print(f"This machine: {here.machine}")
        for name, value in facts.items():
            print(_wrapped(f"  {name:<10}", value, 12))
        print()
    if found.lessons:
        print("Lessons")
        width = max(len(status.lesson) for status in found.lessons)
        for status in found.lessons:
            print(_wrapped(f"  {status.lesson:<{width}}  ", status.words, width + 4))
        print()
    print("What the lessons use")
    width = max(len(finding.name) for finding in found.findings)
    for finding in found.findings:
        state = _painted(f"{finding.state:<7}", finding.state, sys.stdout)
        about = ". ".join(filter(None, (finding.found, finding.advice)))
        print(_wrapped(f"  {state}  {finding.name:<{width}}  ", about, width + 13))
    print()
    lacking = [finding.name for finding in found.findings if finding.state == "missing"]
    if not found.works:
        broken = [finding.name for finding in found.findings if finding.state == "broken"]
        print(f"Lessons do not run here yet: mend {', '.join(broken)} first.")
    elif lacking:
        print("Lessons run here. What is missing only limits what is measured live.")
    else:
        print("Lessons run here, and nothing is missing.")


# course record


def _record(options: argparse.Namespace) -> int:
    from course_utils.commands import recording
    from course_utils.commands.recording_progress import CourseProgress
    from course_utils.records import store
    from course_utils.records.lessons import LessonError, find_lesson, find_lessons

    try:
        chosen = [find_lesson(name) for name in options.lessons] if options.lessons else find_lessons()
    except LessonError as error:
        return _complain(str(error), WRONG_USE)
    if not chosen:
        return _complain("there are no lessons to record: work in a clone of the repository", FAILED)
    chosen = list(dict.fromkeys(chosen))
    root = store.reference_root() if options.reference else store.results_root()
    repeat = bool(options.force or options.lessons)
    outcomes: list[Outcome] = []
    try:
        if other := recording.clean_up(root):
            _note(f"Another `course record` (process {other}) is running: each makes the other slower.")
        here = recording.environment_here(options.size)
        _note(f"Recording {_count(len(chosen), 'lesson')} on {here.machine}, {here.size} size.")
        expected_s = recording.expected_seconds(chosen, root, here, repeat=repeat)
        with contextlib.closing(CourseProgress(sys.stderr, expected_s)) as progress:
            for outcome in recording.record_lessons(
                chosen,
                root,
                here,
                repeat=repeat,
                reference=options.reference,
                timeout_s=options.timeout,
                on_cell=progress,
            ):
                outcomes.append(outcome)
                progress.finish(outcome)
    except (recording.RecordingError, store.RecordError) as error:
        return _complain(str(error), FAILED)
    except (KeyboardInterrupt, recording.Stopped) as stopped:
        print(file=sys.stderr)
        _show_stopped(options, chosen, outcomes)
        return 128 + getattr(stopped, "signum", signal.SIGINT)
    _show_outcomes(options, outcomes, root / here.machine)
    return 0 if all(outcome.state in ("recorded", "skipped") for outcome in outcomes) else FAILED


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show_outcomes(options: argparse.Namespace, outcomes: Sequence[Outcome], folder: Path) -> None:
    from course_utils.commands.recording_progress import clock_text

    verdicts = [_verdict_counts(outcome) for outcome in outcomes]
    width = max(len("lesson"), *(len(outcome.lesson) for outcome in outcomes))
    wide = max(len("verdicts"), *map(len, verdicts))
    print(f"\n{'lesson':<{width}}  seconds  experiments  {'verdicts':<{wide}}  state")
    for outcome, counts in zip(outcomes, verdicts, strict=True):
        numbers = f"{outcome.seconds:>7.1f}  {outcome.experiments or '–':>11}  {counts:<{wide}}"
        print(f"{outcome.lesson:<{width}}  {numbers}  {_painted(outcome.state, outcome.state, sys.stdout)}")
    print()
    for outcome in outcomes:
        if outcome.message and outcome.state != "skipped":
            print(_wrapped("  ", f"{outcome.lesson}: {outcome.message}", 4))
    states = Counter(outcome.state for outcome in outcomes)
    taken = sum(outcome.seconds for outcome in outcomes if outcome.state != "skipped")
    told = ", ".join(
        f"{states[state]} {state}" for state in ("recorded", "skipped", "failed", "not run") if states[state]
    )
    print(f"{_count(len(outcomes), 'lesson')}: {told}, in {clock_text(taken)}.")
    left = [outcome.lesson for outcome in outcomes if outcome.state in ("failed", "not run")]
    if failed := [outcome.lesson for outcome in outcomes if outcome.state == "failed"]:
        print(f"{_count(len(failed), 'lesson')} failed; earlier records of {', '.join(failed)} are as they were.")
    if left:
        print(f"Mend that, then go on with: {_go_on_command(options, left)}")
    if len(left) < len(outcomes):
        print(f"Records are in {_shown(folder)}. `course report` puts them beside the other machines'.")


def _verdict_counts(outcome: Outcome) -> str:
    """For example ``3 FASTER, 1 SAME``."""
    return ", ".join(f"{number} {verdict}" for verdict, number in outcome.verdicts.items()) or "–"


def _shown(path: Path) -> str:
    """A path as a person would type it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _show_stopped(options: argparse.Namespace, chosen: Sequence[Lesson], outcomes: Sequence[Outcome]) -> None:
    kept = [outcome.lesson for outcome in outcomes if outcome.state in ("recorded", "skipped")]
    print(f"Stopped. Kept: {', '.join(kept) or 'nothing'}; earlier records of the others are as they were.")
    named = bool(options.lessons or options.force)
    left = [lesson.slug for lesson in chosen if lesson.slug not in kept] if named else []
    print(f"Go on with: {_go_on_command(options, left)}")


def _go_on_command(options: argparse.Namespace, left: Sequence[str]) -> str:
    command = ["course", "record", *left]
    command += ["--reference"] if options.reference else []
    command += ["--size", options.size] if options.size else []
    command += ["--timeout", f"{options.timeout:g}"] if options.timeout != 600 else []
    return shlex.join(command)


# course report


def _report(options: argparse.Namespace) -> int:
    from course_utils.commands import report

    try:
        path = report.write_report(options.output)
    except report.ReportError as error:
        return _complain(str(error), FAILED)
    print(path)
    if options.open:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            return _complain(f"no browser could be started: open {path} yourself", FAILED)
    return 0


# course demo and course slides


def _demo(options: argparse.Namespace) -> int:
    from authoring import demo, teaching
    from authoring.evidence import EvidenceError
    from course_utils.records import store
    from course_utils.records.lessons import LessonError, find_lesson

    try:
        lesson = find_lesson(options.lesson)
    except LessonError as error:
        return _complain(str(error), WRONG_USE)
    arguments = ["--no-browser"] if options.no_browser else []
    arguments += [f"--ServerApp.port={options.port}"] if options.port else []
    try:
        path = demo.write_demo(lesson, demo.demo_folder(), teaching.presenter_notes(lesson), options.new, say=print)
        return demo.open_demo(path, [*arguments, *options.for_jupyterlab])
    except (LessonError, EvidenceError, store.RecordError) as error:
        return _complain(str(error), FAILED)
    except OSError as error:
        where = _shown(demo.demo_folder())
        return _cannot_write(error, "The demo", f"It goes to {where}: make that a folder which you may write to.")


def _slides(options: argparse.Namespace) -> int:
    from authoring import slides
    from authoring.evidence import EvidenceError
    from course_utils.records import store
    from course_utils.records.lessons import LessonError, find_lesson, find_lessons

    try:
        chosen = [find_lesson(name) for name in options.lessons] if options.lessons else find_lessons()
    except LessonError as error:
        return _complain(str(error), WRONG_USE)
    try:
        folder = options.output or slides.slides_folder()
        slides.write_slides(chosen, folder, say=lambda page: print(_shown(Path(page)), flush=True))
    except (slides.SlidesError, LessonError, EvidenceError, store.RecordError) as error:
        return _complain(str(error), FAILED)
    except OSError as error:
        return _cannot_write(error, "The slides", "Name a folder which you may write to with --output FOLDER.")
    return 0


# course compare


def _compare(options: argparse.Namespace) -> int:
    from course_utils.commands import record_changes
    from course_utils.commands.changes_text import changes_text

    try:
        a, b = record_changes.read_records(options.a), record_changes.read_records(options.b)
        tolerance = record_changes.TOLERANCE if options.tolerance is None else options.tolerance
        changes = record_changes.with_claims(record_changes.compare_records(a, b, tolerance))
    except record_changes.RecordChangesError as error:
        return _complain(str(error), WRONG_USE)
    if options.json:
        print(json.dumps(changes.to_json(), indent=2, ensure_ascii=False))
    else:
        print(changes_text(changes, everything=options.all, width=_width()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
