"""What calls of a step hold: a graph that reaches into earlier calls, a loop over rows.

All of it is counted in a few calls of their own, which nobody times.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from own_program.diagnosis.bench import Bench
from own_program.diagnosis.phases import wrapped
from own_program.diagnosis.step_changes import StepChange, Work

_MOST_NODES = 300_000
_MANY_CALLS = 8  # of a module in one forward pass: from here on it may be a loop over rows
_LOOP_STANDS_OUT = 0.1
_MOST_LOOPS = 2


@dataclass
class Contents:
    """What some calls held."""

    counted: list[Counted] = field(default_factory=list)  # what each call did, in their order
    named: list[StepChange] = field(default_factory=list)  # what to change about what was seen
    looked: list[str] = field(default_factory=list)  # what was looked for, in words


class Counted:
    """What a call's backward pass goes through: nodes, some of them of earlier calls."""

    nodes = earlier = 0

    def call(self, call: Callable[[], Any]) -> None:
        """Call it once."""
        since = torch.ones((), requires_grad=True).exp().grad_fn._sequence_nr()

        def walk(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nodes = _nodes(tree_leaves((args[:1], kwargs.get("tensors"))))
            self.nodes += len(nodes)
            self.earlier += sum(node._sequence_nr() < since for node in nodes)
            return backward(*args, **kwargs)

        with wrapped(torch.autograd, "backward", walk):
            call()


def _nodes(roots: Iterable[Any]) -> set[Any]:
    queue = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
    nodes: set[Any] = set()
    while queue and len(nodes) < _MOST_NODES:
        node = queue.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            queue += [following for following, _ in node.next_functions]
    return nodes


def look(bench: Bench, calls: int) -> Contents:
    """Call the step so many times to see what it holds."""
    contents = Contents()
    with contextlib.suppress(Exception):  # what cannot be seen is not said
        _look_inside(bench, contents)
        contents.looked.append("loops over rows")
    with contextlib.suppress(Exception):
        bench.arrange()
        contents.counted = [Counted() for _ in range(calls)]
        for each in contents.counted:
            each.call(bench.work.call)
        contents.looked.append("operations of earlier calls")
    bench.arrange()
    return contents


def _look_inside(bench: Bench, contents: Contents) -> None:
    found, calls, most = bench.found, collections.Counter(), collections.Counter()
    names = {m: f"{name}.{path}".rstrip(".") for name, top in found.models.items() for path, m in top.named_modules()}

    def backward_begins(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        most.update({module: count - most[module] for module, count in calls.items() if count > most[module]})
        calls.clear()
        return backward(*args, **kwargs)

    def module_ends(module: Module, *_: Any) -> None:
        calls[module] += 1

    bench.arrange()
    with contextlib.ExitStack() as stack:
        stack.enter_context(wrapped(torch.autograd, "backward", backward_begins))
        for module in names:
            stack.enter_context(module.register_forward_hook(module_ends))
        bench.work.call()
    several = [module for module in names if most[module] >= _MANY_CALLS]
    inner = {child for module in several for child in list(module.modules())[1:]}
    outermost = [module for module in several if module not in inner]
    for module in outermost[:_MOST_LOOPS]:
        contents.named += _loop(bench, module, names[module])


def _loop(bench: Bench, module: Module, name: str) -> list[StepChange]:
    """Whether a module is called on row after row of one tensor; the losses tell whether it may get all at once."""
    rows: list[Any] = []
    seconds = began = 0.0

    def begins(_: Module, args: Any) -> None:
        nonlocal began
        rows.append(args[0] if args else None)
        began = time.perf_counter()

    def ends(*_: Any) -> None:
        nonlocal seconds
        seconds += time.perf_counter() - began

    bench.arrange()
    with contextlib.ExitStack() as stack:
        stack.enter_context(module.register_forward_pre_hook(begins))
        stack.enter_context(module.register_forward_hook(ends))
        took_s = bench.timed()
    are_tensors = all(isinstance(row, torch.Tensor) for row in rows)
    if seconds < _LOOP_STANDS_OUT * took_s or not are_tensors or len({row.shape for row in rows}) > 1:
        return []
    distance = _distance(rows)
    if distance is None or not _is_row(rows[0], distance):
        return []
    because = f"It is called {len(rows)} times in a forward pass, on one row each."
    on = functools.partial(_at_once, module, len(rows), distance)
    return [StepChange(f"{name} at once", f"call {name} once on all {len(rows)} rows", because, "your_own_program", on)]


def _is_row(tensor: torch.Tensor, distance: int) -> bool:
    """Whether it is one of several rows, and no batch: by itself, or by the tensor that it is cut from."""
    if tensor.ndim < 2 or len(tensor) == 1:
        return True
    between = distance < tensor.stride(0)  # the others lie between its own parts
    return between or tensor.ndim < tensor._base.ndim


def _distance(rows: Sequence[torch.Tensor]) -> int | None:
    """From row to row, where all lie in one tensor one after the other."""
    steps = {b.storage_offset() - a.storage_offset() for a, b in itertools.pairwise(rows)}
    wholes = {(row._base if row._base is None else row._base.data_ptr(), row.stride()) for row in rows}
    is_one = len(wholes) == len(steps) == 1 and rows[0]._base is not None
    return max(steps) if is_one and max(steps) > 0 else None


def _at_once(module: Module, count: int, distance: int, work: Work) -> AbstractContextManager[None]:
    """At the first row the module works on all; then each row is handed its part."""
    parts: list[torch.Tensor] = []

    def forward(on_all: Callable[..., Any], row: torch.Tensor) -> torch.Tensor:
        if not parts:
            shape, stride = (count, *row.shape), (distance, *row.stride())
            rows = row._base.as_strided(shape, stride, row.storage_offset())
            is_batch_of_one = row.ndim > 1 and len(row) == 1
            parts.extend(on_all(rows.flatten(0, 1)).split(1) if is_batch_of_one else on_all(rows).unbind())
        return parts.pop(0)

    return wrapped(module, "forward", forward)
