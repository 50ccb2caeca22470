"""Everything that needs a GPU, by one command: tests, records of all lessons, and the timers side by side.

    python -m benchmarks.gpu_run
    python -m benchmarks.gpu_run --seconds 570 --bundle gpu_run.tar.gz   # a machine that is lent for ten minutes
    python -m benchmarks.gpu_run --output rehearsal --dry-run            # on a CPU: what runs there, at smoke size

Each part is a process of its own with a time limit; one that fails or hangs does not stop the others. What is done is
kept in the output folder, and the same command goes on from there: first with what was never tried, then with what
failed. After each part the bundle holds everything so far; unpacked into the output folder of another machine of the
same kind it lets that one go on. Nothing here changes a setting of the GPU.

The lessons' records are ordinary ones, ``<output>/records/<machine>/<lesson>.json``; the command that copies them into
the course is printed at the end. Where there is no Jupyter and no network, bring its wheels along:
``pip install --no-index --no-deps --target FOLDER *.whl``, then ``PYTHONPATH=FOLDER``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from authoring.limits import load_limits, shares

from course_utils.commands import recording
from course_utils.lessons.measuring import timer_trial
from course_utils.records import lessons, store
from course_utils.records.kinds.environment import Environment
from course_utils.records.store import LessonRecord
from course_utils.show.formats import format_percent, format_rate

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "gpu"  # ignored by git
CELL_LIMIT_S = 240
# With less time left than this a part is not begun: what is cut short runs again as a whole.
LEAST_S = 60.0
# A process that is told to stop has this long to write what it has; then it is killed, with all that it started.
GRACE_S = 15.0
# Kept back at the end of --seconds, for the last summary and the bundle.
RESERVE_S = 15.0
FAILED, WRONG_USE, UNFINISHED, INTERRUPTED = 1, 2, 3, 130


class WrongUse(Exception):  # noqa: N818 - becomes a message
    """The command makes no sense. The message is one sentence."""


@dataclass(frozen=True)
class Part:
    """One step of the run."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PartOutcome:
    """``done``, ``failed``, ``timed out`` (its own limit), ``cut short`` (the run's time was up) or ``not run``."""

    state: str
    seconds: float = 0.0


def parts(output: Path, dry_run: bool, here: Environment) -> list[Part]:
    """All parts, in order of value."""
    # No cache of pytest's in a folder that travels; a hung test ends alone, not with all the others.
    pytest = ("-m", "pytest", "-v", "-rf", "--tb=short", "-p", "no:cacheprovider", "--timeout=150", "-m", "gpu")
    # If the clocks are wrong, so is everything after them.
    files = sorted((ROOT / "tests" / "gpu").glob("test_gpu_*.py"), key=lambda file: ("clocks" not in file.stem, file))
    tests = []
    for path in files:
        command = (sys.executable, *pytest, f"--junitxml={output / f'{path.stem}.xml'}", str(path))
        tests.append(Part(f"tests-{path.stem.removeprefix('test_gpu_')}", command, 420))
    slugs = lessons_to_record(output / "records", here)
    record = ("-m", "course_utils.commands.cli", "record", *slugs, "--traceback", "--timeout", str(CELL_LIMIT_S))
    variables = {"COURSE_RESULTS": str(output / "records"), "COURSE_SIZE": here.size}
    recordings = [Part("lessons", (sys.executable, *record), 1800, variables)] if slugs else []
    few = ("--trials", "1", "--budget", "0.05", "--functions", "tiny op", "--conditions", "idle")
    timers = ("benchmarks/timer_quality.py", "--output", str(output / "timer_quality.json"))
    timers += few if dry_run else ("--trials", "40", "--budget", "0.5")
    # It goes on at the trial where it was stopped, so any time that is left is of use.
    return [tests[0], *recordings, *tests[1:], Part("timer-quality", (sys.executable, *timers), 500)]


def lessons_to_record(root: Path, here: Environment) -> list[str]:
    """Slugs of the lessons whose record is missing or of another notebook, most wanted first.

    First those that nobody has recorded whole on such a device, then those that are done soonest: where a machine is
    lent for minutes, most lessons come back so.
    """

    def wanted(lesson: lessons.Lesson) -> tuple[bool, float]:
        records = store.records_of(lesson.slug, store.reference_root())
        alike = [record for record in records if record.environment.device_kind == here.device_kind]
        needed = set(recording.required(lesson, here))
        whole = any(needed <= set(record.experiments) for record in alike)
        return (whole, max((record.seconds for record in alike or records), default=0.0))

    missing = [lesson for lesson in lessons.find_lessons() if not recording.is_current(lesson, root, here)]
    return [lesson.slug for lesson in sorted(missing, key=wanted)]


# One part


def run_part(part: Part, log: Path, limit_s: float) -> PartOutcome:
    """Run a part to its end or to its limit, with its output after that of earlier tries; nothing of it is left."""
    started = time.monotonic()
    # Every part must import this very package, installed or not.
    variables = recording.child_variables() | {"PYTHONUNBUFFERED": "1", "COURSE_PROGRESS": "0"} | part.variables
    with log.open("ab") as output:
        process = subprocess.Popen(
            part.command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=variables, start_new_session=True
        )
        try:
            # Status 5 is pytest's: a file has no test for this machine.
            state = "done" if process.wait(timeout=limit_s) in (0, 5) else "failed"
        except subprocess.TimeoutExpired:
            state = "timed out" if limit_s >= part.limit_s else "cut short"
        finally:
            end(process)
    return PartOutcome(state, time.monotonic() - started)


def end(process: subprocess.Popen) -> None:
    """Ask a process to stop, so that it can write what it has; then kill it and everything that it started."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        # Children first become orphans when their parent goes, and can then no longer be found.
        family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    for member in [process, *family]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    # What is stuck in the driver is gone only when the driver lets it go.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)


# The whole run


class Run:
    """The parts, what became of them, and the files that tell; it ends before ``ends_at`` on ``time.monotonic``."""

    def __init__(self, options: argparse.Namespace, here: Environment, ends_at: float = float("inf")):
        self.output, self.bundle, self.dry_run = options.output, options.bundle, options.dry_run
        self.ends_at = ends_at
        self.parts = parts(self.output, self.dry_run, here)
        state = self.output / "state.json"
        earlier = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {"dry_run": self.dry_run}
        if earlier["dry_run"] != self.dry_run:
            held = "a dry run" if earlier["dry_run"] else "a real run"
            raise WrongUse(f"{self.output} holds {held}: choose another --output")
        self.outcomes = {name: PartOutcome(**values) for name, values in earlier.get("parts", {}).items()}
        self.waiting = sorted((part for part in self.parts if not self._is_done(part)), key=self._turn)
        (self.output / "parts").mkdir(parents=True, exist_ok=True)
        store.write_json(self.output / "environment.json", here.to_record())

    def _is_done(self, part: Part) -> bool:
        # Lessons are a part only as long as one of them has no record.
        outcome = self.outcomes.get(part.name)
        return part.name != "lessons" and outcome is not None and outcome.state == "done"

    def _turn(self, part: Part) -> int:
        """What was never tried first, then what had too little time; what failed may do so again, and comes last."""
        outcome = self.outcomes.get(part.name, PartOutcome("not run"))
        return {"not run": 0, "done": 0, "cut short": 1}.get(outcome.state, 2)

    def run(self) -> int:
        """Run what is not done yet, and return the exit status."""
        print(f"{len(self.waiting)} of {len(self.parts)} parts to run.", flush=True)
        for number, part in enumerate(self.waiting, start=1):
            limit_s = min(part.limit_s, self.ends_at - time.monotonic() - RESERVE_S)
            if limit_s < min(LEAST_S, part.limit_s):
                self.outcomes.setdefault(part.name, PartOutcome("not run"))
                continue
            print(f"[{number}/{len(self.waiting)}] {part.name}, at most {limit_s:.0f} s", flush=True)
            log = self.output / "parts" / f"{part.name}.txt"
            try:
                outcome = self.outcomes[part.name] = run_part(part, log, limit_s)
            except KeyboardInterrupt:
                print(self.keep(), "Stopped. The same command goes on from here.", sep="\n")
                return INTERRUPTED
            print(f"    {outcome.state} after {outcome.seconds:.1f} s", flush=True)
            if outcome.state != "done":
                last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
                print(*(f"    | {line}" for line in last), sep="\n", flush=True)
            self.keep()
        print(self.keep())
        states = {self.outcomes[part.name].state for part in self.parts if part.name in self.outcomes}
        if states & {"failed", "timed out"}:
            return FAILED
        if states & {"not run", "cut short"}:
            print("Not everything has run: the same command goes on from here.")
            return UNFINISHED
        return 0

    def keep(self) -> str:
        """Write state, summary and bundle, and return the summary."""
        outcomes = {name: asdict(outcome) for name, outcome in self.outcomes.items()}
        store.write_json(self.output / "state.json", {"dry_run": self.dry_run, "parts": outcomes})
        try:
            text = summary(self.output, self.dry_run)
        except Exception:  # what was measured is worth more than its summary, which can be made again
            text = f"The summary failed; the parts are in {self.output}.\n{traceback.format_exc()}"
        (self.output / "summary.txt").write_text(text, encoding="utf-8")
        if self.bundle:
            bundle(self.output, self.bundle)
        return text


def bundle(folder: Path, file: Path) -> None:
    """Pack a folder into one ``.tar.gz``, which is either the old one or the whole new one."""
    with tempfile.TemporaryDirectory(dir=file.parent) as temporary:
        os.replace(shutil.make_archive(f"{temporary}/all", "gztar", folder), file)


# The summary


def summary(folder: Path, dry_run: bool) -> str:
    """Sum up a run from its output; a dry run is a rehearsal on a CPU."""
    machine = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    outcomes = json.loads((folder / "state.json").read_text(encoding="utf-8"))["parts"]
    records = [store.load_lesson(path) for path in sorted((folder / "records").glob("*/[!.]*.json"))]
    title = f"{machine['device_name']}, torch {machine['torch']}"
    lines = [title + (", dry run: nothing here is a result" if dry_run else "")]
    for heading, section in (
        ("Parts", [f"{part['state']:<10} {part['seconds']:7.1f} s  {name}" for name, part in outcomes.items()]),
        ("Tests", _tests(folder)),
        ("Lessons", _lessons(records)),
        ("Shares of the ceilings", _shares(records)),
        ("Timers", _timers(folder / "timer_quality.json")),
        ("To keep the records, from the repository's root:", [] if dry_run else _copy_commands(folder, records)),
    ):
        if section := list(section):
            lines += ["", heading, *(f"  {line}" for line in section)]
    return "\n".join(lines) + "\n"


def _tests(folder: Path) -> Iterator[str]:
    """Counts, failures with their messages, reasons for skipping, and what tests noted."""
    counts: Counter[str] = Counter()
    details = []
    for file in sorted(folder.glob("test_gpu_*.xml")):
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            # The file alone says what is meant: pytest writes the path with dots.
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            counts["passed" if problem is None else problem.tag] += 1
            if problem is not None:
                message = problem.get("message", "").partition("\n")[0]
                details.append(f"{problem.tag} {name}: {message[:160]}")
            details += [f"{name}: {each.get('name')}: {each.get('value')}" for each in case.iter("property")]
    if counts:
        yield ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    yield from sorted(details)


def _lessons(records: Sequence[LessonRecord]) -> Iterator[str]:
    for record in records:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in recording.verdicts_of(record).items())
        yield f"{record.lesson}: {record.seconds:.1f} s, {len(record.experiments)} experiments; {verdicts}"
    if records:
        yield "What failed is in parts/lessons.txt"


def _shares(records: Sequence[LessonRecord]) -> Iterator[str]:
    """Every rate in the records beside the ceiling that it is bound by."""
    for row in shares(records, load_limits()):
        if row.share is not None:
            bound = ", launch-bound" if row.launch_bound else ""
            rate = format_rate(row.rate, row.unit)
            yield f"{format_percent(row.share):>6} of {row.ceiling:<17} {rate:>14}  {row.where}, {row.case}{bound}"


def _timers(path: Path) -> list[str]:
    return repr(timer_trial.load(path)).splitlines() if path.exists() else []


def _copy_commands(folder: Path, records: Sequence[LessonRecord]) -> Iterator[str]:
    """How the records get into the course."""
    folder = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    for machine in sorted({record.environment.machine for record in records}):
        target = f"course_utils/records/{machine}"
        yield f"mkdir -p {target} && cp {folder / 'records' / machine}/*.json {target}/"
        if (folder / "timer_quality.json").exists():
            target = f"course_utils/lessons/measuring/timer_trials/{machine}.json"
            yield f"cp {folder / 'timer_quality.json'} {target}"


# The command


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--output", type=Path, default=OUTPUT, metavar="FOLDER", help="benchmarks/results/gpu")
    add("--bundle", type=Path, metavar="FILE", help="pack the folder into this .tar.gz after each part")
    add("--seconds", type=float, default=float("inf"), help="end in this time; the same command goes on")
    add("--dry-run", action="store_true", help="without a GPU: what a CPU can run, at smoke size")
    options = parser.parse_args(arguments)
    options.output = options.output.resolve()
    options.bundle = options.bundle and options.bundle.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything: 0, 1 if something failed, 2 for wrong use, 3 if time was up before everything had run."""
    options = options_of(arguments)
    # A lease runs while torch is imported, too.
    age_s = max(0.0, time.time() - psutil.Process().create_time())
    ends_at = time.monotonic() - age_s + options.seconds
    # A kill ends this program as Ctrl-C does: with the part stopped, and the summary and the bundle written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        here = recording.environment_here("smoke" if options.dry_run else "full")
        if not options.dry_run and here.device_kind != "cuda":
            raise WrongUse("torch sees no CUDA GPU here; --dry-run runs what a CPU can")
        return Run(options, here, ends_at).run()
    except (WrongUse, recording.RecordingError, lessons.LessonError) as error:
        print(f"gpu_run: {str(error).rstrip('.')}.", file=sys.stderr)
        return WRONG_USE


if __name__ == "__main__":
    sys.exit(main())
