"""What the lesson measures: peaks of evaluations, what autograd keeps by what is trained, what a kept loss holds."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from course_utils.materials.models import GPT
from course_utils.materials.step_memory import kept_bytes, worked_out
from course_utils.measure.devices import Device, device_under_test
from course_utils.measure.machine import scaled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # Metal keeps no peak
_GPT2 = {"vocabulary": 50257, "context": 1024, "width": 768, "layers": 12, "heads": 12}
_SMALL = {"vocabulary": 4096, "context": 128, "width": 128, "layers": 6, "heads": 4}
_EVALUATIONS = {
    "gradients on": (contextlib.nullcontext, 1),
    "no_grad": (torch.no_grad, 1),
    "no_grad, 4 parts": (torch.no_grad, 4),
    "accuracy, 4 parts": (torch.no_grad, 4),
    "accuracy, 4 parts, logits still named": (torch.no_grad, 4),
}


def _peak(call: Callable[[], Any]) -> int:
    return (device_under_test() if DEVICE == "cuda" else Device()).peak_memory(call)[0]


def _evaluation(way: str, sizes: dict[str, int]) -> tuple[nn.Module, None, Callable[[], torch.Tensor]]:
    """A GPT, no optimizer, and a call that takes the loss, or the right guesses, of 8 sequences in some way."""
    (context, parts), model, summed = _EVALUATIONS[way], GPT(**sizes), partial(cross_entropy, reduction="sum")
    tokens = torch.zeros(8, sizes["context"], dtype=torch.int64)
    score = (lambda logits, y: (logits.argmax(-1) == y).sum()) if "accuracy" in way else summed

    def loss() -> torch.Tensor:
        total = tokens.new_zeros((), dtype=torch.float32)
        with context():
            for part in tokens.chunk(parts):
                logits = model(part).flatten(0, 1)
                total = total + score(logits, part.flatten())
                logits = logits if way.endswith("named") else None
        return total

    return model, None, loss


def evaluations() -> list[dict[str, Any]]:
    """The peak of one batch in each way, with weights and tokens: of GPT-2 124M on a GPU, of a small GPT on a CPU."""
    rows, sizes = [], scaled(cpu=_SMALL, cuda=_GPT2)
    for way in _EVALUATIONS:
        with torch.device(DEVICE):
            model, _, loss = _evaluation(way, sizes)
        held = sum(weight.nbytes for weight in model.parameters()) + 8 * sizes["context"] * 8
        rows.append({"evaluation": way, "peak": held + _peak(loss)})
    return rows


def worked_out_for_gpt2(sizes: dict[str, int] = _GPT2) -> list[dict[str, Any]]:
    """The first three of GPT-2 124M, worked out with tensors that have sizes and no values: nothing is computed."""
    ways = {way: partial(_evaluation, way, sizes) for way in [*_EVALUATIONS][:3]}
    return [{"evaluation": way, "fp32": worked_out(build, steps=1).peak_bytes} for way, build in ways.items()]


def peaks(network: Callable[[int], nn.Module], inputs: torch.Tensor) -> list[dict[str, Any]]:
    """The peak of a forward pass in evaluation mode, for each way to call a network of 8 and of 32 blocks."""

    def ways(model: nn.Module) -> dict[str, Callable[[], torch.Tensor]]:
        return {
            "gradients on": lambda: model(inputs),
            "result detached": lambda: model(inputs).detach(),
            "no_grad": lambda: torch.no_grad()(model)(inputs),
            "inference_mode": lambda: torch.inference_mode()(model)(inputs),
        }

    few, many = (ways(network(blocks).to(inputs.device).eval()) for blocks in (8, 32))
    sizes = {f"eval(), {way}": (_peak(few[way]), _peak(many[way])) for way in few}
    return [{"forward pass": way, "8 blocks": size, "32 blocks": larger} for way, (size, larger) in sizes.items()]


class LoRA(nn.Module):
    """A frozen linear layer, with a correction of rank 8 that is trained."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, 8, bias=False)
        self.up = nn.Linear(8, linear.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        return self.linear(x) + self.up(self.down(x))


def _adapt(model: nn.Module, chosen: slice) -> None:
    """Freeze a model, and put LoRA beside some of the linear layers of its blocks."""
    parents = [*model.requires_grad_(False).modules()]
    children = [(parent, *child) for parent in parents for child in parent.named_children() if child[0] != "head"]
    for parent, name, layer in [each for each in children if isinstance(each[2], nn.Linear)][chosen]:
        setattr(parent, name, LoRA(layer))


# Which linear layers have LoRA, or whether a weight is trained, by its name and dimensions.
_TRAINED: dict[str, slice | Callable[[str, int], bool]] = {
    "all": lambda name, ndim: True,
    "LoRA of rank 8 on each Linear": slice(None),
    "LoRA on the first four": slice(4),
    "LoRA on the last four": slice(-4, None),
    "biases": lambda name, ndim: ndim == 1,
    "no_grad": lambda name, ndim: True,
}


def frozen(inputs: torch.Tensor) -> list[dict[str, Any]]:
    """Bytes that autograd keeps, by what is trained of 16 blocks of Linear and GELU; and the share in a GPT."""
    width, tokens = inputs.shape[1], torch.zeros(8, 64, dtype=torch.int64, device=inputs.device)
    network = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(16)])

    def kept(model: nn.Module, trained: str, given: torch.Tensor) -> int:
        model, chosen = copy.deepcopy(model), _TRAINED[trained]
        if isinstance(chosen, slice):
            _adapt(model, chosen)
        else:
            for name, weight in model.named_parameters():
                weight.requires_grad_(chosen(name, weight.ndim))
        model.to(given.device)
        with torch.set_grad_enabled(trained != "no_grad"):
            return kept_bytes(lambda: model(given), [given, *model.parameters()])

    sizes = {name: (kept(network, name, inputs), kept(GPT(), name, tokens)) for name in _TRAINED}
    whole, of_gpt = sizes["all"]
    return [
        {"trained": name, "kept": size, "share": size / whole, "share in a GPT": in_gpt / of_gpt}
        for name, (size, in_gpt) in sizes.items()
    ]


class _Saved:
    """A tensor that an operation keeps, as long as its graph does; detached, else an output would keep its graph."""

    alive: ClassVar[weakref.WeakSet[_Saved]] = weakref.WeakSet()

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.storage = tensor.detach(), tensor.untyped_storage()
        self.alive.add(self)


def _nodes(waiting: list[Any]) -> int:
    """How many nodes the graphs that end at these have, without those of the weights."""
    seen = set()
    while waiting:
        if (node := waiting.pop()) is not None and node not in seen and not hasattr(node, "variable"):
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return len(seen)


def leaks(steps: int = 4) -> list[dict[str, Any]]:
    """What each step of a small GPT leaves behind, by what is kept of its loss: nodes, and bytes of saved tensors."""
    model = GPT(width=64, layers=2, heads=2, context=64).to(DEVICE)
    tokens = torch.zeros(8, 64, dtype=torch.int64, device=DEVICE)
    others, backward = {each.untyped_storage()._cdata for each in (*model.parameters(), tokens)}, torch.Tensor.backward
    again, keep_all, rows = partial(backward, retain_graph=True), lambda kept, loss: [*kept, loss], []
    ways: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any, torch.Tensor], Any]]] = {
        "loss, no backward()": (lambda loss: None, keep_all),
        "loss, backward(retain_graph=True)": (again, keep_all),
        "loss, backward()": (backward, keep_all),
        "total += loss, backward()": (backward, lambda kept, loss: [sum(kept, loss)]),
        "loss.detach(), backward()": (backward, lambda kept, loss: [*kept, loss.detach()]),
    }
    for way, (done, keep) in ways.items():
        kept: list[torch.Tensor] = []
        for _ in range(steps):
            with saved_tensors_hooks(_Saved, lambda each: each.tensor):
                loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            done(loss)
            kept = keep(kept, loss)
        sizes = {each.storage._cdata: each.storage.nbytes() for each in _Saved.alive}
        size, nodes = sum(sizes[key] for key in sizes.keys() - others), _nodes([each.grad_fn for each in kept])
        rows.append({"kept of each step": way, "graph nodes": nodes / steps, "saved tensors": size / steps})
        del loss, kept
    return rows
