"""What a training step works on, and how all of it is put back: weights, optimizers, random numbers, plain Python.

A step is a function that somebody else wrote. What it works on is read from its closure, the globals that its code
names, its arguments' defaults and the object that it is a method of.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import random
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from course_utils.measure.fresh import RandomState, Switches

# A tensor that belongs to no model, such as a running average, is copied up to this size: what is larger is data.
_MOST_BYTES = 256 * 2**20
_MOST_ITEMS = 1000  # of a list or dictionary that is looked through
_DEEPEST = 4
_LIBRARIES = ("torch", "numpy", "builtins")


class StepError(ValueError):
    """A step cannot be judged. The message says why, and what to hand over instead."""


@dataclass
class Found:
    """What a step works on, by name where that is told to a reader."""

    models: dict[str, Module] = field(default_factory=dict)  # with parameters; none is part of another
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    tensors: list[torch.Tensor] = field(default_factory=list)
    stateful: list[Any] = field(default_factory=list)  # schedulers, gradient scalers
    generators: list[Any] = field(default_factory=list)  # torch's, numpy's, Python's
    containers: list[Any] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)  # of the learner's own classes
    cells: list[types.CellType] = field(default_factory=list)
    bindings: list[tuple[dict[str, Any], str]] = field(default_factory=list)  # globals that the step names
    has_compiled: bool = False  # a function that is compiled already

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All parameters, of models and optimizers, each once."""
        of_models = [p for model in self.models.values() for p in model.parameters()]
        updated = [p for opt in self.optimizers.values() for group in opt.param_groups for p in group["params"]]
        return list({id(p): p for p in (*of_models, *updated)}.values())

    @property
    def modules(self) -> list[Module]:
        """All modules, children included."""
        return list({id(m): m for model in self.models.values() for m in model.modules()}.values())


def find(step: Callable[..., Any], models: Any = None, optimizers: Any = None) -> Found:
    """Find what a step works on; models and optimizers that are given take the place of those that it names."""
    found = Found()
    seen: set[int] = set()
    queue: list[tuple[str, Any, int]] = [("step", step, 0)]
    while queue:
        name, value, depth = queue.pop(0)
        if id(value) not in seen and depth <= _DEEPEST:
            seen.add(id(value))
            queue += [(key, part, depth + 1) for key, part in _sort_in(found, name, value)]
    for given, kind, there in ((models, Module, found.models), (optimizers, Optimizer, found.optimizers)):
        if given is not None:
            names = {id(value): name for name, value in there.items()}
            there.clear()
            for number, value in enumerate([given] if isinstance(given, kind) else given, 1):
                name = names.get(id(value), type(value).__name__)
                there[f"{name} {number}" if name in there else name] = value  # two may be of one class
    inner = {id(m) for model in found.models.values() for m in list(model.modules())[1:]}
    found.models = {
        name: m for name, m in found.models.items() if id(m) not in inner and any(1 for _ in m.parameters())
    }
    own = {id(p) for p in found.parameters} | {id(b) for m in found.modules for b in m.buffers()}
    found.tensors = [t for t in found.tensors if id(t) not in own and t.nbytes <= _MOST_BYTES]
    return found


def _sort_in(found: Found, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Put a value where it belongs; yield what it leads to."""
    if isinstance(value, Module):
        found.models[name] = value
    elif isinstance(value, Optimizer):
        found.optimizers[name] = value
    elif isinstance(value, torch.Tensor):
        found.tensors.append(value)
    elif isinstance(value, torch.Generator | random.Random) or hasattr(value, "bit_generator"):
        found.generators.append(value)
    elif isinstance(value, types.FunctionType):
        found.has_compiled |= hasattr(value, "_torchdynamo_orig_callable")
        if (value.__module__ or "").partition(".")[0] not in _LIBRARIES or hasattr(value, "__wrapped__"):
            yield from _named_by(found, value)
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), (name, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((name, part) for part in (value.func, *value.args))
        yield from value.keywords.items()
    elif isinstance(value, dict | list | collections.deque | set | tuple):
        if not isinstance(value, tuple):
            found.containers.append(value)
        if len(value) <= _MOST_ITEMS:
            pairs = value.items() if isinstance(value, dict) else ((name, part) for part in value)
            yield from ((str(key), part) for key, part in pairs)
    elif not isinstance(value, type | types.ModuleType):
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            found.stateful.append(value)
        elif type(value).__module__.partition(".")[0] not in _LIBRARIES and hasattr(value, "__dict__"):
            found.objects.append(value)
            yield from vars(value).items()
            if callable(value):
                yield name, type(value).__call__


def _named_by(found: Found, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is not bound yet
            yield name, cell.cell_contents
            found.cells.append(cell)
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
            found.bindings.append((function.__globals__, name))
    yield from (("argument", value) for value in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()


def _names(code: types.CodeType) -> Iterator[str]:
    # Of functions inside of it as well.
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


class SavedState:
    """All of a step's state at one moment; the copies lie on ``device``, by default beside what they are copies of."""

    def __init__(self, found: Found, device: str | None = None) -> None:
        self._puts: list[Callable[[], Any]] = []  # each puts a part back
        self._device = device
        self._switches, self._random = Switches.now(), RandomState.now()
        self._put(torch.set_anomaly_enabled, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
        self._python(found)
        for module in found.modules:
            for names in (vars(module), *(value for value in vars(module).values() if isinstance(value, dict))):
                self._attributes(names)  # parameters, buffers, children and hooks are such
        self._in_place([b for module in found.modules for b in module.buffers(recurse=False)])
        self._in_place([p.data for p in found.parameters])
        for p in found.parameters:
            self._put(_point_to, p, p.data)
        leaves = [*found.parameters, *(t for t in found.tensors if t.is_leaf and t.requires_grad)]
        for leaf in leaves:
            self._put(leaf.requires_grad_, leaf.requires_grad)
            self._put(setattr, leaf, "grad", leaf.grad)
        self._in_place([leaf.grad for leaf in leaves if leaf.grad is not None])
        for optimizer in found.optimizers.values():
            self._optimizer(optimizer)
        for thing in found.stateful:
            with contextlib.suppress(Exception):  # a class of somebody else: what it cannot copy is not put back
                state = copy.deepcopy(thing.state_dict())
                self._puts.append(lambda thing=thing, state=state: thing.load_state_dict(copy.deepcopy(state)))
        self._in_place([t for t in found.tensors if not t.is_inference()], only_changed=True)
        for generator in found.generators:
            if isinstance(generator, random.Random):
                self._put(generator.setstate, generator.getstate())
            elif isinstance(generator, torch.Generator):
                self._put(generator.set_state, generator.get_state())
            else:
                self._put(setattr, generator.bit_generator, "state", generator.bit_generator.state)

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for put in self._puts:
                put()
        self._switches.restore()
        self._random.restore()

    def _put(self, function: Callable[..., Any], *args: Any) -> None:
        self._puts.append(functools.partial(function, *args))

    def _python(self, found: Found) -> None:
        for cell in found.cells:
            self._put(setattr, cell, "cell_contents", cell.cell_contents)
        for names, name in found.bindings:
            self._put(names.__setitem__, name, names[name])
        for container in found.containers:
            if isinstance(container, dict):
                self._attributes(container)
            elif isinstance(container, list):
                self._put(container.__setitem__, slice(None), container.copy())
            else:
                self._put(_refill, container, container.copy())
        for thing in found.objects:
            self._attributes(vars(thing))

    def _attributes(self, names: dict[str, Any]) -> None:
        kept = dict(names)

        def put() -> None:
            # Never empty, not even for a moment: a model without its attributes cannot be put back by anybody.
            for name in [name for name in names if name not in kept]:
                del names[name]
            names.update(kept)

        self._puts.append(put)

    def _in_place(self, tensors: Iterable[torch.Tensor], only_changed: bool = False) -> None:
        """Tensors keep their place in memory: others may look at it, and where it lies can change a step's time."""
        kept = [(t, t._version, t.detach().to(self._device or t.device, copy=True)) for t in tensors]

        def put() -> None:
            for tensor, version, copied in kept:
                if not only_changed or tensor._version != version:
                    tensor.data.copy_(copied)

        self._puts.append(put)

    def _optimizer(self, optimizer: Optimizer) -> None:
        self._attributes(vars(optimizer))
        groups = [(group, list(group["params"]), _plain_copy(group, "params")) for group in optimizer.param_groups]
        states = {
            p: (dict(state), _plain_copy(state, *(k for k, v in state.items() if isinstance(v, torch.Tensor))))
            for p, state in optimizer.state.items()
        }

        def put() -> None:
            optimizer.param_groups[:] = [group for group, _, _ in groups]
            for group, parameters, values in groups:
                group.update(_plain_copy(values), params=list(parameters))
            optimizer.state.clear()
            for p, (state, values) in states.items():
                optimizer.state[p] = state | _plain_copy(values)

        self._puts.append(put)
        self._in_place([t for state, _ in states.values() for t in state.values() if isinstance(t, torch.Tensor)])


def _point_to(parameter: torch.nn.Parameter, data: torch.Tensor) -> None:
    if parameter.data_ptr() != data.data_ptr() or parameter.stride() != data.stride():
        parameter.data = data


def _plain_copy(values: dict[str, Any], *without: str) -> dict[str, Any]:
    kept = {key: copy.copy(value) for key, value in values.items() if key not in without}
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), kept)


def _refill(container: Any, kept: Any) -> None:
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(kept)
