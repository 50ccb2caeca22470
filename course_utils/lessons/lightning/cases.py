"""What the lesson times and counts: fits of a small network by three loops, and what each asks of the device."""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812 - as its documentation has it
import torch
import tqdm
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.paired import median_interval

Fit = Callable[[L.LightningModule, "Batches"], Any]
LEAN = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Batches:
    """The same batch, ``steps`` times. No list: the Trainer would take a list for that many loaders."""

    def __init__(self, batch: Any, steps: int) -> None:
        self.batch, self.steps = batch, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        return iter([self.batch] * self.steps)


class TextBar(TQDMProgressBar):
    """The default bar where Rich is not installed, as a terminal has it; in a notebook it would be a widget."""

    def init_train_tqdm(self) -> tqdm.tqdm:
        """The bar of the training, written to standard output."""
        return tqdm.std.tqdm(disable=self.is_disabled, file=sys.stdout, bar_format=self.BAR_FORMAT)


@contextlib.contextmanager
def quiet() -> Iterator[str]:
    """Work in a folder that goes afterwards, with what the Trainer writes; its banners and warnings are not shown."""
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    nowhere = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),  # before the folder goes: Windows removes none that a process is in
        warnings.catch_warnings(),
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield folder
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def fits(ways: Mapping[str, tuple[Fit, Any]], make: Callable[[Any], Any], batch: Any, steps: int) -> dict[str, Any]:
    """Cases for ``compare``: each way with one step, and with ``steps`` more. They return steps and trained weights.

    Args:
        ways: name to a fit and to what ``make`` takes.
        make: makes the module; the seed is the same for all.
        batch: what each step trains on.
        steps: how many more steps the long fit takes than the short one.
    """

    def run(way: str, count: int) -> tuple[int, list[Tensor]]:
        fit, options = ways[way]
        torch.manual_seed(0)
        module = make(options)
        with quiet():
            fit(module, Batches(batch, count))
        return count, [weight.detach().cpu() for weight in module.parameters()]

    return {
        f"{way}, {'1 step' if count == 1 else f'{count} steps'}": partial(run, way, count)
        for count in (1, 1 + steps)
        for way in ways
    }


def same_weights() -> Callable[[Any, Any], bool]:
    """A check for ``compare``: a fit's weights equal, bit by bit, those of the first way after as many steps."""
    first: dict[Any, list[Tensor]] = {}

    def check(_: Any, output: tuple[int, list[Tensor]]) -> bool:
        count, weights = output
        return all(map(torch.equal, weights, first.setdefault((count, weights[0].shape), weights)))

    return check


def per_step(timed: Comparison) -> list[dict[str, Any]]:
    """Rows by way: what a step takes and what starting takes, from the fits of one and of many steps of each round."""
    by_way: dict[str, dict[int, tuple[float, ...]]] = {}
    for case in timed.cases:
        way, _, words = case.label.rpartition(", ")
        by_way.setdefault(way, {})[int(words.split()[0])] = case.elapsed_s
    steps: dict[str, list[float]] = {}
    for way, elapsed_s in by_way.items():
        long = max(elapsed_s)
        steps[way] = [(b - a) / (long - 1) for a, b in zip(elapsed_s[1], elapsed_s[long], strict=True)]
    plain = next(iter(steps.values()))
    return [_row(way, values, plain, by_way[way][1]) for way, values in steps.items()]


def _row(way: str, values: list[float], plain: list[float], short: tuple[float, ...]) -> dict[str, Any]:
    over = [mine - base for mine, base in zip(values, plain, strict=True)]
    interval = median_interval(over, 0.95)
    return {
        "loop": way,
        "a step": statistics.median(values),
        "over the plain loop": statistics.median(over),
        "times the plain loop": statistics.median(values) / statistics.median(plain),
        "to start and end": statistics.median(short) - statistics.median(values),
        "low": interval.low,
        "high": interval.high,
    }


def by_width(timed: Sweep) -> list[dict[str, Any]]:
    """Rows by width of the network and way: those of ``per_step``."""
    rows = ((point.value, row) for point in timed.points for row in per_step(point.comparison))
    return [row | {"loop": f"width {width}, {row['loop']}"} for width, row in rows]


# What each asks of the device


class Asked(TorchDispatchMode):
    """Counts operations that PyTorch is asked for; ``.item()`` is one of them, and the one that waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def asked(ways: Mapping[str, tuple[Fit, Any]], make: Callable[[Any], Any], batch: Any) -> list[dict[str, Any]]:
    """Rows by way: waits and operations of a step, and the files that a fit leaves.

    Counted in fits of 50 and of 100 steps: the difference is what 50 steps ask for. The logger is due once in them.
    """
    rows = []
    for way, (fit, options) in ways.items():
        counts, files = [], 0
        for steps in (50, 100):
            with quiet() as folder, Asked() as seen:
                fit(make(options), Batches(batch, steps))
                files = sum(path.is_file() for path in Path(folder).rglob("*"))
            counts.append(seen.counts)
        more = counts[1] - counts[0]
        operations = sum(count for name, count in more.items() if name.startswith("aten"))
        rows.append(
            {
                "loop": way,
                "waits a step": more["aten::_local_scalar_dense"] / 50,
                "operations a step": operations / 50,
                "files": files,
            }
        )
    return rows


def precisions(words: list[Any]) -> list[dict[str, Any]]:
    """Rows by what is passed as ``precision`` on a CPU: the one that the Trainer takes, and dtypes that a step sees.

    Example:
        >>> precisions(["16-mixed"])[0]["taken as"]
        'bf16-mixed'
    """
    rows = []
    for word in words:
        module, batches = _Watched(), Batches(torch.ones(2, 32), 1)
        with quiet():
            trainer = L.Trainer(accelerator="cpu", max_epochs=1, precision=word, **LEAN)
            trainer.fit(module, batches, batches)
        seen = {name: str(dtype).removeprefix("torch.") for name, dtype in module.seen.items()}
        rows.append({"precision=": repr(word), "taken as": trainer.precision, **seen})
    return rows


class _Watched(BoringModel):
    """Notes the dtypes of a step."""

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        out = self(batch)
        self.seen = {"batch": batch.dtype, "output": out.dtype}
        return out.float().mean()

    def on_after_backward(self) -> None:
        self.seen |= {"weights": self.layer.weight.dtype, "gradients": self.layer.weight.grad.dtype}
