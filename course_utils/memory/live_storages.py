"""Which tensors' memory is alive during a call: what allocated it, for what, in which module, and when it went.

A dispatch mode sees every operation that a tensor goes through, in the backward pass, too: autograd hands the modes of
the thread that calls ``backward()`` on to the threads in which it works. Memory belongs to storages, not to tensors, so
views and in-place operations add nothing, and a storage that dies is noticed by a weak reference, whoever held it last.

Source (torch 2.13.0; the same in 2.11.0):
    torch/csrc/autograd/engine.cpp, ``Engine::evaluate_function`` (the ``ThreadLocalStateGuard``);
    torch/distributed/_tools/mem_tracker.py, which tracks storages the same way.
"""

from __future__ import annotations

import functools
import gc
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

_TORCH = str(Path(torch.__file__).parent) + "/"
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + "/"
_TRACER = {str(Path(__file__).with_name(name)) for name in ("live_storages.py", "trace.py", "cuda_history.py")}
_NUMBERS = (torch.IntType, torch.FloatType, torch.BoolType, torch.NumberType)
_FOREIGN = "Memory that torch did not allocate (NumPy's, a file's) is not part of the trace."
# Nodes of autograd are numbered; those that add up gradients all have this number, so that they go first.
_ACCUMULATE = 2**64 - 1


class CodePlace(NamedTuple):
    """Where a block was allocated: the user's code and the line in it, and whether that line's backward did it."""

    code: CodeType | None = None
    line: int = 0
    backward: bool = False


NOWHERE = CodePlace()


@dataclass(eq=False)
class TracedBlock:
    """One storage's memory, while it is traced."""

    size_bytes: int
    born: int  # the event from which on it is there; 0: it was there before
    address: int
    op: int = -1  # the number of the operation that allocated it; -1 for none
    module: str = ""
    place: CodePlace = NOWHERE
    kind: str = ""  # empty as long as nothing says more than that it was allocated
    died: int | None = None  # the event from which on it is gone; None: it lives
    on_graph: bool = False  # whether autograd made a node for the operation that allocated it
    counted: bool = True  # whether the call used it: what was there before and was never used is not part of the trace


class TracedPhase:
    """A part of the call: its first and last event and operation."""

    def __init__(self, name: str, event: int, op: int) -> None:
        self.name, self.events, self.ops = name, [event, event], [op, op]


class _AskedBy(NamedTuple):
    module: str
    place: CodePlace


# Storages


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """All tensors in arguments or results of an operation."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a tensor is made of: those inside of a DTensor, and otherwise itself."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    for part in tensors_in(parts):  # a DTensor (2.13) names its device mesh, too
        yield from plain_tensors(part)


class StorageMode(TorchDispatchMode):
    """Knows living storages, and notices when one goes or is given another size; the modes that follow build on it.

    ``UntypedStorage.resize_`` is no operation, and no dispatch mode sees it: it is wrapped while this is entered.
    """

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[int, Any] = {}  # by the storage's key, what is known of it
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._live:
                self._resized_in_place(storage, self._live[storage._cdata])
            return result

        torch.UntypedStorage.resize_ = resize
        self._undo.callback(setattr, torch.UntypedStorage, "resize_", original)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._undo.close()

    def _follow(self, storage: torch.UntypedStorage, known: Any) -> None:
        key = storage._cdata

        def gone(_: Any) -> None:
            if self._live.pop(key, None) is not None:
                self._gone(known)

        self._live[key] = known
        self._references[key] = weakref.ref(storage, gone)

    def _gone(self, known: Any) -> None:
        raise NotImplementedError

    def _resized_in_place(self, storage: torch.UntypedStorage, known: Any) -> None:
        raise NotImplementedError


class LiveStorages(StorageMode):
    """Follows all storages of one device while it is entered.

    ``model``'s weights count though nothing uses them; modules that are called are noticed anyway. ``on_op`` is called
    with an operation's number before it runs, and with -1 after it.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        device: torch.device,
        model: torch.nn.Module | None = None,
        on_op: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        self.blocks: list[TracedBlock] = []  # all that were ever seen
        self.times_ns: list[int] = []  # the clock at each event, the start and the end included
        self.ops: list[Any] = []  # each operation that may have allocated
        self.origins: list[_AskedBy] = []  # of each of them
        self.phases: list[TracedPhase] = []
        self.notes: dict[str, None] = {}
        self._given_model, self._on_op = model, on_op
        self._optimizers: dict[int, Any] = {}
        self._stepped: set[int] = set()  # optimizers that stepped, by id
        self._names: dict[int, str] = {}  # of a module, by id
        self._owners: dict[int, str] = {}  # of a parameter, by id
        self._called: dict[int, weakref.ref[torch.nn.Module]] = {}  # modules that were called by no other
        self._stack: list[str] = []  # modules that are running, the outermost first
        self._pending: list[TracedBlock] = []
        self._backward: TracedPhase | None = None
        self._stepping: list[tuple[str, TracedPhase]] = []  # optimizers that are running
        self._graph: dict[int, _AskedBy] = {}  # of each node of autograd, by its number: what it was made for
        self._sequence = 0  # the next node's number
        self._thread = threading.get_ident()
        self._listening = False

    # Begin and end.

    def __enter__(self) -> Self:
        gc.collect()
        if self._given_model is not None:
            self._know_model(self._given_model, type(self._given_model).__name__)
        self._find_what_exists()
        for hook in (
            optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
            optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
            module_hooks.register_module_forward_pre_hook(self._before_module),
            module_hooks.register_module_forward_hook(self._after_module, always_call=True),
        ):
            self._undo.callback(hook.remove)
        if "torch._dynamo" in sys.modules:
            # A dispatch mode would switch compilation off for good; a stance leaves what is compiled alone.
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()
        self._sequence = torch.autograd._get_sequence_nr()
        self._listening = True
        self._event()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._end_backward()
        for called in self._called.values():
            model = called()
            if model is not None:
                self._know_model(model, self._names[id(model)])
        for optimizer in list(self._optimizers.values()):
            self._know_optimizer(optimizer, used=id(optimizer) in self._stepped)
        # The last event is the end, so that what happened in the call and what is left after it can be told apart.
        self._event()
        self._listening = False
        self._live.clear()
        self._optimizers.clear()

    def returned(self) -> None:
        """The call is back; its result is still held. What a graph may still keep is an activation."""
        self._end_backward()
        self._keep_pending(graph_only=True)

    # Storages.

    def _event(self) -> int:
        self.times_ns.append(time.perf_counter_ns())
        return len(self.times_ns) - 1

    def _add(self, storage: torch.UntypedStorage, block: TracedBlock) -> TracedBlock:
        self._follow(storage, block)
        self.blocks.append(block)
        return block

    def _gone(self, known: TracedBlock) -> None:
        if self._listening:
            known.died, known.counted = self._event(), True

    def _existing(self, storage: torch.UntypedStorage) -> TracedBlock:
        # What is there before is known, but for what autograd saved: only a backward pass meets that.
        born = self._event() if self._listening and not _in_backward() else 0
        return self._add(
            storage, TracedBlock(storage.nbytes(), born, storage.data_ptr(), kind="other", counted=born > 0)
        )

    def _storages(self, tensor: torch.Tensor) -> list[torch.UntypedStorage]:
        try:
            storages = [part.untyped_storage() for part in plain_tensors(tensor) if part.device == self.device]
            # A fake tensor says that it is on the device, and its storage knows better.
            return [s for s in storages if s.device.type == self.device.type and s.data_ptr() is not None]
        except Exception:  # sparse and lazy tensors, those of torch.func, and whatever somebody made of a tensor
            if self._listening:
                self.notes[f"Tensors of type {type(tensor).__name__} are not followed: they hide their storage."] = None
            return []

    def _use(self, tensor: torch.Tensor) -> None:
        for storage in self._storages(tensor):
            block = self._live.get(storage._cdata)
            if block is None:
                if _is_foreign(storage):
                    self.notes[_FOREIGN] = None
                    continue
                block = self._existing(storage)
            block.counted = True
            if block.kind == "other" and tensor.requires_grad and tensor.is_leaf:
                self._know_weight(tensor, "")

    def _made(self, tensor: torch.Tensor, op: int, recorded: bool, on_graph: bool) -> None:
        """An operation returned this tensor: its memory is new, unless it is a view's or was written in place."""
        module, place = self.origins[op]
        for storage in self._storages(tensor):
            block = self._live.get(storage._cdata)
            if block is not None:
                self._resized(block, storage, op, module, place)
                continue
            if _is_foreign(storage):
                continue
            block = TracedBlock(
                storage.nbytes(), self._event(), storage.data_ptr(), op, module, place, on_graph=on_graph
            )
            self._add(storage, block)
            if recorded or on_graph:
                self._pending.append(block)

    def _resized_in_place(self, storage: torch.UntypedStorage, known: TracedBlock) -> None:
        if self._listening:
            self._resized(known, storage, -1, "", self._place(sys._getframe(1)))

    def _resized(self, old: TracedBlock, storage: torch.UntypedStorage, op: int, module: str, place: CodePlace) -> None:
        size = storage.nbytes()
        if size == old.size_bytes:
            return
        # As the allocator does: first the new memory, then the old is copied and released.
        block = TracedBlock(size, self._event(), storage.data_ptr(), op, module or old.module, place, old.kind)
        self._add(storage, block)
        old.died, old.counted = self._event(), True

    def _find_what_exists(self) -> None:
        """Follow every tensor that Python knows of: it counts once the call uses or drops it."""
        tensors, modules, optimizers = (
            [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
            for kind in (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
        )
        # Nobody vouches for an object that merely exists: a module may be made without __init__.
        for tensor in tensors:
            with suppress(Exception):
                self._watch_existing(tensor)
                if tensor.is_leaf and tensor.requires_grad:
                    self._know_weight(tensor, "", used=False)
        parts = {id(part) for module in modules for part in module.__dict__.get("_modules", {}).values()}
        for module in modules:
            with suppress(Exception):
                if id(module) not in parts:
                    self._know_model(module, type(module).__name__, used=False)
        for tensor in tensors:
            with suppress(Exception):
                if tensor.is_leaf and tensor.requires_grad and tensor.grad is not None:
                    self._is_gradient(tensor.grad, tensor, used=False)
        for optimizer in optimizers:
            with suppress(Exception):
                self._know_optimizer(optimizer)

    def _watch_existing(self, tensor: torch.Tensor, used: bool = False) -> list[TracedBlock]:
        blocks = [self._live.get(storage._cdata) or self._existing(storage) for storage in self._storages(tensor)]
        for block in blocks:
            block.counted |= used
        return blocks

    # What memory is for.

    def _know_model(self, model: torch.nn.Module, label: str, used: bool = True) -> None:
        for path, part in model.named_modules():
            name = f"{label}.{path}" if path else label
            self._names.setdefault(id(part), name)
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                self._know_weight(tensor, name, used)
                if used and tensor.is_leaf and tensor.grad is not None:
                    self._is_gradient(tensor.grad, tensor)

    def _know_weight(self, tensor: torch.Tensor, module: str, used: bool = True) -> None:
        self._owners[id(tensor)] = self._owners.get(id(tensor)) or module
        for block in self._watch_existing(tensor, used):
            block.kind, block.module = "weights", self._owners[id(tensor)]

    def _is_gradient(self, gradient: torch.Tensor, of: torch.Tensor, used: bool = True) -> None:
        for block in self._watch_existing(gradient, used):
            block.kind, block.module = "gradients", self._owners.get(id(of), "")

    def _know_optimizer(self, optimizer: Any, used: bool = False) -> None:
        self._optimizers[id(optimizer)] = optimizer
        for tensor, state in list(optimizer.state.items()):
            for value in tensors_in(*tree_leaves(state)):
                for block in self._watch_existing(value, used):
                    # Some optimizers keep the gradient or the weight itself in their state.
                    if block.kind not in ("weights", "gradients"):
                        block.kind, block.module = "optimizer state", self._owners.get(id(tensor), "")

    def _keep_pending(self, graph_only: bool = False) -> None:
        """What was made while autograd recorded, and is still there now, is kept for the backward pass."""
        for block in self._pending:
            if block.died is None and not block.kind and (block.on_graph or not graph_only):
                block.kind = "activations"
        self._pending.clear()

    # What runs.

    def _before_module(self, module: torch.nn.Module, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._end_backward()
        if id(module) not in self._names:
            if self._stack:  # made on the way, or not registered
                self._names[id(module)] = f"{self._stack[0]}.{type(module).__name__}"
            else:
                self._know_model(module, type(module).__name__)
        if not self._stack:
            self._called.setdefault(id(module), weakref.ref(module))
            if not _in_backward():
                self._begin("forward")
        self._stack.append(self._names[id(module)])

    def _after_module(self, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._stack.pop()
        if not self._stack and not _in_backward():
            self._close(self.phases[-1])

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self._end_backward()
        if id(optimizer) not in self._optimizers:
            self._know_optimizer(optimizer)
        self._stepped.add(id(optimizer))
        self._stepping.append((type(optimizer).__name__, self._begin("optimizer step")))

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._know_optimizer(optimizer)  # not only at the end: it may be gone by then
        self._close(self._stepping.pop()[1])

    def _begin(self, name: str) -> TracedPhase:
        self.phases.append(TracedPhase(name, len(self.times_ns), len(self.ops)))
        return self.phases[-1]

    def _close(self, phase: TracedPhase) -> None:
        phase.events[1], phase.ops[1] = len(self.times_ns) - 1, len(self.ops) - 1

    def _end_backward(self) -> None:
        if self._backward is not None and not _in_backward():
            self._close(self._backward)
            self._backward = None

    @staticmethod
    def _place(frame: FrameType | None) -> CodePlace:
        while frame is not None and not written_by_the_user(frame.f_code.co_filename):
            frame = frame.f_back
        return NOWHERE if frame is None else CodePlace(frame.f_code, frame.f_lineno)

    def _asked_here(self) -> _AskedBy:
        module = self._stack[-1] if self._stack else self._stepping[-1][0] if self._stepping else ""
        return _AskedBy(module, self._place(sys._getframe(2)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, handling = kwargs or {}, _handling_of(func)
        origin: _AskedBy | None = None
        accumulating: torch.Tensor | None = None
        on_graph = False
        if not _in_backward():
            self._end_backward()
        else:
            self._backward = self._backward or self._begin("backward")
            if not torch.is_grad_enabled():
                self._keep_pending()
                if handling == "view":  # what it looks at is noticed when something works on it
                    return func(*args, **kwargs)
                node = torch._C._current_autograd_node()
                number = -1 if node is None else node._sequence_nr()
                accumulating = node.variable if number == _ACCUMULATE else None
                origin = self._graph.get(number)
                if origin is not None:
                    origin = _AskedBy(origin.module, origin.place._replace(backward=True))
        number = torch.autograd._get_sequence_nr()
        if origin is None and number > self._sequence:
            # Autograd numbers the node of an operation before it runs it.
            origin, on_graph = self._asked_here(), True
            self._graph.update(dict.fromkeys(range(self._sequence, number), origin))
            self._sequence = number
        if handling in ("view", "detach"):
            if accumulating is not None:  # it takes the tensor that it was given for the gradient
                self._is_gradient(args[0], accumulating)
            return func(*args, **kwargs)
        if handling != "fresh":
            for tensor in tensors_in(args, kwargs):
                self._use(tensor)
        if handling == "no memory" and self._on_op is None:
            return func(*args, **kwargs)
        op = len(self.ops)
        self.ops.append(func)
        self.origins.append(origin or self._asked_here())
        if self._on_op is None:
            output = func(*args, **kwargs)
        else:
            self._on_op(op)
            output = func(*args, **kwargs)
            self._on_op(-1)
        if handling == "no memory":
            return output
        for tensor in tensors_in(output):
            self._made(tensor, op, torch.is_grad_enabled(), on_graph)
        if accumulating is not None and isinstance(output, torch.Tensor):
            self._is_gradient(output, accumulating)
        return output


@functools.cache
def _handling_of(func: Any) -> str:
    """What there is to do for an operation, by its schema: an output that is marked as an alias is no new memory."""
    if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(...) ends in it: no operation made this memory
        return "fresh"
    if func is torch.ops.aten.detach.default:
        return "detach"
    schema = getattr(func, "_schema", None)
    if schema is None:
        return "allocates"
    aliases = [value.alias_info for value in schema.returns]
    if all(isinstance(value.type, _NUMBERS) for value in schema.returns):
        return "no memory"
    if any(alias is None for alias in aliases):
        return "allocates"
    if not any(alias.is_write for alias in aliases):
        return "view"
    # These may give a storage another size, or a tensor another storage.
    resizes = "out" in schema.overload_name or schema.name.startswith(("aten::resize", "aten::set_"))
    return "allocates" if resizes else "no memory"


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _is_foreign(storage: torch.UntypedStorage) -> bool:
    """Whether nobody asked torch's allocator for this memory."""
    return bool(not storage.resizable() and storage.nbytes())


@functools.cache
def written_by_the_user(filename: str) -> bool:
    """Whether code is neither torch's, nor the standard library's, nor of the tracer itself."""
    packages = "site-packages" in filename or "dist-packages" in filename
    return not (
        filename.startswith((_TORCH, "<frozen", "<string>"))
        or (filename.startswith(_STANDARD_LIBRARY) and not packages)
        or filename in _TRACER
    )
