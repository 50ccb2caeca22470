"""What the lesson counts and times: fits of one small network, and what a loop reads from the device."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import logging
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: nothing here needs a network

import lightning as L  # noqa: N812
import torch
import transformers
from lightning.fabric.utilities import apply_func
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from course_utils.results.comparison import Comparison
from course_utils.results.paired import median_interval

_OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
LEAN = dict.fromkeys(_OFF, False) | {"num_sanity_val_steps": 0, "accelerator": "cpu"}
transformers.logging.set_verbosity_error()
apply_func._BLOCKING_DEVICE_TYPES = ()  # Lightning moves a batch to the CPU as it does to a GPU
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
        return {"x": batch * float("nan") if next(step) == broken else batch[:]}

    return DataLoader(range(8 * steps), batch_size=8, collate_fn=collate)


class Reads(TorchDispatchMode):
    """Counts where a tensor becomes a Python number: ``item()``, ``float()``, ``bool()``.

    Only of values that come from the weights, and so would lie on a GPU. An optimizer's step counter is on the CPU.
    """

    count = 0

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        for weight in net.parameters():
            weight.untyped_storage().on_device = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        its = [leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_sent = func.namespace == "c10d"  # to other ranks: on GPUs, from GPU to GPU
        on_device = is_sent or any(hasattr(each, "on_device") for each in its)
        self.count += on_device and func is torch.ops.aten._local_scalar_dense.default
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((out, args if is_sent or out is None else None)):  # None: it wrote in place
            if on_device and isinstance(leaf, Tensor):
                leaf.untyped_storage().on_device = True
        return out


class Copies(TorchFunctionMode):
    """Counts copies to the device that block: ``torch.tensor(.., device=)``; ``to`` without ``non_blocking=True``."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs := kwargs or {}))
        places = [each for each in (*args[1:], *kwargs.values()) if isinstance(each, torch.device | str)]
        if places and func in (Tensor.to, torch.tensor):
            is_there = hasattr(args[0], "is_there") or hasattr(out.untyped_storage(), "on_device")
            self.count += not (is_there or kwargs.get("non_blocking"))
            out.is_there = True
        return out


def waits(ways: Mapping[str, Callable[..., Any]], make: Callable[[], nn.Module]) -> list[dict[str, Any]]:
    """Rows by way: waits a step, from fits of 10 and of 40 steps. No log is due between, unless at each step."""
    rows = []
    for name, fit in ways.items():
        counts = []
        for steps in (10, 40):
            with quiet(), Copies() as copied, Reads(net := make()) as seen:
                fit(net, batches(torch.ones(8, 16), steps))
            counts.append((seen.count, copied.count))
        reads, copies = ((more - fewer) / 30 for fewer, more in zip(*counts, strict=True))
        rows.append({"loop": name, "reads a step": reads, "blocking copies": copies})
    return rows


def fits(ways: Mapping[str, Callable[..., Any]], make: Callable, batch: Tensor, steps: int) -> dict[str, Any]:
    """Cases for ``compare``: each way with one step, and with ``steps`` more. They return steps and trained weights."""
    gc.freeze()  # Hugging Face collects garbage when a fit starts: among all that a notebook has imported, 0.2 s

    def run(way: str, count: int) -> tuple[int, list[Tensor]]:
        torch.manual_seed(0)
        net = make()
        with quiet():
            ways[way](net, batches(batch, count))
        return count, [weight.detach().cpu() for weight in net.parameters()]

    return {f"{way}, steps: {count}": partial(run, way, count) for count in (1, 1 + steps) for way in ways}


def same_weights(first: dict[Any, list[Tensor]], _: Any, output: tuple[int, list[Tensor]]) -> bool:
    """A check for ``compare``: a fit's weights equal, bit by bit, those of the first way after as many steps."""
    return all(map(torch.equal, output[1], first.setdefault((output[0], output[1][0].shape), output[1])))


def per_step(timed: Comparison) -> list[dict[str, Any]]:
    """Rows by way: what it adds to the plain one's step, from the two fits of each round."""
    half, rows, plain = len(timed.cases) // 2, [], None
    for short, long in zip(timed.cases[:half], timed.cases[half:], strict=True):
        way, _, steps = long.label.partition(", steps: ")
        values = [(more - one) / (int(steps) - 1) for one, more in zip(short.elapsed_s, long.elapsed_s, strict=True)]
        plain = plain or values
        over = [mine - base for mine, base in zip(values, plain, strict=True)]
        interval = median_interval(over, 0.95)
        rows.append({"loop": way, "added": statistics.median(over), "low": interval.low, "high": interval.high})
    return rows[1:]
