"""What calls of a step hold: work that grows, denormal numbers, rows without a gradient, a loop over rows.

All of it is counted in a few calls of their own, which nobody times.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.nn import Embedding, EmbeddingBag, Module
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.show.formats import format_percent
from own_program.diagnosis.bench import Bench
from own_program.diagnosis.phases import BACKWARD, OPTIMIZER, is_compiled, wrapped
from own_program.diagnosis.step_changes import FLUSH, StepChange, Work

_MOST_NODES = 300_000
_GROWS = 0.01  # by less, over the calls that are counted, nobody cares
_MANY_CALLS = 8  # of a module in one forward pass: from here on it may be a loop over rows
_LOOP_STANDS_OUT = 0.1
_MOST_LOOPS = 2
# One denormal number holds up the whole vector that it is computed in.
_DENORMALS = 1e-5
_SAMPLE = 2**20  # so many numbers of a tensor are looked at
_FEW_ROWS = 0.1
_TAKE_SPARSE = (torch.optim.SGD, torch.optim.Adagrad)  # gradients of some rows, for the same update


@dataclass
class Contents:
    """What some calls held."""

    counted: list[Counted] = field(default_factory=list)  # what each call did, in their order
    denormals: str = ""  # where the largest share of denormal numbers is, in words
    named: list[StepChange] = field(default_factory=list)  # what to change about what was seen
    looked: list[str] = field(default_factory=list)  # what was looked for, in words

    def growth(self) -> str:
        """What became more with each call, in words; empty if nothing did."""
        for what, words in (("operators", "operators ran"), ("numbers", "numbers were written")):
            counts = [getattr(each, what) for each in self.counted]
            grows = all(a < b for a, b in itertools.pairwise(counts))
            if len(counts) > 3 and grows and counts[-1] > (1 + _GROWS) * counts[1]:
                return f"{counts[0]:,} {words} in its first call, and {counts[-1]:,} in a later one."
        return ""


class Counted(TorchDispatchMode):
    """What a call does: operators, numbers that these write; in its backward pass nodes, some of earlier calls."""

    operators = numbers = nodes = earlier = 0

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
            self.earlier += sum(node._sequence_nr() < since for node in nodes)
            return backward(*args, **kwargs)

        with wrapped(torch.autograd, "backward", walk), self:
            return call()


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
    """Call the step some times to see what it holds; `first` is what its very first call did. None: it is compiled."""
    contents = Contents()
    with contextlib.suppress(Exception):  # what cannot be seen is not said
        _look_inside(bench, contents)
        contents.looked += ["sparse gradients"]
        contents.looked += ["denormal numbers"] if bench.device.kind == "cpu" else []
        contents.looked += ["loops over rows"] if first else []
    with contextlib.suppress(Exception):
        bench.arrange()
        counted = [first] if first else []
        while first and len(counted) <= calls:
            counted.append(Counted())
            counted[-1].call(bench.work.call)
        contents.counted = counted
        contents.looked += ["work that grows from call to call"] if counted else []
    bench.arrange()
    return contents


def _look_inside(bench: Bench, contents: Contents) -> None:
    found, calls, most = bench.found, collections.Counter(), collections.Counter()
    names = {m: f"{name}.{path}".rstrip(".") for name, top in found.models.items() for path, m in top.named_modules()}
    numbers = [0, 0]  # denormal ones, and all

    def backward_begins(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        most.update({module: count - most[module] for module, count in calls.items() if count > most[module]})
        calls.clear()
        return backward(*args, **kwargs)

    def module_ends(module: Module, _: Any, came_out: Any) -> None:
        calls[module] += 1
        if not any(module.children()):
            _count_denormals(numbers, tree_leaves(came_out))

    def update_begins(optimizer: Optimizer, *_: Any) -> None:
        gradients = {p: p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        _count_denormals(numbers, [*gradients.values(), *tree_leaves(list(optimizer.state.values()))])
        for module, name in names.items():
            if isinstance(module, Embedding | EmbeddingBag) and module.weight in gradients:
                contents.named += _sparse(name, module, optimizer, gradients[module.weight])

    _count_denormals(numbers, found.parameters)
    bench.arrange()
    with contextlib.ExitStack() as stack:
        stack.enter_context(wrapped(torch.autograd, "backward", backward_begins))
        for optimizer in found.optimizers.values():
            stack.enter_context(optimizer.register_step_pre_hook(update_begins))
        for module in () if is_compiled(found) else names:
            stack.enter_context(module.register_forward_hook(module_ends))
        bench.work.call()
    denormals, count = numbers
    if denormals > _DENORMALS * count:
        share = format_percent(denormals / count)
        contents.denormals = f"{share} of the numbers that it works with are denormal: many CPUs are slow with those."
        because = f"{contents.denormals} The switch is each thread's own: those that run keep theirs."
        if _flushes():
            flushed = StepChange("denormal numbers flushed", FLUSH, because, "your_own_program", _flushed)
            contents.named.insert(0, flushed)
    several = [module for module in names if most[module] >= _MANY_CALLS]
    inner = {child for module in several for child in list(module.modules())[1:]}
    outermost = [module for module in several if module not in inner]
    for module in outermost[:_MOST_LOOPS]:
        contents.named += _loop(bench, module, names[module])


def _count_denormals(counts: list[int], tensors: Iterable[Any]) -> None:
    """Add to two counts: of denormal numbers, and of all. They are slow on CPUs alone."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.float32, torch.float64) and tensor.is_cpu:
            values = tensor.detach().flatten()[:: max(1, tensor.numel() // _SAMPLE)]
            counts[0] += int(((values.abs() < torch.finfo(values.dtype).tiny) & (values != 0)).sum())
            counts[1] += values.numel()


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


def _sparse(
    name: str, module: Embedding | EmbeddingBag, optimizer: Optimizer, gradient: torch.Tensor
) -> Iterator[StepChange]:
    """Few rows of an embedding get a gradient, and its optimizer works on all of them."""
    rows, takes = len(gradient), isinstance(optimizer, _TAKE_SPARSE)
    touched = rows if gradient.is_sparse else int(gradient.ne(0).any(1).sum())
    if touched > _FEW_ROWS * rows:
        return
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    how = ", without fused=True" * is_fused if takes else ", and update it with torch.optim.SparseAdam"
    left = "" if takes else " With it the others stay: no momentum or decay moves them."
    because = f"Of its {rows:,} rows {touched:,} get a gradient, and all are updated.{left}"
    on, change = functools.partial(_make_sparse, module, optimizer), f"pass sparse=True to {name}{how}"
    phases = BACKWARD, OPTIMIZER
    yield StepChange(f"sparse {name}", change, because, "your_own_program", on, far_as_well=takes, at_most=phases)


def _make_sparse(
    module: Embedding | EmbeddingBag, optimizer: Optimizer, work: Work
) -> AbstractContextManager[None] | None:
    """Its gradient holds the rows that were looked up; where the optimizer cannot take that, another one does."""
    weight = module.weight
    module.sparse, weight.grad = True, None
    if isinstance(optimizer, _TAKE_SPARSE):
        for group in optimizer.param_groups:
            group["fused"] = False
        return None
    if not isinstance(optimizer, torch.optim.Adam):
        raise TypeError("no sparse optimizer makes these updates")
    group = next(group for group in optimizer.param_groups if any(p is weight for p in group["params"]))
    group["params"] = [p for p in group["params"] if p is not weight]
    lazy = torch.optim.SparseAdam([weight], lr=float(group["lr"]), betas=group["betas"], eps=group["eps"])
    if state := optimizer.state.get(weight):
        lazy.state[weight] = state | {"step": int(state["step"])}

    def zeroed(zero_grad: Callable[..., None], *given: Any, **named: Any) -> None:
        zero_grad(*given, **named)
        lazy.zero_grad()

    with contextlib.ExitStack() as stack:
        stack.enter_context(optimizer.register_step_post_hook(lambda *_: lazy.step()))
        stack.enter_context(wrapped(optimizer, "zero_grad", zeroed))
        return stack.pop_all()


def _flushes() -> bool:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(torch.set_flush_denormal, True).result()


@contextlib.contextmanager
def _flushed(work: Work) -> Iterator[None]:
    """In a thread of its own: the switch is each thread's, and workers begin with that of who starts them."""
    step = work.step
    with (
        ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(True,)) as thread,
        mock.patch.object(work, "step", lambda *args: thread.submit(step, *args).result()),
    ):
        yield
