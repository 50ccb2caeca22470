"""What the lesson measures: peaks, pages, what a kept loss holds, what frozen layers keep, and GPT-2's evaluation."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils import scaled
from course_utils.materials.models import GPT
from course_utils.materials.pages import page_faults
from course_utils.materials.step_memory import kept_bytes, worked_out
from course_utils.measure.devices import Device, device_under_test

_Row = dict[str, Any]
# Metal's allocator keeps no peak: on a Mac the lesson runs on the CPU.
_DEVICE = device_under_test() if torch.cuda.is_available() else Device()

# Peaks


def evaluations(model: nn.Module, inputs: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Seven ways to call a model, by what they are called; each sets the model's mode itself."""

    def way(training: bool, context: Callable[[], Any] = contextlib.nullcontext, trained: bool = True) -> Any:
        def call() -> torch.Tensor:
            model.train(training).requires_grad_(trained)
            with context():
                return model(inputs)

        return call

    return {
        "train(), gradients on": way(True),
        "eval(), gradients on": way(False),
        "eval(), result detached": lambda: way(False)().detach(),
        "eval(), requires_grad_(False)": way(False, trained=False),
        "eval(), no_grad": way(False, torch.no_grad),
        "eval(), inference_mode": way(False, torch.inference_mode),
        "train(), no_grad": way(True, torch.no_grad),
    }


def peaks(network: Callable[[int], nn.Module], inputs: torch.Tensor, blocks: Sequence[int]) -> list[_Row]:
    """The peak of a forward pass for each way and depth, and whether it gives what ``eval()`` gives.

    Args:
        network: makes a model of so many blocks.
        inputs: what it is called with, ``[rows, width]``.
        blocks: the depths to try.
    """
    rows: dict[str, _Row] = {}
    for depth in blocks:
        model = network(depth).to(inputs.device)
        state = copy.deepcopy(model.state_dict())
        ways = evaluations(model, inputs)
        expected = ways["eval(), gradients on"]().detach()
        for name, call in ways.items():
            row = rows.setdefault(name, {"forward pass": name})
            row[f"{depth} blocks"] = _DEVICE.peak_memory(call)[0]
            row.pop("answer of eval()", None)  # it stands last
            model.load_state_dict(state)  # in train(), batch normalization has moved its statistics
            row["answer of eval()"] = torch.equal(call(), expected)
    return list(rows.values())


# Times


def small_layers(device: str) -> tuple[nn.Module, torch.Tensor]:
    """64 layers of 8 numbers, and one row: all bookkeeping."""
    layers = [layer for _ in range(64) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(*layers).to(device), torch.randn(1, 8, device=device)


def wide_layers(device: str) -> tuple[nn.Sequential, torch.Tensor]:
    """Two layers of which each computes for milliseconds on a CPU, and their input."""
    width, rows = scaled(cpu=1024, cuda=8192), scaled(cpu=256, cuda=8192)
    layers = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers).to(device), torch.randn(rows, width, device=device)


def small_views(device: str) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """A function of views and in-place operations alone, on a copy of 32 numbers, and these."""

    def views(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for _ in range(50):
            x = x.view(2, 16).view(4, 8)[:, :].mul_(1.0)
        return x

    return views, torch.ones(4, 8, device=device)


def given_back(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A call after which the C library gives free memory back to the system, as it may do by itself; only glibc can.

    The result has no graph any more: its memory is free by then.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None

    def both() -> torch.Tensor:
        result = call().detach()
        if give_back:
            give_back(0)
        return result

    return both


def fresh_pages(ways: Mapping[str, Callable[[], torch.Tensor]], rounds: int = 7) -> list[_Row]:
    """Page faults of one call in each way, in this process as it is, and with free memory given back after each call.

    Each number is the median of some rounds, in which the ways take turns.
    """

    def faults(calls: list[Callable[[], Any]]) -> list[int | None]:
        counted = [[page_faults(call) for call in calls] for _ in range(rounds)]
        return [None if None in each else statistics.median_low(each) for each in zip(*counted, strict=True)]

    columns = zip(ways, faults([*ways.values()]), faults([*map(given_back, ways.values())]), strict=True)
    return [{"page faults of a call": name, "as it is": usual, "given back": after} for name, usual, after in columns]


# Losses that are kept

# The fields of glibc's ``struct mallinfo2``, in their order.
_MALL_INFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


def _heap_bytes() -> int | None:
    """Main memory that the process has in use, where the C library is glibc; what tensors take on a CPU is in it."""
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return None

    class MallInfo(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_size_t) for name in _MALL_INFO)

    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallInfo
    gc.collect()
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def leaks(kept_by: Callable[..., tuple[int, int]], device: torch.device | str, steps: int = 10) -> list[_Row]:
    """What each step leaves behind, by what is kept of its loss: autograd's nodes, saved tensors, main memory.

    Args:
        kept_by: the nodes, and the bytes of the tensors, that some losses hold.
        device: where the model lives.
        steps: how many steps are compared with one; one more comes before.
    """
    model = GPT(width=64, layers=2, heads=2, context=64).to(device)
    tokens = torch.randint(256, (8, 64), device=device)

    def loss_of() -> torch.Tensor:
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    def run(keep: Callable[[list[Any], torch.Tensor], Any], backward: Callable[[torch.Tensor], Any]) -> _Row:
        kept: list[Any] = []

        def step() -> None:
            loss = loss_of()
            backward(loss)
            model.zero_grad()
            keep(kept, loss)

        def held() -> tuple[int, int]:
            return kept_by(*(each for each in kept if isinstance(each, torch.Tensor)), besides=model.parameters())

        step()
        step()
        before, heap = held(), _heap_bytes()
        for _ in range(steps):
            step()
        grown = None if heap is None else round((_heap_bytes() - heap) / steps)
        nodes, saved = ((now - then) / steps for now, then in zip(held(), before, strict=True))
        return {"graph nodes": nodes, "saved tensors": saved, "process grows by": grown}

    def summed(kept: list[Any], loss: torch.Tensor) -> None:
        kept[:] = [sum(kept, loss)]

    ways: dict[str, tuple[Any, Any]] = {
        "loss, no backward()": (list.append, lambda loss: None),
        "loss, backward(retain_graph=True)": (list.append, partial(torch.Tensor.backward, retain_graph=True)),
        "loss, backward()": (list.append, torch.Tensor.backward),
        "total += loss, backward()": (summed, torch.Tensor.backward),
        "loss.detach(), backward()": (
            lambda kept, loss: kept.append(loss.detach()),
            torch.Tensor.backward,
        ),
        "loss.item(), backward()": (lambda kept, loss: kept.append(loss.item()), torch.Tensor.backward),
    }
    return [{"kept of each step": name, **run(*way)} for name, way in ways.items()]


# Frozen layers


class LoRA(nn.Module):
    """A frozen linear layer, with a low-rank correction that is trained.

    Example:
        >>> LoRA(nn.Linear(8, 4), rank=2)(torch.zeros(3, 8)).shape
        torch.Size([3, 4])
    """

    def __init__(self, linear: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        return self.linear(x) + self.up(self.down(x))


def frozen(inputs: torch.Tensor, blocks: int = 16) -> list[_Row]:
    """Bytes that autograd keeps, by what is trained of ``blocks`` blocks of Linear and GELU.

    Args:
        inputs: ``[rows, width]``; one activation has as many bytes.
        blocks: how many.
    """
    width = inputs.shape[1]

    def kept(change: Callable[[nn.Sequential], Any], forward: Any = nn.Module.__call__) -> int:
        model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(blocks)])
        change(model)
        model.to(inputs.device)
        return kept_bytes(lambda: forward(model, inputs), [inputs, *model.parameters()])

    def only_biases(model: nn.Sequential) -> None:
        for weight in model.parameters():
            weight.requires_grad_(weight.ndim == 1)

    def only_lora(model: nn.Sequential) -> None:
        for block in model:
            block[0] = LoRA(block[0])

    def backbone_without(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = model[:-1](x)
        return model[-1](x)

    ways = {
        "all": kept(lambda model: None),
        "the last block": kept(lambda model: model[:-1].requires_grad_(False)),
        "the last block, the others under no_grad": kept(lambda model: None, backbone_without),
        "the first block": kept(lambda model: model[1:].requires_grad_(False)),
        "biases": kept(only_biases),
        "LoRA of rank 8 on each Linear": kept(only_lora),
    }
    whole = ways["all"]
    return [{"trained": name, "kept": size, "share": size / whole} for name, size in ways.items()]


# GPT-2


def gpt2_evaluation() -> list[_Row]:
    """The peak of one batch of GPT-2 124M, 8 x 1,024 tokens, evaluated; worked out, with nothing computed."""

    def peak(context: Any, parts: int, dtype: torch.dtype) -> int:
        def build() -> tuple[nn.Module, None, Callable[[], Any]]:
            usual = torch.get_default_dtype()
            torch.set_default_dtype(dtype)  # fake weights cannot be converted
            model = GPT(vocabulary=50257, context=1024, width=768, layers=12, heads=12)
            torch.set_default_dtype(usual)
            tokens = torch.zeros(8, 1024, dtype=torch.int64)

            def step() -> torch.Tensor:
                with context():
                    total = torch.zeros(())
                    for part in tokens.chunk(parts):
                        total = total + functional.cross_entropy(model(part).flatten(0, 1).float(), part.flatten())
                return total

            return model, None, step

        return worked_out(build, steps=1).peak_bytes

    ways = {
        "gradients on": (contextlib.nullcontext, 1),
        "gradients on, 4 parts, losses added up": (contextlib.nullcontext, 4),
        "no_grad": (torch.no_grad, 1),
        "no_grad, 4 parts": (torch.no_grad, 4),
    }
    return [
        {"evaluation": name, "fp32": peak(*way, torch.float32), "bf16": peak(*way, torch.bfloat16)}
        for name, way in ways.items()
    ]
