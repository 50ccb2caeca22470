"""How good is ``compare`` as a judge, beside ``torch.utils.benchmark.Timer``?

Each trial puts a question with a known answer to both, one after the other, with about the same time to spend:

- identical code: the same function object as baseline and as case. FASTER and SLOWER are false verdicts.
- twins: one call does 103, 105 or 200 units of the same small operation where the baseline does 100, so the true ratio
  is 1.03, 1.05 or 2.00.

The trials run on an idle machine, beside one busy program, and on a crowded machine: as many busy programs as cores,
and two more that come and go. The order is mixed, so that a slow drift of the machine touches every question alike.
``compare`` runs at its default budget. The Timer times the baseline, then the case, each for half the seconds that
``compare`` took.

    python benchmarks/timer_quality.py [--trials 100] [--conditions idle crowded] [--functions matmul ...] [--reference]

Results go to ``benchmarks/results/<machine>/timer_quality.json`` after every trial, and a run that was stopped goes on
where it was. ``course_utils.lessons.measuring.timer_trial`` summarises and draws the record.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from course_utils.lessons.measuring.timer_trial import KIND, SCHEMA_VERSION, TimerQuality, Trial, load, reference_root
from course_utils.measure.compare import compare
from course_utils.measure.machine import device_kind, environment
from course_utils.measure.rounds import DEFAULT_BUDGET_S
from course_utils.records import paired
from course_utils.records.paired import Verdict
from course_utils.records.result import compact
from course_utils.records.store import RecordError, write_json

# Busy programs, steady ones and ones that come and go, for a number of cores.
CONDITIONS: dict[str, Callable[[int], tuple[int, int]]] = {
    "idle": lambda cores: (0, 0),
    "one busy program": lambda cores: (1, 0),
    "crowded": lambda cores: (cores, 2),
}
FUNCTIONS = ("matmul", "pointwise", "tiny op", "Python loop")
BASE_UNITS = 100
TWIN_UNITS = {1.03: 103, 1.05: 105, 2.0: 200}

# Another program, and nothing else: it ends when it is killed, or soon after the benchmark itself is gone. A process
# that ends at once starts it: what ``compare`` sees is a stranger, not a child of its own.
_BUSY = """
import os, random, subprocess, sys, time
benchmark, pause_s = int(sys.argv[1]), float(sys.argv[2])
if sys.argv[3:] == ["start"]:
    program = subprocess.Popen([*sys.orig_argv[:-1], "busy"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(program.pid, flush=True)
    os._exit(0)
while True:
    os.kill(benchmark, 0)  # an error, and so the end, once it is gone
    end = time.perf_counter() + random.uniform(0.005, 0.2)
    while time.perf_counter() < end:
        pass
    time.sleep(random.uniform(0, pause_s))
"""
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Workload:
    """One function of the benchmark: the natural one, for identical code, and a unit of the kind that twins repeat."""

    alone: Callable[[], Any]
    unit: Callable[[], Any]

    def sides(self, truth: float) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Baseline and case for a true ratio; for 1 they are one and the same function."""
        if truth == 1.0:
            return self.alone, self.alone
        return _repeated(self.unit, BASE_UNITS), _repeated(self.unit, TWIN_UNITS[truth])


def _repeated(unit: Callable[[], Any], units: int) -> Callable[[], Any]:
    """A function that does the unit so many times in one call."""

    def call() -> Any:
        output = None
        for _ in itertools.repeat(None, units):
            output = unit()
        return output

    return call


def _python_loop(numbers: range) -> int:
    total = 0
    for number in numbers:
        total += number * number % 7
    return total


def workloads(kind: str) -> dict[str, Workload]:
    """The functions, sized for a device: microseconds for a unit, well under a millisecond for a natural call."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(kind)

    n, n_unit, length, length_unit = (256, 32, 2**16, 2**12) if kind == "cpu" else (2048, 512, 2**24, 2**18)
    a, a_unit, x, x_unit, few = random(n, n), random(n_unit, n_unit), random(length), random(length_unit), random(8)
    return {
        "matmul": Workload(lambda: a @ a, lambda: a_unit @ a_unit),
        "pointwise": Workload(lambda: torch.relu(x * 2 + 1), lambda: torch.relu(x_unit)),
        "tiny op": Workload(lambda: few + few, lambda: few + few),
        "Python loop": Workload(lambda: _python_loop(range(1000)), lambda: _python_loop(range(30))),
    }


@dataclass(frozen=True)
class TimerTrial:
    """One trial. The Timer gets only the first few of each kind."""

    function: str
    condition: str
    truth: float
    index: int

    @property
    def seed(self) -> int:
        """For the order of the cases inside the rounds: another one in every trial."""
        return zlib.crc32(repr(self).encode())


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What is run. Runs with equal settings on the same machine can be joined."""
    return {
        "trials": options.trials,
        "twin_trials": max(1, options.trials // 5),
        "known_trials": max(1, options.trials // 10),
        "timer_trials": max(1, options.trials // 20),
        "conditions": list(options.conditions),
        "functions": list(options.functions),
        "budget_s": options.budget,
        "threads": 1,  # what Timer takes by default
        "busy_programs": {
            condition: list(CONDITIONS[condition](os.cpu_count() or 1)) for condition in options.conditions
        },
    }


def questions(settings: dict[str, Any]) -> list[TimerTrial]:
    """All trials, mixed: each kind is spread evenly over the whole run."""
    counts = {1.0: settings["trials"], 2.0: settings["known_trials"]}
    placed = []
    for truth in (1.0, *TWIN_UNITS):
        count = counts.get(truth, settings["twin_trials"])
        for index, *place in itertools.product(range(count), settings["functions"], settings["conditions"]):
            placed.append(((index + 0.5) / count, TimerTrial(*place, truth, index)))
    placed.sort(key=lambda pair: pair[0])
    return [question for _, question in placed]


@contextlib.contextmanager
def busy_programs(steady: int, bursty: int) -> Iterator[list[int]]:
    """Keep other programs busy until the end of the block; yields their process ids."""
    pids = []
    try:
        for pause_s in [0.0] * steady + [_PAUSE_S] * bursty:
            command = (sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid()), str(pause_s), "start")
            pids.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# The judges


def by_compare(workload: Workload, question: TimerTrial, budget_s: float) -> Trial:
    """Ask ``compare``. Half a comparison is no trial: it ends in KeyboardInterrupt."""
    baseline, case = workload.sides(question.truth)
    comparison = compare({"baseline": baseline, "case": case}, budget_s=budget_s, seed=question.seed)
    if comparison.interrupted:
        raise KeyboardInterrupt
    judged = comparison["case"]
    return Trial(
        "compare",
        **vars(question),
        ratio=judged.ratio,
        verdict=str(judged.verdict),
        low=judged.interval.low,
        high=judged.interval.high if judged.interval.bounded else None,
        rounds=comparison.rounds,
        seconds=comparison.spent_s,
        noticed=bool(comparison.busy),
    )


def by_timer(workload: Workload, question: TimerTrial, seconds: float) -> Trial:
    """Ask the usual way: the baseline's median, then the case's, each with half the time."""
    baseline, case = (_quartiles(side, seconds / 2) for side in workload.sides(question.truth))
    verdict, cautious = two_median_verdicts(baseline, case)
    return Trial("timer", **vars(question), ratio=case[1] / baseline[1], verdict=str(verdict), cautious=str(cautious))


def _quartiles(fn: Callable[[], Any], seconds: float) -> Sequence[float]:
    timer = Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads())
    times = timer.blocked_autorange(min_run_time=seconds).times
    return statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * times


def two_median_verdicts(baseline: Sequence[float], case: Sequence[float]) -> tuple[Verdict, Verdict]:
    """What a practitioner concludes from the medians' ratio alone, and if the middle halves must not overlap either."""
    ratio = case[1] / baseline[1]
    if ratio > 1 + paired.PRACTICAL:
        return Verdict.SLOWER, Verdict.SLOWER if case[0] > baseline[2] else Verdict.UNCLEAR
    if ratio < 1 / (1 + paired.PRACTICAL):
        return Verdict.FASTER, Verdict.FASTER if case[2] < baseline[0] else Verdict.UNCLEAR
    return Verdict.SAME, Verdict.SAME


def ask(workload: Workload, question: TimerTrial, settings: dict[str, Any]) -> list[Trial]:
    """Put one question to both judges, in its condition."""
    with busy_programs(*settings["busy_programs"][question.condition]):
        started = time.perf_counter()
        trials = [by_compare(workload, question, settings["budget_s"])]
        if question.index < settings["timer_trials"]:
            trials.append(by_timer(workload, question, time.perf_counter() - started))
    return trials


# The run


def run(settings: dict[str, Any], path: Path) -> TimerQuality:
    """Run all trials that ``path`` does not hold yet, and write it after each."""
    from tqdm import tqdm

    here, earlier = environment(), load(path) if path.exists() else None
    if earlier is not None:
        begun = (earlier.settings, earlier.environment.machine, earlier.environment.torch)
        if begun != (settings, here.machine, here.torch):
            advice = "Delete it, or take another --output."
            raise RecordError(f"{path.name} was begun with other settings, or on another machine. {advice}")
        if earlier.complete:
            return earlier
    torch.set_num_threads(settings["threads"])
    functions = workloads(device_kind())
    trials = list(earlier.trials) if earlier else []
    done = {TimerTrial(t.function, t.condition, t.truth, t.index) for t in trials if t.method == "compare"}
    left = [question for question in questions(settings) if question not in done]
    print(f"{len(left)} trials to run, {len(done)} done.", flush=True)
    record = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "environment": here.to_record(),
        "settings": settings,
        "columns": [field.name for field in fields(Trial)],
    }
    for number, question in enumerate(bar := tqdm(left, unit="trial", smoothing=0.05), start=1):
        bar.set_description_str(f"{question.condition} {question.function} {question.truth:.2f}x")
        trials += ask(functions[question.function], question, settings)
        record |= {
            "trials": [compact(astuple(trial)) for trial in trials],
            "recorded_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "complete": number == len(left),
        }
        write_json(path, record)
    return load(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line; 1 with a message, or 130 when it was stopped."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words = "on identical code, for each function and condition (100); of the other questions there are fewer"
    parser.add_argument("--trials", type=int, default=100, help=words)
    parser.add_argument("--budget", type=float, default=DEFAULT_BUDGET_S, help="seconds of each comparison")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=tuple(CONDITIONS))
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=FUNCTIONS)
    parser.add_argument("--output", type=Path, help="the record's file")
    parser.add_argument("--reference", action="store_true", help="also write the record into the package")
    options = parser.parse_args(arguments)
    # This program has a bar of its own.
    os.environ["COURSE_PROGRESS"] = "0"
    machine = environment().machine
    path = options.output or Path(__file__).resolve().parent / "results" / machine / "timer_quality.json"
    try:
        record = run(settings_of(options), path)
    except RecordError as error:
        print(f"timer_quality: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped. {path.name} keeps what is done; the same command goes on from there.", file=sys.stderr)
        return 130
    print(record)
    if options.reference:
        reference = reference_root() / f"{machine}.json"
        reference.parent.mkdir(exist_ok=True)
        reference.write_bytes(path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
