"""What the lesson counts and times: fits of one small network, and what a loop reads from the device."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import logging
import os
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: nothing here needs a network

import lightning as L  # noqa: N812
import torch
import tqdm
import transformers
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from course_utils.records.kinds.comparison import Comparison
from course_utils.records.paired import median_interval

Way = Callable[[nn.Module, DataLoader], Any]
_OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
LEAN = dict.fromkeys(_OFF, False) | {"num_sanity_val_steps": 0, "accelerator": "cpu"}
transformers.logging.set_verbosity_error()
for part in ("pytorch", "fabric"):
    logging.getLogger(f"lightning.{part}").setLevel(logging.ERROR)


class Net(nn.Sequential):
    """Two layers that learn the first column of what they are given."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(super().forward(x), x[:, :1])}


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01)


class Module(L.LightningModule):
    """The network as Lightning wants it; ``log`` is what ``self.log`` is given beside the loss."""

    def __init__(self, net: nn.Module, log: Mapping[str, Any]) -> None:
        super().__init__()
        self.net, self.log_options = net, log

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        loss = self.net(**batch)["loss"]
        self.log("loss", loss, **self.log_options)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self.net)


class TextBar(TQDMProgressBar):
    """Lightning's bar as a terminal has it, without Rich; in a notebook it would be a widget."""

    def init_train_tqdm(self) -> tqdm.tqdm:
        return tqdm.std.tqdm(disable=self.is_disabled, file=sys.stdout, bar_format=self.BAR_FORMAT)


@contextlib.contextmanager
def quiet() -> Iterator[str]:
    """Work in a folder that goes afterwards, with what a Trainer writes; what it prints is not shown."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),  # before the folder goes: Windows removes none that a process is in
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield folder


def batches(batch: Tensor, steps: int, broken: int | None = None) -> DataLoader:
    """The same batch, ``steps`` times, from a loader like any other; that of step ``broken`` is NaN."""
    step = itertools.count(1)

    def collate(_: list[int]) -> dict[str, Tensor]:
        return {"x": batch * float("nan") if next(step) == broken else batch}

    return DataLoader(range(8 * steps), batch_size=8, collate_fn=collate)


class Reads(TorchDispatchMode):
    """Counts where a tensor becomes a Python number: ``item()``, ``float()``, ``bool()``.

    Only of values that come from the weights, and so would lie on a GPU. An optimizer's step counter is on the CPU.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.counts: Counter[bool] = Counter()
        for weight in net.parameters():
            weight.untyped_storage().on_device = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        its = [leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_sent = func.namespace == "c10d"  # to other ranks: on GPUs, from GPU to GPU
        on_device = is_sent or any(hasattr(each, "on_device") for each in its)
        self.counts[on_device] += func is torch.ops.aten._local_scalar_dense.default
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((out, args if is_sent or out is None else None)):  # None: it wrote in place
            if on_device and isinstance(leaf, Tensor):
                leaf.untyped_storage().on_device = True
        return out


def waits(ways: Mapping[str, Way], make: Callable[[], nn.Module]) -> list[dict[str, Any]]:
    """Rows by way: reads a step, from fits of 10 and of 40 steps. No log is due between, unless at each step."""
    rows = []
    for name, fit in ways.items():
        counts = []
        for steps in (10, 40):
            with quiet(), Reads(net := make()) as seen:
                fit(net, batches(torch.ones(8, 16), steps))
            counts.append(seen.counts[True])
        rows.append({"loop": name, "waits a step": (counts[1] - counts[0]) / 30})
    return rows


def fits(ways: Mapping[str, Way], make: Callable[[], nn.Module], batch: Tensor, steps: int) -> dict[str, Any]:
    """Cases for ``compare``: each way with one step, and with ``steps`` more. They return steps and trained weights."""
    gc.freeze()  # Hugging Face collects garbage when a fit starts: among all that a notebook has imported, 0.2 s

    def run(way: str, count: int) -> tuple[int, list[Tensor]]:
        torch.manual_seed(0)
        net = make()
        with quiet():
            ways[way](net, batches(batch, count))
        return count, [weight.detach().cpu() for weight in net.parameters()]

    return {f"{way}, steps: {count}": partial(run, way, count) for count in (1, 1 + steps) for way in ways}


def same_weights() -> Callable[[Any, Any], bool]:
    """A check for ``compare``: a fit's weights equal, bit by bit, those of the first way after as many steps."""
    first: dict[Any, list[Tensor]] = {}

    def check(_: Any, output: tuple[int, list[Tensor]]) -> bool:
        return all(map(torch.equal, output[1], first.setdefault((output[0], output[1][0].shape), output[1])))

    return check


def per_step(timed: Comparison) -> list[dict[str, Any]]:
    """Rows by way: what a step takes, and more than the plain one's, from the two fits of each round."""
    by_way: dict[str, list[tuple[float, ...]]] = {}
    for case in timed.cases:
        by_way.setdefault(case.label.partition(", steps: ")[0], []).append(case.elapsed_s)
    steps = int(timed.cases[-1].label.split()[-1]) - 1
    rows, plain = [], None
    for way, both in by_way.items():
        values = [(long - short) / steps for short, long in zip(*both, strict=True)]
        plain = plain or values
        over = [mine - base for mine, base in zip(values, plain, strict=True)]
        interval = median_interval(over, 0.95)
        row = {"loop": way, "a step": statistics.median(values), "added": statistics.median(over)}
        rows.append(row | {"low": interval.low, "high": interval.high})
    return rows
