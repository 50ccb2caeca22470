"""Checks of the lesson. All run on the CPU; the histories that they hand out are made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from course_utils.lessons.answers import NotRight, ask, exercise, number
from course_utils.materials.models import GPT

MIB = 2**20
# Line and function, and bytes a step.
_LEAKS = ((29, "evaluate", 2 * MIB), (44, "update", MIB // 4))
_Trace = list[dict[str, Any]]


def _entry(action: str, address: int, size: int, line: int, name: str) -> dict[str, Any]:
    """An entry of the history, with the stack of a line in ``planted.py`` under one of torch's."""
    frames = [{"filename": "/torch/nn/functional.py", "line": 7, "name": "linear"}]
    frames.append({"filename": "my_project/planted.py", "line": line, "name": name})
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}


def _history(line: int, name: str, leaked: int, steps: int) -> _Trace:
    """Steps of training: weights, Adam's state and a cache from the first step on, activations, spikes, and a leak."""
    trace = [_entry("alloc", 1, 30 * MIB, 5, "build")]
    for step in range(1, steps + 1):
        at = 1000 * step
        spike = _entry("alloc", at, 90 * MIB, 18, "train_step")
        activations = [_entry("alloc", at + n, 8 * MIB, 17, "train_step") for n in range(1, 4)]
        trace += [*activations, spike, _entry("alloc", at + 9, leaked, line, name)]
        if step == 1:
            trace += [_entry("alloc", 10 + n, 30 * MIB, 21, "train_step") for n in range(2)]
            trace += [_entry("alloc", 20 + n, MIB, 30, "fill") for n in range(12)]
        # An address is used again: the activations of the next step get others, this buffer does not.
        trace += [
            _entry("alloc", 99, step * MIB // 8, 40, "log"),
            _entry("free_requested", 99, step * MIB // 8, 40, "log"),
            _entry("free_completed", 99, step * MIB // 8, 40, "log"),
        ]
        for entry in (spike, *activations):
            trace += [entry | {"action": "free_requested"}, entry | {"action": "free_completed"}]
    return trace


def _held(trace: _Trace) -> Counter[str]:
    """Bytes in use at the end, by line."""
    live: dict[int, dict[str, Any]] = {}
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            live.pop(entry["addr"])
    sizes: Counter[str] = Counter()
    for entry in live.values():
        sizes[_line(entry)] += entry["size"]
    return sizes


def _line(entry: Mapping[str, Any]) -> str:
    frame = entry["frames"][-1]
    return f"my_project/planted.py:{frame['line']} {frame['name']}"


@exercise
def check_leak(answer: Any) -> str | None:
    """Hands out histories that are made by hand, with a leak that is smaller than everything around it."""
    given = []
    for leak in _LEAKS:
        value = ask(answer, _history(*leak, steps=2), _history(*leak, steps=5))
        if not isinstance(value, str):
            raise NotRight(f"Return the line as where(...) gives it; you return {type(value).__name__}.")
        given.append(value)
    if given == [f"my_project/planted.py:{line} {name}" for line, name, _ in _LEAKS]:
        return None
    ends = [_held(_history(*leak, steps=5)) for leak in _LEAKS]
    ways = {
        "spike": ["my_project/planted.py:18 train_step" for _ in _LEAKS],
        "largest_left": [end.most_common(1)[0][0] for end in ends],
        "most_blocks": ["my_project/planted.py:30 fill" for _ in _LEAKS],
    }
    for key, lines in ways.items():
        if given == lines:
            return key
    counts = [Counter(_line(e) for e in _history(*leak, steps=5) if e["action"] == "alloc") for leak in _LEAKS]
    if given == [count.most_common(1)[0][0] for count in counts]:
        return "asked_most"
    raise NotRight(
        f"For one of the programs you say {given[0]!r}. What does each line hold at the end of the first history, and "
        "of the second: which holds more?"
    )


def _model() -> GPT:
    torch.manual_seed(5)
    return GPT(vocabulary=16, context=8, width=16, layers=1, heads=2)


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
