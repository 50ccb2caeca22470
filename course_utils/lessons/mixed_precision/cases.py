"""What the lesson runs: a small GPT's training step by precision, a product, trainings in fp16, a large vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.fresh import Fresh, fresh
from course_utils.measure.machine import course_size

VOCABULARY = 50_304  # GPT-2's 50,257, rounded up to a multiple of 64

_PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"autocast": torch.bfloat16},
    "fp16": {"autocast": torch.float16},
    "fp16 + scaler": {"autocast": torch.float16, "scaler": True},
}


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _rungs() -> tuple[str, ...]:
    """What this device has in hardware: a GPU before compute capability 8.0 has no TF32, and only emulates bf16."""
    if not torch.cuda.is_available():
        return "fp32", "bf16"
    return ("fp32", "TF32", "bf16") if torch.cuda.is_tf32_supported() else ("fp32", "fp16 + scaler")


def _switched(precision: str) -> Mapping[str, Any]:
    torch.set_float32_matmul_precision("high" if precision == "TF32" else "highest")
    torch.manual_seed(0)
    return _PRECISIONS.get(precision, {})


def trainer(precision: str, model: nn.Module, share: float = 1.0) -> Callable[..., torch.Tensor]:
    """A model's training step with AdamW.

    ``share`` is what part of a larger step a batch stands for. The loss is multiplied by it, and AdamW's eps, too:
    without rounding, the steps would be the same for every share.
    """
    how = _switched(precision)
    # The default on CUDA, set so that a CPU does the same.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-8 * share, foreach=True)
    where, dtype = next(model.parameters()).device.type, how.get("autocast")
    scaler = torch.amp.GradScaler(where, enabled="scaler" in how)  # one that is not enabled does nothing

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(where, dtype=dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        scaler.scale(loss * share).backward()
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
        return loss.detach()

    return step


def gpt(width: int, layers: int, length: int, vocabulary: int = 256) -> GPT:
    """A small GPT, of bytes unless said otherwise, with heads of 32; the same weights each time."""
    torch.manual_seed(0)
    return GPT(vocabulary=vocabulary, context=length, width=width, layers=layers, heads=width // 32)


def _step_of(precision: str, width: int, layers: int, batch: int, length: int, **more: int) -> Callable[[], Any]:
    """A training step on random pieces of text; in the course's own tests on one of them."""
    batch = 1 if course_size() == "test" else batch
    pieces = next(text_batches(library_text(2**20), batch, length, steps=1, device=device()))
    step = trainer(precision, gpt(width, layers, length, **more).to(device()))
    return lambda: step(*pieces)


def _product(precision: str, n: int) -> Callable[[], torch.Tensor]:
    """A product of two square matrices that have the precision's dtype already."""
    a, b = torch.randn(2, n, n, device=device()).to(_switched(precision).get("autocast", torch.float32))
    return lambda: a @ b


def ladder(*sizes: int, **more: int) -> dict[str, Fresh]:
    """A step of so much width, so many layers, texts and tokens in each, by precision; or a product of one size."""
    make = _product if len(sizes) == 1 else _step_of
    return {precision: fresh(make, precision, *sizes, **more) for precision in _rungs()}


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((other.float() - one.float()).norm() <= 0.02 * one.float().norm())


def _trained(precision: str, share: float, length: int = 32, batch: int = 2) -> float:
    """The loss of a tiny GPT in the last twenty of 200 steps on a CPU; the course's own tests take only ten steps."""
    steps = 10 if course_size() == "test" else 200
    step = trainer(precision, gpt(width=32, layers=2, length=length), share)
    losses = [step(*each).item() for each in text_batches(library_text(2**20), batch, length, steps)]
    return sum(losses[-20:]) / len(losses[-20:])


def by_tokens(tokens: Sequence[int]) -> list[dict[str, Any]]:
    """The loss after a training in fp16, by the tokens that it stands for: a batch has only 64.

    What rescues a training is tried at the last of them. In fp32 the number changes nothing.
    """
    loss, rows = _trained("fp32", 1.0), []
    for count in tokens:
        share = 64 / count
        rescued = {name: _trained(name, share) if count == tokens[-1] else None for name in ("fp16 + scaler", "bf16")}
        rows.append({"tokens": f"{count:,}", "fp32": loss, "fp16": _trained("fp16", share), **rescued})
    return rows
