"""How good is ``compare`` as a judge, beside ``torch.utils.benchmark.Timer``? Both are asked what is known.

Identical code is the same function as baseline and as case: FASTER and SLOWER are false verdicts. Of twins, one does
103, 105 or 200 units of work where the other does 100. The machine is idle, has one busy program, or is crowded.

    python -m benchmarks.timer_quality

Results go to ``benchmarks/results/<machine>/timer_quality.json`` after every trial, and a run that was stopped goes on.
The book's table is that of the file in ``benchmarks/records/timer_quality``.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.benchmark import Timer

from course_utils.measure.compare import compare
from course_utils.measure.machine import device_kind, environment
from course_utils.measure.rounds import DEFAULT_BUDGET_S
from course_utils.results import paired
from course_utils.results.paired import Verdict
from course_utils.results.result import compact
from course_utils.results.store import write_json

RESULTS = Path(__file__).resolve().parent / "results"
_CORES = os.cpu_count() or 1
# Busy programs, steady ones and ones that come and go.
CONDITIONS = {"idle": (0, 0), "one busy program": (1, 0), "crowded": (_CORES, 2)}
FUNCTIONS = ("matmul", "pointwise", "tiny op", "Python loop")
TWIN_UNITS = {1.03: 103, 1.05: 105, 2.0: 200}

# Another program, and nothing else: it ends when it is killed, or soon after the benchmark itself is gone.
_BUSY = """
import os, random, sys, time
while True:
    os.kill(int(sys.argv[1]), 0)  # an error, and so the end, once it is gone
    end = time.perf_counter() + random.uniform(0.005, 0.2)
    while time.perf_counter() < end:
        pass
    time.sleep(random.uniform(0, float(sys.argv[2])))
"""
# A shell that ends at once starts it: what ``compare`` sees is a stranger, not a child of its own.
_START = ("sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", sys.executable, "-I", "-S", "-c", _BUSY)
_PAUSE_S = 0.2


class Question(NamedTuple):
    """What one trial asks."""

    function: str
    condition: str
    truth: float  # how much work the case does, relative to the baseline
    index: int


class Trial(NamedTuple):
    """One question put to one timer, and its answer: ``compare``'s verdict, or the Timer's by two rules."""

    method: str
    function: str
    condition: str
    truth: float
    index: int
    ratio: float
    verdict: str  # of the Timer: a ratio further than 1% from 1 decides
    cautious: str | None = None  # of the Timer: and the middle halves of the two samples do not overlap
    low: float | None = None  # the interval that decided; None for a Timer, ``high`` also where it has no end
    high: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    noticed: bool | None = None  # whether the result says that other programs were busy


def load(path: Path) -> list[Trial]:
    """All trials of a record."""
    return [Trial(*row) for row in json.loads(path.read_text(encoding="utf-8"))["trials"]]


def questions(trials: int) -> list[Question]:
    """All questions, mixed: each kind is spread evenly over the whole run."""
    counts = {1.0: trials, 1.03: max(1, trials // 5), 1.05: max(1, trials // 5), 2.0: max(1, trials // 10)}
    kinds = [(truth, index) for truth, count in counts.items() for index in range(count)]
    mixed = sorted(kinds, key=lambda kind: (kind[1] + 0.5) / counts[kind[0]])
    return [Question(*place, *kind) for kind in mixed for place in itertools.product(FUNCTIONS, CONDITIONS)]


def sides(function: str, truth: float) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Baseline and case for a true ratio; for 1 they are one and the same natural call, well under a millisecond."""
    kind = device_kind()
    n, n_unit, length, length_unit = (256, 32, 2**16, 2**12) if kind == "cpu" else (2048, 512, 2**24, 2**18)
    side, size, loop = (n, length, 1000) if truth == 1.0 else (n_unit, length_unit, 30)
    a, x, few = torch.randn(side, side, device=kind), torch.randn(size, device=kind), torch.randn(8, device=kind)
    call = {
        "matmul": lambda: a @ a,
        "pointwise": lambda: torch.relu(x * 2 + 1),
        "tiny op": lambda: few + few,
        "Python loop": lambda: sum(number * number % 7 for number in range(loop)),
    }[function]
    return (call, call) if truth == 1.0 else (_repeated(call, 100), _repeated(call, TWIN_UNITS[truth]))


def _repeated(unit: Callable[[], Any], units: int) -> Callable[[], Any]:
    def call() -> None:
        for _ in itertools.repeat(None, units):
            unit()

    return call


@contextlib.contextmanager
def busy_programs(steady: int, bursty: int) -> Iterator[list[int]]:
    """Keep other programs busy until the end of the block; yields their process ids."""
    pids = []
    try:
        for pause_s in [0.0] * steady + [_PAUSE_S] * bursty:
            command = (*_START, str(os.getpid()), str(pause_s))
            pids.append(int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def by_compare(question: Question, budget_s: float) -> Trial:
    """Ask ``compare``. Half a comparison is no trial: it ends in KeyboardInterrupt."""
    baseline, case = sides(question.function, question.truth)
    seed = zlib.crc32(repr(question).encode())  # another order of the cases in every trial
    comparison = compare({"baseline": baseline, "case": case}, budget_s=budget_s, seed=seed)
    if comparison.interrupted:
        raise KeyboardInterrupt
    judged = comparison["case"]
    low, high = judged.interval.low, judged.interval.high if judged.interval.bounded else None
    more = {"rounds": comparison.rounds, "seconds": comparison.spent_s, "noticed": bool(comparison.busy)}
    return Trial("compare", *question, judged.ratio, str(judged.verdict), low=low, high=high, **more)


def by_timer(question: Question, seconds: float) -> Trial:
    """Ask the usual way: the baseline's median, then the case's, each with half the time."""
    quartiles = []
    for side in sides(question.function, question.truth):
        timer = Timer("fn()", globals={"fn": side}, num_threads=torch.get_num_threads())
        times = timer.blocked_autorange(min_run_time=seconds / 2).times
        quartiles.append(statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * times)
    verdict, cautious = two_median_verdicts(*quartiles)
    return Trial("timer", *question, quartiles[1][1] / quartiles[0][1], str(verdict), str(cautious))


def two_median_verdicts(baseline: Sequence[float], case: Sequence[float]) -> tuple[Verdict, Verdict]:
    """What a practitioner concludes from the medians' ratio alone, and if the middle halves must not overlap either."""
    ratio = case[1] / baseline[1]
    if ratio > 1 + paired.PRACTICAL:
        return Verdict.SLOWER, Verdict.SLOWER if case[0] > baseline[2] else Verdict.UNCLEAR
    if ratio < 1 / (1 + paired.PRACTICAL):
        return Verdict.FASTER, Verdict.FASTER if case[2] < baseline[0] else Verdict.UNCLEAR
    return Verdict.SAME, Verdict.SAME


def run(path: Path, trials: int, budget_s: float = DEFAULT_BUDGET_S) -> None:
    """Put all questions that ``path`` does not hold yet, and write it after each."""
    here, kept = environment(), load(path) if path.exists() else []
    torch.set_num_threads(1)  # what Timer takes by default
    done = {Question(*trial[1:5]) for trial in kept if trial.method == "compare"}
    left = [question for question in questions(trials) if question not in done]
    print(f"{len(left)} trials to run, {len(done)} done.", flush=True)
    for number, question in enumerate(left, start=1):
        with busy_programs(*CONDITIONS[question.condition]):
            started = time.perf_counter()
            kept.append(by_compare(question, budget_s))
            if question.index < max(1, trials // 20):
                kept.append(by_timer(question, time.perf_counter() - started))
        record = {
            "environment": here.to_record(),
            "settings": {"trials": trials, "conditions": list(CONDITIONS), "functions": list(FUNCTIONS)},
            "columns": list(Trial._fields),
            "trials": [compact(trial) for trial in kept],
            "recorded_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "complete": number == len(left),
        }
        write_json(path, record)


if __name__ == "__main__":
    run(RESULTS / environment().machine / "timer_quality.json", trials=100)
