"""Everything that needs a GPU, by one command: tests, limits, records of all lessons, and the timers side by side.

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
import re
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import gpu_summary
from course_utils.commands import recording
from course_utils.records import lessons, store
from course_utils.records.kinds.environment import Environment

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "gpu"  # ignored by git
# What nobody has measured yet comes first, what a CPU shows as well comes last.
ORDER = (
    "pinned_memory",
    "flatten_parameters",
    "flash_attention",
    "mixed_precision",
    "caching_allocator",
    "torch_compile",
    "measuring",
    "on_device_tensors",
    "memory_snapshots",
    "fsdp",
    "ddp",
)
# Tests that are started together; a file that is named nowhere is in the group "lessons".
TEST_GROUPS = {
    "measuring": ("clocks", "limits", "memory", "trace_memory", "pinned_memory"),
    "allocator": ("allocator", "caching_allocator", "memory_snapshots"),
    "ranks": ("ranks", "ddp", "fsdp"),
}
LESSON_LIMIT_S = 240.0
# With less time left than this a part is not begun, and a shorter one is: what is cut short runs again as a whole.
# Estimates: where compilers, processes and ranks have to start, it takes longer.
LEAST_S = {
    "tests-allocator": 180.0,
    "tests-ranks": 120.0,
    "tests-slow": 240.0,
    "lesson-caching_allocator": 100.0,
    "lesson-ddp": 110.0,
    "lesson-flash_attention": 110.0,
    "lesson-fsdp": 110.0,
    "lesson-torch_compile": 140.0,
}
LEAST_OF_TESTS_S, LEAST_OF_A_LESSON_S = 60.0, 75.0
# A process that is told to stop has this long to write what it has; then it is killed, with all that it started.
GRACE_S = 15.0
# Kept back at the end of --seconds, for the last summary and the bundle.
RESERVE_S = 15.0
# Importing torch takes seconds; a driver that is stuck never answers.
ASKING_S = 120.0
FAILED, WRONG_USE, UNFINISHED, INTERRUPTED = 1, 2, 3, 130


@dataclass(frozen=True)
class Part:
    """One step of the run.

    Attributes:
        name: also the name of its log.
        command: what to run.
        limit_s: the longest that it may take.
        least_s: with less time left than this it is not begun.
        variables: environment variables beside this process's own.
        tolerated: exit statuses beside 0 that count as done.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    least_s: float = 20.0
    variables: dict[str, str] = field(default_factory=dict)
    tolerated: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Attributes:
        state: ``done``, ``failed``, ``timed out`` (its own limit), ``cut short`` (the run's time was up) or
            ``not run``.
        seconds: how long it ran.
        status: exit status, if it ended by itself.
    """

    state: str
    seconds: float = 0.0
    status: int | None = None


def parts(options: argparse.Namespace, slugs: Sequence[str]) -> list[Part]:
    """All parts, in order of value.

    Args:
        options: of the command line.
        slugs: the lessons, in order.
    """
    python, out, dry = sys.executable, options.output, options.dry_run
    size = {"COURSE_SIZE": "smoke" if dry else "full", "COURSE_PROGRESS": "0"}
    # No cache of pytest's in a folder that travels; a hung test ends alone, not with all the others.
    pytest = (python, "-m", "pytest", "-v", "-rf", "--tb=short", "-p", "no:cacheprovider", "--timeout=150")
    quality = ["--budget", "0.5", "--trials", "8", "--twin-trials", "4", "--known-trials", "2", "--timer-trials", "3"]
    if dry:
        quality = ["--smoke", "--functions", "tiny op", "--conditions", "idle"]
    me = (python, "-m", "benchmarks.gpu_run", "--output", str(out))
    found = [
        Part("environment", (*me, "--describe"), 90, variables=size),
        Part(
            "limits", (python, "-m", "benchmarks.gpu_limits", "--output", str(out / "limits.json")), 150, variables=size
        ),
    ]
    nothing_to_run = 5
    tests = [
        # The tests set their size themselves: smoke size says nothing of a GPU.
        Part(
            f"tests-{group}",
            (*pytest, "-m", mark, f"--junitxml={out / f'tests-{group}.xml'}", *files),
            420,
            LEAST_S.get(f"tests-{group}", LEAST_OF_TESTS_S),
            tolerated=(nothing_to_run,),
        )
        for group, mark, files in test_groups()
    ]
    timers = Part(  # goes on at the trial where it was stopped, so any time that is left is of use
        "timer-quality",
        (python, "benchmarks/timer_quality.py", *quality, "--output", str(out / "timer_quality.json")),
        500,
        30,
    )
    limit = options.lesson_limit
    recordings = [
        Part(
            f"lesson-{slug}",
            (*me, "--lesson", slug, "--lesson-limit", str(limit)),
            limit,
            LEAST_S.get(f"lesson-{slug}", LEAST_OF_A_LESSON_S),
            variables=size,
        )
        for slug in slugs
    ]
    # If the clocks are wrong, so is everything after them.
    found += [tests[0], *recordings, *tests[1:], timers]
    unknown = sorted(set(options.parts or ()) - {name_of(part) for part in found})
    if unknown:
        raise WrongUse(f"there is no part {', '.join(unknown)}: {', '.join(dict.fromkeys(map(name_of, found)))}")
    return [part for part in found if not options.parts or name_of(part) in options.parts]


def test_groups() -> list[tuple[str, str, tuple[str, ...]]]:
    """The tests in groups that are started together: name, expression of marks, and files.

    A start costs seconds, and what is killed at the end of a lease has to run again as a whole.
    """
    names = sorted(path.stem.removeprefix("test_gpu_") for path in (ROOT / "tests" / "gpu").glob("test_gpu_*.py"))
    group_of = {name: group for group, members in TEST_GROUPS.items() for name in members}
    groups: dict[str, list[str]] = {group: [] for group in (*TEST_GROUPS, "lessons")}
    for name in names:
        groups[group_of.get(name, "lessons")].append(f"tests/gpu/test_gpu_{name}.py")
    found = [(group, "gpu and not slow", tuple(files)) for group, files in groups.items()]
    return [*found, ("slow", "gpu and slow", ("tests/gpu",))]


def name_of(part: Part) -> str:
    """The name by which ``--parts`` calls it: all lessons are one, and all tests."""
    kind = part.name.partition("-")[0]
    return {"lesson": "lessons", "tests": "tests"}.get(kind, part.name)


class WrongUse(Exception):  # noqa: N818 - becomes a message
    """The command makes no sense. The message is one sentence."""


def chosen_lessons(names: Sequence[str] | None) -> list[str]:
    """Slugs of the lessons to record, the most valuable first; new ones come last.

    Args:
        names: numbers, slugs or files; by default all lessons there are.

    Raises:
        WrongUse: if there is no such lesson.
    """
    try:
        found = [lessons.find_lesson(name) for name in names] if names else lessons.find_lessons()
    except lessons.LessonError as error:
        raise WrongUse(str(error)) from error
    place = {slug: number for number, slug in enumerate(ORDER)}
    return sorted(dict.fromkeys(lesson.slug for lesson in found), key=lambda slug: place.get(slug, len(ORDER)))


# One part


def run_part(part: Part, log: Path, limit_s: float) -> Outcome:
    """Run a part to its end or to its limit; nothing of it is left afterwards.

    Args:
        part: what to run.
        log: where its output goes.
        limit_s: the longest that it may take now.

    Raises:
        KeyboardInterrupt: on Ctrl-C; the part has ended by then.
    """
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            # Every part must import this very package, installed or not.
            env={**recording.child_variables(), "PYTHONUNBUFFERED": "1", **part.variables},
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            state = "timed out" if limit_s >= part.limit_s else "cut short"
            return Outcome(state, time.monotonic() - started)
        except BaseException:
            end(process)
            raise
    state = "done" if status == 0 or status in part.tolerated else "failed"
    return Outcome(state, time.monotonic() - started, status)


def end(process: subprocess.Popen) -> None:
    """Ask a process to stop, so that it can write what it has; then kill it and everything that it started."""
    import psutil

    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        # Children first become orphans when their parent goes, and can then no longer be found.
        family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    process.kill()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    # What is stuck in the driver is gone only when the driver lets it go.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)


def record_lesson(slug: str, output: Path, limit_s: float) -> int:
    """Record one lesson, in this process; failures are told with the notebook's own tracebacks.

    A cell that raises does not stop the others. There is no record then, and what the lesson measured is kept beside
    its log, in ``parts/<lesson>-kept``.

    Args:
        slug: the lesson.
        output: the run's folder.
        limit_s: the longest that one cell may take.

    Returns:
        The exit status.
    """
    here = described(output) or recording.environment_here()
    cells: list[dict[str, Any]] = []
    begun: dict[int, float] = {}

    def on_cell(cell: int, count: int, done: bool) -> None:
        begun.setdefault(cell, time.monotonic())
        if done:
            cells.append({"cell": cell, "seconds": round(time.monotonic() - begun[cell], 2)})
            print(f"code cell {cell} of {count}: {cells[-1]['seconds']:.1f} s", flush=True)

    told: dict[str, Any] = {"cells": cells}
    report = output / "parts" / f"lesson-{slug}.json"
    report.unlink(missing_ok=True)  # if this process is killed, what an earlier one wrote must not pass for its own
    kept = output / "parts" / f"{slug}-kept"
    started = time.monotonic()
    try:
        record = recording.record_lesson(
            lessons.find_lesson(slug),
            output / "records",
            here,
            timeout_s=limit_s,
            reference=True,
            keep_to=kept,
            on_cell=on_cell,
        )
        if remark := recording.remark_on(record, output / "records", here):
            told["remark"] = remark
            print(f"{slug}: {remark}", flush=True)
    except (recording.RecordingError, store.RecordError, recording.Stopped) as error:
        told["error"] = str(error)
        told["failures"] = [
            {"error": failure.message, "traceback": plain(failure.traceback)}
            for failure in getattr(error, "failures", ())
        ]
        if not isinstance(error, recording.CellsFailed):
            # nbclient keeps what the kernel said; our own traceback would only show how the cell was sent.
            inside = getattr(error.__cause__, "traceback", None)
            said = plain(inside) if isinstance(inside, str) else traceback.format_exc()
            told["failures"].append({"error": str(error), "traceback": said})
    for failure in told.get("failures", ()):
        print(failure["traceback"], failure["error"], sep="\n", file=sys.stderr)
    told["seconds"] = round(time.monotonic() - started, 2)
    store.write_json(report, told)
    return FAILED if "error" in told else 0


def described(output: Path) -> Environment | None:
    """The machine as the part ``environment`` found it; asking torch anew takes seconds."""
    path = output / "environment.json"
    if not path.exists():
        return None
    return Environment.from_record(json.loads(path.read_text(encoding="utf-8"))["environment"])


def plain(text: str) -> str:
    """A text without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def describe(output: Path) -> int:
    """Write what this machine is, and print it: hardware, driver, versions, variables that change results."""
    from importlib import metadata

    versions = {}
    for name in (
        "torch",
        "triton",
        "numpy",
        "ipykernel",
        "nbclient",
        "pytest",
        "nvidia-nccl-cu13",
        "nvidia-cudnn-cu13",
    ):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    found = {
        "environment": recording.environment_here().to_record(),
        "versions": versions,
        "variables": {
            key: os.environ[key] for key in sorted(os.environ) if key.startswith(("PYTORCH_", "CUDA_", "NCCL_"))
        },
        "compiler": recording.compiler() is not None,
    }
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=30, check=True)
        found["nvidia-smi"] = said.stdout
    store.write_json(output / "environment.json", found)
    print(json.dumps(found, indent=1))
    return 0


# The whole run


class Run:
    """The parts, what became of them, and the files that tell.

    Args:
        options: of the command line.
        say: prints a line.
        started: when the time that the run may take began, on the clock ``time.monotonic``; by default now.
    """

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None] = print, started: float | None = None):
        self.options, self.say = options, say
        self.output: Path = options.output
        self.started = time.monotonic() if started is None else started
        (self.output / "parts").mkdir(parents=True, exist_ok=True)
        self.parts = parts(options, chosen_lessons(options.lessons))
        state = self.output / "state.json"
        earlier = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {}
        if earlier and earlier["dry_run"] != options.dry_run:
            raise WrongUse(
                f"{self.output} holds {'a dry run' if earlier['dry_run'] else 'a real run'}: choose another --output"
            )
        self.outcomes = {name: Outcome(**values) for name, values in earlier.get("parts", {}).items()}

    @property
    def left_s(self) -> float:
        """Seconds that parts may still use."""
        if self.options.seconds is None:
            return float("inf")
        return self.options.seconds - RESERVE_S - (time.monotonic() - self.started)

    def is_done(self, part: Part) -> bool:
        """Whether a part need not run again. A lesson's record must be that of its notebook as it is now."""
        outcome = self.outcomes.get(part.name)
        if outcome is None or outcome.state != "done" or part.name in (self.options.again or ()):
            return False
        if part.name == "environment":  # another machine of the same kind may have taken the run over
            return False
        if not part.name.startswith("lesson-"):
            return True
        here = described(self.output)
        lesson = lessons.find_lesson(part.name.removeprefix("lesson-"))
        return here is not None and recording.is_current(lesson, self.output / "records", here) is not None

    def turn(self, part: Part) -> int:
        """When a part has its turn: what was never tried, then what had too little time, then what failed or hung.

        That may happen again, and must not keep the rest from its turn.
        """
        outcome = self.outcomes.get(part.name)
        if part.name == "environment" or outcome is None:
            return 0
        return {"not run": 0, "done": 0, "cut short": 1}.get(outcome.state, 2)

    def run(self) -> int:
        """Run what is not done yet.

        Returns:
            The exit status.
        """
        waiting = [part for part in self.parts if not self.is_done(part)]
        waiting.sort(key=self.turn)
        self.say(f"{len(waiting)} of {len(self.parts)} parts to run; the rest is done.")
        interrupted = False
        for number, part in enumerate(waiting, start=1):
            limit_s = min(part.limit_s, self.left_s)
            if limit_s < min(part.least_s, part.limit_s):
                self.outcomes.setdefault(part.name, Outcome("not run"))
                continue
            self.say(f"[{number}/{len(waiting)}] {part.name}, at most {limit_s:.0f} s")
            try:
                outcome = run_part(part, self.log(part), limit_s)
            except KeyboardInterrupt:
                interrupted = True
                break
            self.outcomes[part.name] = outcome
            self.say(f"    {outcome.state} after {outcome.seconds:.1f} s")
            if outcome.state != "done":
                for line in self.log(part).read_text(encoding="utf-8", errors="replace").splitlines()[-12:]:
                    self.say(f"    | {line}")
            self.keep()
        self.say("\n" + self.keep())
        if interrupted:
            self.say("Stopped. The same command goes on from here.")
            return INTERRUPTED
        states = {self.outcomes.get(part.name, Outcome("not run")).state for part in self.parts}
        if states & {"failed", "timed out"}:
            return FAILED
        if states & {"not run", "cut short"}:
            self.say("Not everything has run: the same command goes on from here.")
            return UNFINISHED
        return 0

    def log(self, part: Part) -> Path:
        """Where a part's output goes."""
        return self.output / "parts" / f"{part.name}.txt"

    def keep(self) -> str:
        """Write state, summary and bundle, and return the summary as a text."""
        outcomes = {name: asdict(found) for name, found in self.outcomes.items()}
        store.write_json(self.output / "state.json", {"dry_run": self.options.dry_run, "parts": outcomes})
        try:
            found = gpu_summary.summary(self.output, self.options.dry_run)
            store.write_json(self.output / "summary.json", found)
            text = gpu_summary.as_text(found)
        except Exception:  # what was measured is worth more than its summary, which can be made again
            text = f"The summary failed; the parts are in {self.output}.\n{traceback.format_exc()}"
        (self.output / "summary.txt").write_text(text, encoding="utf-8")
        if self.options.bundle:
            bundle(self.output, self.options.bundle)
        return text


def bundle(folder: Path, file: Path) -> None:
    """Pack a folder into one file, which is either the old one or the whole new one.

    Args:
        folder: what to pack.
        file: a ``.tar.gz``.
    """
    part = file.with_name(f".{file.name}.part")
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.resolve() not in (part.resolve(), file.resolve()):
                archive.add(path, arcname=str(path.relative_to(folder)))
    os.replace(part, file)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time: give seconds, more than 0")
    return value


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="FOLDER",
        help=f"where everything goes ({OUTPUT.relative_to(ROOT)})",
    )
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="pack the folder into this .tar.gz after each part")
    parser.add_argument(
        "--seconds", type=_seconds, help="end in this time from the start of the process; the same command goes on"
    )
    parser.add_argument("--lessons", nargs="+", metavar="LESSON", help="default: all")
    parser.add_argument(
        "--parts", nargs="+", metavar="PART", help="only these: environment, limits, lessons, tests, ..."
    )
    parser.add_argument("--again", nargs="+", metavar="NAME", help="run these once more, e.g. tests lesson-ddp")
    parser.add_argument(
        "--lesson-limit", type=_seconds, default=LESSON_LIMIT_S, metavar="SECONDS", help="for each lesson"
    )
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: what a CPU can run, at smoke size")
    # The two that this program calls itself with.
    parser.add_argument("--lesson", help=argparse.SUPPRESS)
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.output = options.output.resolve()
    options.bundle = options.bundle and options.bundle.resolve()
    return options


def sees_a_gpu() -> bool:
    """Whether torch sees a CUDA device; asked in a process of its own, so that this one holds no GPU memory.

    Raises:
        WrongUse: if torch gives no answer: a driver that hangs would otherwise take the whole lease.
    """
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    try:
        return subprocess.run([sys.executable, "-c", code], check=False, timeout=ASKING_S).returncode == 0
    except subprocess.TimeoutExpired:
        message = f"torch did not say within {ASKING_S:.0f} s whether there is a GPU; see whether nvidia-smi answers"
        raise WrongUse(message) from None


def process_start() -> float:
    """When this process began, on the clock ``time.monotonic``: a lease runs while torch is imported, too."""
    import psutil

    return time.monotonic() - max(0.0, time.time() - psutil.Process().create_time())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, or one of the parts that this program starts itself.

    Returns:
        0, 1 if something failed, 2 if the command makes no sense, 3 if time was up before everything had run.
    """
    options = _options(arguments)
    if options.describe:
        return describe(options.output)
    if options.lesson:
        return record_lesson(options.lesson, options.output, options.lesson_limit)
    try:
        if not options.dry_run and not sees_a_gpu():
            raise WrongUse("torch sees no CUDA GPU here; --dry-run runs what a CPU can")
        # A kill ends this program as Ctrl-C does: with the part stopped, and the summary and the bundle written.
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        return Run(options, lambda line: print(line, flush=True), process_start()).run()
    except WrongUse as error:
        print(f"gpu_run: {str(error).rstrip('.')}.", file=sys.stderr)
        return WRONG_USE


if __name__ == "__main__":
    sys.exit(main())
