"""How good is ``compare`` as a judge, beside ``torch.utils.benchmark.Timer`` and ``triton.testing.do_bench``?

Each trial puts a question with a known answer to all of them, one after the other, with about the same time to spend:

- identical code: the same function object as baseline and as case. FASTER and SLOWER are false verdicts.
- twins: one call does 103, 105 or 200 units of the same small operation where the baseline does 100, so the true ratio
  is 1.03, 1.05 or 2.00. What a call costs without any unit is measured first, and the true ratio that is stored takes
  it into account: (200 + c) / (100 + c) with a cost of c units.

The trials run on an idle machine and beside busy processes, in a mixed order, so that a slow drift of the machine
touches every question alike. ``compare`` runs at its default budget. The others time the baseline, then the case, each
for half the seconds that ``compare`` took.

    python benchmarks/timer_quality.py [--trials 100] [--conditions idle loaded] [--functions matmul ...] [--reference]

Results go to ``benchmarks/results/<machine>/timer_quality.json`` after every trial, and a run that was stopped goes on
where it was. ``course_utils.lessons.measuring.timer_trial`` summarises and draws the record.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import math
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from course_utils.lessons.measuring.timer_trial import (
    TimerQuality,
    Trial,
    load,
    reference_root,
    summary,
    two_median_verdicts,
)
from course_utils.measure.compare import compare
from course_utils.measure.machine import device_kind, environment
from course_utils.measure.rounds import DEFAULT_BUDGET_S, MAX_BUDGET_S
from course_utils.records import paired
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.store import RecordError, write_json

__all__ = ["load", "main", "run", "summary"]

CONDITIONS = ("idle", "loaded")
BASE_UNITS = 100
TWIN_UNITS = {1.03: 103, 1.05: 105, 2.0: 200}
TRIALS, TWIN_TRIALS, KNOWN_TRIALS, TIMER_TRIALS = 100, 25, 10, 10

# A second process, and nothing else: it ends when it is killed, or soon after the benchmark itself is gone.
_BURNER = """
import os, sys
parent = int(sys.argv[1])
print("burning", flush=True)
while os.getppid() == parent:
    for _ in range(300_000):
        pass
"""


@dataclass(frozen=True)
class Workload:
    """One function of the benchmark.

    Attributes:
        alone: the natural function, for identical code.
        unit: a small operation of the same kind; twins repeat it.
        alone_words: what ``alone`` does.
        unit_words: what ``unit`` does.
    """

    alone: Callable[[], Any]
    unit: Callable[[], Any]
    alone_words: str
    unit_words: str

    def repeated(self, units: int) -> Callable[[], Any]:
        """A function that does the unit so many times in one call."""
        unit = self.unit

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
    device = "cpu" if kind == "cpu" else kind
    large = kind != "cpu"
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    n, n_unit = (2048, 512) if large else (256, 32)
    length, length_unit = (2**24, 2**18) if large else (2**16, 2**10)
    a, a_unit, x, x_unit, few = random(n, n), random(n_unit, n_unit), random(length), random(length_unit), random(8)
    return {
        "matmul": Workload(
            lambda: a @ a, lambda: a_unit @ a_unit, f"{n} x {n} product", f"{n_unit} x {n_unit} product"
        ),
        "pointwise": Workload(
            lambda: torch.relu(x * 2 + 1),
            lambda: torch.relu(x_unit * 2 + 1),
            f"relu(2x + 1) of {length} numbers",
            f"relu(2x + 1) of {length_unit} numbers",
        ),
        "tiny op": Workload(lambda: few + few, lambda: few + few, "sum of two vectors of 8", "sum of two vectors of 8"),
        "Python loop": Workload(
            lambda: _python_loop(range(1000)),
            lambda: _python_loop(range(30)),
            "1000 turns of a for loop",
            "30 turns of a for loop",
        ),
    }


FUNCTIONS = tuple(workloads("cpu"))


@dataclass(frozen=True)
class Settings:
    """What is run. Two runs with equal settings on the same machine can be joined."""

    trials: int = TRIALS
    twin_trials: int = TWIN_TRIALS
    known_trials: int = KNOWN_TRIALS
    timer_trials: int = TIMER_TRIALS
    conditions: tuple[str, ...] = CONDITIONS
    functions: tuple[str, ...] = FUNCTIONS
    budget_s: float = DEFAULT_BUDGET_S
    threads: int = 1
    burners: int = 1

    def to_record(self) -> dict[str, Any]:
        """The settings as plain JSON types."""
        return {
            **vars(self),
            "conditions": list(self.conditions),
            "functions": list(self.functions),
        }

    def cells(self) -> list[Cell]:
        """All trials, mixed: each kind is spread evenly over the whole run."""
        cells = []
        for truth in (1.0, *TWIN_UNITS):
            count = {1.0: self.trials, 2.0: self.known_trials}.get(truth, self.twin_trials)
            for index, function, condition in itertools.product(range(count), self.functions, self.conditions):
                cells.append(((index + 0.5) / count, Cell(function, condition, truth, index)))
        cells.sort(key=lambda pair: pair[0])
        return [cell for _, cell in cells]


@dataclass(frozen=True)
class Cell:
    """One trial: a question to all judges. The usual timers get only the first few of each kind."""

    function: str
    condition: str
    truth: float
    index: int

    @property
    def seed(self) -> int:
        """For the order of the cases inside the rounds: another one in every trial."""
        return zlib.crc32(repr(self).encode())


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen]]:
    """Keep other processes busy, really: each burns one core until the end of the block.

    Args:
        count: how many.

    Yields:
        The processes, once they are burning.
    """
    processes: list[subprocess.Popen] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-I", "-S", "-c", _BURNER, str(os.getpid())]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in processes:
            if process.stdout is None or process.stdout.readline().strip() != "burning":
                raise RuntimeError("a busy process did not start: check that this Python can start subprocesses")
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _condition(name: str, burners: int) -> contextlib.AbstractContextManager[Any]:
    return busy_processes(burners) if name == "loaded" else contextlib.nullcontext()


def _load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def sides(workload: Workload, truth: float) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Baseline and case for a true ratio; for 1 they are one and the same function."""
    if truth == 1.0:
        return workload.alone, workload.alone
    return workload.repeated(BASE_UNITS), workload.repeated(TWIN_UNITS[truth])


def by_compare(workload: Workload, cell: Cell, budget_s: float) -> Trial:
    """Ask ``compare``.

    Raises:
        KeyboardInterrupt: if it was stopped: half a comparison is no trial.
    """
    baseline, case = sides(workload, cell.truth)
    started = time.perf_counter()
    comparison = compare({"baseline": baseline, "case": case}, budget_s=budget_s, seed=cell.seed)
    seconds = time.perf_counter() - started
    if comparison.interrupted:
        raise KeyboardInterrupt
    seen = comparison["case"]

    def ends(interval: paired.Interval) -> tuple[float | None, float | None]:
        return (interval.low, interval.high) if interval.bounded and interval.low > 0 else (None, None)

    (low, high), (low99, high99), noise = ends(seen.interval), ends(seen.decision_interval), ends(comparison.noise)
    return Trial(
        method="compare",
        function=cell.function,
        condition=cell.condition,
        truth=cell.truth,
        index=cell.index,
        ratio=seen.ratio,
        verdict=str(seen.verdict),
        seconds=seconds,
        rounds=comparison.rounds,
        low=low,
        high=high,
        low99=low99,
        high99=high99,
        noise_low=noise[0],
        noise_high=noise[1],
        pooled=pooled_ratio(comparison) if cell.truth == 1.0 else None,
        block_rounds=seen.block_rounds,
        load=_load_average(),
    )


def pooled_ratio(comparison: Comparison) -> float:
    """Median over the rounds of the case's time over the average of the baseline's two timings.

    ``compare`` does not do this; the benchmark shows why.
    """
    baseline, case = comparison.cases[0].elapsed_s, comparison.cases[1].elapsed_s
    average = [(one + other) / 2 for one, other in zip(baseline, comparison.control.elapsed_s, strict=True)]
    return math.exp(statistics.median(paired.log_ratios(case, average)))


Quartiles = tuple[float, float, float]


def _timer_quartiles(fn: Callable[[], Any], seconds: float) -> tuple[Quartiles, int]:
    """Quartiles by ``torch.utils.benchmark.Timer``, and the number of timings."""
    measured = Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads()).blocked_autorange(
        min_run_time=seconds
    )
    times = sorted(measured.times)
    if len(times) < 2:
        return (times[0], times[0], times[0]), len(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return (low, measured.median, high), len(times)


def _do_bench_quartiles(fn: Callable[[], Any], seconds: float) -> tuple[Quartiles, int]:
    """Quartiles by ``triton.testing.do_bench``. It does not tell how many timings it made."""
    from triton.testing import do_bench

    low, median, high = do_bench(fn, rep=max(1, int(1e3 * seconds)), quantiles=[0.25, 0.5, 0.75])
    return (low / 1e3, median / 1e3, high / 1e3), 0


def by_two_medians(
    method: str,
    quartiles: Callable[[Callable[[], Any], float], tuple[Quartiles, int]],
    workload: Workload,
    cell: Cell,
    seconds: float,
) -> Trial:
    """Ask the usual way: the baseline's median, then the case's, each with half the time."""
    baseline, case = sides(workload, cell.truth)
    started = time.perf_counter()
    first, rounds = quartiles(baseline, seconds / 2)
    second, more_rounds = quartiles(case, seconds / 2)
    spent = time.perf_counter() - started
    verdict, cautious = two_median_verdicts(first, second)
    return Trial(
        method=method,
        function=cell.function,
        condition=cell.condition,
        truth=cell.truth,
        index=cell.index,
        ratio=second[1] / first[1],
        verdict=str(verdict),
        cautious=str(cautious),
        quartiles_s=(first[0], first[2], second[0], second[2]),
        seconds=spent,
        rounds=min(rounds, more_rounds),
        load=_load_average(),
    )


def two_median_methods() -> dict[str, Callable[[Callable[[], Any], float], tuple[Quartiles, int]]]:
    """The usual ways that this machine has."""
    methods = {"timer": _timer_quartiles}
    if device_kind() == "cuda":
        methods["do_bench"] = _do_bench_quartiles
    return methods


def trial(workload: Workload, cell: Cell, settings: Settings) -> list[Trial]:
    """Put one question to all judges, in the cell's condition."""
    with _condition(cell.condition, settings.burners):
        answers = [by_compare(workload, cell, settings.budget_s)]
        if cell.index < settings.timer_trials:
            for method, quartiles in two_median_methods().items():
                answers.append(by_two_medians(method, quartiles, workload, cell, answers[0].seconds))
    return answers


def call_cost_units(workload: Workload, repeats: int = 60) -> float:
    """What a call of a twin costs beside its units, in units: found from calls of 1 unit and of 100.

    The quickest of many timings is taken: the cost is a constant, and everything that disturbs only adds to it.

    Args:
        workload: the function.
        repeats: timings of each.

    Returns:
        The cost; about 0.1 for units of a microsecond.
    """
    one, many = workload.repeated(1), workload.repeated(BASE_UNITS)
    best_one = best_many = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(BASE_UNITS):
            one()
        best_one = min(best_one, (time.perf_counter() - start) / BASE_UNITS)
        start = time.perf_counter()
        many()
        best_many = min(best_many, time.perf_counter() - start)
    unit_s = (best_many - best_one) / (BASE_UNITS - 1)
    return max(0.0, best_one / unit_s - 1)


def describe(workload: Workload) -> dict[str, Any]:
    """What a function does, and its twins' true ratios."""
    cost = call_cost_units(workload)
    return {
        "alone": workload.alone_words,
        "unit": workload.unit_words,
        "call_cost_units": round(cost, 4),
        "true_ratios": {
            f"{truth:.2f}": round((units + cost) / (BASE_UNITS + cost), 6) for truth, units in TWIN_UNITS.items()
        },
    }


def _estimate_s(cells: Sequence[Cell], functions: dict[str, Workload], settings: Settings) -> float:
    """Seconds that the trials will take, from one of each kind that is thrown away and warms up."""
    seconds: dict[tuple[str, str, bool], float] = {}
    for cell in cells:
        key = (cell.function, cell.condition, cell.truth == 1.0)
        if key not in seconds:
            with _condition(cell.condition, settings.burners):
                seconds[key] = by_compare(functions[cell.function], cell, settings.budget_s).seconds
    ways = len(two_median_methods())
    return sum(
        seconds[cell.function, cell.condition, cell.truth == 1.0]
        * (1 + (ways if cell.index < settings.timer_trials else 0))
        for cell in cells
    )


def _earlier(path: Path, settings: Settings, restart: bool) -> TimerQuality | None:
    """The unfinished record to go on with, if there is one that fits."""
    if restart or not path.exists():
        return None
    record = load(path)
    here = environment()
    for what, was, now in (
        ("settings", dict(record.settings), settings.to_record()),
        ("machine", record.environment.machine, here.machine),
        ("torch", record.environment.torch, here.torch),
    ):
        if was != now:
            raise RecordError(
                f"{path.name} was begun with other {what}: {was} there, {now} now. Pass --restart to begin anew, "
                "or --output to write elsewhere."
            )
    return record


def run(settings: Settings, path: Path, *, restart: bool = False) -> TimerQuality:
    """Run all trials that ``path`` does not hold yet, and write it after each.

    Args:
        settings: what to run.
        path: the record.
        restart: begin anew although there is a record.

    Returns:
        The finished record.

    Raises:
        RecordError: if the record was begun with other settings or cannot be written.
        KeyboardInterrupt: if it was stopped; the record holds the trials before that.
    """
    from tqdm import tqdm

    earlier = _earlier(path, settings, restart)
    if earlier is not None and earlier.complete:
        return earlier
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        available = workloads(device_kind())
        functions = {name: available[name] for name in settings.functions}
        trials = list(earlier.trials) if earlier else []
        done = {Cell(t.function, t.condition, t.truth, t.index) for t in trials if t.method == "compare"}
        left = [cell for cell in settings.cells() if cell not in done]
        about_s = _estimate_s(left, functions, settings)
        print(f"{len(left)} trials to run, {len(done)} done: about {max(1, round(about_s / 60))} min.", flush=True)
        described = dict(earlier.workloads) if earlier else {name: describe(one) for name, one in functions.items()}
        spent = earlier.seconds if earlier else 0.0
        where = environment()
        for number, cell in enumerate(bar := tqdm(left, unit="trial", smoothing=0.05), start=1):
            bar.set_description_str(f"{cell.condition} {cell.function} {cell.truth:.2f}x")
            started = time.perf_counter()
            trials += trial(functions[cell.function], cell, settings)
            spent += time.perf_counter() - started
            record = TimerQuality(
                environment=where,
                settings=settings.to_record(),
                workloads=described,
                trials=tuple(trials),
                recorded_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                seconds=spent,
                complete=number == len(left),
            )
            write_json(path, record.to_record())
    finally:
        torch.set_num_threads(threads)
    return load(path)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a number of trials: give 1 or more")
    return value


def _budget(text: str) -> float:
    value = float(text)
    if not 0 < value <= MAX_BUDGET_S:
        raise argparse.ArgumentTypeError(f"{text} is no time for a comparison: give seconds, more than 0")
    return value


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=_positive, help=f"on identical code, each function and condition ({TRIALS})")
    parser.add_argument("--twin-trials", type=_positive, help=f"on 1.03x and 1.05x, likewise ({TWIN_TRIALS})")
    parser.add_argument("--known-trials", type=_positive, help=f"on 2.00x, likewise ({KNOWN_TRIALS})")
    parser.add_argument(
        "--timer-trials", type=_positive, help=f"of each kind, how many the usual timers get too ({TIMER_TRIALS})"
    )
    parser.add_argument("--budget", type=_budget, metavar="SECONDS", help=f"of each comparison ({DEFAULT_BUDGET_S:g})")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=CONDITIONS)
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=FUNCTIONS)
    parser.add_argument("--threads", type=_positive, default=1, help="torch threads; 1 is what Timer takes by default")
    parser.add_argument(
        "--burners",
        type=_positive,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="busy processes when loaded: one for two cores",
    )
    parser.add_argument("--smoke", action="store_true", help="a few short trials, to see that everything runs")
    parser.add_argument("--output", type=Path, help="the record's file")
    parser.add_argument("--reference", action="store_true", help="also write the record into the package")
    parser.add_argument("--restart", action="store_true", help="begin anew although there is a record")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line.

    Returns:
        The exit status: 0, 1 with a message, or 130 when it was stopped.
    """
    arguments = _arguments(argv)
    # This program has a bar of its own.
    os.environ["COURSE_PROGRESS"] = "0"
    counts = (2, 1, 1, 1) if arguments.smoke else (TRIALS, TWIN_TRIALS, KNOWN_TRIALS, TIMER_TRIALS)
    settings = Settings(
        trials=arguments.trials or counts[0],
        twin_trials=arguments.twin_trials or counts[1],
        known_trials=arguments.known_trials or counts[2],
        timer_trials=arguments.timer_trials or counts[3],
        conditions=tuple(arguments.conditions),
        functions=tuple(arguments.functions),
        budget_s=arguments.budget or (0.05 if arguments.smoke else DEFAULT_BUDGET_S),
        threads=arguments.threads,
        burners=arguments.burners,
    )
    name = "timer_quality_smoke.json" if arguments.smoke else "timer_quality.json"
    path = arguments.output or Path(__file__).resolve().parent / "results" / environment().machine / name
    try:
        record = run(settings, path, restart=arguments.restart)
    except RecordError as error:
        print(f"timer_quality: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped. {path.name} keeps what is done; the same command goes on from there.", file=sys.stderr)
        return 130
    print(record)
    for goal in record.summary()["goals"]:
        word = {True: "reached", False: "NOT reached", None: "too few trials to tell"}[goal["reached"]]
        print(f"{goal['goal']}: {goal['found']}: {word}")
    if arguments.reference:
        write_json(reference_root() / f"{record.environment.machine}.json", record.to_record())
    return 0


if __name__ == "__main__":
    sys.exit(main())
