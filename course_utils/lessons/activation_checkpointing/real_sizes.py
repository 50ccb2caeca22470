"""Peaks of models that do not fit here, worked out: GPTs, and the model of published peaks on an A800.

Of the latter, sizes, batch and dtype are those of the report's own program, read on 2026-11-26:
    EnzoDing-rgb/cs336-assignment2-systems, cs336_systems/e2e_timing/e2e.py (a86e626), preset "xl", batch 4, float32.
Its layers are those of Stanford's CS336: RMSNorm, rotary positions, attention written out, SwiGLU. These are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from course_utils.materials.models import GPT
from course_utils.materials.step_memory import worked_out

_A800_LAYERS = 32
_WIDTH, _INNER, _HEADS, _WORDS, _BATCH = 2560, 10_240, 32, 10_000, 4


class _Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([cos * even - sin * odd, sin * even + cos * odd], -1).flatten(-2)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.attention_norm, self.mlp_norm = _Norm(), _Norm()
        self.q, self.k, self.v, self.out = (linear(_WIDTH, _WIDTH) for _ in range(4))
        self.gate, self.up, self.down = linear(_WIDTH, _INNER), linear(_WIDTH, _INNER), linear(_INNER, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, per_head = x.shape[1], _WIDTH // _HEADS
        y = self.attention_norm(x)
        q, k, v = (project(y).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for project in (self.q, self.k, self.v))
        cos, sin = x.new_empty(2, length, per_head // 2)
        scores = _rotated(q, cos, sin) @ _rotated(k, cos, sin).mT / math.sqrt(per_head)
        scores = torch.where(x.new_empty(length, length, dtype=torch.bool), scores, float("-inf"))
        exponentials = torch.exp(scores - scores.max(-1, keepdim=True)[0])
        attended = (exponentials / exponentials.sum(-1, keepdim=True)) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        gate = self.gate(y)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(y))


def _build(layers: int, length: int, segment: int | None) -> tuple[nn.Module, Any, Callable[[], Any]]:
    blocks = nn.ModuleList(_Layer() for _ in range(layers))
    model = nn.ModuleList([nn.Embedding(_WORDS, _WIDTH), blocks, _Norm(), nn.Linear(_WIDTH, _WORDS, bias=False)])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.empty(_BATCH, length, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        x = model[0](tokens)
        for start in range(0, layers, segment or layers):
            part = nn.Sequential(*blocks[start : start + (segment or layers)])
            x = checkpoint(part, x, use_reentrant=False) if segment else part(x)
        cross_entropy(model[3](model[2](x)).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return model, optimizer, step


# By tokens, and layers that are recomputed together (None: nothing is). A test holds them against lesson.yml.
PUBLISHED_GIB = {(512, None): 65.538, (2048, 1): 63.599, (2048, 2): 69.561}


def against_published() -> list[dict[str, Any]]:
    """Each published peak beside the one worked out, in bytes."""
    rows = []
    for (length, segment), gib in PUBLISHED_GIB.items():
        ours = worked_out_bytes(length, segment)
        way = f"segments of {segment}" if segment else "nothing recomputed"
        published = round(gib * 2**30)
        rows.append(
            {
                "step": f"{length:,} tokens, {way}",
                "worked out": ours,
                "published": published,
                "off by": ours / published - 1,
            }
        )
    return rows


def worked_out_bytes(length: int, segment: int | None) -> int:
    """The peak of the published step.

    Args:
        length: tokens of a sequence.
        segment: layers that are recomputed together, 1 or 2; None if nothing is recomputed.
    """
    return _extended(lambda layers: _build(layers, length, segment), segment or 1)(_A800_LAYERS)


def _extended(build: Callable[[int], Any], segment: int = 1) -> Callable[[int], int]:
    """The peak of a step by its layers: the line through those of one and of two segments.

    It holds as long as the peak is at the same place of the step; tests compare it with whole models.
    """
    one, two = (worked_out(partial(build, segments * segment)).peak_bytes for segments in (1, 2))
    return lambda layers: one + (two - one) * (layers - segment) // segment


def peaks_by_depth(depths: Sequence[int] = (12, 48, 80), segments: Sequence[int] = (1, 2, 4)) -> list[dict[str, Any]]:
    """The peak of a GPT's step by its blocks, and by how many of them are recomputed together.

    Width 1,024, 64 sequences of 1,024 tokens, float32; with weights, gradients and AdamW's state.
    """
    by_segment = {
        size: _extended(lambda few, size=size: _gpt_step(1024, few, 16, segment=size, words=256, batch=64), size)
        for size in segments
    }
    return [
        {"model": f"{depth} blocks"} | {f"segments of {size}": peak(depth) for size, peak in by_segment.items()}
        for depth in depths
    ]


_GPT2 = {
    "GPT-2, 124M, bfloat16 autocast": (768, 12, 12, True),
    "GPT-2 XL, 1.5B, float32": (1600, 48, 25, False),
}


def peaks_of_gpt2() -> list[dict[str, Any]]:
    """The peak of a step with 8 sequences of 1,024 tokens, AdamW's state and all: blocks kept, and recomputed."""
    return [
        {"model": label}
        | {
            column: _extended(
                lambda few, segment=segment: _gpt_step(width, few, heads, segment=segment, autocast=autocast)  # noqa: B023
            )(layers)
            for column, segment in (("blocks kept", None), ("recomputed", 1))
        }
        for label, (width, layers, heads, autocast) in _GPT2.items()
    ]


def _gpt_step(
    width: int,
    layers: int,
    heads: int,
    *,
    segment: int | None,
    autocast: bool = False,
    words: int = 50_257,
    batch: int = 8,
) -> tuple[nn.Module, Any, Any]:
    model = GPT(words, 1024, width, layers, heads)
    if segment:
        model.blocks = nn.ModuleList(
            nn.Sequential(*model.blocks[at : at + segment]) for at in range(0, layers, segment)
        )
        for part in model.blocks:
            part.forward = partial(checkpoint, part.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.empty(batch, 1024, dtype=torch.int64)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())  # a name would keep the logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step
