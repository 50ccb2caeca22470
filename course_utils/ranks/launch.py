"""Run a torchrun program from a notebook: its output as it comes, its results as values, its failure as an exception.

The engine is ``python -m torch.distributed.run``. What is added: the output of each rank, line by line and not
endless; what each rank reports; the first failure first; where each rank is when time is up; and nothing that runs on
afterwards, whatever the program or the notebook does (:mod:`course_utils.ranks.supervisor`).

A program imports :func:`report`, :func:`timed_rounds` and :func:`memory_by_kind` from here.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from course_utils.ranks.entry import FOLDER_VARIABLE, failure_file, report_file, stack_file
from course_utils.ranks.reports import memory_by_kind, report, timed_rounds
from course_utils.ranks.supervisor import (
    POLL_S,
    RUN_VARIABLE,
    agent_log,
    end_marked,
    outcome_file,
    rank_logs,
)
from course_utils.records.kinds.rank_results import RankReport, RankResults

__all__ = ["RankError", "memory_by_kind", "report", "run_ranks", "timed_rounds"]

DEFAULT_TIMEOUT_S = 120.0
BACKENDS = ("gloo", "nccl")
# A rank that has imported torch and trains a small model holds about this much; one with a CUDA build some more.
RANK_BYTES = 400 * 2**20
# More ranks than this on a core only wait for each other.
RANKS_PER_CORE = 4
MOST_LOG_BYTES = 256 * 2**20
# What a cell shows of one rank, and how much of a long line.
_SHOWN_LINES, _SHOWN_BYTES, _LINE_CHARACTERS = 100, 16_000, 1_000
_CHUNK_BYTES = 64_000
_LAST_LINES = 5
_USUAL_S = 5.0
_FOLDER_PREFIX = "course-ranks-"
_CGROUP = Path("/sys/fs/cgroup")
# What torchrun and the notebook's kernel put into the environment for themselves, and what would change a launch.
_NOT_INHERITED = frozenset(
    {
        "COURSE_RECORD_TO",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "MPLBACKEND",
        "RANK",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "WORLD_SIZE",
    }
)
_NOT_INHERITED_PREFIXES = ("PET_", "TORCHELASTIC_", "COURSE_RANKS_")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_CAUSED_BY_TORCHRUN = -15
_SUMMARY = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+)")
_LOGGED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}


class RankError(RuntimeError):
    """A program's ranks did not all end well. Shows the failed rank's own traceback first.

    Attributes:
        reason: ``raised``, ``died`` (without a traceback: by a signal, or by an exit status), ``timed out``,
            ``printed too much`` or ``did not start``.
        rank: the rank that failed first; None if it was not one of them.
        traceback: its traceback as text; for a death by SIGSEGV or SIGABRT the Python stack where it died.
        stacks: where each rank was when time was up, by rank.
        exit_status: of the rank that failed; negative for a signal, None if unknown.
        reported_after_s: seconds from the failure until the notebook had it; None if there is no such moment.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        rank: int | None = None,
        traceback: str = "",
        stacks: Mapping[int, str] | None = None,
        exit_status: int | None = None,
        reported_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.rank = rank
        self.traceback = traceback
        self.stacks = dict(stacks or {})
        self.exit_status = exit_status
        self.reported_after_s = reported_after_s

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: how the ranks were started is of no help to anybody there."""
        return [f"RankError: {self}"]


def run_ranks(
    program: str | os.PathLike[str],
    *,
    ranks: int,
    args: Sequence[str | int | float] = (),
    name: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    threads_per_rank: int | None = None,
    backend: str | None = None,
    variables: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    show_output: bool = True,
) -> RankResults:
    """Run a torchrun program on several processes of this machine and return what they report.

    The program is an ordinary one: the same file runs under ``torchrun`` in a shell, on one machine or several. It
    hands over values with :func:`course_utils.ranks.launch.report`. Its working directory is the notebook's.

    Args:
        program: path of a Python file, for example ``scripts/ddp_train.py``.
        ranks: number of processes.
        args: the program's own arguments.
        name: ``lesson/experiment``, to keep the results in a record.
        timeout_s: after this many seconds all ranks are asked where they are, and killed.
        threads_per_rank: threads that one CPU operation of a rank may use (``OMP_NUM_THREADS``); by default the cores
            are shared out.
        backend: ``nccl`` or ``gloo``: what the ranks shall talk through. By default NCCL where there is a GPU for each
            rank. With gloo the ranks see no GPU.
        variables: more environment variables for the ranks.
        parameters: problem sizes and settings, for the record.
        notes: what a reader must know, in words.
        show_output: whether to show what the ranks print, as they print it.

    Returns:
        What each rank reported, shown as a table.

    Raises:
        ValueError: if an argument makes no sense, or the machine cannot carry so many ranks.
        FileNotFoundError: if there is no such program.
        RankError: if a rank raises, dies, or takes too long. No process of the run is left then, nor after Ctrl-C.

    Example:
        >>> run = run_ranks("scripts/ddp_train.py", ranks=2, args=["--steps", 20])  # doctest: +SKIP
        >>> run[0]["loss"][-1]  # doctest: +SKIP
        0.68
    """
    from course_utils.measure.machine import environment
    from course_utils.records.store import keep
    from course_utils.show.progress import progress

    path = _checked_program(program)
    given = _checked_arguments(args)
    _check_numbers(ranks, timeout_s, threads_per_rank)
    here = environment()
    _check_capacity(ranks, here.cpu_cores)
    backend = _checked_backend(backend, ranks)
    threads = threads_per_rank or max(1, here.cpu_cores // ranks)
    run = _Run(path, given, ranks, timeout_s, _variables(variables, backend, threads))
    started = time.perf_counter()
    with run:
        with progress(name or f"{path.name} on {ranks} rank{'s' if ranks > 1 else ''}", expected_s=_USUAL_S) as bar:
            run.wait(sys.stdout if show_output else None, bar.advance)
        seconds = time.perf_counter() - started
        told = run.results()
    used = {one["backend"] for one in told if one["backend"]}
    if len(used) == 1:
        (backend,) = used
    shown = os.fspath(program)
    settings = {"ranks": ranks, "args": list(given), "backend": backend, "threads_per_rank": threads}
    return keep(
        RankResults(
            program=shown if not os.path.isabs(shown) else path.name,
            reports=tuple(RankReport(rank, one["values"]) for rank, one in enumerate(told)),
            environment=here,
            args=given,
            backend=backend,
            threads_per_rank=threads,
            seconds=seconds,
            name=name,
            parameters={**settings, **(parameters or {})},
            notes=tuple(notes),
        )
    )


# What is asked for


def _checked_program(program: str | os.PathLike[str]) -> Path:
    path = Path(program)
    if path.is_file():
        return path.absolute()
    if path.is_dir():
        raise FileNotFoundError(f"{program} is a folder: name the Python file in it that each rank shall run")
    folder = path.parent if path.parent.is_dir() else Path()
    there = sorted(str(folder / file.name) for file in folder.glob("*.py"))
    close = difflib.get_close_matches(str(path), there, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise FileNotFoundError(
        f"there is no program {str(program)!r}.{hint} A path is relative to the notebook's folder; "
        f"programs in {str(folder)!r}: {', '.join(there) or 'none'}."
    )


def _checked_arguments(args: Sequence[str | int | float]) -> tuple[str, ...]:
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise ValueError(f'args is a list, one item for each word: args=["--steps", 20]; got {args!r}')
    for item in args:
        if isinstance(item, bool) or not isinstance(item, str | int | float | os.PathLike):
            raise ValueError(f'args holds {item!r}: a command line is made of texts and numbers, as in ["--steps", 20]')
    return tuple(os.fspath(item) if isinstance(item, os.PathLike) else str(item) for item in args)


def _check_numbers(ranks: int, timeout_s: float, threads_per_rank: int | None) -> None:
    for value, what in ((ranks, "ranks"), (threads_per_rank, "threads_per_rank")):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and value >= 1) and not (value is None and what != "ranks"):
            raise ValueError(f"{what} is a whole number, 1 or more; got {value!r}")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < float("inf"):
        raise ValueError(f"timeout_s is a number of seconds, more than 0; got {timeout_s!r}")


def _check_capacity(ranks: int, cores: int) -> None:
    most = RANKS_PER_CORE * cores
    if ranks > most:
        raise ValueError(
            f"{ranks} ranks are too many for this machine's {cores} core{'s' if cores > 1 else ''}: they would only "
            f"wait for each other. Ask for {most} at most."
        )
    available = _available_bytes()
    if ranks * RANK_BYTES > available:
        from course_utils.show.formats import format_bytes

        raise ValueError(
            f"{ranks} ranks need about {format_bytes(ranks * RANK_BYTES)} of memory, and {format_bytes(available)} are "
            f"free: ask for {max(1, available // RANK_BYTES)} at most, or free what other notebooks hold."
        )


def _available_bytes() -> int:
    """Memory that new processes can have: of the machine, and of the container if there is one."""
    import psutil

    available = psutil.virtual_memory().available
    for limit, used, cached in (
        ("memory.max", "memory.current", "memory.stat: inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat: total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            free = int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
            # Files that were read once count as used, but give way to any process that asks.
            statistics, _, kind = cached.partition(": ")
            counts = dict(line.split() for line in (_CGROUP / statistics).read_text().splitlines())
            available = min(available, free + int(counts.get(kind, 0)))
    return max(0, available)


def _checked_backend(backend: str | None, ranks: int) -> str:
    import torch

    gpus = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
    if backend is None:
        return "nccl" if gpus >= ranks else "gloo"
    if backend not in BACKENDS:
        raise ValueError(f"backend is 'nccl' or 'gloo', or None to choose by machine; got {backend!r}")
    if backend == "nccl" and gpus < ranks:
        raise ValueError(
            f"NCCL needs a GPU for each rank: {ranks} were asked for, and torch sees {gpus}. Ask for fewer ranks, or "
            "leave backend= out: the ranks then run on the CPU, with gloo."
        )
    return backend


def _variables(more: Mapping[str, str] | None, backend: str, threads: int) -> dict[str, str]:
    """The environment of torchrun and its ranks."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in _NOT_INHERITED and not key.startswith(_NOT_INHERITED_PREFIXES)
    }
    inherited.setdefault("PYTHONIOENCODING", "utf-8:backslashreplace")
    # How long torchrun waits for ranks that do not end when they are told to, once another has failed (torch 2.13).
    inherited["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "2"
    inherited |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    if backend == "gloo":
        inherited["CUDA_VISIBLE_DEVICES"] = ""
    for key, value in (more or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"variables maps names to texts; got {key!r}: {value!r}")
        if key in _NOT_INHERITED or key.startswith(_NOT_INHERITED_PREFIXES) or key in _THREAD_VARIABLES:
            raise ValueError(f"{key} is set by run_ranks itself: leave it out of variables=")
        inherited[key] = value
    # The ranks must import this very package, installed or not.
    package = str(Path(__file__).resolve().parents[2])
    inherited["PYTHONPATH"] = os.pathsep.join(filter(None, [package, inherited.get("PYTHONPATH")]))
    return inherited


# One run


@dataclass
class _Stream:
    """A file that one rank prints into, and how much of it was shown."""

    rank: int
    offset: int = 0
    rest: bytes = b""
    inside_long_line: bool = False

    def lines(self, new: bytes) -> list[bytes]:
        """The lines that are complete with what is new; of a very long one the beginning, once."""
        *lines, self.rest = re.split(rb"[\r\n]+", self.rest + new)
        if self.inside_long_line and lines:
            del lines[0]
            self.inside_long_line = False
        if self.inside_long_line:
            self.rest = b""
        elif len(self.rest) > _SHOWN_BYTES:
            lines.append(self.rest)
            self.rest = b""
            self.inside_long_line = True
        return [line for line in lines if line]


@dataclass
class _Shown:
    """What a cell has shown of one rank."""

    lines: int = 0
    size: int = 0
    cut: bool = False


class _Run:
    """One torchrun with its supervisor, from the start until nothing is left of it."""

    def __init__(
        self, program: Path, args: tuple[str, ...], ranks: int, timeout_s: float, variables: Mapping[str, str]
    ) -> None:
        self.program = program
        self.ranks = ranks
        self.timeout_s = timeout_s
        self.mark = uuid.uuid4().hex
        _remove_old_folders()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-"))
        except OSError as error:
            raise RankError(
                f"the ranks need a folder for their output, and none can be made: {error.strerror}. Set TMPDIR to a "
                "folder that you may write to, and restart the kernel.",
                reason="did not start",
            ) from error
        self._keep_folder = False
        self._streams: dict[Path, _Stream] = {}
        self._shown = {rank: _Shown() for rank in range(ranks)}
        self._variables = {**variables, FOLDER_VARIABLE: str(self.folder), RUN_VARIABLE: self.mark}
        self._plan = {
            "folder": str(self.folder),
            "ranks": ranks,
            "timeout_s": timeout_s,
            "most_log_bytes": MOST_LOG_BYTES,
            "command": [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
                *(f"--nproc-per-node={ranks}", f"--log-dir={self.folder / 'logs'}", "--redirects=3"),
                *("-m", "course_utils.ranks.entry", str(program), *args),
            ],
        }
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Run:
        apart: dict[str, Any] = (
            {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
            if sys.platform == "win32"
            # Ctrl-C reaches the notebook's kernel, and from there the supervisor: not torchrun on its own.
            else {"start_new_session": True}
        )
        try:
            with (self.folder / "supervisor.log").open("wb") as log:
                self._supervisor = subprocess.Popen(
                    [sys.executable, "-m", "course_utils.ranks.supervisor"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=self._variables,
                    **apart,
                )
            self._supervisor.stdin.write(json.dumps(self._plan).encode() + b"\n")
            self._supervisor.stdin.flush()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _end(self) -> None:
        supervisor = self._supervisor
        try:
            if supervisor is not None:
                # Closed input ends all of it, even if this wait is interrupted as well.
                with contextlib.suppress(OSError):
                    supervisor.stdin.close()
                if sys.platform != "win32" and supervisor.poll() is None:
                    # A process that was forked off this one meanwhile (a DataLoader's worker) may hold its input open.
                    supervisor.terminate()
                try:
                    supervisor.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    supervisor.kill()
                    supervisor.wait()
                if supervisor.returncode != 0:
                    end_marked(self.mark)
        finally:
            if self._keep_folder:
                atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
            else:
                shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self, out: TextIO | None, advance: Any) -> None:
        """Wait for the end; show what is printed meanwhile.

        Args:
            out: where to; None to show nothing.
            advance: told how many seconds have passed.
        """
        before = time.perf_counter()
        while True:
            ended = self._supervisor.poll() is not None
            if out is not None:
                self._show_new(out, last=ended)
            if ended:
                break
            time.sleep(POLL_S)
            now = time.perf_counter()
            advance(now - before)
            before = now
        if out is not None:
            self._say_what_was_cut(out)

    # Output

    def _show_new(self, out: TextIO, last: bool) -> None:
        for path in rank_logs(self.folder):
            stream = self._streams.setdefault(path, _Stream(int(path.parent.name)))
            shown = self._shown[stream.rank]
            # Whoever ends the supervisor from outside makes it remove the folder.
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(stream.offset)
                while not shown.cut and (new := file.read(_CHUNK_BYTES)):
                    stream.offset += len(new)
                    for line in stream.lines(new):
                        self._show(out, stream.rank, line)
            if last and stream.rest:
                self._show(out, stream.rank, stream.rest)
        out.flush()

    def _show(self, out: TextIO, rank: int, line: bytes) -> None:
        shown = self._shown[rank]
        if shown.lines >= _SHOWN_LINES or shown.size >= _SHOWN_BYTES:
            shown.cut = True
        if shown.cut:
            return
        text = line.decode("utf-8", "replace")
        if len(text) > _LINE_CHARACTERS:
            text = f"{text[:_LINE_CHARACTERS]}... (and more on this line)"
        out.write(f"[rank {rank}] {text}\n")
        shown.lines += 1
        shown.size += len(text)

    def _say_what_was_cut(self, out: TextIO) -> None:
        cut = [rank for rank, shown in self._shown.items() if shown.cut and self.folder.is_dir()]
        for rank in cut:
            logs = [path for path, stream in self._streams.items() if stream.rank == rank]
            size = sum(path.stat().st_size for path in logs)
            out.write(f"[rank {rank}] ... and so on, {size / 2**20:.1f} MiB in all. It ends with:\n")
            for line in _last_lines(max(logs, key=lambda path: path.stat().st_mtime)):
                out.write(f"[rank {rank}] {line}\n")
        if cut:
            self._keep_folder = True
            where = rank_logs(self.folder)[0].parent.parent
            out.write(f"All that was printed is in {where} until this kernel ends.\n")
        left = self._outcome().get("left_behind", 0)
        if left:
            out.write(f"{left} process{'es' if left > 1 else ''} that the program left behind had to be ended.\n")
        out.flush()

    # The end

    def _outcome(self) -> dict[str, Any]:
        try:
            return json.loads(outcome_file(self.folder).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"reason": "lost", "exit_status": None, "killed_at": None, "last_alive": {}}

    def results(self) -> list[dict[str, Any]]:
        """What each rank reported.

        Returns:
            Values and backend, by rank.

        Raises:
            RankError: if not all ranks ended well.
        """
        outcome = self._outcome()
        failures = {rank: found for rank in range(self.ranks) if (found := _json(failure_file(self.folder, rank)))}
        if outcome["reason"] in ("timed out", "printed too much"):
            raise self._too_long() if outcome["reason"] == "timed out" else self._too_much()
        if outcome["reason"] != "ended" or outcome["exit_status"] != 0 or failures:
            raise self._failed(outcome, failures)
        return [_json(report_file(self.folder, rank)) or {"values": {}, "backend": None} for rank in range(self.ranks)]

    def _failed(self, outcome: Mapping[str, Any], failures: Mapping[int, Mapping[str, Any]]) -> RankError:
        """The failure that came first: the others are mostly its consequences."""
        said = agent_log(self.folder).read_text(encoding="utf-8", errors="replace") if self.folder.is_dir() else ""
        statuses = {int(rank): int(status) for status, rank in _LOGGED.findall(said)}
        statuses |= {int(rank): int(status) for rank, status in _SUMMARY.findall(said)}
        alive = {int(rank): seen for rank, seen in outcome["last_alive"].items()}
        killed_at = outcome["killed_at"] or float("inf")
        deaths = {
            rank: alive.get(rank, 0.0)
            for rank, status in statuses.items()
            if rank not in failures
            and status not in (0, _CAUSED_BY_TORCHRUN)
            # Ranks that had to be killed were alive until then.
            and not (status == -9 and alive.get(rank, 0.0) > killed_at - 3 * POLL_S)
        }
        moments = {**deaths, **{rank: failure["time"] for rank, failure in failures.items()}}
        if not moments:
            last = "\n".join(_last_lines(agent_log(self.folder), 15)) or "It printed nothing."
            words = "was ended from outside" if outcome["reason"] == "lost" else f"ended ({outcome['exit_status']})"
            return RankError(f"torchrun {words} before its ranks were done. The last it said:\n{last}", reason="died")
        rank = min(moments, key=moments.__getitem__)
        seconds = time.time() - moments[rank] if moments[rank] else None
        others = [
            f"rank {other} {'failed' if other in failures else 'died'} after it"
            + (f": {_first_words(failures[other]['message'])}" if other in failures else "")
            for other in sorted(moments, key=moments.__getitem__)
            if other != rank
        ]
        failure = failures.get(rank)
        status = failure["status"] if failure is not None else statuses.get(rank)
        if failure is not None and failure["traceback"]:
            text, words, reason = self._shortened(failure["traceback"]), f"raised {failure['message']}", "raised"
        elif failure is not None:
            text, words, reason = "", f"ended with {failure['message']}", "died"
        else:
            text, words, reason = self._stack(rank), f"died: {_status_in_words(status)}", "died"
        where = [] if reason == "raised" or not text else ["It was here, the latest call first:"]
        parts = [f"rank {rank} of {self.ranks} {_first_words(words)}", *where, *([text] if text else []), *others]
        if not text:
            parts += self._last_words(rank)
        return RankError(
            "\n".join(parts),
            reason=reason,
            rank=rank,
            traceback=text,
            exit_status=status,
            reported_after_s=seconds,
        )

    def _too_long(self) -> RankError:
        reached = [rank for rank in range(self.ranks) if stack_file(self.folder, rank).exists()]
        if not reached:
            last = "\n".join(_last_lines(agent_log(self.folder), 15))
            return RankError(
                f"the ranks had not started after {self.timeout_s:g} s: allow more with timeout_s=.\n{last}".strip(),
                reason="did not start",
            )
        stacks = {rank: self._stack(rank) for rank in reached}
        alive = set(self._outcome()["last_alive"])
        waiting = {
            rank: stack or "It gave no answer: it may have closed all its files, or ended."
            for rank, stack in stacks.items()
            if str(rank) in alive
        }
        parts = [f"{self.program.name} was not done after {self.timeout_s:g} s and was ended."]
        parts += [f"rank {rank} of {self.ranks} was here, the latest call first:\n{s}" for rank, s in waiting.items()]
        parts.append(
            "Ranks that wait in different collective calls wait for ever; if they only need longer, allow it with "
            "timeout_s=."
        )
        only = next(iter(waiting)) if self.ranks == 1 else None
        return RankError("\n".join(parts), reason="timed out", rank=only, stacks=stacks)

    def _too_much(self) -> RankError:
        sizes: dict[int, int] = {}
        for path in rank_logs(self.folder):
            sizes[int(path.parent.name)] = sizes.get(int(path.parent.name), 0) + path.stat().st_size
        rank = max(sizes, key=sizes.__getitem__)
        message = (
            f"rank {rank} printed {sizes[rank] / 2**20:.0f} MiB: more than {MOST_LOG_BYTES / 2**20:.0f} MiB from all "
            "ranks would fill the disk, so they were ended. Print less, for example every hundredth step."
        )
        # Nobody reads so much of the same.
        self._keep_folder = False
        return RankError("\n".join([message, *self._last_words(rank)]), reason="printed too much", rank=rank)

    def _stack(self, rank: int) -> str:
        """Where a rank was, without the frames that start the program."""
        try:
            text = stack_file(self.folder, rank).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if "rank_entry.py" not in line and "<frozen runpy>" not in line]
        heads = [line for line in lines if line.endswith("(most recent call first):")]
        if len(heads) == 1:
            # The only thread needs no number.
            lines.remove(heads[0])
        return self._shortened("\n".join(lines).strip("\n"))

    def _shortened(self, text: str) -> str:
        """A traceback with paths as the notebook writes them."""
        return text.rstrip().replace(f'File "{Path.cwd()}{os.sep}', 'File "')

    def _last_words(self, rank: int) -> list[str]:
        logs = [path for path in rank_logs(self.folder) if path.parent.name == str(rank) and path.stat().st_size]
        if not logs:
            return [f"Rank {rank} printed nothing."]
        last = _last_lines(max(logs, key=lambda path: path.stat().st_mtime))
        return [f"The last that rank {rank} printed:", *last]


def _remove_old_folders() -> None:
    """Remove what kernels left behind that were killed, and with them what cleans up."""
    import psutil

    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*"):
        owner = folder.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            # The supervisor of a kernel that has just been killed may still be at it: that does no harm.
            shutil.rmtree(folder, ignore_errors=True)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _last_lines(path: Path, most: int = _LAST_LINES) -> list[str]:
    """The last lines of a file, however large it is."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _SHOWN_BYTES))
            lines = re.split(r"[\r\n]+", file.read().decode("utf-8", "replace"))
    except OSError:
        return []
    return [line[-_LINE_CHARACTERS:] for line in lines if line.strip()][-most:]


def _first_words(message: str) -> str:
    """The first line of a message, if it is not too long."""
    line = message.splitlines()[0] if message else ""
    return line if len(line) <= 160 else f"{line[:160]}..."


def _status_in_words(status: int | None) -> str:
    if status is None:
        return "nobody knows how"
    if status >= 0:
        return f"exit status {status}, without a traceback"
    name = _SIGNALS.get(-status, f"signal {-status}")
    often = {9: ", often for want of memory", 11: ", an access to memory that is not its own"}
    return f"ended by {name}{often.get(-status, '')}"
