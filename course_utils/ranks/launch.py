"""Run a torchrun program from a notebook: its output as it comes, its results as values, its failure as an exception.

The engine is torchrun (:mod:`course_utils.ranks.agent`). Added are the ranks' output and reports, the first failure
first, where each rank is when time is up, and that nothing runs on afterwards.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

import torch

from course_utils.files import variables_for_children
from course_utils.measure.busy import Watch
from course_utils.measure.machine import environment
from course_utils.measure.worked_by import ranks_worked_on_gpus
from course_utils.ranks.agent import RUN_VARIABLE, end_run, outcome_file
from course_utils.ranks.entry import DEADLINE_VARIABLE, FOLDER_VARIABLE, report_file, stack_file
from course_utils.results.rank_results import RankReport, RankResults
from course_utils.results.store import keep
from course_utils.show.progress import progress
from course_utils.show.suggestions import did_you_mean

# More ranks than this on a core only wait for each other.
RANKS_PER_CORE = 4
_POLL_S = 0.05
# Ranks write down where they are when time is up: they get this long for it, and more where the machine is busy.
_STACK_S, _LATE_STACK_S = 0.5, 5.0
_USUAL_S = 5.0
# What a cell shows of a rank, and of a long line.
_SHOWN_LINES, _LINE_CHARACTERS, _LAST_LINES = 100, 1_000, 5
_END_BYTES = 64_000  # what is read of the end of a log
# The notebook's own: where it records to, and how it draws.
_NOT_INHERITED = ("COURSE_RECORD_TO", "MPLBACKEND")
_CLOSED_BY_TORCHRUN = -signal.SIGTERM
_OFTEN = {"SIGKILL": ", often for want of memory", "SIGSEGV": ", an access to memory that is not its own"}
# Frames that start the program, each with the lines of source under it.
_FRAMES_BEFORE = re.compile(
    r'  File "(?:<frozen runpy>|[^"]*(?:elastic.multiprocessing.errors.__init__|ranks.entry)\.py)".*\n(?:    .*\n)*'
)


class RankError(RuntimeError):
    """A program's ranks did not all end well. The message has the rank that failed first, and where."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: how the ranks were started is of no help to anybody there."""
        return [f"RankError: {self}"]


def run_ranks(
    program: str | os.PathLike[str],
    *,
    ranks: int,
    args: Sequence[str | int | float] = (),
    name: str | None = None,
    timeout_s: float = 120.0,
    threads_per_rank: int | None = None,
    backend: str | None = None,
    show_output: bool = True,
) -> RankResults:
    """Run a torchrun program on several processes of this machine and return what they report.

    The program is an ordinary one: the same file runs under ``torchrun`` in a shell, on one machine or several. It
    hands over values with :func:`course_utils.ranks.programs.report`. Its working directory is the notebook's.

    Args:
        program: path of a Python file, for example ``scripts/ddp_train.py``.
        ranks: number of processes.
        args: the program's own arguments.
        name: ``lesson/experiment``, to keep the results in a record.
        timeout_s: after this many seconds all ranks say where they are, and are killed.
        threads_per_rank: threads that one CPU operation of a rank may use (``OMP_NUM_THREADS``); by default the cores
            are shared out.
        backend: ``nccl`` or ``gloo``: what the ranks shall talk through. By default NCCL where there is a GPU for each
            rank. With gloo the ranks see no GPU.
        show_output: whether to show what the ranks print, as they print it.

    Raises:
        ValueError: if an argument makes no sense, or the machine cannot carry so many ranks.
        FileNotFoundError: if there is no such program.
        RankError: if a rank raises, dies, or takes too long. No process of the run is left then, nor after Ctrl-C.

    Example:
        >>> run = run_ranks("scripts/ddp_train.py", ranks=2, args=["--epochs", 2])  # doctest: +SKIP
        >>> run[0]["loss"][-1]  # doctest: +SKIP
        0.68
    """
    path = _checked_program(program)
    if isinstance(args, str):
        raise ValueError(f'args is a list, one item for each word: args=["--epochs", 2]; got {args!r}')
    words = tuple(map(str, args))
    backend = _checked_backend(backend, ranks)  # before anybody touches a GPU: there may be no driver
    here = environment()
    _check_numbers(ranks, timeout_s, threads_per_rank, here.cpu_cores)
    threads = threads_per_rank or max(1, here.cpu_cores // ranks)
    started = time.perf_counter()
    launch = _Launch(path, words, ranks, timeout_s, _variables(backend, threads))
    with Watch() as watch, launch as run:
        with progress(name or f"{path.name} on {ranks} rank{'s' if ranks > 1 else ''}", expected_s=_USUAL_S) as bar:
            run.wait(sys.stdout if show_output else io.StringIO(), bar)
        reports = run.reports()
    backends = {report["backend"] for report in reports} - {None}
    if len(backends) == 1:
        (backend,) = backends
    on_gpus = any(report["on_gpu"] for report in reports)
    if on_gpus:
        ranks_worked_on_gpus()
    return keep(
        RankResults(
            program=path.name if os.path.isabs(program) else os.fspath(program),
            reports=tuple(RankReport(rank, report["values"]) for rank, report in enumerate(reports)),
            environment=here,
            args=words,
            backend=backend,
            threads_per_rank=threads,
            seconds=time.perf_counter() - started,
            name=name,
            parameters={"ranks": ranks, "args": list(words), "backend": backend, "threads_per_rank": threads},
            busy=watch.sentence,
            worked_by="gpu" if on_gpus else "cpu",
        )
    )


# What is asked for


def _checked_program(program: str | os.PathLike[str]) -> Path:
    path = Path(program)
    if path.is_file():
        return path.absolute()
    folder = path.parent if path.parent.is_dir() else Path()
    programs = sorted(str(file) for file in folder.glob("*.py"))
    raise FileNotFoundError(
        f"there is no program {str(program)!r}{did_you_mean(str(path), programs)}. A path is relative to the "
        f"notebook's folder; programs in {str(folder)!r}: {', '.join(programs) or 'none'}."
    )


def _check_numbers(ranks: int, timeout_s: float, threads_per_rank: int | None, cores: int) -> None:
    if ranks < 1 or timeout_s <= 0 or (threads_per_rank is not None and threads_per_rank < 1):
        raise ValueError(
            f"ranks and threads_per_rank are 1 or more, and timeout_s is more than 0; got ranks={ranks}, "
            f"threads_per_rank={threads_per_rank} and timeout_s={timeout_s}"
        )
    most = RANKS_PER_CORE * cores
    if ranks > most:
        raise ValueError(
            f"{ranks} ranks are too many for this machine's {cores} core{'s' if cores > 1 else ''}: they would only "
            f"wait for each other. Ask for {most} at most."
        )


def _checked_backend(backend: str | None, ranks: int) -> str:
    has_gpus = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    gpus = torch.cuda.device_count() if has_gpus else 0
    if backend is None:
        return "nccl" if gpus >= ranks else "gloo"
    if backend not in ("gloo", "nccl"):
        raise ValueError(f"backend is 'nccl' or 'gloo', or None to choose by machine; got {backend!r}")
    if backend == "nccl" and gpus < ranks:
        raise ValueError(
            f"NCCL needs a GPU for each rank: {ranks} were asked for, and torch sees {gpus}. Ask for fewer ranks, or "
            "leave backend= out: the ranks then run on the CPU, with gloo."
        )
    return backend


def _variables(backend: str, threads: int) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    variables["OMP_NUM_THREADS"] = variables["MKL_NUM_THREADS"] = str(threads)
    if backend == "gloo":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables_for_children(variables)


# One run


class _Launch:
    """One torchrun with all its processes, from the start until nothing is left of it."""

    def __init__(
        self, program: Path, args: tuple[str, ...], ranks: int, timeout_s: float, variables: Mapping[str, str]
    ) -> None:
        self.program, self.ranks, self.timeout_s = program, ranks, timeout_s
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="course-ranks-"))
        self.deadline = time.time() + timeout_s
        self.log = self.folder / "torchrun.log"  # torchrun's own words
        self.printed: Counter[int] = Counter()  # lines of each rank
        self.read: Counter[Path] = Counter()  # bytes of each rank's logs
        own = {RUN_VARIABLE: self.mark, FOLDER_VARIABLE: str(self.folder), DEADLINE_VARIABLE: str(self.deadline)}
        torchrun = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}", "--redirects=3"]
        torchrun += [f"--log-dir={self.folder / 'logs'}", "-m", "course_utils.ranks.entry"]
        with self.log.open("wb") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-u", "-m", "course_utils.ranks.agent", *torchrun, str(program), *args],
                env={**variables, **own},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches the notebook's kernel, which ends all the others.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        end_run(self.mark)
        self.agent.stdin.close()
        self.agent.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self, out: TextIO, bar: Any) -> None:
        """Wait for the end, and show what is printed meanwhile. Raises RankError if it takes too long."""
        while self.agent.poll() is None:
            self._show_new(out)
            late_s = time.time() - self.deadline
            if late_s > _LATE_STACK_S or (late_s > _STACK_S and all(map(self._stack, range(self.ranks)))):
                raise self._too_long()
            time.sleep(_POLL_S)
            bar.advance(_POLL_S)
        self._show_new(out)
        for rank, lines in sorted(self.printed.items()):
            if lines > _SHOWN_LINES:
                out.write(f"[rank {rank}] ... {lines} lines in all. The last:\n")
                out.writelines(f"[rank {rank}] {line}\n" for line in self._last_words(rank))

    def _show_new(self, out: TextIO) -> None:
        """Show the lines that ranks have ended since.

        From the logs of each rank: torchrun's ``--tee`` can glue lines that two ranks end at the same moment.
        """
        for path in sorted(self._logs_of("*")):
            rank = int(path.parent.name)
            with path.open("rb") as log:
                log.seek(self.read[path])
                new = log.read()
            if self.agent.returncode is None:
                new = new[: max(new.rfind(b"\n"), new.rfind(b"\r")) + 1]
            self.read[path] += len(new)
            for line in filter(None, re.split(r"[\r\n]+", new.decode(errors="replace"))):
                self.printed[rank] += 1
                if self.printed[rank] <= _SHOWN_LINES:
                    more = "... (and more on this line)" if len(line) > _LINE_CHARACTERS else ""
                    out.write(f"[rank {rank}] {line[:_LINE_CHARACTERS]}{more}\n")
        out.flush()

    def reports(self) -> list[dict[str, Any]]:
        """Values and backend of each rank, and whether it worked on a GPU. Raises RankError if not all ended well."""
        if not outcome_file(self.folder).exists():
            last = "\n".join(_last_lines(self.log, 15))
            words = "was ended from outside" if self.agent.returncode < 0 else f"ended ({self.agent.returncode})"
            raise RankError(f"torchrun {words} before its ranks were done. The last it said:\n{last}")
        failures = json.loads(outcome_file(self.folder).read_text(encoding="utf-8"))
        if failures:
            raise self._failed({int(rank): failure for rank, failure in failures.items()})
        files = [report_file(self.folder, rank) for rank in range(self.ranks)]
        nothing = {"values": {}, "backend": None, "on_gpu": False}
        return [json.loads(file.read_text(encoding="utf-8")) if file.exists() else nothing for file in files]

    # What went wrong

    def _failed(self, failures: Mapping[int, Mapping[str, Any]]) -> RankError:
        """The failure that came first: the others are its consequences."""
        # Those that torchrun told to end have the exit status of that, unless it was somebody else who told them.
        own = [rank for rank, failure in failures.items() if failure["status"] != _CLOSED_BY_TORCHRUN] or [*failures]
        first = min(own, key=lambda rank: failures[rank]["moment"])
        failure = failures[first]
        if failure["traceback"]:
            happened = f"raised {failure['message'].splitlines()[0]}"
            where = [self._shortened(failure["traceback"])]
        else:
            happened = _status_in_words(failure["status"])
            stack = self._stack(first)
            last = [f"The last that rank {first} printed:", *self._last_words(first)]
            where = ["It was here:", stack] if stack else last
        return RankError("\n".join([f"rank {first} of {self.ranks} {happened}", *where]))

    def _too_long(self) -> RankError:
        lines = [f"{self.program.name} was not done after {self.timeout_s:g} s and was ended."]
        heard = False
        for rank in range(self.ranks):
            stack = self._stack(rank)
            heard |= bool(stack)
            was = f"was here:\n{stack}" if stack else "had not started, or did not answer."
            lines.append(f"rank {rank} of {self.ranks} {was}")
        lines += [] if heard else _last_lines(self.log)
        lines.append(
            "Ranks that wait in different collective calls wait for ever; if they only need longer, allow it with "
            "timeout_s=."
        )
        return RankError("\n".join(lines))

    def _stack(self, rank: int) -> str:
        """Where a rank was, by faulthandler; empty if it was not asked."""
        file = stack_file(self.folder, rank)
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        lines = [line for line in text.splitlines() if not line.startswith(("Timeout (", "Extension modules:"))]
        return self._shortened("\n".join([*lines, ""]))

    def _logs_of(self, rank: int | str) -> list[Path]:
        """What a rank printed and its warnings, in files of torchrun's; "*" stands for all ranks."""
        return list(self.folder.glob(f"logs/*/attempt_0/{rank}/std*.log"))

    def _last_words(self, rank: int) -> list[str]:
        logs = [log for log in self._logs_of(rank) if log.stat().st_size]
        return _last_lines(max(logs, key=os.path.getmtime)) if logs else []

    def _shortened(self, text: str) -> str:
        """A traceback without the frames that start the program, and with paths as the notebook writes them."""
        return _FRAMES_BEFORE.sub("", text).strip("\n").replace(f'File "{Path.cwd()}{os.sep}', 'File "')


def _last_lines(path: Path, most: int = _LAST_LINES) -> list[str]:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _END_BYTES))
        lines = re.split(r"[\r\n]+", log.read().decode(errors="replace"))
    return [line[-_LINE_CHARACTERS:] for line in lines if line.strip()][-most:]


def _status_in_words(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    return f"died: ended by {name}{_OFTEN.get(name, '')}"
