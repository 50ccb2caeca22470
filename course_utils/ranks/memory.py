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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from course_utils.memory.live_storages import StorageMode, plain_tensors
from course_utils.ranks.cluster import CLUSTER_PARTS

# Operations that move tensors between ranks, or copy them into and out of the buffers for that.
_COMMUNICATION = frozenset({"c10d", "fsdp", "_c10d_functional"})


@dataclass(frozen=True)
class PhaseMemory:
    """Memory of one rank while one phase of a step ran, in bytes, by part of ``CLUSTER_PARTS``."""

    largest: dict[str, int]  # the most that each part took at any one time
    at_peak: dict[str, int]  # what each part took when all together took the most


@dataclass(frozen=True)
class StepMemory:
    """Memory of one rank during one training step, in bytes."""

    phases: dict[str, PhaseMemory]  # by the names that the step gave

    @property
    def largest(self) -> dict[str, int]:
        """The most that each part of ``CLUSTER_PARTS`` took at any one time."""
        return {part: max(phase.largest[part] for phase in self.phases.values()) for part in CLUSTER_PARTS}

    @property
    def peak_phase(self) -> str:
        """What ran when all parts together took the most, as the step named it."""
        return max(self.phases, key=lambda name: sum(self.phases[name].at_peak.values()))

    @property
    def at_peak(self) -> dict[str, int]:
        """What each part took then; they add up to :attr:`peak_bytes`."""
        return self.phases[self.peak_phase].at_peak

    @property
    def peak_bytes(self) -> int:
        """The most that all parts took together."""
        return sum(self.at_peak.values())


@dataclass(eq=False)
class _Storage:
    size_bytes: int = 0
    named: str = ""  # weights, gradients or optimizer
    communicated: bool = False

    @property
    def part(self) -> str:
        return self.named or ("gathered" if self.communicated else "activations")


class RankMemory(StorageMode):
    """Follows all memory of tensors in this process while it is entered, for as many steps as wanted.

    Enter it before the model is wrapped: DDP's buckets are made there, and are not to be found later.

    Example:
        >>> model = torch.nn.Linear(1024, 1024, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> with RankMemory() as memory:
        ...     with memory.step(model, optimizer):
        ...         model(torch.zeros(1, 1024)).sum().backward()
        >>> memory.last_step.largest["weights"] // 2**20, memory.last_step.largest["gradients"] // 2**20
        (4, 4)
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_step: StepMemory | None = None
        self._phase = ""
        self._events: list[tuple[_Storage, int, str]] = []  # storage, change of its size, phase
        self._recording = False

    def phase(self, name: str) -> None:
        """Name what runs from now on, such as ``forward``."""
        self._phase = name

    def communicated(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory as gathered, unless it holds weights, gradients or the optimizer's state."""
        for storage in self._storages(tensor):
            storage.communicated = True

    @contextlib.contextmanager
    def step(self, model: torch.nn.Module, *optimizers: Any) -> Iterator[None]:
        """One training step of a wrapped model; afterwards :attr:`last_step` says what it held."""
        self._name_parts(model, optimizers)
        # A copy: what the garbage collector ends meanwhile leaves the dictionary.
        start = {storage: storage.size_bytes for storage in list(self._live.values())}
        self._events, self._recording = [], True
        try:
            yield
        finally:
            self._recording = False
        self._name_parts(model, optimizers)
        self.last_step = _added_up(start, self._events)

    def _name_parts(self, model: torch.nn.Module, optimizers: tuple[Any, ...]) -> None:
        # ZeroRedundancyOptimizer keeps this rank's state in an optimizer of its own.
        states = [getattr(optimizer, "optim", optimizer).state for optimizer in optimizers]
        parts = {
            "optimizer": [value for state in states for values in state.values() for value in values.values()],
            "weights": list(model.parameters()),
            "gradients": [parameter.grad for parameter in model.parameters()],
        }
        for part, tensors in parts.items():
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor):
                    for storage in self._storages(tensor):
                        storage.named = part

    def _set_size(self, storage: _Storage, size_bytes: int) -> None:
        change = size_bytes - storage.size_bytes
        storage.size_bytes = size_bytes
        if change and self._recording:
            self._events.append((storage, change, self._phase))

    def _storages(self, tensor: torch.Tensor) -> list[_Storage]:
        """A tensor's storages; those that are new are followed from now on."""
        storages = []
        for part in plain_tensors(tensor):
            real = part.untyped_storage()
            if real._cdata not in self._live:
                self._follow(real, _Storage())
            storages.append(self._live[real._cdata])
            self._set_size(storages[-1], real.nbytes())
        return storages

    def _gone(self, known: _Storage) -> None:
        self._set_size(known, 0)

    def _resized_in_place(self, storage: torch.UntypedStorage, known: _Storage) -> None:
        self._set_size(known, storage.nbytes())

    def __enter__(self) -> Self:
        self._fake_mode = active_fake_mode()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it is taken apart first, and comes back with local tensors
        result = func(*args, **(kwargs or {}))
        # To find out how a result is sharded, DTensor runs operations on fake tensors: they take no memory.
        if active_fake_mode() is not self._fake_mode:
            return result
        communication = func.namespace in _COMMUNICATION
        for tensor in tree_leaves((args, kwargs, result) if communication else result):
            if isinstance(tensor, torch.Tensor):
                (self.communicated if communication else self._storages)(tensor)
        return result


def _added_up(start: dict[_Storage, int], events: list[tuple[_Storage, int, str]]) -> StepMemory:
    now = dict.fromkeys(CLUSTER_PARTS, 0)
    for storage, size in start.items():
        now[storage.part] += size
    total = sum(now.values())
    phases: dict[str, PhaseMemory] = {}
    peaks: dict[str, int] = {}
    for storage, change, name in [(_Storage(), 0, events[0][2] if events else ""), *events]:
        now[storage.part] += change
        total += change
        phase = phases.get(name)
        if phase is None or total > peaks[name]:
            peaks[name] = total
            phases[name] = phase = PhaseMemory(phase.largest if phase else dict(now), dict(now))
        phase.largest[storage.part] = max(phase.largest[storage.part], now[storage.part])
    return StepMemory(phases)
