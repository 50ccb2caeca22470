"""What the lesson runs: a small GPT's training step by precision, a product, trainings in fp16, a large vocabulary."""

from __future__ import annotations

import re
from collections import Counter
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

_AUTOCAST = {"fp16": torch.float16, "fp16 + scaler": torch.float16, "bf16": torch.bfloat16}


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _rungs() -> tuple[str, ...]:
    """What this device has in hardware: a GPU before compute capability 8.0 has no TF32, and only emulates bf16."""
    if not torch.cuda.is_available():
        return "fp32", "bf16"
    return ("fp32", "TF32", "bf16") if torch.cuda.is_tf32_supported() else ("fp32", "fp16 + scaler")


def _switched(precision: str) -> torch.dtype | None:
    """Set how fp32 products are computed, and the seed; returns what autocast is to cast to."""
    torch.set_float32_matmul_precision("high" if precision == "TF32" else "highest")
    torch.manual_seed(0)
    return _AUTOCAST.get(precision)


def trainer(precision: str, model: nn.Module, share: float = 1.0) -> Callable[..., torch.Tensor]:
    """A training step: ``share`` multiplies the loss, and AdamW's eps, so that only rounding makes a difference."""
    where, dtype = next(model.parameters()).device.type, _switched(precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-8 * share, foreach=True)  # as CUDA's default
    scaler = torch.amp.GradScaler(where, enabled="scaler" in precision)  # one that is not enabled does nothing

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
    a, b = torch.randn(2, n, n, device=device()).to(_switched(precision) or torch.float32)
    return lambda: a @ b


def ladder(*sizes: int, **more: int) -> dict[str, Fresh]:
    """A step of so much width, so many layers, texts and tokens in each, by precision; or a product of one size."""
    make = _product if len(sizes) == 1 else _step_of
    return {precision: fresh(make, precision, *sizes, **more) for precision in _rungs()}


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((other.float() - one.float()).norm() <= 0.02 * one.float().norm())


def _text(classes: int) -> torch.Tensor:
    """A text as bytes; with more classes as words and single signs, of which all rare ones are one class."""
    if classes == 256:
        return library_text(2**20)
    words = re.findall(r"\w+|\W", bytes(library_text(2**22).numpy()).decode(errors="replace"))
    known = {word: number for number, (word, _) in enumerate(Counter(words).most_common(classes - 1))}
    return torch.tensor([known.get(word, classes - 1) for word in words])


def _trained(precision: str, text: torch.Tensor, classes: int, share: float = 1.0) -> float:
    """The loss of a tiny GPT in the last twenty of 200 steps on a CPU; the course's own tests take only ten steps."""
    step = trainer(precision, gpt(32, 2, 32, classes), share)
    batches = text_batches(text, batch=2, length=32, steps=10 if course_size() == "test" else 200)
    return torch.stack([step(*each) for each in batches][-20:]).mean().item()


def by_tokens(over: Mapping[int, Sequence[int]], rescued: int) -> list[dict[str, Any]]:
    """The loss after a training in fp16, by classes and the tokens that it stands for: a batch has only 64."""
    rows = []
    for classes, counts in over.items():
        fp32 = _trained("fp32", text := _text(classes), classes)  # there the tokens change nothing
        for tokens in counts:
            tried = _AUTOCAST if tokens == rescued else ("fp16",)
            ends = {name: _trained(name, text, classes, 64 / tokens) if name in tried else None for name in _AUTOCAST}
            rows.append({"tokens × classes": f"{tokens:,} × {classes:,}", "fp32": fp32} | ends)
    return rows
