"""Records that no machine has made: results of a chosen outcome, in the form that the lessons' experiments have."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from course_utils.lesson_notebooks import find_lesson
from course_utils.measure.devices import CudaDevice
from course_utils.results import store
from course_utils.results.code_hash import code_hash
from course_utils.results.comparison import Comparison
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.table import Table
from tests import example_results

GPU = dataclasses.replace(
    example_results.GPU, machine="some-gpu", device_name="Some GPU", date="2026-03-01", torch_threads=1
)
CPU = dataclasses.replace(
    example_results.CPU, machine="some-cpu", device_name="Some CPU", date="2026-03-01", torch_threads=1
)
TWO_GPUS = dataclasses.replace(GPU, machine="two-gpus", gpu_count=2)
# What a careless folder name and a careless field could make of a CPU.
CPU_IN_DISGUISE = dataclasses.replace(TWO_GPUS, machine="nvidia-h200", device_kind="cpu")

ROUNDS = 24


def _samples(middle_s: float, seed: str) -> tuple[float, ...]:
    """Times of independent rounds, a tenth of a percent around the middle."""
    drawn = random.Random(seed)
    return tuple(middle_s * drawn.uniform(0.999, 1.001) for _ in range(ROUNDS))


def comparison(name: str, times_s: Mapping[str, float]) -> Comparison:
    """A comparison whose cases take these seconds, the first the baseline."""
    first = next(iter(times_s))
    cases = tuple(Measurement(label, _samples(time_s, label)) for label, time_s in times_s.items())
    control = Measurement(f"{first} again", _samples(times_s[first], "again"))
    return Comparison(cases, control, GPU, name=name, clock=CudaDevice.clock)


def sweep(name: str, values: Sequence[Any], times_s: Callable[[Any], Mapping[str, float]]) -> Sweep:
    """A sweep whose cases take ``times_s(value)`` seconds."""
    points = tuple(SweepPoint(value, comparison(name, times_s(value))) for value in values)
    return Sweep("value", points, GPU, name=name)


def table(name: str, rows: Sequence[Mapping[str, Any]], units: Mapping[str, str] | None = None) -> Table:
    """A table of these rows."""
    return Table(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), GPU, units=units or {}, name=name)


def write(root: Path, environment: Environment, results: Iterable[Any]) -> Path:
    """Write results as the reference records of a machine, by the code that the notebooks have now."""
    by_lesson: dict[str, dict[str, store.Experiment]] = {}
    for result in results:
        lesson = result.name.partition("/")[0]
        code = code_hash(find_lesson(lesson), result.name)
        experiment = store.Experiment(result.name, result.kind, code, result.to_record())
        by_lesson.setdefault(lesson, {})[result.name] = experiment
    for lesson, experiments in by_lesson.items():
        record = store.LessonRecord(lesson, environment, experiments, f"{environment.date}T12:00:00+00:00", 1.0)
        store.save_lesson(record, root)
    return root


def edit_record(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the experiments of a record's file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record["experiments"])
    path.write_text(json.dumps(record), encoding="utf-8")
