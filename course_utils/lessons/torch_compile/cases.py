"""Cases of the lesson: a model as people write it today, its training step, and when compiling has paid."""

from __future__ import annotations

import math
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

from course_utils import fresh, scaled
from course_utils.show.formats import plain_number


class RMSNorm(nn.Module):
    """The norm of Llama, written out in single operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaBlock(nn.Module):
    """A transformer block with norms, rotary positions and a gated MLP, each in single operations."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, hidden = heads, 8 * width // 3
        self.attention_norm, self.mlp_norm = RMSNorm(width), RMSNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attend to earlier tokens, then transform each token: ``[batch, length, width]``, in and out."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        h = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Predicts the token after each token: logits ``[batch, length, 256]``."""

    def __init__(self, width: int, length: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(256, width), RMSNorm(width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 256, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(length), 10000 ** -(torch.arange(half) / half)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def training_step(*, mode: str | None, device: str, dtype: torch.dtype = torch.float32) -> Callable[[], Any]:
    """Forward, loss, backward and a fused AdamW. With a mode, model, loss and their backward are compiled."""
    torch.manual_seed(0)
    length, width = scaled(cpu=64, cuda=512), scaled(cpu=64, cuda=1024)
    model = Llama(width, length, layers=scaled(cpu=1, cuda=4), heads=scaled(cpu=4, cuda=16)).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(256, (scaled(cpu=32, cuda=8), length + 1), device=device)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    forward = torch.compile(loss_of, mode=mode) if mode else loss_of

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        loss = forward(tokens)
        loss.backward()
        optimizer.step()
        return loss.detach(), model.head.weight.grad

    return step


def modes(device: str) -> dict[str, Any]:
    """The step in bfloat16: eager, and in two modes. A CUDA graph writes over its outputs, so they are cloned."""

    def cloning(mode: str | None) -> Callable[[], list[torch.Tensor]]:
        step = training_step(mode=mode, device=device, dtype=torch.bfloat16)
        return lambda: [part.clone() for part in step()]

    return {mode or "eager": fresh(cloning, mode) for mode in (None, "default", "reduce-overhead")}


class Workloads:
    """Makes the cases of each workload, and keeps how long the first of all compiled calls took."""

    def __init__(self, chain: Callable[..., torch.Tensor], device: str) -> None:
        x, y = torch.randn(2, scaled(cpu=1024, cuda=16384), 1024, device=device)
        self.functions = {"pointwise chain": (chain, x, y), "tiny function": (lambda x: x * 2, x[0, :8])}
        # Compiling the training step takes a CPU a quarter of a minute.
        self.names = "pointwise chain", *(["training step"] if device == "cuda" else []), "tiny function"
        self.device, self.first_calls = device, {}

    def __call__(self, name: str) -> dict[str, Any]:
        """Eager and compiled; compiled is called once, timed, and forgotten but for the cache on disk."""
        torch.compiler.reset()
        counters.clear()
        if name == "training step":
            ways = {"eager": None, "compiled": "default"}
            cases = {label: fresh(training_step, mode=mode, device=self.device) for label, mode in ways.items()}
            first = training_step(mode="default", device=self.device)
        else:
            function, *inputs = self.functions[name]
            compiled = torch.compile(function)
            cases = {"eager": lambda: function(*inputs), "compiled": lambda: compiled(*inputs)}
            first = cases["compiled"]
        begin = time.perf_counter()
        out = first()
        (out[0] if isinstance(out, tuple) else out.sum()).item()
        elapsed_s, was_filled = time.perf_counter() - begin, counters["inductor"]["fxgraph_cache_hit"] > 0
        self.first_calls[name] = {"workload": name, "first of all calls": elapsed_s, "cache was filled": was_filled}
        torch.compiler.reset()
        return cases

    def break_even(self, sweep: Any) -> list[dict[str, Any]]:
        """From which call on you are not behind, with the first call as it came."""
        first_calls = self.first_calls.values()
        return [row | pays_at(row["first of all calls"], sweep[row["workload"]]["compiled"]) for row in first_calls]


def pays_at(first_s: float, case: Any) -> dict[str, Any]:
    """The extra time of the first call over what each later call saves; None if a call is not shown to save."""
    if case.verdict != "FASTER":
        return {"pays at call": None, "by the interval": None}
    first = first_s / case.comparison["eager"].median_s
    at, early, late = (math.ceil((first - ratio) / (1 - ratio)) for ratio in (case.ratio, *case.interval.ends))
    return {"pays at call": at, "by the interval": f"{plain_number(early)} to {plain_number(late)}"}


def close(expected: Any, actual: Any) -> None:
    """Parity: sums may be taken in another order."""
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def near(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> bool:
    """Parity in bfloat16: the difference is small beside the whole."""
    return all((a - b).float().norm() < 0.05 * b.float().norm() for a, b in zip(actual, expected, strict=True))


def copies(model: nn.ModuleList, count: int) -> list[nn.ModuleList]:
    """The same layers, each time with code of its own: Dynamo gives up on the loop of the one with stops alone."""
    kind, forward = type(model), type(model).forward
    own = (types.FunctionType(forward.__code__.replace(), forward.__globals__, "forward") for _ in range(count))
    return [type(kind.__name__, (kind,), {"forward": each})(model) for each in own]


def read(out: torch.Tensor, peaks: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """The peaks as numbers: one wait for the GPU."""
    return out, peaks.tolist()
