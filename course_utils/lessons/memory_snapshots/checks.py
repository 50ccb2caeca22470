"""Checks of lesson 12. All run on the CPU; the traces that they hand out are made by hand, so they hold no surprise."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.lessons.answers import NotRight, ask, effect, exercise, listed, number
from course_utils.materials.models import GPT
from course_utils.measure.machine import environment
from course_utils.records.kinds.memory_trace import MemoryBlock, MemoryTrace

MIB = 2**20
# (name, bytes, born, died). In the first case a block dies at the very moment of the peak, in the second the peak comes
# early and small blocks make it, in the third it is reached twice.
_BLOCKS = (
    (("a", 40, 0, 9), ("b", 50, 1, 3), ("c", 30, 2, 4), ("d", 45, 3, 7), ("e", 10, 4, 9), ("f", 20, 5, 6)),
    (("w", 10, 0, 12), ("x", 15, 1, 4), ("y", 15, 2, 5), ("z", 15, 3, 6), ("big", 40, 7, 9), ("left", 12, 8, 12)),
    (("p", 8, 0, 6), ("q", 8, 1, 3), ("r", 8, 4, 5), ("s", 1, 2, 3), ("t", 1, 4, 5)),
)
_Blocks = Sequence[tuple[str, int, int, int]]


def _alive(blocks: _Blocks, moment: int, longer: int = 0) -> set[str]:
    """The blocks at a moment; with ``longer=1`` as if a block lived one moment longer."""
    return {name for name, _, born, died in blocks if born <= moment < died + longer}


def _peaks(blocks: _Blocks, longer: int = 0) -> list[int]:
    """The moments with most memory."""
    sizes = {name: size for name, size, *_ in blocks}
    moments = range(max(died for *_, died in blocks))
    totals = [sum(sizes[name] for name in _alive(blocks, moment, longer)) for moment in moments]
    return [moment for moment in moments if totals[moment] == max(totals)]


@exercise
def check_alive(answer: Any) -> str | None:
    """Asks for several sets of blocks and compares with what a wrong turn gives on all of them."""
    given = []
    for blocks in _BLOCKS:
        names = ask(answer, list(blocks))
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise NotRight(f"Return the names of the blocks, as a list or a set; you return {type(names).__name__}.")
        names = listed(names)
        if not all(isinstance(name, str) for name in names):
            raise NotRight("Return names only, such as 'a': the first entry of each block.")
        given.append(set(names))
    ways: Mapping[str | None, Callable[[_Blocks], set[str]]] = {
        None: lambda blocks: _alive(blocks, _peaks(blocks)[0]),
        "later": lambda blocks: _alive(blocks, _peaks(blocks)[-1]),
        "died": lambda blocks: _alive(blocks, _peaks(blocks, longer=1)[0], longer=1),
        "ever": lambda blocks: {name for name, *_ in blocks},
        "end": lambda blocks: _alive(blocks, max(died for *_, died in blocks) - 1),
        "largest": lambda blocks: {max(blocks, key=lambda block: block[1])[0]},
    }
    for key, way in ways.items():
        if given == [way(blocks) for blocks in _BLOCKS]:
            return key
    by_size = [[name for name, *_ in sorted(blocks, key=lambda block: -block[1])] for blocks in _BLOCKS]
    if all(names and names == set(order[: len(names)]) for names, order in zip(given, by_size, strict=True)):
        return "largest"
    raise NotRight(
        "These are not the blocks that are there when the sum is highest. For each moment from 0 on, add up the sizes "
        "with born <= moment < died."
    )


# Of each trace: the line that leaks, the bytes that it adds in each step, and whether a spike comes in each step.
_LEAKS = (("train.py:31 evaluate", 2 * MIB), ("metrics.py:12 update", MIB // 4))
_STEPS, _MOMENTS = 5, 10
_CACHE = "model.py:30 fill"


@functools.cache
def _leaking_trace(line: str, leaked: int) -> tuple[MemoryTrace, tuple[int, ...]]:
    """Five steps: weights, Adam's state and a filled cache from the first step on, activations, spikes, and a leak."""
    total = _STEPS * _MOMENTS + 1
    blocks = [MemoryBlock(30 * MIB, 0, total, "weights", "GPT", "", "")]
    starts = tuple(1 + step * _MOMENTS for step in range(_STEPS))
    for module in ("GPT.blocks.0", "GPT.blocks.1"):
        born = starts[0] + 7
        blocks.append(MemoryBlock(28 * MIB, born, total, "optimizer state", module, "train.py:20 step", "zeros_like"))
    # Looks like the leak, with more blocks and more bytes: of the same kind, and there at the end. It does not grow.
    for _ in range(12):
        blocks.append(MemoryBlock(leaked // 2, starts[0] + 2, total, "activations", "GPT.cache", _CACHE, "clone"))
    for start in starts:
        at = start
        blocks.append(MemoryBlock(24 * MIB, at, at + 6, "activations", "GPT.blocks", "model.py:9 forward", "addmm"))
        blocks.append(MemoryBlock(leaked, at + 1, total, "activations", "", line, "clone"))
        blocks.append(MemoryBlock(90 * MIB, at + 3, at + 5, "temporaries", "", "train.py:16 step", "_log_softmax"))
        blocks.append(MemoryBlock(30 * MIB, at + 5, at + 9, "gradients", "GPT", "model.py:9 forward, backward", "mm"))
    # The last evaluation allocates more and gives it back.
    blocks.append(MemoryBlock(8 * MIB, starts[-1] + 6, starts[-1] + 8, "temporaries", "", "train.py:40 log", "cat"))
    trace = MemoryTrace.from_blocks(
        times_us=[1000 * moment for moment in range(total)],
        blocks=blocks,
        label="five steps",
        device="cpu",
        environment=environment(),
    )
    return trace, starts


def _held(trace: MemoryTrace, moment: int) -> Counter[str]:
    """Bytes of each line at a moment."""
    sizes: Counter[str] = Counter()
    for row in trace.at(moment):
        sizes[row.line] += row.size_bytes
    return sizes


@exercise
def check_leak(answer: Any) -> str | None:
    """Hands out traces that are made by hand, with a leak that is smaller than everything around it."""
    given = []
    for line, leaked in _LEAKS:
        trace, starts = _leaking_trace(line, leaked)
        value = ask(answer, trace, list(starts))
        value = getattr(value, "line", value)
        if not isinstance(value, str):
            raise NotRight(f"Return the line, a text such as 'train.py:16 step'; you return {type(value).__name__}.")
        given.append(value)
    traces = [_leaking_trace(*leak) for leak in _LEAKS]
    if given == [line for line, _ in _LEAKS]:
        return None
    ways = {
        "spike": [trace.at_peak[0].line for trace, _ in traces],
        "largest_left": [trace.at(trace.moments - 1)[0].line for trace, _ in traces],
        "grew_once": [(_held(t, t.moments - 1) - _held(t, 0)).most_common(1)[0][0] for t, _ in traces],
    }
    for key, lines in ways.items():
        if given == lines:
            return key
    ends = [max(trace.at(trace.moments - 1), key=lambda row: row.size_bytes if row.line else 0) for trace, _ in traces]
    if given in ([row.line for row in ends], [_CACHE for _ in traces]):
        return "grew_once"
    raise NotRight(
        f"For one of the traces you say {given[0]!r}. Look at what each line holds at the start of a step, and at the "
        "start of the next: which line holds more each time?"
    )


def _model() -> GPT:
    torch.manual_seed(5)
    return GPT(vocabulary=16, context=8, width=16, layers=1, heads=2)


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(6)
    return [
        (torch.randint(16, (2, 8), generator=generator), torch.randint(16, (16,), generator=generator))
        for _ in range(3)
    ]


def _reference_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, targets: torch.Tensor, zero: bool
) -> None:
    functional.cross_entropy(model(tokens).flatten(0, 1), targets).backward()
    optimizer.step()
    if zero:
        optimizer.zero_grad()


def _weights_after(step: Callable[..., Any]) -> tuple[torch.Tensor, list[str]]:
    """All weights after three steps, and what gradients there were when each forward pass began."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[str] = []

    def look(module: nn.Module, inputs: Any) -> None:
        del inputs
        gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
        seen.append("none" if not gradients else "numbers" if any(g.any() for g in gradients) else "zeros")

    model.register_forward_pre_hook(look)
    for tokens, targets in _batches():
        step(model, optimizer, tokens, targets)
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return weights, seen


@exercise
def check_step(answer: Any) -> str | None:
    """Runs three steps of a small model and looks at its gradients whenever a forward pass begins."""
    given, seen = _weights_after(functools.partial(effect, answer))
    right, _ = _weights_after(functools.partial(_reference_step, zero=True))
    added, _ = _weights_after(functools.partial(_reference_step, zero=False))
    start = torch.cat([weight.detach().flatten() for weight in _model().parameters()])
    if len(seen) < len(_batches()):
        raise NotRight(
            "Your step does not call the model as `model(tokens)`. Keep its lines, and change where `zero_grad` stands."
        )
    if torch.allclose(given, start):
        return "no_update"
    if not torch.allclose(given, right, atol=1e-6):
        if torch.allclose(given, added, atol=1e-6):
            return "accumulates"
        raise NotRight(
            "After three steps the weights are not those of plain training. Keep the lines of the step, and change "
            "only where and how `zero_grad` is called."
        )
    if "numbers" in seen:
        return "through_forward"
    if "zeros" in seen:
        return "zeros"
    return None


def _part_frozen() -> nn.Module:
    """Weights of two dtypes, some of them frozen, and two layers that share one."""
    torch.manual_seed(7)
    model = nn.ModuleDict({"embedding": nn.Embedding(50, 16), "head": nn.Linear(16, 50, bias=False)})
    model["head"].weight = model["embedding"].weight
    model["middle"] = nn.Linear(16, 16).to(torch.bfloat16)
    model["frozen"] = nn.Linear(16, 32).requires_grad_(False)
    return model


def _state_bytes(model: nn.Module) -> int:
    """What AdamW's state really takes after a step."""
    optimizer = torch.optim.AdamW(model.parameters())
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
    optimizer.step()
    return sum(value.nbytes for state in optimizer.state.values() for value in state.values())


@exercise
def check_state_bytes(answer: Any) -> str | None:
    """Compares with the state of a real AdamW, on a model with two dtypes, frozen and shared weights."""
    given = [number(ask(answer, model), "A number of bytes") for model in (_model(), _part_frozen())]
    # Models of their own: an answer may change the one that it gets.
    expected = [_state_bytes(_model()), _state_bytes(_part_frozen())]
    if given == expected:
        return None
    model = _part_frozen()
    for key, formula in _FORMULAS.items():
        wrong = formula(model)
        if given[1] in (wrong, wrong - 4 * len(_trained(model))):
            return key
    raise NotRight(
        f"For a model whose AdamW state takes {expected[1]:,} bytes, you say {given[1]:,.12g}. Make a small model, "
        "take one step, and look into `optimizer.state`."
    )


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _all_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Each layer's weights, so that shared ones come twice."""
    return [w for layer in model.modules() for w in layer.parameters(recurse=False) if w.requires_grad]


_FORMULAS: Mapping[str, Callable[[nn.Module], int]] = {
    "no_counters": lambda model: sum(2 * w.nbytes for w in _trained(model)),
    "one_copy": lambda model: sum(w.nbytes + 4 for w in _trained(model)),
    "frozen": lambda model: sum(2 * w.nbytes + 4 for w in model.parameters()),
    "four_bytes": lambda model: sum(8 * w.numel() + 4 for w in _trained(model)),
    "shared": lambda model: sum(2 * w.nbytes + 4 for w in _all_tensors(model)),
}
