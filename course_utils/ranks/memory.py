"""What one rank of a distributed training step holds in memory, by part: on a real rank, or on one that is simulated.

A dispatch mode sees every operation that a tensor goes through and follows the storages behind them until they die.
What a storage was for is known only later (a tensor of the backward pass becomes a gradient), so events are kept and
added up by part at the end. FSDP frees parameters by giving their storage the size 0, which is no operation:
that method is watched, too.

Source (torch 2.13.0; the same in 2.11.0):
    torch/distributed/_tools/mem_tracker.py and fsdp2_mem_tracker.py, which follow storages in this way;
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``alloc_storage`` and ``free_storage``;
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, the operations of the library ``fsdp``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.memory.live_storages import plain_tensors, resizing_watched, tensors_in
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS

# Operations that move tensors between ranks, or copy them into and out of the buffers for that.
_COMMUNICATION = frozenset({"c10d", "fsdp", "_c10d_functional"})
_REST = "activations"


@dataclass(frozen=True)
class StepMemory:
    """Memory of one rank during one training step, in bytes.

    Attributes:
        largest: the most that each part of ``CLUSTER_PARTS`` took at any one time.
        at_peak: what each part took when all together took the most; they add up to ``peak_bytes``.
        peak_bytes: the most that all parts took together.
        peak_phase: what ran then, as the step named it.
    """

    largest: dict[str, int]
    at_peak: dict[str, int]
    peak_bytes: int
    peak_phase: str


class RankMemory(TorchDispatchMode):
    """Follows all memory of tensors in this process while it is entered, for as many steps as wanted.

    Enter it before the model is wrapped: DDP's buckets are made there, and are not to be found later.

    Example:
        >>> model = torch.nn.Linear(1024, 1024, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> with RankMemory() as memory:
        ...     with memory.step(model, optimizer):
        ...         model(torch.zeros(1, 1024)).sum().backward()
        >>> memory.found.largest["weights"] // 2**20, memory.found.largest["gradients"] // 2**20
        (4, 4)
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: StepMemory | None = None
        self._phase = ""
        self._sizes: dict[int, int] = {}  # of each living storage, by its number
        self._watched: dict[int, tuple[int, weakref.ref]] = {}  # by the storage's address: its number
        self._count = 0
        self._part_of: dict[int, str] = {}
        self._communicated: set[int] = set()
        self._events: list[tuple[int, int, str]] = []  # number of the storage, change of its size, phase
        self._recording = False
        self._fake_mode: Any = None
        self._resizing = contextlib.ExitStack()

    def phase(self, name: str) -> None:
        """Name what runs from now on, such as ``forward``."""
        self._phase = name

    def communicated(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory as gathered, unless it holds weights, gradients or the optimizer's state."""
        for number in self._follow(tensor):
            self._communicated.add(number)

    @contextlib.contextmanager
    def step(self, model: torch.nn.Module, *optimizers: Any) -> Iterator[None]:
        """One training step; afterwards :attr:`found` says what it held.

        Args:
            model: the wrapped model.
            *optimizers: optimizers whose state counts.
        """
        self._name_parts(model, optimizers)
        start = dict(self._sizes)
        self._events, self._recording = [], True
        try:
            yield
        finally:
            self._recording = False
        self._name_parts(model, optimizers)
        self.found = self._add_up(start)

    def _name_parts(self, model: torch.nn.Module, optimizers: Iterable[Any]) -> None:
        for optimizer in optimizers:
            # ZeroRedundancyOptimizer keeps this rank's state in an optimizer of its own.
            for state in getattr(optimizer, "optim", optimizer).state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        self._name(value, "optimizer")
        for parameter in model.parameters():
            self._name(parameter, "weights")
            if parameter.grad is not None:
                self._name(parameter.grad, "gradients")

    def _name(self, tensor: torch.Tensor, part: str) -> None:
        for number in self._follow(tensor):
            self._part_of[number] = part

    def _add_up(self, start: dict[int, int]) -> StepMemory:
        def part(number: int) -> str:
            return self._part_of.get(number) or ("gathered" if number in self._communicated else _REST)

        now = dict.fromkeys(CLUSTER_PARTS, 0)
        for number, size in start.items():
            now[part(number)] += size
        total = sum(now.values())
        largest, at_peak, peak, phase = dict(now), dict(now), total, self._events[0][2] if self._events else ""
        for number, change, name in self._events:
            of = part(number)
            now[of] += change
            total += change
            largest[of] = max(largest[of], now[of])
            if total > peak:
                at_peak, peak, phase = dict(now), total, name
        return StepMemory(largest, at_peak, peak, phase)

    # Storages

    def _change(self, number: int, size: int) -> None:
        before = self._sizes.get(number, 0)
        if size != before:
            self._sizes[number] = size
            if self._recording:
                self._events.append((number, size - before, self._phase))

    def _follow(self, tensor: torch.Tensor) -> list[int]:
        """Numbers of a tensor's storages; those that are new are followed from now on."""
        return [self._follow_storage(part.untyped_storage()) for part in plain_tensors(tensor)]

    def _follow_storage(self, storage: torch.UntypedStorage) -> int:
        address = storage._cdata
        if address in self._watched:
            number = self._watched[address][0]
        else:
            self._count += 1
            number = self._count

            def gone(_: Any, address: int = address, number: int = number) -> None:
                del self._watched[address]
                self._change(number, 0)
                del self._sizes[number]

            self._watched[address] = number, weakref.ref(storage, gone)
            self._sizes[number] = 0
        self._change(number, storage.nbytes())
        return number

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self._watched.get(storage._cdata)
        if known is not None:
            self._change(known[0], storage.nbytes())

    def __enter__(self) -> RankMemory:
        self._fake_mode = active_fake_mode()
        self._resizing.enter_context(resizing_watched(self._resized))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._resizing.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and follow what it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it is taken apart first, and comes back with local tensors
        result = func(*args, **(kwargs or {}))
        # To find out how a result is sharded, DTensor runs operations on fake tensors: they take no memory.
        if active_fake_mode() is not self._fake_mode:
            return result
        if func.namespace in _COMMUNICATION:
            for tensor in tensors_in(args, kwargs, result):
                self.communicated(tensor)
        else:
            for tensor in tensors_in(result):
                self._follow(tensor)
        return result
