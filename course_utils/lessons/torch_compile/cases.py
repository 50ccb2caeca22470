"""Cases of the lesson: a model as people write it today, its training step, and a program that starts afresh."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

from course_utils import fresh, scaled
from course_utils.show.formats import plain_number

START = """
import json, time
import torch
torch.set_num_threads(1)
x, y = torch.randn(2, 2**20, device="cuda" if torch.cuda.is_available() else "cpu")
moments = [time.perf_counter()]
function = torch.compile(lambda x, y: torch.relu(x * 2 + y) * x)
moments.append(time.perf_counter())
for call in range(21):
    function(x, y)[0].item()
    moments.append(time.perf_counter())
print(json.dumps(moments))
"""
STEPS = ("torch.compile()", "first call", "later call")


def starts() -> list[dict[str, Any]]:
    """Run a program that compiles a small function twice: with an empty cache folder, then with the filled one.

    One thread, and the median of twenty later calls: on a busy machine, two threads that wait for each other, or a
    single call, may take many times as long.
    """
    rows = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}
        for cache in ("empty", "filled"):
            done = subprocess.run([sys.executable, "-c", START], stdout=subprocess.PIPE, check=True, env=variables)
            at_once, first, *later = [b - a for a, b in itertools.pairwise(json.loads(done.stdout))]
            times = at_once, first, statistics.median(later)
            rows.append({"cache folder": cache, **dict(zip(STEPS, times, strict=True))})
    return rows


class RMSNorm(nn.Module):
    """The norm of Llama, written out in single operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Divide each row by the root of its mean square."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of a head's numbers by an angle that grows with the token's place."""
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
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        h = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """A small decoder of bytes in the style of Llama."""

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
        """Predict the token after each token: logits ``[batch, length, 256]``."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def training_step(*, compiled: bool, device: str) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Forward, loss, backward and a fused AdamW. Model and loss are compiled; their backward comes along."""
    torch.manual_seed(0)
    length, width = scaled(cpu=64, cuda=512), scaled(cpu=64, cuda=1024)
    model = Llama(width, length, layers=scaled(cpu=1, cuda=4), heads=scaled(cpu=4, cuda=16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(256, (scaled(cpu=32, cuda=8), length + 1), device=device)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    forward = torch.compile(loss_of) if compiled else loss_of

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        loss = forward(tokens)
        loss.backward()
        optimizer.step()
        return loss.detach(), model.head.weight.grad

    return step


class Workloads:
    """Makes the cases of each workload, and keeps how long the first of all compiled calls took."""

    def __init__(self, chain: Callable[..., torch.Tensor], device: str) -> None:
        x, y = torch.randn(2, scaled(cpu=1024, cuda=16384), 1024, device=device)
        self.functions: dict[str, tuple[Any, ...]] = {
            "pointwise chain": (chain, x, y),
            "training step": (),  # each case makes a model and an optimizer of its own
            "tiny function": (lambda x: x * 2, x[0, :8]),
        }
        self.device = device
        self.first_calls: dict[str, tuple[float, bool]] = {}

    def least_bytes(self, name: str) -> int | None:
        """Of the chain, whose limit is memory: each input read once, and the result written once."""
        return 3 * self.functions[name][1].nbytes if name == "pointwise chain" else None

    def __call__(self, name: str) -> dict[str, Callable[[], Any]]:
        """Eager and compiled; compiled is called once, timed, and forgotten but for the cache on disk."""
        torch.compiler.reset()
        counters.clear()
        if name == "training step":
            ways = {"eager": False, "compiled": True}
            cases = {label: fresh(training_step, compiled=way, device=self.device) for label, way in ways.items()}
            first = training_step(compiled=True, device=self.device)
        else:
            function, *inputs = self.functions[name]
            compiled = torch.compile(function)
            cases = {"eager": lambda: function(*inputs), "compiled": lambda: compiled(*inputs)}
            first = cases["compiled"]
        begin = time.perf_counter()
        out = first()
        (out[0] if isinstance(out, tuple) else out.sum()).item()
        self.first_calls[name] = time.perf_counter() - begin, counters["inductor"]["fxgraph_cache_hit"] > 0
        torch.compiler.reset()
        return cases

    def break_even(self, sweep: Any) -> list[dict[str, Any]]:
        """From which call on you are not behind, with the first call as it came and with a filled cache."""
        rows = []
        for name, (first_s, on_disk) in self.first_calls.items():
            case = sweep[name]["compiled"]
            filled_s = case.measurement.first_call_s
            row = {"workload": name, "first of all calls": first_s, **pays_at(first_s, case)}
            row |= {"cache was filled": on_disk, "first call, filled cache": filled_s}
            rows.append(row | {f"then {key}": value for key, value in pays_at(filled_s, case).items()})
        return rows


def pays_at(first_s: float, case: Any) -> dict[str, Any]:
    """The extra time of the first call over what each later call saves; None if a call is not shown to save."""

    def at(ratio: float) -> int:
        return math.ceil((first_s / case.comparison["eager"].median_s - ratio) / (1 - ratio))

    if case.verdict != "FASTER":
        return {"pays at call": None, "by the interval": None}
    early, late = (plain_number(at(ratio)) for ratio in case.interval.ends)
    return {"pays at call": at(case.ratio), "by the interval": f"{early} to {late}"}


def close(expected: Any, actual: Any) -> None:
    """Parity: sums may be taken in another order."""
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def counted(function: Callable[..., Any], calls: Any, **options: Any) -> dict[str, int]:
    """Call a compiled function several times, through a backend that only counts the graphs that it is given."""
    graphs, ran = [], []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda *given: ran.append(graph) or graph.forward(*given)

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, **options)
    for arguments in calls:
        ran.clear()
        compiled(*arguments)
    return {"graphs": len(graphs), "graphs run by the last call": len(ran)}


def counted_each(parts: Sequence[nn.Module], whole: nn.Module, *inputs: Any) -> dict[str, int]:
    """Compile each part of a model by itself, call the model, and count as :func:`counted` does."""
    graphs, ran = [], []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda *given: ran.append(graph) or graph.forward(*given)

    torch.compiler.reset()
    for part in parts:
        part.compile(backend=backend)
    whole(*inputs)
    return {"graphs": len(graphs), "graphs run by the last call": len(ran)}


def read(out: torch.Tensor, peaks: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """Read all peaks at once: one wait for the device."""
    return out, peaks.tolist()


def with_own_code(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass whose ``forward`` is the same code in another code object: a skip in one spares the other."""
    forward = kind.forward
    own = types.FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", forward.__defaults__, forward.__closure__
    )
    return type(kind.__name__, (kind,), {"forward": own})


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    """A break in a loop of the compiled function itself."""
    for _ in range(10):
        x = torch.relu(x * 1.1 - x.max().item())
    return x


def graphs_of(watched: nn.Module) -> list[dict[str, Any]]:
    """Count the graphs of a model that reads a number in each layer if its second argument says so."""
    x = torch.randn(8)
    counts = {
        "a break in each layer": counted(watched, [(x, True)]),
        "the same, fullgraph=True": counted(watched, [(x, True)], fullgraph=True),
        "a break in its own loop": counted(in_a_loop, [(x,)]),
        "read once": counted(watched, [(x, False)]),
    }
    return [{"model": model, **count} for model, count in counts.items()]
