"""What the lesson profiles: digits, a network, a loop; what a profile says of it; a step inside of one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.autograd import DeviceType
from torch.nn.functional import cross_entropy
from torch.profiler import profile
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from course_utils.measure.devices import Device, Sample
from course_utils.measure.fresh import Fresh, fresh
from course_utils.show.formats import short_name

# The profiler's name of each line of the loop, and the line.
_LINES = {
    "ProfilerStep": "a step",
    "enumerate(DataLoader)": "for x, y in loader",
    "forward": "model and loss",
    "backward": "loss.backward()",
    "Optimizer.step": "optimizer.step()",
    "Optimizer.zero_grad": "optimizer.zero_grad()",
}
_ALL = {"record_shapes": True, "profile_memory": True, "with_flops": True, "with_stack": True}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 × 8 numbers from 0 to 1, and the digit that each shows."""
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def network(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _training_step(device: str) -> Callable[[Any, Any], torch.Tensor]:
    """A step of the lesson's loop, without its labels."""
    model, optimizer = network(device)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def epochs(device: str, loader: DataLoader[Any], slices: Callable[[], Iterable[Any]]) -> dict[str, Fresh]:
    """For each source of batches a training of its own; a call is an epoch, and returns its mean loss."""
    in_batches = BatchSampler(RandomSampler(loader.dataset), loader.batch_size, drop_last=False)
    whole = DataLoader(loader.dataset, sampler=in_batches, batch_size=None)

    def build(batches: Callable[[], Iterable[Any]]) -> Callable[[], torch.Tensor]:
        step = _training_step(device)
        return lambda: torch.stack([step(x, y) for x, y in batches()]).mean()

    sources = {"DataLoader": lambda: loader, "whole batches": lambda: whole, "slices": slices}
    return {name: fresh(build, batches) for name, batches in sources.items()}


def same_loss(one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise if two epochs, each in a random order of its own, do not learn alike."""
    torch.testing.assert_close(other, one, rtol=0.1, atol=0.0)


def _line(name: str) -> str:
    return next((line for key, line in _LINES.items() if name.startswith(key)), "")


def by_line(trace: profile) -> list[dict[str, Any]]:
    """How long each line took in a profiled step, by Python's clock, the longest first: medians of the steps."""
    took = defaultdict(list)
    for event in trace.events():
        if event.cpu_time_total:  # none, of what ran on a GPU
            took[_line(event.name)].append(event.time_range.elapsed_us())
    whole_us = statistics.median(took.pop("a step"))
    lines = sorted(((statistics.median(took[line]), line) for line in took if line), reverse=True)
    lines.append((whole_us - sum(us for us, _ in lines), "the rest"))
    return [{"line": line, "a step": us / 1e6, "of it": us / whole_us} for us, line in lines]


def lanes(loader: profile, slices: profile) -> list[dict[str, Any]]:
    """Of each trace the step of median length: a row for each span, of the lines and of the calls that they make."""
    rows = []
    for loop, trace in (("DataLoader", loader), ("slices", slices)):
        rows += _runs(loop, _spans(trace, _median_step(trace)))
    return [{"span": number, **row} for number, row in enumerate(rows)]


def _median_step(trace: profile) -> Any:
    steps = [each for each in trace.events() if each.name.startswith("ProfilerStep") and each.cpu_time_total]
    return sorted(steps, key=lambda step: step.time_range.elapsed_us())[len(steps) // 2]


def _spans(trace: profile, step: Any) -> Iterator[tuple[Any, ...]]:
    """Lane, depth, begin, end, kind and name."""
    begin, end = step.time_range.start, step.time_range.end
    for event in trace.events():
        on_gpu = event.device_type != DeviceType.CPU
        at, line, outer = event.time_range, _line(event.name), event.cpu_parent
        depth = 0 if outer in (None, step) else 1 if outer.cpu_parent in (None, step) else 2
        is_label = event is step or (on_gpu and event.is_user_annotation)
        if begin <= at.start < min(end, at.end) and not is_label and depth < 2:
            lane = "GPU" if on_gpu else "Python" if event.thread == step.thread else "autograd"
            kind = "kernel" if on_gpu else "line" if line else "operator"
            name = line or short_name(
                event.name.removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ")
            )
            yield lane, depth, at.start - begin, at.end - begin, kind, name


def _runs(loop: str, spans: Iterable[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Calls of one name that follow each other on one level, as one span: "128 × select"."""
    for (lane, _, kind, name), run in itertools.groupby(sorted(spans), lambda span: (*span[:2], *span[4:])):
        all_of = list(run)
        times = {"begins": round(all_of[0][2] / 1e6, 9), "ends": round(all_of[-1][3] / 1e6, 9)}
        text = f"{len(all_of)} × {name}" if len(all_of) > 1 else name
        yield {"loop": loop, "lane": lane, "kind": kind, "text": text, **times}


class InsideProfile(Device):
    """A clock inside of a profile, whose start and stop are not timed."""

    clock = "host clock, inside of a running profile"
    min_sample_s = 5e-3

    def synchronize(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _warm(self, fn: Callable[[], Any], calls: int) -> Sample:
        options = getattr(fn, "options", None)
        with contextlib.nullcontext() if options is None else profile(**options):
            fn()  # the first call of a profile also pays for the profiler's memory
            return super()._warm(fn, calls)


def with_and_without(device: str, loader: DataLoader[Any]) -> dict[str, Fresh]:
    """A step of the loop without a profiler, inside of one, and inside of one with all options that cost something."""

    def build(options: dict[str, bool] | None) -> Callable[[], torch.Tensor]:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        step = functools.partial(next, itertools.starmap(_training_step(device), batches))
        step.options = options
        return step

    ways = {"no profiler": None, "profiler": {}, "all options": _ALL}
    return {label: fresh(build, options) for label, options in ways.items()}
