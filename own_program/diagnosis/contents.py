"""What calls of a step hold: work that grows, denormal numbers, rows without a gradient, a loop over rows.

All of it is counted in a few calls of their own, which nobody times.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Embedding, EmbeddingBag, Module
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from own_program.diagnosis.phases import is_compiled, wrapped
from own_program.diagnosis.rounds import Bench

_MOST_NODES = 300_000
_GROWS = 0.01  # by less, over the calls that are counted, nobody cares
_MANY_CALLS = 8  # of a module in one forward pass: from here on it may be a loop over rows
_LOOP_STANDS_OUT = 0.1
_MOST_LOOPS = 2
# One denormal number holds up the whole vector that it is computed in.
_DENORMALS = 1e-5
_FEW_ROWS = 0.1


@dataclass
class Loop:
    """A module that is called on row after row, though no row needs what it gave for another.

    Attributes:
        distance: from a row to the next in the one tensor that holds them all, in numbers; None where none does.
    """

    name: str
    module: Module
    count: int
    distance: int | None = None


@dataclass
class Rows:
    """An embedding of which few rows get a gradient, while an optimizer works on all of them."""

    name: str
    module: Embedding | EmbeddingBag
    optimizer: Optimizer
    count: int
    touched: int


@dataclass
class Contents:
    """What some calls held.

    Attributes:
        counted: of each call in their order, operators, numbers that these wrote, and operations that its backward
            pass went through.
        earlier: how many of the last call's were recorded in calls before it.
        denormal: place, such as weights, to the share of denormal numbers.
        looked: what was looked for, in words.
    """

    counted: list[tuple[int, int, int]] = field(default_factory=list)
    earlier: int = 0
    denormal: dict[str, float] = field(default_factory=dict)
    rows: list[Rows] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    def growth(self) -> str:
        """What became more with each call, in words; empty if nothing did."""
        for index, words in enumerate(("operators ran", "numbers were written")):
            counts = [each[index] for each in self.counted]
            grows = all(a < b for a, b in itertools.pairwise(counts))
            if len(counts) > 3 and grows and counts[-1] > (1 + _GROWS) * counts[1]:
                return f"{counts[0]:,} {words} in its first call, and {counts[-1]:,} in a later one."
        return ""


class Counted(TorchDispatchMode):
    """Counts what a call does."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.numbers = self.nodes = self.earlier = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        came_out = operator(*args, **(kwargs or {}))
        self.operators += 1
        self.numbers += sum(t.numel() for t in tree_leaves(came_out) if isinstance(t, torch.Tensor))
        return came_out

    def call(self, call: Callable[[], Any]) -> Any:
        """Call it once; returns what it returns."""
        since = torch.ones((), requires_grad=True).exp().grad_fn._sequence_nr()

        def walk(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nodes = _nodes(tree_leaves((args[:1], kwargs.get("tensors"))))
            self.nodes += len(nodes)
            self.earlier += sum(node._sequence_nr() < since for node in nodes if hasattr(node, "_sequence_nr"))
            return backward(*args, **kwargs)

        with wrapped(torch.autograd, "backward", walk), self:
            return call()

    @property
    def all(self) -> tuple[int, int, int]:
        """Operators, numbers, operations of the backward pass."""
        return self.operators, self.numbers, self.nodes


def _nodes(roots: Iterable[Any]) -> set[Any]:
    queue = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
    nodes: set[Any] = set()
    while queue and len(nodes) < _MOST_NODES:
        node = queue.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            queue += [following for following, _ in node.next_functions]
    return nodes


def look(bench: Bench, first: Counted | None, calls: int) -> Contents:
    """Call the step some times to see what it holds; `first` is what its very first call did, where that is known."""
    contents = Contents()
    with contextlib.suppress(Exception):  # what cannot be seen is not said
        bench.arrange()
        counted = [first] if first else []
        while first and len(counted) <= calls:
            counted.append(Counted())
            counted[-1].call(bench.work.call)
        contents.counted = [each.all for each in counted]
        contents.earlier = counted[-1].earlier if counted else 0
        contents.looked += ["work that grows from call to call"] if counted else []
    with contextlib.suppress(Exception):
        _look_inside(bench, contents)
        contents.looked += ["loops over rows", "rows without a gradient"]
        contents.looked += ["denormal numbers"] if bench.device.kind == "cpu" else []
    bench.arrange()
    return contents


def _look_inside(bench: Bench, contents: Contents) -> None:
    found, calls, most = bench.found, collections.Counter(), collections.Counter()
    names = {module: f"{name}.{path}".rstrip(".") for name, module, path in _named(bench)}
    shares: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])

    def backward_begins(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        most.update({module: count - most[module] for module, count in calls.items() if count > most[module]})
        calls.clear()
        return backward(*args, **kwargs)

    def module_ends(module: Module, _: Any, came_out: Any) -> None:
        calls[module] += 1
        if not any(module.children()):
            _count_denormals(shares["what its modules give out"], tree_leaves(came_out))

    def update_begins(optimizer: Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        _count_denormals(shares["gradients"], [p.grad for p in parameters])
        _count_denormals(shares["the optimizer's state"], tree_leaves(list(optimizer.state.values())))
        ids = {id(p) for p in parameters if p.grad.layout == torch.strided}
        for module, name in names.items():
            if isinstance(module, Embedding | EmbeddingBag) and id(module.weight) in ids:
                rows, touched = len(module.weight), int(module.weight.grad.ne(0).any(1).sum())
                if touched <= _FEW_ROWS * rows:
                    contents.rows.append(Rows(name, module, optimizer, rows, touched))

    _count_denormals(shares["weights"], found.parameters)
    bench.arrange()
    with contextlib.ExitStack() as stack:
        stack.enter_context(wrapped(torch.autograd, "backward", backward_begins))
        for optimizer in found.optimizers.values():
            stack.callback(optimizer.register_step_pre_hook(update_begins).remove)
        for module in () if is_compiled(found) else names:
            stack.callback(module.register_forward_hook(module_ends).remove)
        bench.work.call()
    contents.denormal = {
        place: denormal / count for place, (denormal, count) in shares.items() if denormal > _DENORMALS * count
    }
    several = [module for module in names if most[module] >= _MANY_CALLS]
    inner = {child for module in several for child in list(module.modules())[1:]}
    for module in [module for module in several if module not in inner][:_MOST_LOOPS]:
        if (loop := _loop(bench, module, names[module])) is not None:
            contents.loops.append(loop)


def _named(bench: Bench) -> Iterator[tuple[str, Module, str]]:
    for name, model in bench.found.models.items():
        yield from ((name, module, path) for path, module in model.named_modules())


def _count_denormals(counts: list[int], tensors: Iterable[Any]) -> None:
    """Add to two counts: of denormal numbers, and of all. They are slow on CPUs alone."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.float32, torch.float64) and tensor.is_cpu:
            values = tensor.detach()
            is_tiny = values.abs() < torch.finfo(values.dtype).tiny
            counts[0] += int((is_tiny & (values != 0)).sum())
            counts[1] += values.numel()


@dataclass
class _Call:
    values: list[torch.Tensor]
    row: torch.Tensor


def _loop(bench: Bench, module: Module, name: str) -> Loop | None:
    """Whether a module is called on row after row; that no row needs the others' results is tried out.

    With other results in place of its own it must be called on the same values.
    """
    calls, share = _calls(bench, module, disturbed=False)
    if share < _LOOP_STANDS_OUT or not all(call.values for call in calls):
        return None
    rows = [call.row for call in calls]
    distance = _distance(rows)
    if len({row.shape for row in rows}) > 1 or not _is_row(rows[0], distance) or torch.equal(rows[0], rows[1]):
        return None
    others, _ = _calls(bench, module, disturbed=True)
    if len(others) != len(calls) or not all(
        len(a.values) == len(b.values) and all(map(torch.equal, a.values, b.values))
        for a, b in zip(calls, others, strict=True)
    ):
        return None
    return Loop(name, module, len(rows), distance if len(calls[0].values) == 1 else None)


def _calls(bench: Bench, module: Module, disturbed: bool) -> tuple[list[_Call], float]:
    """The calls of a module before the first backward pass, and their share of the time till then."""
    calls: list[_Call] = []
    seconds, began = [0.0, 0.0], 0.0

    def begins(_: Module, args: Any, kwargs: Any) -> None:
        nonlocal began
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not seconds[1]:
            calls.append(_Call([leaf.detach().clone() for leaf in leaves], leaves[0] if leaves else torch.empty(0)))
        began = time.perf_counter()

    def ends(_: Module, __: Any, came_out: Any) -> Any:
        if not seconds[1]:
            seconds[0] += time.perf_counter() - began
        return tree_map_only(torch.Tensor, lambda t: 1 - t, came_out) if disturbed else None

    def backward_begins(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        seconds[1] = seconds[1] or time.perf_counter() - started
        return backward(*args, **kwargs)

    bench.arrange()
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(wrapped(torch.autograd, "backward", backward_begins))
        stack.callback(module.register_forward_pre_hook(begins, with_kwargs=True).remove)
        stack.callback(module.register_forward_hook(ends).remove)
        with contextlib.suppress(Exception) if disturbed else contextlib.nullcontext():
            bench.work.call()
    return calls, seconds[0] / max(seconds[1], 1e-9)


def _is_row(tensor: torch.Tensor, distance: int | None) -> bool:
    """Whether it is one of several rows, and no batch: by itself, or by the tensor that it is cut from."""
    if tensor.ndim < 2 or len(tensor) == 1:
        return True
    between = distance is not None and distance < tensor.stride(0)  # the others lie between its own parts
    return between or (tensor._base is not None and tensor.ndim < tensor._base.ndim)


def _distance(rows: Sequence[torch.Tensor]) -> int | None:
    """From row to row, where all lie in one tensor one after the other."""
    offsets = [row.storage_offset() for row in rows]
    steps = {b - a for a, b in itertools.pairwise(offsets)}
    if any(row._base is None for row in rows) or len(steps) > 1 or min(steps) <= 0:
        return None
    return steps.pop() if len({(row._base.data_ptr(), row.stride()) for row in rows}) == 1 else None
