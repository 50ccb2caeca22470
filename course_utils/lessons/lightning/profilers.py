"""Lightning's profilers on a training with one planted bottleneck: which line of each report names it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
from torch import Tensor, nn

from course_utils.lessons.lightning.cases import LEAN, quiet

BOTTLENECKS = ("a slow loader", "a slow layer", "a slow optimizer", "a slow callback", "a memory spike")
_PLANTED_S, _SPIKE_BYTES, _STEPS = 0.02, 2**26, 6
_SQUARE = torch.ones(128, 128)


def decode_image() -> None:
    """What makes the loader slow."""
    time.sleep(_PLANTED_S)


def average_weights() -> None:
    """What makes the optimizer slow, after its closure."""
    time.sleep(_PLANTED_S)


def draw_histogram() -> None:
    """What makes the callback slow."""
    time.sleep(_PLANTED_S)


class _Layer(nn.Module):
    def __init__(self, is_slow: bool) -> None:
        super().__init__()
        self.is_slow = is_slow
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        end = time.perf_counter() + _PLANTED_S
        while self.is_slow and time.perf_counter() < end:
            torch.mm(_SQUARE, _SQUARE)
        return x @ self.weight


class _Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        average_weights()
        return loss


class _Callback(L.Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        draw_histogram()


class _Module(L.LightningModule):
    def __init__(self, bottleneck: str | None) -> None:
        super().__init__()
        self.bottleneck = bottleneck
        self.first, self.second = _Layer(False), _Layer(bottleneck == "a slow layer")

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        if self.bottleneck == "a memory spike":
            torch.empty(_SPIKE_BYTES // 4)
        return self.second(self.first(batch)).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return (_Optimizer if self.bottleneck == "a slow optimizer" else torch.optim.SGD)(self.parameters(), lr=0.0)


class _Loader:
    def __init__(self, is_slow: bool) -> None:
        self.is_slow = is_slow

    def __len__(self) -> int:
        return _STEPS

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(_STEPS):
            if self.is_slow:
                decode_image()
            yield torch.ones(4, 8)


_WIDE = {"export_to_chrome": False, "table_kwargs": {"max_name_column_width": 200}}
_PROFILERS: Mapping[str, Any] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": lambda **where: PyTorchProfiler(**where, **_WIDE),
    "pytorch, with memory": lambda **where: PyTorchProfiler(**where, **_WIDE, profile_memory=True, row_limit=-1),
}


def _report(bottleneck: str | None, profiler: str) -> str:
    with quiet() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            profiler=_PROFILERS[profiler](dirpath=folder, filename="report"),
            callbacks=[_Callback()] if bottleneck == "a slow callback" else [],
            **LEAN,
        )
        trainer.fit(_Module(bottleneck), _Loader(bottleneck == "a slow loader"))
        return "".join(path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.txt")))


def seen_by_profilers() -> list[dict[str, Any]]:
    return [
        {"planted": bottleneck, **{name: _culprit(_report(bottleneck, name), bottleneck, name) for name in _PROFILERS}}
        for bottleneck in BOTTLENECKS
    ]


def _culprit(text: str, bottleneck: str, profiler: str) -> str:
    recorded = 3 if profiler.startswith("pytorch") else _STEPS  # of its schedule: 1 waits, 1 warms up, 3 count
    is_memory = bottleneck == "a memory spike"
    planted = recorded * (_SPIKE_BYTES if is_memory else _PLANTED_S)
    sizes = _bytes_by_line(text) if is_memory else _seconds_by_line(text, profiler)
    large = {line: size for line, size in sizes.items() if size > 0.7 * planted}
    # Of lines that lie within each other the innermost says most. A module is said by its place in the model.
    place = {line: number for number, line in enumerate(large)}  # among equals the last: reports list callers first
    named = sorted(large, key=lambda line: ("[pl][module]" not in line, large[line], -place[line]))
    # Without the tags before it, or its class: "[pl][profile][Callback]_Callback.on_train_batch_end" is too long.
    return re.sub(r"^(\[\S*\])?(\S*\.)?", "", named[0]) if named else "not in the report"


def _seconds_by_line(text: str, profiler: str) -> dict[str, float]:
    """Seconds by what a report's line is about: with what it calls, and without Python's own functions."""
    if profiler == "simple":
        rows = re.findall(r"^\|  (\S.*?)\s*\t\|  \S+\s*\t\|  \d+\s*\t\|  (\S+)", text, re.MULTILINE)
    elif profiler == "advanced":  # cumulative seconds, then file:line(function)
        rows = [(b, a) for a, b in re.findall(r"^ +[\d/]+ +\S+ +\S+ +(\S+) +\S+ +\S+\.py:\d+\((\w+)\)", text, re.M)]
    else:
        return {name: _in_units(*total) for name, *total in re.findall(_ROW, text, re.MULTILINE)}
    seconds = {name: float(value) for name, value in rows}
    return {name: value for name, value in seconds.items() if name != "Total"}


# Name, four columns of the CPU's own and total time, of which the last is the total.
_ROW = r"^ *(\S.*?)  +\S+%  +\S+  +\S+%  +([\d.]+)(us|ms|s) "
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}


def _in_units(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]


def _bytes_by_line(text: str) -> dict[str, float]:
    """Bytes that an operation itself allocated, where the report has such a column."""
    rows = re.findall(r"^ *(aten::\S+) .* (-?[\d.]+) (B|KB|MB|GB)  +\d+ *$", text, re.MULTILINE)
    return {name: _in_units(number, unit) for name, number, unit in rows}
