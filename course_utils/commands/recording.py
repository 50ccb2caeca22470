"""Recording: execute a lesson's notebook in a kernel of its own and keep the results that it names.

The process that records never uses torch: it holds no GPU context and no thread pool beside the kernel that measures.
A record is written once, whole, after the last cell. Whatever happens before that, the earlier record stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.records import lessons, store
from course_utils.records.kinds.environment import Environment
from course_utils.records.lessons import Lesson, LessonError
from course_utils.records.paired import Verdict
from course_utils.records.store import Experiment, LessonRecord, RecordError

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

DEFAULT_TIMEOUT_S = 600.0
# A record is committed: raw samples of one lesson have to stay small.
MAX_RECORD_BYTES = 200_000
# What a lesson takes about which nothing is known yet: it only starts the estimate.
_UNKNOWN_S = 60.0
_STAGING_PREFIX = "course-record-"
# Nobody sees what the cells show: drawing it into pictures and widgets would only take time.
_SHOW_TEXT_ALONE = ("--DisplayFormatter.active_types=text/plain", "--MimeBundleFormatter.enabled=False")
_SILENT = logging.getLogger("course_utils.commands.recording.silent")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@dataclass(frozen=True)
class CellFailure:
    """A cell that raised.

    Attributes:
        message: where and what, in one line.
        traceback: as the kernel told it.
    """

    message: str
    traceback: str


class RecordingError(RuntimeError):
    """A lesson could not be recorded. The message is one line and says where and why.

    Attributes:
        failures: cells that raised before, where the recording went on after them.
    """

    failures: tuple[CellFailure, ...] = ()


class CellsFailed(RecordingError):  # noqa: N818 - says more than one error
    """All cells ran, and these raised.

    Args:
        failures: in the order in which they came.
    """

    def __init__(self, failures: Sequence[CellFailure]):
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        super().__init__(failures[0].message + more)
        self.failures = tuple(failures)


class Stopped(Exception):  # noqa: N818 - not a failure: somebody asked for it
    """The recording was asked to stop.

    Attributes:
        signum: the signal: SIGINT for Ctrl-C, or SIGTERM.
        failures: cells that raised before, where the recording went on after them.
    """

    failures: tuple[CellFailure, ...] = ()

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


# What a lesson needs, and what there is


def compiler() -> str | None:
    """The C++ compiler that torch.compile would use, if there is one."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or default)


def satisfied(here: Environment) -> set[str]:
    """The needs that a machine meets.

    Args:
        here: the machine.

    Returns:
        Keys of :data:`course_utils.records.lessons.NEEDS`.
    """
    met = {
        "cuda": here.device_kind == "cuda",
        "two-gpus": here.device_kind == "cuda" and here.gpu_count >= 2,
        "compiler": compiler() is not None,
    }
    return {need for need, there in met.items() if there}


def environment_here(size: str | None = None) -> Environment:
    """This machine, read in a process of its own so that torch stays out of this one.

    Args:
        size: ``smoke`` or ``full``; by default what the machine and ``COURSE_SIZE`` say.

    Returns:
        The environment.

    Raises:
        RecordingError: if torch does not even start.
    """
    code = "import json, course_utils; print(json.dumps(course_utils.environment().to_record()))"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=child_variables(size), check=False
    )
    if child.returncode != 0:
        last = (child.stderr.strip() or f"exit status {child.returncode}").splitlines()[-1]
        raise RecordingError(f"this machine cannot be described: {last}. Run `course check`.")
    return Environment.from_record(json.loads(child.stdout.splitlines()[-1]))


def child_variables(size: str | None = None) -> dict[str, str]:
    """Environment variables for a process that works for this one.

    Args:
        size: ``smoke`` or ``full``; by default as it is.

    Returns:
        The variables.
    """
    variables = dict(os.environ)
    if size:
        variables["COURSE_SIZE"] = size
    checkout = store.package_root().parent
    if (checkout / "pyproject.toml").exists():
        # From a checkout, the child must import this very package, installed or not.
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(checkout), variables.get("PYTHONPATH")]))
    return variables


# One lesson


def interrupted_experiments(record: LessonRecord) -> list[str]:
    """Names of a record's experiments that were stopped before all their rounds were done."""
    return [name for name, experiment in record.experiments.items() if _interrupted(experiment.data)]


def _interrupted(data: Any) -> bool:
    if isinstance(data, Mapping):
        return bool(data.get("interrupted")) or any(_interrupted(value) for value in data.values())
    return isinstance(data, list) and any(_interrupted(item) for item in data)


def is_current(lesson: Lesson, root: Path, here: Environment) -> LessonRecord | None:
    """The record of a lesson on this machine, if measuring again would only repeat it.

    Args:
        lesson: the lesson.
        root: folder of the records.
        here: this machine.

    Returns:
        The record if it has the same size, the same torch and every experiment of the notebook as it is now, none of
        them interrupted; None otherwise.
    """
    try:
        record = store.load_lesson(store.record_path(root, here.machine, lesson.slug))
    except RecordError:
        return None
    there = record.environment
    if (there.size, there.torch, there.device_kind) != (here.size, here.torch, here.device_kind):
        return None
    if interrupted_experiments(record):
        return None
    for name in _required(lesson, here):
        experiment = record.experiments.get(name)
        now = lessons.fingerprint(lesson.path, name)
        if experiment is None or (experiment.code_hash, experiment.parameters_hash) != (
            now.code_hash,
            now.parameters_hash,
        ):
            return None
    return record


def _required(lesson: Lesson, here: Environment) -> list[str]:
    """Experiments that must run live on this machine."""
    met, needed = satisfied(here), lessons.needs(lesson)
    return [name for name in lessons.experiments(lesson) if met.issuperset(needed.get(name, ()))]


def record_lesson(
    lesson: Lesson,
    root: Path,
    here: Environment,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    reference: bool = False,
    keep_to: Path | None = None,
    on_cell: Callable[[int, int, bool], None] = lambda cell, cells, done: None,
) -> LessonRecord:
    """Execute one lesson's notebook and write its record.

    Args:
        lesson: the lesson.
        root: folder of the records; the file is ``<root>/<machine>/<lesson>.json``.
        here: this machine, and the size to run at.
        timeout_s: the longest that one cell may take.
        reference: whether others will rely on the record: an interrupted comparison is then refused.
        keep_to: a folder for the results of a recording that fails, one file for each experiment; what an earlier one
            left there goes once the lesson is recorded. With it, the cells after one that raises run all the same.
        on_cell: called with a code cell's number (from 1), their count, and whether the cell is done: when it starts,
            once a second while it runs, and at its end.

    Returns:
        The record, as written.

    Raises:
        RecordingError: if a cell fails or takes too long, the kernel dies, or an experiment is missing; CellsFailed
            where the recording went on after failing cells.
        RecordError: if the record cannot be written.
        Stopped: on Ctrl-C or SIGTERM; the kernel is gone by then.
    """
    started = time.perf_counter()
    with staging_folder() as staging:
        kept = staging / "kept"
        kept.mkdir()
        failures: list[CellFailure] | None = None if keep_to is None else []
        try:
            _run_notebook(lesson.path, staging, kept, here.size, timeout_s, failures, on_cell)
            if failures:
                raise CellsFailed(failures)
            record = _gather(lesson, kept, here, time.perf_counter() - started)
            if reference and (stopped := interrupted_experiments(record)):
                raise RecordingError(
                    f"{', '.join(stopped)} was interrupted: no reference is made of half a measurement"
                )
            store.save_lesson(record, root)
        except BaseException as error:
            if failures and isinstance(error, RecordingError | Stopped):
                error.failures = tuple(failures)
            if keep_to is not None:
                # Minutes of a GPU are in it, whatever the lesson failed of.
                shutil.copytree(kept, keep_to, dirs_exist_ok=True)
            raise
    if keep_to is not None:
        shutil.rmtree(keep_to, ignore_errors=True)
    return record


def _gather(lesson: Lesson, kept: Path, here: Environment, seconds: float) -> LessonRecord:
    """Turn the results that a kernel left in a folder into a record."""
    found = {}
    for file in sorted(kept.glob("*.json")):
        staged = json.loads(file.read_text(encoding="utf-8"))
        found[staged["name"]] = staged
    declared = list(lessons.experiments(lesson))
    if unknown := sorted(set(found) - set(declared)):
        raise RecordingError(
            f"{', '.join(unknown)} is measured, but {lesson.path.name} does not name it in a plain string: "
            f'write name="{lesson.slug}/..." in the call'
        )
    if missing := [name for name in _required(lesson, here) if name not in found]:
        raise RecordingError(
            f"no result of {', '.join(missing)}: {lesson.path.name} names it, and no cell measured it on this machine"
        )
    if not found:
        raise RecordingError(f"{lesson.path.name} measured nothing that has a name")
    experiments = {}
    for name in declared:
        if name in found:
            print_ = lessons.fingerprint(lesson.path, name)
            experiments[name] = Experiment(
                name, found[name]["kind"], print_.code_hash, print_.parameters_hash, found[name]["data"]
            )
    measured_with = next((e.data["environment"] for e in experiments.values() if e.data.get("environment")), None)
    record = LessonRecord(
        lesson=lesson.slug,
        environment=Environment.from_record(measured_with) if measured_with else here,
        experiments=experiments,
        recorded_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=seconds,
    )
    for name in experiments:
        # What cannot be read back must not replace what can.
        record.result(name)
    return record


# The kernel


def _run_notebook(
    path: Path,
    staging: Path,
    kept: Path,
    size: str,
    timeout_s: float,
    failures: list[CellFailure] | None,
    on_cell: Callable[[int, int, bool], None],
) -> None:
    """Run a notebook; with a list for failures, cells that raise are put there and the next one runs."""
    import nbformat
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from nbclient import NotebookClient

    class ThisInterpreter(KernelSpecManager):
        """Whatever kernels are registered: the notebook runs in the interpreter that records."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(
                argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", *_SHOW_TEXT_ALONE],
                display_name="Python 3",
                language="python",
            )

    variables = child_variables(size) | {
        "COURSE_RECORD_TO": str(kept),
        "COURSE_PROGRESS": "0",
        # Start-up files of the user's IPython are no part of a lesson.
        "IPYTHONDIR": str(staging / "ipython"),
        # What torch.compile left on this disk earlier would make a first compilation look quick.
        "TORCHINDUCTOR_CACHE_DIR": str(staging / "torchinductor"),
        "TRITON_CACHE_DIR": str(staging / "triton"),
    }
    notebook = nbformat.read(path, as_version=4)
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=ThisInterpreter(),
        connection_file=str(staging / "kernel.json"),
        log=_SILENT,
    )
    client = NotebookClient(notebook, km=manager, timeout=timeout_s, log=_SILENT, allow_errors=failures is not None)
    asyncio.run(_run_until_stopped(client, path, staging, variables, timeout_s, failures, on_cell))


async def _run_until_stopped(
    client: NotebookClient,
    path: Path,
    staging: Path,
    variables: dict[str, str],
    timeout_s: float,
    failures: list[CellFailure] | None,
    on_cell: Callable[[int, int, bool], None],
) -> None:
    """Run all cells, or until a signal comes. The kernel and its children are gone afterwards in any case."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def on_signal(signum: int, _frame: Any) -> None:
        loop.call_soon_threadsafe(lambda: stop.done() or stop.set_result(signum))

    # nbclient handles SIGINT by itself only where event loops know signals; this works everywhere.
    previous = {signum: signal.signal(signum, on_signal) for signum in (signal.SIGINT, signal.SIGTERM)}
    current: list[tuple[int, int]] = []

    def remember(cell: int, count: int, done: bool) -> None:
        current[:] = [] if done else [(cell, count)]
        on_cell(cell, count, done)

    cells = asyncio.ensure_future(_run_cells(client, path, staging, variables, timeout_s, failures, remember))
    gently = False
    try:
        while not (cells.done() or stop.done()):
            await asyncio.wait({cells, stop}, timeout=1, return_when=asyncio.FIRST_COMPLETED)
            for cell, count in current:
                on_cell(cell, count, False)
        if stop.done():
            raise Stopped(stop.result())
        cells.result()
        gently = True
    finally:
        await _stop_kernel(client, gently)
        cells.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await cells
        for signum, handler in previous.items():
            signal.signal(signum, handler)


async def _run_cells(
    client: NotebookClient,
    path: Path,
    staging: Path,
    variables: dict[str, str],
    timeout_s: float,
    failures: list[CellFailure] | None,
    on_cell: Callable[[int, int, bool], None],
) -> None:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client.reset_execution_trackers()
    log = staging / "kernel.log"
    with log.open("wb") as output:
        await client.async_start_new_kernel(cwd=str(path.parent), env=variables, stdout=output, stderr=output)
    try:
        await client.async_start_new_kernel_client()
    except RuntimeError as error:
        last = (log.read_text(errors="replace").strip() or str(error)).splitlines()[-1]
        raise RecordingError(f"the notebook's kernel did not start: {last}") from error
    indices = [i for i, cell in enumerate(client.nb.cells) if cell.cell_type == "code" and cell.source.strip()]
    for number, index in enumerate(indices, start=1):
        cell = client.nb.cells[index]
        where = f"cell {index + 1} of {len(client.nb.cells)} (`{cell.source.strip().splitlines()[0][:60]}`)"
        on_cell(number, len(indices), False)
        try:
            await client.async_execute_cell(cell, index)
        except CellExecutionError as error:
            raise RecordingError(_said(where, error.ename, error.evalue)) from error
        except CellTimeoutError as error:
            raise RecordingError(
                f"{where} took longer than {timeout_s:g} s: allow more with --timeout, or mend the cell"
            ) from error
        except DeadKernelError as error:
            raise RecordingError(f"{where}: the kernel died{_cause_of_death(client.km)}") from error
        if failures is not None:
            failures += [
                CellFailure(_said(where, output.ename, output.evalue), "\n".join(output.traceback))
                for output in cell.outputs
                if output.output_type == "error"
            ]
        on_cell(number, len(indices), True)


def _said(where: str, name: str, value: str) -> str:
    """What a cell raised, in one line."""
    reason = (value or "").strip().splitlines() or [""]
    return f"{where}: {name}: {reason[0]}".rstrip(": ")


def _cause_of_death(manager: AsyncKernelManager) -> str:
    process = getattr(manager.provisioner, "process", None)
    status = process.poll() if process is not None else None
    if status is None:
        return ""
    if status >= 0:
        return f" (exit status {status})"
    name = signal.Signals(-status).name
    return f" ({name}: often too little memory)" if name == "SIGKILL" else f" ({name})"


async def _stop_kernel(client: NotebookClient, gently: bool) -> None:
    """End the kernel and everything that it started, in sessions of their own or not."""
    import psutil

    manager = client.km
    if manager is None:
        return
    process = getattr(manager.provisioner, "process", None)
    family: list[psutil.Process] = []
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            kernel = psutil.Process(process.pid)
            # Children first become orphans when the kernel goes, and can then no longer be found.
            family = [*kernel.children(recursive=True), kernel]
    if gently and await manager.is_alive():
        await manager.shutdown_kernel()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=5)
    if client.kc is not None:
        client.kc.stop_channels()
    with contextlib.suppress(RuntimeError):
        await manager.cleanup_resources()


# Staging: what a kernel leaves until its lesson is done


@contextlib.contextmanager
def staging_folder() -> Iterator[Path]:
    """A folder for one lesson's results in the making. Its name bears our process id: a later run sees if we live."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_STAGING_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean_up(root: Path) -> int | None:
    """Remove what killed recordings left behind.

    Args:
        root: folder of the records: half-written files lie there.

    Returns:
        The process id of another recording that is still running; then nothing of it is touched, nor any half-written
        file. None if there is none.
    """
    other = None
    for folder in Path(tempfile.gettempdir()).glob(f"{_STAGING_PREFIX}*-*"):
        owner = _owner(folder)
        if owner is not None and owner != os.getpid():
            other = owner
        elif owner is None:
            shutil.rmtree(folder, ignore_errors=True)
    if other is None:
        for file in root.glob("*/.*.json.*.tmp"):
            with contextlib.suppress(OSError):
                file.unlink()
    return other


def _owner(folder: Path) -> int | None:
    """The living process that made a staging folder, if it still lives."""
    import psutil

    digits = folder.name.removeprefix(_STAGING_PREFIX).partition("-")[0]
    if not digits.isdigit():
        return None
    try:
        # A process that is younger than the folder only has the same number.
        return int(digits) if psutil.Process(int(digits)).create_time() <= folder.stat().st_mtime + 1 else None
    except (psutil.Error, OSError):
        return None


# All lessons


@dataclass(frozen=True)
class Outcome:
    """What became of one lesson.

    Attributes:
        lesson: its slug.
        state: ``recorded``, ``skipped``, ``failed`` or ``not run``.
        seconds: how long it ran.
        experiments: how many results were kept.
        verdicts: how often each verdict was reached, over all comparisons with a baseline.
        message: why it failed or was skipped, or what a reader must know.
    """

    lesson: str
    state: str
    seconds: float = 0.0
    experiments: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    message: str = ""


def verdicts_of(record: LessonRecord) -> dict[str, int]:
    """How often each verdict was reached in a lesson.

    Args:
        record: the lesson's record.

    Returns:
        Number of cases by verdict, over all comparisons, points of sweeps and rounds of ranks; baselines do not count.
    """
    found = Counter(
        reading.verdict for name in record.experiments for reading in record.result(name).readings() if reading.verdict
    )
    return {verdict: found[verdict] for verdict in Verdict if found[verdict]}


def expected_seconds(chosen: list[Lesson], root: Path, here: Environment, *, repeat: bool) -> dict[str, float]:
    """How long lessons will take, judged from earlier records.

    Args:
        chosen: lessons, in order.
        root: folder of the records that are about to be made.
        here: this machine, and the size to run at.
        repeat: whether lessons whose record is current are measured again.

    Returns:
        Seconds by slug: of this machine's earlier record, else of the newest one of such a device at that size, else
        the median of the other lessons; 0 for a lesson that will be skipped.
    """
    expected: dict[str, float | None] = {}
    for lesson in chosen:
        skipped = not repeat and is_current(lesson, root, here) is not None
        expected[lesson.slug] = 0.0 if skipped else _earlier_seconds(lesson.slug, root, here)
    known = [seconds for seconds in expected.values() if seconds]
    typical = statistics.median(known) if known else _UNKNOWN_S
    return {slug: typical if seconds is None else seconds for slug, seconds in expected.items()}


def _earlier_seconds(slug: str, root: Path, here: Environment) -> float | None:
    alike = []
    for folder in dict.fromkeys([root, store.results_root(), store.reference_root()]):
        for path in folder.glob(f"*/{slug}.json"):
            with contextlib.suppress(RecordError):
                record = store.load_lesson(path)
                there = record.environment
                if (there.size, there.device_kind) == (here.size, here.device_kind):
                    alike.append((there.machine == here.machine, record.recorded_at, record.seconds))
    return max(alike)[2] if alike else None


def check_writable(folder: Path) -> None:
    """Fail before minutes of measuring, not after, when a folder cannot be written.

    Args:
        folder: where a record will go.

    Raises:
        RecordError: if it cannot.
    """
    probe = folder / f".writable-{os.getpid()}.json"
    store.write_json(probe, {})
    probe.unlink(missing_ok=True)


def record_lessons(
    chosen: list[Lesson],
    root: Path,
    here: Environment,
    *,
    repeat: bool,
    reference: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_cell: Callable[[str, int, int, bool], None] = lambda lesson, cell, cells, done: None,
) -> Iterator[Outcome]:
    """Record lessons one after the other. A lesson that fails does not stop the others.

    Args:
        chosen: lessons, in order.
        root: folder of the records.
        here: this machine, and the size to run at.
        repeat: whether lessons whose record is current are measured again.
        reference: whether others will rely on the records.
        timeout_s: the longest that one cell may take.
        on_cell: called with the lesson's slug, a cell's number, the number of cells, and whether the cell is done.

    Yields:
        What became of each lesson, as soon as it is known.

    Raises:
        RecordError: if records cannot be written there at all.
        Stopped: on Ctrl-C or SIGTERM.
    """
    check_writable(root / here.machine)
    broken_disk = ""
    for lesson in chosen:
        started = time.perf_counter()
        if broken_disk:
            yield Outcome(lesson.slug, "not run", message=broken_disk)
            continue
        try:
            if not repeat and (record := is_current(lesson, root, here)):
                yield Outcome(
                    lesson.slug,
                    "skipped",
                    record.seconds,
                    len(record.experiments),
                    verdicts_of(record),
                    f"already recorded on {record.recorded_at[:10]}; --force measures again",
                )
                continue
            record = record_lesson(
                lesson,
                root,
                here,
                timeout_s=timeout_s,
                reference=reference,
                on_cell=lambda cell, cells, done, slug=lesson.slug: on_cell(slug, cell, cells, done),
            )
        except (RecordingError, RecordError, LessonError) as error:
            yield Outcome(lesson.slug, "failed", time.perf_counter() - started, message=str(error))
            if isinstance(error.__cause__, OSError):
                broken_disk = "records cannot be written there"
            continue
        remark = remark_on(record, root, here)
        yield Outcome(lesson.slug, "recorded", record.seconds, len(record.experiments), verdicts_of(record), remark)


def remark_on(record: LessonRecord, root: Path, here: Environment) -> str:
    """What a reader of a record must know: what is not in it, what was cut off, and whether it is too large.

    Args:
        record: a lesson's record, as written.
        root: folder of the records.
        here: this machine.

    Returns:
        One line, empty if there is nothing to say.
    """
    remarks = []
    lesson = lessons.find_lesson(record.lesson)
    missing = [name for name in lessons.experiments(lesson) if name not in record.experiments]
    if missing:
        lacking = {need for name in missing for need in lessons.needs(lesson).get(name, ())} - satisfied(here)
        what = " and ".join(lessons.NEEDS[need] for need in sorted(lacking))
        remarks.append(f"without {', '.join(missing)}, which needs {what}")
    if stopped := interrupted_experiments(record):
        remarks.append(f"{', '.join(stopped)} was interrupted")
    size = store.record_path(root, record.environment.machine, record.lesson).stat().st_size
    if size >= MAX_RECORD_BYTES:
        remarks.append(f"{size / 1000:.0f} kB; a lesson's record should stay below {MAX_RECORD_BYTES // 1000} kB")
    return "; ".join(remarks)
