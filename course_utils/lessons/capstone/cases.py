"""One GPT's training step, with any choice of techniques: what the lesson adds, takes away, and trains."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from course_utils import fresh, scaled
from course_utils.lessons.initialization.cases import words
from course_utils.materials.attention import relative_error
from course_utils.materials.models import GPT, Block
from course_utils.materials.step_memory import peak_bytes
from course_utils.materials.text import text_batches
from course_utils.measure.fresh import Switches
from course_utils.measure.machine import course_size
from course_utils.show.progress import progress

Step = Callable[[], torch.Tensor]
Run = list[float]  # losses on text held out
NAIVE, FULL = "naive", "full stack"
GPU = torch.cuda.is_available()


@dataclass(frozen=True)
class Size:
    """A GPT and its batches; the vocabulary is no multiple of 64, as GPT-2's is none."""

    model: Mapping[str, int]
    batch: int

    @property
    def tokens(self) -> int:
        """In a batch."""
        return self.batch * self.model["context"]

    @property
    def flops(self) -> float:
        """Of a step by the usual formula: for each token 6 for each weight, and 12 · layers · width · context."""
        layers, width, context = (self.model[key] for key in ("layers", "width", "context"))
        weights = self.model["vocabulary"] * width + 12 * layers * width**2
        return self.tokens * (6 * weights + 12 * layers * width * context)


_SMALL = Size({"vocabulary": 4001, "context": 128, "width": 192, "layers": 2, "heads": 6}, 2)
_LARGE = Size({"vocabulary": 50257, "context": 1024, "width": 768, "layers": 6, "heads": 12}, 4)
_TINY = Size({"vocabulary": 1001, "context": 16, "width": 16, "layers": 1, "heads": 2}, 2)
SIZE: Size = _TINY if course_size() == "test" else scaled(cpu=_SMALL, cuda=_LARGE)

# Products of fp32 weights in a shorter format: TF32 on a GPU, bf16 on a CPU.
PRODUCTS, PRECISION = ("TF32", "high") if GPU else ("bf16 products", "medium")
STACK = ("autocast", "fused AdamW", "SDPA", *(["compile"] if GPU else []), PRODUCTS)
OTHERS = ("linear loss", "checkpointing", "two halves", "padding", *(["pinned batches", "CUDA graph"] if GPU else []))
FORMS = ("compile", "whole model", "reduce-overhead")  # of compiling: block by block, at once, with CUDA graphs
# What one writes for each.
LINES = {
    "autocast": 'with torch.autocast("cuda", torch.bfloat16):',
    "fused AdamW": "AdamW(model.parameters(), fused=True)",
    "SDPA": "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "compile": "for block in model.blocks:\n    block.compile()",
    "TF32": 'torch.set_float32_matmul_precision("high")',
    "bf16 products": 'torch.set_float32_matmul_precision("medium")',
}
_CHANGES = {"autocast": "other arithmetic", PRODUCTS: "other arithmetic", "padding": "another problem"}


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention by hand: all scores in memory."""
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ v


def _by_hand(block: Block, x: torch.Tensor) -> torch.Tensor:
    q, k, v = block.qkv(block.attention_norm(x)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
    x = x + block.projection(_attended(q, k, v).transpose(1, 2).flatten(2))
    return x + block.mlp(block.mlp_norm(x))


def _with_sdpa(block: Block, x: torch.Tensor) -> torch.Tensor:
    return block(x)


@functools.cache
def _compiled(run: Callable[..., torch.Tensor], mode: str | None = None) -> Callable[..., torch.Tensor]:
    """Compiled: one function for all blocks and steps. A test does without the C++ or Triton code."""
    # Each batch and each choice of switches has code of its own. Beyond the limit a call would silently run eagerly.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    if course_size() == "test":
        return torch.compile(run, dynamic=False, backend="aot_eager")
    return torch.compile(run, dynamic=False, mode=mode)


class Training:
    """A GPT on the words of the standard library. Whatever a step is made of, it trains the same weights."""

    def __init__(self, seed: int = 0, batch: int = SIZE.batch, steps: int = 8) -> None:
        torch.manual_seed(seed)
        self.device = "cuda" if GPU else "cpu"
        self.start = GPT(**SIZE.model).state_dict()
        self.text, length = words(SIZE.model["vocabulary"]), SIZE.model["context"]
        self.batches = list(text_batches(self.text[: -(2**14)], batch, length, steps, seed))
        self._models: dict[tuple[bool, bool], GPT] = {}
        self._optimizers: dict[tuple[int, bool], torch.optim.Optimizer] = {}

    def model(self, padded: bool = False, own: bool = False) -> GPT:
        """A model with the weights of the start; one for all steps, unless it is to be a step's own."""
        rows = math.ceil(SIZE.model["vocabulary"] / 64) * 64 if padded else SIZE.model["vocabulary"]
        if (padded, own) not in self._models:
            self._models[padded, own] = GPT(**{**SIZE.model, "vocabulary": rows}).to(self.device)
        model = self._models[padded, own]
        for name, weight in model.state_dict().items():
            weight.zero_()[: len(self.start[name])].copy_(self.start[name])
        return model

    def _optimizer(self, model: GPT, is_fused: bool, is_graph: bool) -> torch.optim.Optimizer:
        """AdamW without a past, fused or as it is by default; shared like the models, to leave room on a small GPU."""
        if (key := (id(model), is_fused)) not in self._optimizers:
            form = {"fused": True} if is_fused else {}
            self._optimizers[key] = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=is_graph, **form)
        self._optimizers[key].state.clear()
        return self._optimizers[key]

    def step_of(self, on: Iterable[str] = ()) -> Step:
        """A training step with these techniques, from the start."""
        on = frozenset(on)
        torch.set_float32_matmul_precision(PRECISION if PRODUCTS in on else "highest")
        model, is_graph = self.model("padding" in on, "CUDA graph" in on), "CUDA graph" in on
        optimizer = self._optimizer(model, "fused AdamW" in on, is_graph)
        run = _with_sdpa if "SDPA" in on else _by_hand
        run = _compiled(run) if "compile" in on else run

        def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            # A graph is better off without a cache of casts.
            with torch.autocast(self.device, torch.bfloat16, "autocast" in on, cache_enabled=not is_graph):
                x = model.token_embedding(tokens) + model.position_embedding.weight[: tokens.shape[1]]
                for block in model.blocks:
                    x = checkpoint(run, block, x, use_reentrant=False) if "checkpointing" in on else run(block, x)
                x, head = model.norm(x).flatten(0, 1), model.head.weight
                if "linear loss" not in on:
                    return functional.cross_entropy(functional.linear(x, head).float(), targets.flatten())
                pieces = nn.LinearCrossEntropyOptions()
                return functional.linear_cross_entropy(x.float(), head, targets.flatten(), options=pieces)

        if "whole model" in on or "reduce-overhead" in on:
            loss_of = _compiled(loss_of, "reduce-overhead" if "reduce-overhead" in on else None)

        def train(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            parts = 2 if "two halves" in on else 1
            losses = []
            for half in zip(tokens.chunk(parts), targets.chunk(parts), strict=True):
                loss = loss_of(*half) / parts
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            return sum(losses)

        batches = self._fed("pinned batches" in on)
        return _replayed(train, batches) if is_graph else lambda: train(*next(batches))

    def _fed(self, pinned: bool) -> Iterator[list[torch.Tensor]]:
        """Batches from the CPU's memory, round and round."""
        pairs = [[each.pin_memory() if pinned else each for each in pair] for pair in self.batches]
        return ([each.to(self.device, non_blocking=pinned) for each in pair] for pair in itertools.cycle(pairs))

    @torch.no_grad()
    def validation_loss(self, padded: bool) -> float:
        """Of the weights as they are, in fp32, on text held out."""
        length, model = SIZE.model["context"], self._models[padded, False]
        pieces = self.text[-(2**14) :].long().unfold(0, length + 1, length)[:8].to(self.device)
        logits = model(pieces[:, :-1])[..., : SIZE.model["vocabulary"]]
        return functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten()).item()


def _replayed(train: Callable[..., torch.Tensor], batches: Iterator[list[torch.Tensor]]) -> Step:
    """The step as one CUDA graph, captured as in the lesson on launch-bound steps."""
    held, side, graph = [each.clone() for each in next(batches)], torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train(*held)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        loss = train(*held)

    def step() -> torch.Tensor:
        for mine, new in zip(held, next(batches), strict=True):
            mine.copy_(new)
        graph.replay()
        return loss

    return step


def label(on: Iterable[str]) -> str:
    """What a choice is called: its techniques in the order of the stack, ``naive`` or ``full stack``."""
    on = frozenset(on)
    if on >= frozenset(STACK):
        return " + ".join([FULL, *sorted(on - frozenset(STACK))])
    return " + ".join(name for name in (*STACK, *OTHERS, *FORMS) if name in on) or NAIVE


def choices() -> list[frozenset[str]]:
    """All choices of techniques of the stack, from none to all."""
    return [frozenset(each) for n in range(len(STACK) + 1) for each in itertools.combinations(STACK, n)]


def tried() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """For each technique beside the stack, as far as torch has it: the naive and the full step with it."""
    names = [name for name in OTHERS if name != "linear loss" or hasattr(functional, "linear_cross_entropy")]
    return {name: (frozenset({name}), frozenset({*STACK, name})) for name in names}


def steps(training: Training, choices: Iterable[Iterable[str]]) -> dict[str, Any]:
    """Cases to compare, the naive step first."""
    return {label(on): fresh(training.step_of, on) for on in choices}


def every_choice(training: Training) -> dict[str, Any]:
    """All choices of the stack: 16 on a CPU, 32 on a GPU. The rungs come first, and compile for themselves."""
    return steps(training, [*rungs(), *choices()])


def beside(training: Training) -> dict[str, Any]:
    """Naive and full step, and both with each technique that is not in the stack."""
    return steps(training, [(), STACK, *(on for pair in tried().values() for on in pair)])


def compiled(training: Training) -> dict[str, Any]:
    """Naive and full step, eager and compiled; on a GPU the full one, compiled in three ways."""
    eager = frozenset(STACK) - {"compile"}
    if GPU:
        return steps(training, [eager | {form} for form in FORMS])
    return steps(training, [(), {"compile"}, eager, eager | {"compile"}])


def at_largest(batches: Mapping[str, int]) -> dict[str, Any]:
    """The rungs, each with a batch of its own."""
    return {label(on): fresh(Training(batch=batches[label(on)]).step_of, on) for on in rungs()}


def attentions(what: str) -> dict[str, Any]:
    """Attention of the GPT's heads, forward and backward, by hand and by SDPA.

    ``what`` is length and dtype, such as ``128, float32``; a third part multiplies in fewer bits, as `PRODUCTS` do.
    """
    length, dtype, *products = what.split(", ")
    shape = SIZE.batch, SIZE.model["heads"], int(length), SIZE.model["width"] // SIZE.model["heads"]
    at = {"dtype": getattr(torch, dtype), "device": "cuda" if GPU else "cpu"}
    inputs = [torch.randn(shape, **at).requires_grad_() for _ in range(3)]
    upstream = torch.randn(shape, **at)

    def ready(way: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        torch.set_float32_matmul_precision(PRECISION if products else "highest")
        return lambda: torch.autograd.grad(way(*inputs), inputs, upstream)

    sdpa = functools.partial(functional.scaled_dot_product_attention, is_causal=True)
    return {"by hand": fresh(ready, _attended), "SDPA": fresh(ready, sdpa)}


def near(expected: torch.Tensor, actual: torch.Tensor) -> None:
    """Raise if two first losses differ by more than 16 bits, or some dozen more words, explain."""
    torch.testing.assert_close(actual, expected, rtol=0.01, atol=0.0)


def rough(expected: tuple[torch.Tensor, ...], actual: tuple[torch.Tensor, ...]) -> None:
    """Raise if two gradients differ by more than bf16 explains."""
    for theirs, mine in zip(expected, actual, strict=True):
        if relative_error(mine, theirs) > 0.03:
            raise AssertionError(f"the relative error is {relative_error(mine, theirs):.1e}")


def same_losses(training: Training, steps: int = 10) -> list[dict[str, Any]]:
    """What each technique changes, and how far its losses are from the naive ones at most: same start and batches."""
    rows, naive = [], []
    ways = [(), *((name,) for name in STACK), *(first for first, _ in tried().values()), STACK]
    with Switches.kept(), progress("losses", expected_s=len(ways)) as bar:
        for on in ways:
            step = training.step_of(on)
            losses = [step().item() for _ in range(steps)]
            naive = naive or losses
            changes = next((_CHANGES[name] for name in on if name in _CHANGES), "another order")
            off = max(abs(mine / theirs - 1) for mine, theirs in zip(losses, naive, strict=True))
            rows.append({"step": label(on), "changes": "same bits" if losses == naive else changes, "off by": off})
            bar.advance(1)
    return rows


def rungs() -> list[tuple[str, ...]]:
    """The stack as a ladder: each step has one technique more."""
    return [STACK[:n] for n in range(len(STACK) + 1)]


def largest(times: int = 3) -> dict[str, int]:
    """The batch of each rung that takes the memory of the naive step at so many times the batch, by its peaks."""
    found, room, most = {}, 0, times * SIZE.batch
    with Switches.kept():
        for on in rungs():
            few, many = (peak_bytes(Training(batch=batch).step_of(on)) or 1 for batch in (SIZE.batch, most))
            room = room or many
            text = max(1, (many - few) / (most - SIZE.batch))
            found[label(on)] = most + int((room - many) / text)
    return found


def train(stacks: Mapping[str, tuple[Sequence[str], int]], batches: int, seeds: int = 6) -> dict[str, list[Run]]:
    """Losses on text held out of each stack with each seed, at the start and then five times, after equal tokens.

    A stack is its techniques, and how many batches are one of its own. On a CPU two runs go on side by side: losses are
    looked at, not times.
    """
    if course_size() == "test":
        batches, seeds = 20, 1
    runs: dict[str, list[Run]] = {}
    bar_of = progress("training", expected_s=len(stacks) * seeds)
    with Switches.kept(), bar_of as bar, ThreadPoolExecutor(1 if GPU else 2) as pool:
        for name, (on, times) in stacks.items():
            starts = [Training(seed, times * SIZE.batch, batches // times) for seed in range(1, seeds + 1)]
            runs[name] = []
            for losses in pool.map(lambda start, on=on, each=batches // times // 5: _losses(start, on, each), starts):
                runs[name].append(losses)
                bar.advance(1)
    return runs


def _losses(training: Training, on: Sequence[str], steps: int) -> Run:
    step, look = training.step_of(on), functools.partial(training.validation_loss, "padding" in on)
    return [look(), *(([step() for _ in range(steps)], look())[1] for _ in range(5))]
