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
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils import lesson_notebooks
from course_utils.commands import CommandError
from course_utils.files import clone_root, variables_for_children
from course_utils.lesson_notebooks import Lesson, LessonError
from course_utils.measure.compiler import compiler
from course_utils.results import store
from course_utils.results.code_hash import code_hash
from course_utils.results.environment import Environment
from course_utils.results.store import Experiment, LessonRecord, RecordError

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

CELL_LIMIT_S = 600
# Importing torch takes seconds; a driver that is stuck never answers.
ASKING_S = 120.0
_ASKED = """
import json, torch
from course_utils.measure.machine import environment
cuda, hip = torch.version.cuda, torch.version.hip
print(json.dumps({
    "environment": environment().to_record(),
    "available": torch.cuda.is_available(),
    "built_for": f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPUs",
}))
"""
# Nobody sees what the cells show: drawing it into pictures and widgets would only take time.
_SHOW_TEXT_ALONE = ("--DisplayFormatter.active_types=text/plain", "--MimeBundleFormatter.enabled=False")


class RecordingError(CommandError):
    """A lesson could not be recorded. ``traceback`` is the kernel's, where a cell raised."""

    traceback: str = ""


def satisfied(here: Environment) -> set[str]:
    """The needs that a machine meets: keys of :data:`course_utils.lesson_notebooks.NEEDS`."""
    gpus = here.gpu_count if here.device_kind == "cuda" else 0
    met = {"cuda": gpus >= 1, "two-gpus": gpus >= 2, "compiler": compiler() is not None}
    return {need for need, there in met.items() if there}


def ask_torch() -> dict[str, Any]:
    """What torch says of this machine, in a process of its own so that torch stays out of this one."""
    options = {"capture_output": True, "text": True, "timeout": ASKING_S, "env": variables_for_children(os.environ)}
    try:
        child = subprocess.run([sys.executable, "-c", _ASKED], check=False, **options)
    except subprocess.TimeoutExpired:
        raise RecordingError(
            f"torch did not describe this machine within {ASKING_S:g} s. With a GPU, see whether nvidia-smi answers"
        ) from None
    if child.returncode != 0:
        last = (child.stderr.strip() or f"exit status {child.returncode}").splitlines()[-1]
        again = "Delete the folder .venv and run `make lab` to install it again"
        advice = again if clone_root() else "Install it again: `pip install --upgrade torch`"
        raise RecordingError(f"torch does not start: {last}. {advice}")
    return json.loads(child.stdout.splitlines()[-1])


def environment_here() -> Environment:
    """This machine, as torch sees it."""
    return Environment.from_record(ask_torch()["environment"])


def interrupted_experiments(record: LessonRecord) -> list[str]:
    """Names of a record's experiments of which some part was stopped before all its rounds were done."""
    return [name for name, each in record.experiments.items() if any(_values(each.data, "interrupted"))]


def busy_experiments(record: LessonRecord) -> dict[str, str]:
    """What other programs did while an experiment, or a part of it, was measured, by the experiment's name."""
    seen = {name: next(filter(None, _values(each.data, "busy")), "") for name, each in record.experiments.items()}
    return {name: sentence for name, sentence in seen.items() if sentence}


def _values(data: Any, key: str) -> Iterator[Any]:
    """What a field holds in a result and in all its parts."""
    if isinstance(data, Mapping):
        yield from (value for name, value in data.items() if name == key)
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ()
    for part in parts:
        yield from _values(part, key)


def is_current(lesson: Lesson, root: Path, here: Environment) -> LessonRecord | None:
    """The record of a lesson on this machine, if measuring again would only repeat it; None otherwise."""
    try:
        record = store.load_lesson(store.record_path(root, here.machine, lesson.slug))
    except RecordError:
        return None
    there = record.environment
    same_machine = (there.size, there.torch, there.device_kind) == (here.size, here.torch, here.device_kind)
    if not same_machine or interrupted_experiments(record):
        return None
    for name in required(lesson, here):
        then = record.experiments.get(name)
        if then is None or then.code_hash != code_hash(lesson, name):
            return None
    return record


def required(lesson: Lesson, here: Environment) -> list[str]:
    """Experiments that run live on this machine."""
    met, needed = satisfied(here), lesson_notebooks.needs(lesson)
    return [name for name in lesson_notebooks.experiments(lesson) if met.issuperset(needed.get(name, ()))]


def record_lesson(
    lesson: Lesson,
    root: Path,
    here: Environment,
    *,
    timeout_s: int = CELL_LIMIT_S,
    reference: bool = False,
    allow_busy: bool = False,
    on_cell: Callable[[str], None] = lambda place: None,
) -> LessonRecord:
    """Execute one lesson's notebook, write its record below ``root``, and return it.

    What others rely on (``reference``) must not be interrupted, nor measured under load unless that is allowed
    (``allow_busy``). ``on_cell`` hears once a second what runs.

    Raises:
        RecordingError: if a cell fails or takes too long, the kernel dies, an experiment is missing, or the results
            are no reference.
        RecordError: if the record cannot be written.
        KeyboardInterrupt: on Ctrl-C; the kernel is gone by then.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="course-record-", ignore_cleanup_errors=True) as folder:
        staging = Path(folder)
        _run_notebook(lesson.path, staging, here.size, timeout_s, on_cell)
        record = _gather(lesson, staging / "kept", here, time.perf_counter() - started)
    if reference and (stopped := interrupted_experiments(record)):
        raise RecordingError(f"{', '.join(stopped)} was interrupted: no reference is made of half a measurement")
    if reference and not allow_busy and (busy := busy_experiments(record)):
        raise RecordingError(
            f"no reference is made of what was measured under load: {', '.join(busy)}. {next(iter(busy.values()))} "
            "Stop them and record the lesson again, or keep it as it is with --allow-busy"
        )
    store.save_lesson(record, root)
    return record


def _gather(lesson: Lesson, kept: Path, here: Environment, seconds: float) -> LessonRecord:
    """Turn the results that a kernel left in a folder into a record."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(kept.glob("*.json"))]
    staged = {result["name"]: result for result in results}
    declared = lesson_notebooks.experiments(lesson)
    if unknown := sorted(set(staged) - set(declared)):
        raise RecordingError(
            f"{', '.join(unknown)} is measured, but {lesson.path.name} does not name it in a plain string: "
            f'write name="{lesson.slug}/..." in the call'
        )
    if missing := [name for name in required(lesson, here) if name not in staged]:
        raise RecordingError(
            f"no result of {', '.join(missing)}: {lesson.path.name} names it, and no cell measured it on this machine"
        )
    experiments = {
        name: Experiment(name, staged[name]["kind"], code_hash(lesson, name), staged[name]["data"])
        for name in declared
        if name in staged
    }
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record = LessonRecord(lesson.slug, here, experiments, now, seconds)
    for name in experiments:
        # What cannot be read back must not replace what can.
        record.result(name)
    return record


# The kernel


def _run_notebook(path: Path, staging: Path, size: str, timeout_s: int, on_cell: Callable[[str], None]) -> None:
    """Run all cells; the kernel and its children are gone afterwards in any case."""
    import nbformat
    from nbclient import NotebookClient

    kept = staging / "kept"
    kept.mkdir()
    variables = variables_for_children(os.environ) | {
        "COURSE_SIZE": size,
        "COURSE_RECORD_TO": str(kept),
        "COURSE_PROGRESS": "0",
        # Start-up files of the user's IPython are no part of a lesson.
        "IPYTHONDIR": str(staging / "ipython"),
        # What torch.compile left on this disk earlier would make a first compilation look quick.
        "TORCHINDUCTOR_CACHE_DIR": str(staging / "torchinductor"),
        "TRITON_CACHE_DIR": str(staging / "triton"),
    }
    notebook = nbformat.read(path, as_version=4)
    cells = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
    running: list[int] = []
    manager = _kernel_manager(staging)
    client = NotebookClient(
        notebook, km=manager, timeout=timeout_s, on_cell_execute=lambda cell, cell_index: running.append(cell_index)
    )
    # nbclient handles signals by itself only in the main thread. Here they belong to the caller.
    with ThreadPoolExecutor(1) as pool, (staging / "kernel.log").open("wb") as log:
        run = pool.submit(asyncio.run, _execute(client, cwd=str(path.parent), env=variables, stdout=log, stderr=log))
        try:
            while wait([run], timeout=1).not_done:
                on_cell(f"{path.stem}, cell {max(len(running), 1)} of {cells}")
        except BaseException:
            # The kernel may only just have been started: until the run has noticed.
            while wait([run], timeout=0.2).not_done:
                _kill(_family(manager))
            raise
    if error := run.exception():
        raise _explained(error, notebook, running, timeout_s, manager, staging / "kernel.log") from error


def _kernel_manager(staging: Path) -> AsyncKernelManager:
    """A kernel of the interpreter that records, whatever kernels are registered."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    class ThisInterpreter(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", *_SHOW_TEXT_ALONE]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    for name in ("traitlets", "nbclient"):
        # What goes wrong is said once, by us.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return AsyncKernelManager(kernel_spec_manager=ThisInterpreter(), connection_file=str(staging / "kernel.json"))


async def _execute(client: NotebookClient, **options: Any) -> None:
    """Run all cells, and end the kernel: as a person would after a good run, at once after another."""
    manager = client.km
    try:
        await client.async_execute(**options)
        family = _family(manager)
        await manager.shutdown_kernel()
        _kill(family)
    finally:
        _kill(_family(manager))
        if client.kc is not None:
            client.kc.stop_channels()
        with contextlib.suppress(RuntimeError):
            await manager.cleanup_resources()


def _family(manager: AsyncKernelManager) -> list[Any]:
    """The kernel and all that it started, in sessions of their own or not."""
    import psutil

    # Before the kernel is started there is no process.
    with contextlib.suppress(psutil.NoSuchProcess, AttributeError):
        kernel = psutil.Process(manager.provisioner.process.pid)
        # Children become orphans when the kernel goes, and can then no longer be found.
        return [*kernel.children(recursive=True), kernel]
    return []


def _kill(family: list[Any]) -> None:
    import psutil

    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=5)


def _explained(
    error: BaseException, notebook: Any, running: list[int], timeout_s: int, manager: AsyncKernelManager, log: Path
) -> RecordingError:
    """What ended a run, in one line that names the cell."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    if not running:
        last = (log.read_text(errors="replace").strip() or str(error)).splitlines()[-1]
        return RecordingError(f"the notebook's kernel did not start: {last}")
    source = notebook.cells[running[-1]].source.strip()
    where = f"cell {running[-1] + 1} of {len(notebook.cells)} (`{source.splitlines()[0][:60]}`)"
    if isinstance(error, CellExecutionError):
        reason = (error.evalue or "").strip().partition("\n")[0]
        failure = RecordingError(f"{where}: {error.ename}: {reason}".rstrip(": "))
        failure.traceback = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback)  # without the colours of a terminal
        return failure
    if isinstance(error, CellTimeoutError):
        return RecordingError(f"{where} took longer than {timeout_s} s: mend the cell, or choose COURSE_SIZE=smoke")
    if isinstance(error, DeadKernelError):
        process = manager.provisioner.process
        status = process.poll() if process else None
        killed = "killed, often for too little memory" if status == -9 else f"exit status {status}"
        return RecordingError(f"{where}: the kernel died ({killed})")
    return RecordingError(f"{where}: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Outcome:
    """What became of one lesson: it is ``recorded``, ``skipped`` or ``failed``; without the last it has a record."""

    lesson: str
    state: str
    message: str
    record: LessonRecord | None = None
    traceback: str = ""


def record_lessons(
    chosen: list[Lesson], root: Path, here: Environment, *, repeat: bool, **options: Any
) -> Iterator[Outcome]:
    """Record lessons one after the other, with options of `record_lesson`; one that fails does not stop the others.

    Lessons whose record is current are measured only to ``repeat`` them.
    """
    # To fail before minutes of measuring, not after.
    probe = root / here.machine / ".writable.json"
    store.write_json(probe, {})
    probe.unlink(missing_ok=True)
    for lesson in chosen:
        try:
            if not repeat and (record := is_current(lesson, root, here)):
                words = f"already recorded on {record.recorded_at[:10]}; name it to measure it again"
                yield Outcome(lesson.slug, "skipped", words, record)
                continue
            record = record_lesson(lesson, root, here, **options)
        except (RecordingError, RecordError, LessonError) as error:
            if isinstance(error, RecordError) and isinstance(error.__cause__, OSError):
                raise
            yield Outcome(lesson.slug, "failed", str(error), traceback=getattr(error, "traceback", ""))
            continue
        yield Outcome(lesson.slug, "recorded", _remark(lesson, record, here), record)


def _remark(lesson: Lesson, record: LessonRecord, here: Environment) -> str:
    """How long it took, and what a reader must know: what is missing, or was disturbed."""
    remarks = [f"in {record.seconds:.0f} s"]
    if missing := [name for name in lesson_notebooks.experiments(lesson) if name not in record.experiments]:
        lacking = {need for name in missing for need in lesson_notebooks.needs(lesson).get(name, ())} - satisfied(here)
        what = " and ".join(lesson_notebooks.NEEDS[need] for need in sorted(lacking))
        remarks.append(f"without {', '.join(missing)}, which needs {what}")
    if stopped := interrupted_experiments(record):
        remarks.append(f"{', '.join(stopped)} was interrupted")
    if busy := busy_experiments(record):
        remarks.append(f"{len(busy)} of {len(record.experiments)} under load: {next(iter(busy.values()))}")
    return "; ".join(remarks)
