"""Which tensors' memory is alive during a call: what allocated it, for what, in which module, and when it went.

A dispatch mode sees every operation that a tensor goes through, in the backward pass, too: autograd hands the modes of
the thread that calls ``backward()`` on to the threads in which it works. Memory belongs to storages, not to tensors, so
views and in-place operations add nothing, and a storage that dies is noticed by a weak reference, whoever held it last.

Source (torch 2.13.0; the same in 2.11.0):
    torch/utils/_python_dispatch.py, ``TorchDispatchMode``; aten/src/ATen/ThreadLocalState.h,
    ``torch_dispatch_mode_state_``; torch/csrc/autograd/engine.cpp, ``Engine::evaluate_function`` (the
    ``ThreadLocalStateGuard``); torch/distributed/_tools/mem_tracker.py, which tracks storages the same way.
"""

from __future__ import annotations

import gc
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

# Where a block was allocated: the user's code and the line in it; and whether it was allocated by that line's backward.
Place = tuple[CodeType | None, int, bool]
NOWHERE: Place = (None, 0, False)

_TORCH = str(Path(torch.__file__).resolve().parent) + "/"
_EVAL_FRAME = _TORCH + "_dynamo/eval_frame.py"
_SERIALIZATION = _TORCH + "serialization.py"
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + "/"
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LISTS = (list, tuple)
# What a tensor without a storage raises when it is asked for one.
_NO_STORAGE = (NotImplementedError, RuntimeError)
_NUMBERS = (torch.IntType, torch.FloatType, torch.BoolType, torch.NumberType)
_FOUND = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
# How an operation is handled. A fresh tensor is what `torch.tensor(...)` and `torch.from_numpy(...)` end in: no
# operation made its memory, and yet it is new. Writing and reading return no memory that is new.
_ALLOCATES, _WRITES, _READS, _VIEW, _DETACH, _FRESH = "allocates", "writes", "reads", "view", "detach", "fresh"
# By an operation's id, because to hash one takes longer: how it is handled, what runs it, what runs it if all
# arguments are given by position, and itself, so that no other operation gets its id.
_known_ops: dict[int, tuple[str, Callable[..., Any], Callable[..., Any], Any]] = {}
# An overload looks up at each call how its arguments are to be converted, which takes several microseconds. Where
# torch has a method that ends in the very same overload, and arguments are given by position, that one is called.
# ``item`` ends in ``aten::item``, which does nothing but to call the overload that it stands for here.
_BY_METHOD = (
    "view.default t.default detach.default transpose.int permute.default select.int clone.default "
    "mm.default bmm.default addmm.default add.Tensor sub.Tensor mul.Tensor div.Tensor add_.Tensor mul_.Tensor "
    "neg.default sqrt.default exp.default relu.default tanh.default tanh_.default sigmoid.default sigmoid_.default "
    "sum.dim_IntList"
)
BINDINGS: dict[str, Callable[..., Any]] = {
    f"aten.{overload}": getattr(torch._C.TensorBase, overload.partition(".")[0]) for overload in _BY_METHOD.split()
}
BINDINGS["aten._local_scalar_dense.default"] = torch._C.TensorBase.item
# Nodes of autograd are numbered; those that add up gradients all have this number, so that they go first.
_ACCUMULATE = 2**64 - 1
_grad_enabled = torch.is_grad_enabled
_graph_task = torch._C._current_graph_task_id
_autograd_node = torch._C._current_autograd_node
_clock = time.perf_counter_ns
_sequence_number = torch.autograd._get_sequence_nr


class Block(weakref.ref):
    """One storage's memory, while it is traced: a weak reference to the storage that knows what is known of it.

    Attributes:
        key: of the storage, as long as it lives.
        size_bytes: its size.
        born: the event from which on it is there; 0: it was there before.
        died: the event from which on it is gone; None: it lives.
        kind: as in ``results.MEMORY_KINDS``; empty as long as nothing says more than that it was allocated.
        module: the module's name.
        place: which code allocated it.
        op: which operation did, by its number; -1 for none.
        address: of its memory.
        on_graph: whether autograd made a node for the operation that allocated it.
        counted: whether the call used it. What was there before and was never used is not part of the trace.
    """

    __slots__ = ("address", "born", "counted", "died", "key", "kind", "module", "on_graph", "op", "place", "size_bytes")

    def describe(
        self, key: int, size_bytes: int, born: int, address: int, op: int = -1, module: str = "", place: Place = NOWHERE
    ) -> Block:
        """Set all attributes."""
        self.key, self.size_bytes, self.born, self.address = key, size_bytes, born, address
        self.died: int | None = None
        self.kind = ""
        self.module, self.place, self.op = module, place, op
        self.counted = born > 0
        self.on_graph = False
        return self

    @classmethod
    def without_storage(cls, size_bytes: int, born: int, address: int, op: int = -1) -> Block:
        """A block of memory that no storage was seen on."""
        return cls(_Nothing()).describe(0, size_bytes, born, address, op)


class _Nothing:
    """What a block refers to where there is no storage."""


class Phase:
    """A part of the call: from one event and operation to others."""

    __slots__ = ("events", "name", "ops")

    def __init__(self, name: str, event: int, op: int) -> None:
        self.name, self.events, self.ops = name, [event, event], [op, op]


class LiveStorages:
    """Follows all storages of one device while it is entered.

    Args:
        device: the device's type and, for a GPU, index.
        models: name to module, for people; modules that are called without being named here are named by their class.
        optimizers: optimizers whose state counts from the start; those that step are noticed anyway.
        on_op: called with an operation's number before it runs, and with -1 after it.

    Attributes:
        blocks: all blocks that were ever seen.
        times_ns: the clock at each event; event 0 is the start.
        ops: each operation that may have allocated.
        phases: what ran when.
        notes: what a reader must know.
    """

    def __init__(
        self,
        device: torch.device,
        models: dict[str, torch.nn.Module],
        optimizers: Iterable[Any] = (),
        on_op: Callable[[int], None] | None = None,
    ) -> None:
        self.device = device
        self.blocks: list[Block] = []
        self.times_ns: list[int] = []
        self.ops: list[Any] = []
        self.phases: list[Phase] = []
        self.notes: dict[str, None] = {}
        self.places: list[Place] = []  # of each operation, where it was asked for
        self.modules: list[str] = []  # of each operation
        self._given_models, self._given_optimizers, self._on_op = models, list(optimizers), on_op
        self._optimizers: dict[int, Any] = {}
        self._stepped: dict[int, int] = {}  # optimizers that stepped, by id: parameters that had a state then
        self._live: dict[int, Block] = {}
        self._seen: set[int] = {0}  # addresses of tensors; an empty tensor has none
        self._on_cpu = device.type == "cpu"
        self._names: dict[int, str] = {}  # of a module, by id
        self._owners: dict[int, str] = {}  # of a parameter, by id
        self._called: dict[int, weakref.ref[torch.nn.Module]] = {}  # modules that were called by no other
        self._stack: list[str] = []  # modules that are running, the outermost first
        self._pending: list[Block] = []
        self._backward: Phase | None = None
        self._stepping: list[tuple[str, Phase]] = []  # optimizers that are running
        self._removers: list[Callable[[], None]] = []
        self._released = self._gone  # one bound method for all
        self._mode = _Mode()
        self._thread = threading.get_ident()
        self._compiler = False  # whether torch.compile's machinery is loaded
        self._codes: set[int] = set()  # ids of the user's code that was looked at for torch.compile
        self._listening = False

    # Begin and end.

    def __enter__(self) -> LiveStorages:
        gc.collect()
        try:
            for label, model in self._given_models.items():
                self._know_model(model, label)
            self._find_what_exists()
            for optimizer in self._given_optimizers:
                self._know_optimizer(optimizer, used=True)
            self._register_hooks()
            self._watch_resizing()
            self._hold_compiled_code()
        except BaseException:
            self._remove_hooks()
            raise
        # An attribute of its own, and not a method that calls another: a call less for each operation.
        self._mode.__torch_dispatch__ = MethodType(self._dispatcher(), self._mode)
        self._mode.__enter__()
        self._listening = True
        self.times_ns.append(_clock())
        return self

    def _register_hooks(self) -> None:
        hooks = (
            optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
            optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
        )
        self._removers += [hook.remove for hook in hooks]
        self._watch_modules()

    def _watch_modules(self) -> None:
        """Notice which module is running. Global hooks would tell, too, and cost ten times as much."""
        original = torch.nn.Module.__call__
        names, stack, thread, this_thread = self._names, self._stack, self._thread, threading.get_ident

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._listening or this_thread() != thread:
                return original(module, *args, **kwargs)
            name = names.get(id(module))
            if stack and name is not None and self._backward is None:
                stack.append(name)
            else:
                self._before_module(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                stack.pop()
                if not stack:
                    self._after_module()

        def restore() -> None:
            torch.nn.Module.__call__ = original

        torch.nn.Module.__call__ = call
        self._removers.append(restore)

    def _hold_compiled_code(self) -> None:
        """Let compiled code run eagerly for now.

        Under a dispatch mode it does so by itself, and then for good: the code is marked to be skipped
        (torch/_dynamo/convert_frame.py, ``ConvertFrame.__call__``, 2.13.0). A stance leaves what is compiled alone.
        """
        original = torch.compile

        def hold() -> None:
            if not self._compiler:
                self._compiler = True
                stance = torch.compiler.set_stance("force_eager")
                self._removers.append(lambda: stance.__exit__(None, None, None))

        def hold_and_compile(*args: Any, **kwargs: Any) -> Any:
            hold()
            return original(*args, **kwargs)

        def restore() -> None:
            torch.compile = original

        if "torch._dynamo" in sys.modules:
            hold()
        # Otherwise only on demand: it imports torch.compile's machinery, which takes over a second.
        torch.compile = hold_and_compile
        self._removers.append(restore)

    def _places(self, frame: FrameType | None) -> tuple[Place, Place]:
        """The user's code that asks for an operation: the place, and that of its backward."""
        places = places_of(frame)
        code = places[0][0]
        if self._compiler and code is not None and id(code) not in self._codes:
            self._codes.add(id(code))
            while frame is not None:
                # Every optimizer's step() and zero_grad() goes through a wrapper that only keeps torch.compile out.
                called = frame.f_code
                if called.co_filename == _EVAL_FRAME and not called.co_qualname.startswith("DisableContext."):
                    self.notes["Code under torch.compile ran as it is written, without being compiled."] = None
                frame = frame.f_back
        return places

    def _remove_hooks(self) -> None:
        for remove in reversed(self._removers):
            remove()
        self._removers.clear()

    def __exit__(self, *exception: object) -> None:
        self._mode.__exit__(*exception)
        self._remove_hooks()
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
        del self._mode.__torch_dispatch__

    def returned(self) -> None:
        """The call is back; its result is still held. What a graph may still keep is an activation."""
        self._end_backward()
        self._keep_pending(graph_only=True)

    # Storages.

    def _event(self) -> int:
        self.times_ns.append(_clock())
        return len(self.times_ns) - 1

    def _follow(
        self,
        storage: torch.UntypedStorage,
        size: int,
        born: int,
        op: int = -1,
        module: str = "",
        place: Place = NOWHERE,
    ) -> Block:
        key = storage._cdata
        block = Block(storage, self._released).describe(key, size, born, storage.data_ptr(), op, module, place)
        self._live[key] = block
        self.blocks.append(block)
        return block

    def _gone(self, block: Block) -> None:
        live, key = self._live, block.key
        if live.get(key) is block:
            del live[key]
            if self._listening:
                times = self.times_ns
                block.died, block.counted = len(times), True
                times.append(_clock())

    def _existing(self, storage: torch.UntypedStorage) -> Block:
        """A block that was there before, or that nothing saw being made."""
        born = 0
        if self._listening and not _in_backward():
            # What is there before is known, but for what autograd saved: only a backward pass meets that.
            born = self._event()
            self.notes[
                "Memory that an operation of this thread did not make (another thread's, mostly) is shown from its "
                "first use on."
            ] = None
        block = self._follow(storage, storage.nbytes(), born)
        block.kind = "other"
        return block

    def _storages(self, tensor: torch.Tensor) -> list[torch.UntypedStorage]:
        """A tensor's storages on this device: one, but for sparse tensors and tensors that are made of others."""
        try:
            return self._storages_of(tensor)
        except Exception:  # a tensor may be of any type, and that type's code may fail; the traced code goes on
            if self._listening:
                self.notes[f"Tensors of type {type(tensor).__name__} are not followed: they hide their storage."] = None
            return []

    def _storages_of(self, tensor: torch.Tensor) -> list[torch.UntypedStorage]:
        if type(tensor) not in _PLAIN:
            if is_lazy(tensor):
                return []
            if is_traceable_wrapper_subclass(tensor):
                inner, _ = tensor.__tensor_flatten__()
                parts = [getattr(tensor, name) for name in inner]  # a DTensor (2.13) names its device mesh, too
                return [storage for part in parts if isinstance(part, torch.Tensor) for storage in self._storages(part)]
        if not tensor.is_cpu if self._on_cpu else tensor.device != self.device:
            return []
        try:
            storage = tensor.untyped_storage()
            # A fake tensor says that it is on the device; its storage knows better.
            if storage.device.type != self.device.type:
                return []
        except (NotImplementedError, RuntimeError):
            if tensor.layout == torch.sparse_coo:
                return [tensor._indices().untyped_storage(), tensor._values().untyped_storage()]
            self.notes[f"Tensors of layout {tensor.layout} are not followed: they have no storage."] = None
            return []
        try:
            storage.data_ptr()
        except RuntimeError:  # a tensor around another one, as those of torch.func are: it has no memory
            return []
        return [storage]

    def use(self, tensor: torch.Tensor) -> None:
        """An operation takes this tensor: its memory counts, if that was not known before."""
        for storage in self._storages(tensor):
            block = self._live.get(storage._cdata)
            if block is None:
                if not storage.resizable() and storage.nbytes():
                    # NumPy's memory, or a file's: nobody asked torch's allocator for it.
                    self.notes["Memory that torch did not allocate (NumPy's, a file's) is not part of the trace."] = (
                        None
                    )
                    continue
                block = self._existing(storage)
            block.counted = True
            if block.kind == "other" and tensor.requires_grad and tensor.is_leaf:
                self._know_weight(tensor, "")
        if type(tensor) in _PLAIN and tensor.layout is torch.strided:
            self._seen.add(tensor.data_ptr())

    def made(self, tensor: torch.Tensor, op: int, module: str, place: Place, recorded: bool, on_graph: bool) -> None:
        """An operation returned this tensor: its memory is new, unless it is a view's or was written in place."""
        for storage in self._storages(tensor):
            size = storage.nbytes()
            block = self._live.get(storage._cdata)
            if block is not None:
                if block.size_bytes != size:
                    self._resized(storage, size, op, module, place)
                continue
            if not storage.resizable() and size and not _is_loading(sys._getframe(1)):
                continue  # a view of foreign memory
            block = self._follow(storage, size, self._event(), op, module, place)
            self._seen.add(block.address)
            if recorded or on_graph:
                block.on_graph = on_graph
                self._pending.append(block)

    def _resized(self, storage: torch.UntypedStorage, size: int, op: int, module: str, place: Place) -> None:
        old = self._live[storage._cdata]
        # As the allocator does: first the new memory, then the old is copied and released.
        block = self._follow(storage, size, self._event(), op, module or old.module, place)
        block.kind = old.kind
        old.died, old.counted = self._event(), True

    def _watch_resizing(self) -> None:
        """``UntypedStorage.resize_`` is no operation: no dispatch mode sees it."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            block = self._live.get(storage._cdata)
            if self._listening and block is not None and block.size_bytes != storage.nbytes():
                self._resized(storage, storage.nbytes(), -1, "", places_of(sys._getframe(1))[0])
            return result

        def restore() -> None:
            if "resize_" in torch.UntypedStorage.__dict__:
                if inherited:
                    del torch.UntypedStorage.resize_
                else:
                    torch.UntypedStorage.resize_ = original

        inherited = "resize_" not in torch.UntypedStorage.__dict__
        torch.UntypedStorage.resize_ = resize
        self._removers.append(restore)

    def _find_what_exists(self) -> None:
        """Follow every tensor that Python knows of, so that it is noticed when the call drops one.

        It counts only once the call uses or drops it.
        """
        kinds: dict[type, type | None] = {}
        gradients, modules, optimizers = [], {}, []
        for thing in gc.get_objects():
            kind = type(thing)
            if kind not in kinds:
                kinds[kind] = next((base for base in _FOUND if issubclass(kind, base)), None)
            if kinds[kind] is torch.Tensor:
                try:
                    self._watch_existing(thing)
                    if thing.is_leaf and thing.requires_grad:
                        self._know_weight(thing, "", used=False)
                        if thing.grad is not None:
                            gradients.append((thing, thing.grad))
                except Exception:  # a fake tensor, an opaque one, one that is being made or was never finished
                    continue
            elif kinds[kind] is torch.nn.Module:
                modules[id(thing)] = thing
            elif kinds[kind] is torch.optim.Optimizer:
                optimizers.append(thing)
        # Nobody vouches for an object that is merely found: it may have been made without __init__.
        parts = set()
        for module in modules.values():
            with suppress(Exception):
                parts.update(map(id, module.children()))
        for number, module in modules.items():
            if number not in parts:
                with suppress(Exception):
                    self._know_model(module, type(module).__name__, used=False)
        for weight, gradient in gradients:
            self._is_gradient(gradient, weight, used=False)
        for optimizer in optimizers:
            with suppress(Exception):
                self._know_optimizer(optimizer)

    def _watch_existing(self, tensor: torch.Tensor, used: bool = False) -> list[Block]:
        """The blocks of a tensor that is known to exist."""
        found = []
        for storage in self._storages(tensor):
            block = self._live.get(storage._cdata)
            if block is None:
                block = self._existing(storage)
            block.counted |= used
            found.append(block)
        return found

    # What memory is for.

    def _know_model(self, model: torch.nn.Module, label: str, used: bool = True) -> None:
        for path, part in model.named_modules():
            name = f"{label}.{path}" if path else label
            self._names.setdefault(id(part), name)
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                self._know_weight(tensor, name, used)
                if used:
                    self._know_gradient(tensor)

    def _know_weight(self, tensor: torch.Tensor, module: str, used: bool = True) -> None:
        if not self._owners.get(id(tensor)):
            self._owners[id(tensor)] = module
        for block in self._watch_existing(tensor, used):
            block.kind, block.module = "weights", self._owners[id(tensor)]

    def _know_gradient(self, tensor: torch.Tensor) -> None:
        if tensor.is_leaf and tensor.grad is not None:
            self._is_gradient(tensor.grad, tensor)

    def _is_gradient(self, gradient: torch.Tensor, of: torch.Tensor, used: bool = True) -> None:
        for block in self._watch_existing(gradient, used):
            block.kind, block.module = "gradients", self._owners.get(id(of), "")

    def _know_optimizer(self, optimizer: Any, used: bool = False) -> None:
        """Note which blocks are an optimizer's state."""
        states = list(optimizer.state.items())
        self._optimizers[id(optimizer)] = optimizer
        for tensor, state in states:
            owner = self._owners.get(id(tensor), "")
            for value in tree_leaves(state):
                if isinstance(value, torch.Tensor):
                    for block in self._watch_existing(value, used):
                        # Some optimizers keep the gradient or the weight itself in their state.
                        if block.kind not in ("weights", "gradients"):
                            block.kind, block.module = "optimizer state", owner

    def _keep_pending(self, graph_only: bool = False) -> None:
        """What was made while autograd recorded, and is still there now, is kept for the backward pass."""
        for block in self._pending:
            if block.died is None and not block.kind and (block.on_graph or not graph_only):
                block.kind = "activations"
        self._pending.clear()

    # What runs.

    def _before_module(self, module: torch.nn.Module) -> None:
        if self._backward is not None:
            self._end_backward()
        name = self._names.get(id(module))
        if name is None:
            if self._stack:  # made on the way, or not registered
                name = self._names[id(module)] = f"{self._stack[0]}.{type(module).__name__}"
            else:
                name = type(module).__name__
                self._know_model(module, name)
        if not self._stack:
            self._called.setdefault(id(module), weakref.ref(module))
            if _graph_task() == -1:
                self.phases.append(Phase("forward", len(self.times_ns), len(self.ops)))
        self._stack.append(name)

    def _after_module(self) -> None:
        if _graph_task() == -1:
            self._close(self.phases[-1])

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._end_backward()
        if id(optimizer) not in self._optimizers:
            self._know_optimizer(optimizer)
        self._stepped.setdefault(id(optimizer), len(optimizer.state))
        phase = Phase("optimizer step", len(self.times_ns), len(self.ops))
        self._stepping.append((type(optimizer).__name__, phase))
        self.phases.append(phase)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if len(optimizer.state) != self._stepped[id(optimizer)]:
            # Now, and not at the end: the optimizer may be gone by then.
            self._stepped[id(optimizer)] = len(optimizer.state)
            self._know_optimizer(optimizer)
        self._close(self._stepping.pop()[1])

    def _close(self, phase: Phase) -> None:
        phase.events[1], phase.ops[1] = len(self.times_ns) - 1, len(self.ops) - 1

    def _end_backward(self) -> None:
        if self._backward is not None and not _in_backward():
            self._close(self._backward)
            self._backward = None

    def _dispatcher(self) -> Callable[..., Any]:
        """What the mode calls for every operation: runs it, and notes what it allocates.

        In a training step of small operations it is called some hundred times each 10 ms, between operations that have
        emptied the caches, so each look-up counts. Hence a closure, and no tuple or object that is not needed later:
        these would also make Python's garbage collector run more often.
        """
        live, seen, blocks, times = self._live, self._seen, self.blocks, self.times_ns
        ops, op_places, op_modules = self.ops, self.places, self.modules
        stack, stepping, pending = self._stack, self._stepping, self._pending
        released, on_op, on_cpu, device = self._released, self._on_op, self._on_cpu, self.device
        plain, parameter, frame_of, use = torch.Tensor, torch.nn.Parameter, sys._getframe, self.use
        owners = self._owners
        # Of each node of autograd, by its number: the module and the places that it was made for.
        origin_modules: dict[int, str] = {}
        origin_places: dict[int, tuple[Place, Place]] = {}
        sequence = _sequence_number()

        def look_at(values: Iterable[Any]) -> None:
            for value in values:
                kind = type(value)
                if kind is plain or kind is parameter:
                    # An address that was seen once is no tensor's from before that nobody has noticed yet.
                    try:
                        address = value.data_ptr()
                        if address in seen:
                            continue
                        block = live.get(value.untyped_storage()._cdata)
                    except _NO_STORAGE:
                        block = None
                    if block is None or (block.born == 0 and block.kind == "other"):
                        use(value)
                    else:
                        block.counted = True
                        seen.add(address)
                elif kind is list or kind is tuple:
                    look_at(value)
                elif isinstance(value, plain):
                    use(value)

        def made(tensor: torch.Tensor, op: int, module: str, place: Place, recorded: bool, on_graph: bool) -> None:
            # The same as the method does, for the tensors that nearly all are.
            if type(tensor) is plain and (tensor.is_cpu if on_cpu else tensor.device == device):
                try:
                    storage = tensor.untyped_storage()
                    address = storage.data_ptr()
                except _NO_STORAGE:
                    pass
                else:
                    key = storage._cdata
                    if key not in live and storage.resizable():
                        block = Block(storage, released)
                        block.key, block.size_bytes, block.address = key, storage.nbytes(), address
                        block.born, block.died = len(times), None
                        times.append(_clock())
                        block.kind, block.module, block.place, block.op = "", module, place, op
                        block.counted, block.on_graph = True, on_graph
                        seen.add(address)
                        live[key] = block
                        blocks.append(block)
                        if recorded or on_graph:
                            pending.append(block)
                        return
            self.made(tensor, op, module, place, recorded, on_graph)

        def is_gradient(gradient: torch.Tensor, of: torch.Tensor) -> None:
            strided = type(gradient) is plain and gradient.layout is torch.strided
            block = live.get(gradient.untyped_storage()._cdata) if strided else None
            if block is None:
                self._is_gradient(gradient, of)
            else:
                block.kind, block.module, block.counted = "gradients", owners.get(id(of), ""), True

        def dispatch(mode: _Mode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal sequence
            handling, run, run_plain, _ = _known_ops.get(id(func)) or _learned(func)
            places: tuple[Place, Place] | None = None
            accumulating: torch.Tensor | None = None
            backward = on_graph = False
            if _graph_task() != -1:
                if self._backward is None:
                    self._backward = Phase("backward", len(times), len(ops))
                    self.phases.append(self._backward)
                if not _grad_enabled():
                    if pending:
                        self._keep_pending()
                    if handling is _VIEW:  # what it looks at is noticed when something works on it
                        return run(*args, **kwargs) if kwargs else run_plain(*args)
                    if on_op is None and (handling is _WRITES or handling is _READS):
                        look_at(args)
                        if kwargs:
                            look_at(kwargs.values())
                        return run(*args, **kwargs) if kwargs else run_plain(*args)
                    node = _autograd_node()
                    node_number = -1 if node is None else node._sequence_nr()
                    if node_number == _ACCUMULATE:
                        accumulating = node.variable
                    if handling is _DETACH:
                        if accumulating is not None:  # it takes the tensor that it was given for the gradient
                            is_gradient(args[0], accumulating)
                        return run(*args, **kwargs) if kwargs else run_plain(*args)
                    places = origin_places.get(node_number)
                    if places is not None:
                        module, backward = origin_modules[node_number], True
            elif self._backward is not None:
                self._end_backward()
            if places is None:
                number = _sequence_number()
                if number > sequence:
                    # Autograd numbers the node of an operation before it runs it.
                    places, on_graph = self._places(frame_of(1)), True
                    module = stack[-1] if stack else stepping[-1][0] if stepping else ""
                    for node_number in range(sequence, number):
                        origin_modules[node_number], origin_places[node_number] = module, places
                    sequence = number
            if handling is _VIEW or handling is _DETACH:
                return run(*args, **kwargs) if kwargs else run_plain(*args)

            if handling is not _FRESH:
                look_at(args)
                if kwargs:
                    look_at(kwargs.values())
            returns_memory = handling is not _WRITES and handling is not _READS
            if not returns_memory and on_op is None:
                return run(*args, **kwargs) if kwargs else run_plain(*args)
            if places is None:
                places = self._places(frame_of(1))
                module = stack[-1] if stack else stepping[-1][0] if stepping else ""
            op, place = len(ops), places[backward]
            ops.append(func)
            op_places.append(place)
            op_modules.append(module)
            if on_op is None:
                output = run(*args, **kwargs) if kwargs else run_plain(*args)
            else:
                on_op(op)
                output = run(*args, **kwargs) if kwargs else run_plain(*args)
                on_op(-1)
                if not returns_memory:
                    return output
            recorded = _grad_enabled()
            if isinstance(output, plain):
                made(output, op, module, place, recorded, on_graph)
                if accumulating is not None:
                    is_gradient(output, accumulating)
            elif output is not None:
                for value in output if type(output) in _LISTS else tree_leaves(output):
                    if isinstance(value, plain):
                        made(value, op, module, place, recorded, on_graph)
                    elif type(value) in _LISTS:
                        for item in tree_leaves(value):
                            if isinstance(item, plain):
                                made(item, op, module, place, recorded, on_graph)
            return output

        return dispatch


class _Mode(TorchDispatchMode):
    """Hands every operation to the ``__torch_dispatch__`` that `LiveStorages` sets."""

    supports_higher_order_operators = True


def _learned(func: Any) -> tuple[str, Callable[..., Any], Callable[..., Any], Any]:
    # What an overload's call would call, without a call of Python's in between.
    run = func._op if type(func) is torch._ops.OpOverload else func
    known = _known_ops[id(func)] = (_handling_of(func), run, BINDINGS.get(str(func), run), func)
    return known


def _handling_of(func: Any) -> str:
    """What there is to do for an operation, by its schema: an output that is marked as an alias is no new memory."""
    if func is torch.ops.aten.lift_fresh.default:
        return _FRESH
    if func is torch.ops.aten.detach.default:
        return _DETACH
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _ALLOCATES
    aliases = [value.alias_info for value in schema.returns]
    if not aliases:
        return _WRITES
    if all(isinstance(value.type, _NUMBERS) for value in schema.returns):
        return _READS
    if any(alias is None for alias in aliases):
        return _ALLOCATES
    if not any(alias.is_write for alias in aliases):
        return _VIEW
    # These may give a storage another size, or a tensor another storage.
    resizes = "out" in schema.overload_name or schema.name.startswith(("aten::resize", "aten::set_"))
    return _ALLOCATES if resizes else _WRITES


def _is_loading(frame: FrameType | None) -> bool:
    """Whether ``torch.load`` reads into memory of torch's: its storages cannot be resized, like foreign ones."""
    while frame is not None:
        if frame.f_code.co_filename == _SERIALIZATION and frame.f_code.co_name == "load":
            return not frame.f_locals.get("mmap")
        frame = frame.f_back
    return False


def _in_backward() -> bool:
    return _graph_task() != -1


_is_user: dict[str, bool] = {}
_NOBODYS = (NOWHERE, NOWHERE)
# Of the code of each function, by its id (to hash code means to hash all that is in it): None if it is not the user's,
# and otherwise its places by the instruction. To look the line up takes longer than to look the instruction up here.
_known_code: dict[int, dict[int, tuple[Place, Place]] | None] = {}
_kept: list[CodeType] = []  # so that no other code gets its id


def written_by_the_user(filename: str) -> bool:
    """Whether code is neither torch's, nor the standard library's, nor of the tracer itself."""
    known = _is_user.get(filename)
    if known is None:
        packages = "site-packages" in filename or "dist-packages" in filename
        known = _is_user[filename] = not (
            filename.startswith((_TORCH, "<frozen", "<string>"))
            or (filename.startswith(_STANDARD_LIBRARY) and not packages)
            or filename in _TRACER
        )
    return known


_TRACER = {str(Path(__file__).with_name(name)) for name in ("live_storages.py", "trace.py", "cuda_history.py")}


def places_of(frame: FrameType | None) -> tuple[Place, Place]:
    """The innermost place in the user's code, and the place of its backward.

    Args:
        frame: where to begin.
    """
    while frame is not None:
        code = frame.f_code
        try:
            known = _known_code[id(code)]
        except KeyError:
            known = _known_code[id(code)] = {} if written_by_the_user(code.co_filename) else None
            _kept.append(code)
        if known is not None:
            instruction = frame.f_lasti
            places = known.get(instruction)
            if places is None:
                line = frame.f_lineno
                places = known[instruction] = ((code, line, False), (code, line, True))
            return places
        frame = frame.f_back
    return _NOBODYS
