"""What the lesson profiles, and how a step inside a running profiler is timed."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile

from course_utils.measure.devices import Device, Sample

# The options that cost something; None is no profiler at all. FLOPs switch shapes on, and cost what these cost.
OPTIONS: Mapping[str, Mapping[str, bool] | None] = {
    "no profiler": None,
    "profiler": {},
    "with shapes": {"record_shapes": True},
    "with memory": {"profile_memory": True},
    "with stacks": {"with_stack": True},
    "all four": {"record_shapes": True, "profile_memory": True, "with_flops": True, "with_stack": True},
}


def training_step(width: int, layers: int = 2, rows: int = 256) -> Callable[[], torch.Tensor]:
    """A function that makes one step of a plain network on fixed data and returns the loss, a float32 scalar.

    Args:
        width: features of each layer.
        layers: how many linear layers, each with a ReLU.
        rows: samples in the batch.
    """
    torch.manual_seed(0)
    parts = (part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU()))
    model, batch = torch.nn.Sequential(*parts), torch.randn(rows, width)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss.detach()

    return step


class Profiled:
    """A step, and the options of the profiler that is to run while it is timed; None for no profiler."""

    def __init__(self, step: Callable[[], Any], options: Mapping[str, bool] | None) -> None:
        self.step = step
        self.options = options

    def __call__(self) -> Any:
        """One step."""
        return self.step()


class InsideProfile(Device):
    """A CPU whose clock runs inside of a profile: starting and stopping it is not timed."""

    clock = "host clock, inside of a running profile"
    min_sample_s = 5e-3

    def _warm(self, fn: Callable[[], Any], calls: int) -> Sample:
        options = getattr(fn, "options", None)
        with contextlib.nullcontext() if options is None else _profile(options):
            fn()  # the first call of a profile also pays for the profiler's memory
            start = time.perf_counter()
            for _ in range(calls):
                fn()
            elapsed_s = time.perf_counter() - start
        return Sample(elapsed_s / calls)


def _profile(options: Mapping[str, bool]) -> profile:
    return profile(activities=[ProfilerActivity.CPU], **options)


def profiled_cases(width: int) -> dict[str, Profiled]:
    """The same step without a profiler, with its default options, and with all that cost something."""
    step = training_step(width)
    return {label: Profiled(step, OPTIONS[label]) for label in ("no profiler", "profiler", "all four")}


def single_options_cases(width: int) -> dict[str, Profiled]:
    """The same step in a profile with the default options, and with one option more."""
    step = training_step(width)
    return {
        label: Profiled(step, OPTIONS[label]) for label in ("profiler", "with shapes", "with memory", "with stacks")
    }


def table_rows(profiled: profile, most: int = 7) -> list[dict[str, Any]]:
    """The rows with most self time of a finished profile, as its own table has them: a list of rows for a table."""
    averages = sorted(profiled.key_averages(), key=lambda each: -each.self_cpu_time_total)
    return [
        {
            "name": each.key,
            "self CPU": each.self_cpu_time_total / 1e6,
            "CPU total": each.cpu_time_total / 1e6,
            "calls": each.count,
        }
        for each in averages[:most]
    ]


def trace_sizes(step: Callable[[], Any], steps: int = 4) -> list[dict[str, Any]]:
    """Events and bytes of an exported trace by option, for one step: a list of rows for a table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for label, options in OPTIONS.items():
            if options is None:
                continue
            with _profile(options) as profiled:
                for _ in range(steps):
                    step()
            path = Path(folder) / "trace.json"
            profiled.export_chrome_trace(str(path))
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
            spans = sum(event["ph"] == "X" for event in events)
            rows.append({"options": label, "events": spans // steps, "bytes": path.stat().st_size // steps})
    return rows


def unnamed_shares(seconds: float = 0.02) -> list[dict[str, Any]]:
    """Three ways to spend time in a step, and the share of the step that the table gives to no operator."""
    matrix = torch.randn(512, 512)
    numbers = np.random.default_rng(0).random(100_000)

    def operators() -> None:
        _until(seconds, lambda: matrix @ matrix)

    def numpy_code() -> None:
        _until(seconds, lambda: np.sort(numbers))

    rows = []
    for name, work in (("PyTorch", operators), ("NumPy", numpy_code), ("time.sleep", lambda: time.sleep(seconds))):
        work()
        with _profile({}) as profiled, autograd_profiler.record_function("step"):
            work()
        (row,) = (each for each in profiled.key_averages() if each.key == "step")
        rows.append({"the step is": name, "in no operator": row.self_cpu_time_total / row.cpu_time_total})
    return rows


def _until(seconds: float, work: Callable[[], Any]) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        work()
