"""What the lesson runs: a small GPT's step in several ways, and counts of the calls that make it up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.machine import course_size

# Width, texts and tokens in each: the steps of the lesson on mixed precision. Python makes the same calls for both.
SIZES = {"wide": (768, 16, 512), "narrow": (128, 8, 128)}
Step = Callable[..., torch.Tensor]
Capture = Callable[..., tuple[Any, list[torch.Tensor], torch.Tensor]]  # the notebook's `captured`
Counter = Callable[[], AbstractContextManager[Any]]  # the notebook's `Calls`


class _Loss(nn.Module):
    """A GPT with its loss, under autocast or not."""

    def __init__(self, gpt: GPT, bf16: bool) -> None:
        super().__init__()
        self.gpt, self.bf16 = gpt, bf16

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # No weight is cast twice in a forward pass, and a graph is better off without a cache of casts.
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            logits = self.gpt(tokens).flatten(0, 1)
        return functional.cross_entropy(logits.float(), targets.flatten())


def step_of(size: str, form: str = "fused", bf16: bool = True, capture: Capture | None = None) -> Step:
    """A training step on the GPU, after three of warm-up: as Python makes its calls, or captured."""
    torch.set_float32_matmul_precision("high")
    width, texts, length = (32, 2, 16) if course_size() == "test" else SIZES[size]
    loss_of = _Loss(GPT(context=length, width=width, heads=width // 32), bf16).cuda()
    batch = next(text_batches(library_text(2**20), texts, length, steps=1, device="cuda"))
    optimizer = torch.optim.AdamW(loss_of.parameters(), capturable=capture is not None, **{form: True})

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if capture is None:
        for _ in range(3):
            step(*batch)
        return lambda: step(*batch)
    graph, held, loss = capture(step, *batch)

    def replay() -> torch.Tensor:
        for mine, new in zip(held, batch, strict=True):
            mine.copy_(new)
        graph.replay()
        return loss

    return replay


def near(expected: torch.Tensor, actual: torch.Tensor) -> None:
    """Raise if two losses differ by more than bfloat16 or TF32 explain."""
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.0)


def _launches_nothing(call: str) -> bool:
    """Whether an operator gives a view, or reads a number: AdamW reads its own on the CPU, one for each weight."""
    packet = getattr(torch.ops.aten, call)
    return call == "_local_scalar_dense" or any(getattr(packet, form).is_view for form in packet.overloads())


def calls(counter: Counter) -> list[dict[str, Any]]:
    """Which operators a step calls; on the CPU, and tiny, since neither width nor batch changes their number."""
    rows = []
    for name, bf16, form in ("fp32, TF32", False, "foreach"), ("bf16", True, "foreach"), ("bf16, fused", True, "fused"):
        loss_of, tokens = _Loss(GPT(context=4, width=8, heads=2), bf16), torch.randint(256, (1, 4))
        optimizer = torch.optim.AdamW(loss_of.parameters(), **{form: True})
        for _ in range(2):  # an optimizer makes its state in the first
            with counter() as step:
                loss = loss_of(tokens, tokens)
                (1.0 * loss).backward()  # the recorded step scales its loss, too
                optimizer.step()
                optimizer.zero_grad()
                loss.detach()
        nothing = sum(step.made[call] for call in +step.made if _launches_nothing(call))
        rows.append({"step": name, "calls": step.made.total(), "no kernel": nothing, "casts": step.made["_to_copy"]})
    return rows
