"""Which tensors' memory is alive during a call, and when it came and went.

A dispatch mode sees every operation that a tensor goes through, in the backward pass, too: autograd hands the modes of
the thread that calls ``backward()`` on to the threads in which it works. Memory belongs to storages, not to tensors, so
views and in-place operations add nothing, and a storage that dies is noticed by a weak reference, whoever held it last.

Source (torch 2.13.0; the same in 2.11.0):
    torch/csrc/autograd/engine.cpp, ``Engine::evaluate_function`` (the ``ThreadLocalStateGuard``);
    torch/distributed/_tools/mem_tracker.py, which tracks storages the same way.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a tensor is made of: those inside of a DTensor, and otherwise itself."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    for part in parts:
        if isinstance(part, torch.Tensor):  # a DTensor (2.13) names its device mesh, too
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


@dataclass(eq=False)
class TracedBlock:
    """One storage's memory."""

    size_bytes: int
    born: int  # the event from which on it is there; 0: it was there before
    died: int | None = None  # the event from which on it is gone; None: it is still there


class LiveStorages(StorageMode):
    """Follows the storages of all tensors on the CPU while it is entered.

    Events are the start, every allocation and release, and the end: what happened in the call and what is left after it
    can be told apart. Memory that torch did not allocate (NumPy's, a file's) is left out.

    Example:
        >>> with LiveStorages() as storages:
        ...     double = torch.ones(1024) * 2
        >>> [total - storages.totals_bytes[0] for total in storages.totals_bytes]
        [0, 4096, 8192, 4096, 4096]
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[TracedBlock] = []  # all that were ever seen
        self.times_ns: list[int] = []  # the clock at each event

    def __enter__(self) -> Self:
        gc.collect()
        self._event()
        # What exists is known, so that the call is seen to drop it.
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                with suppress(Exception):  # nobody vouches for an object that merely exists
                    self._known(thing)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._event()
        self._live.clear()

    @property
    def totals_bytes(self) -> list[int]:
        """Bytes that were there at each event."""
        changes = [0] * (len(self.times_ns) + 1)
        for block in self.blocks:
            changes[block.born] += block.size_bytes
            if block.died is not None:
                changes[block.died] -= block.size_bytes
        return list(accumulate(changes[:-1]))

    def _event(self) -> int:
        self.times_ns.append(time.perf_counter_ns())
        return len(self.times_ns) - 1

    def _add(self, storage: torch.UntypedStorage, born: int) -> TracedBlock:
        block = TracedBlock(storage.nbytes(), born)
        self._follow(storage, block)
        self.blocks.append(block)
        return block

    def _gone(self, known: TracedBlock) -> None:
        known.died = self._event()

    def _known(self, tensor: torch.Tensor) -> None:
        """This tensor was there before, unless it is known."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live and _is_followed(storage):
            self._add(storage, born=0)

    def _made(self, tensor: torch.Tensor) -> None:
        """An operation returned this tensor: its memory is new, unless it is a view's or was written in place."""
        storage = tensor.untyped_storage()
        block = self._live.get(storage._cdata)
        if block is not None:
            self._resized_in_place(storage, block)
        elif _is_followed(storage):
            self._add(storage, self._event())

    def _resized_in_place(self, storage: torch.UntypedStorage, known: TracedBlock) -> None:
        if storage.nbytes() != known.size_bytes:
            # As the allocator does: first the new memory, then the old is copied and released.
            self._add(storage, self._event())
            self._gone(known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten.lift_fresh.default:  # torch.tensor(...) ends in it: no operation made this memory
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor):
                    self._known(value)
        output = func(*args, **kwargs)
        for value in tree_leaves(output):
            if isinstance(value, torch.Tensor):
                self._made(value)
        return output


def _is_followed(storage: torch.UntypedStorage) -> bool:
    """Whether torch allocated this memory on the CPU; a fake tensor says that it is there, and its storage knows."""
    return storage.device.type == "cpu" and (storage.resizable() or not storage.nbytes())


class Levels(NamedTuple):
    """Bytes before a call and after it, and the most that it held on top of what was there before."""

    start_bytes: int
    end_bytes: int
    extra_peak_bytes: int


def levels_of(call: Callable[[], Any]) -> Levels:
    """Call once, and tell the levels of memory: a GPU's allocator counts them, on a CPU the storages are followed.

    Example:
        >>> x = torch.ones(2**20, device="cuda" if torch.cuda.is_available() else "cpu")
        >>> levels_of(lambda: x + 1).extra_peak_bytes // 2**20
        4
    """
    if not torch.cuda.is_available():
        with LiveStorages() as storages:
            call()
        totals = storages.totals_bytes
        return Levels(totals[0], totals[-1], max(totals) - totals[0])
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return Levels(start, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated() - start)
