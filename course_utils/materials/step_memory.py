"""How much memory a training step takes: measured, kept for the backward pass, or worked out for sizes not here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from course_utils.measure.devices import device_under_test
from course_utils.ranks.memory import RankMemory, StepMemory


def peak_bytes(fn: Callable[[], Any]) -> int | None:
    """The most bytes that a call holds at once, on top of what was there before; None where a device keeps no peak.

    Call it twice or more with a step that leaves gradients behind: the first call may start without them.

    Example:
        >>> x = torch.zeros(1024, 1024)
        >>> peak_bytes(lambda: x + 1) // 2**20
        4
    """
    return device_under_test().peak_memory(fn)[0]


def kept_bytes(forward: Callable[[], Any], besides: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the storages that autograd keeps for the backward pass of ``forward``, each counted once.

    ``besides`` are tensors that live anyway and do not count, such as ``model.parameters()`` and the input.

    Example:
        >>> model, x = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()), torch.zeros(1024, 256)
        >>> kept_bytes(lambda: model(x), [x, *model.parameters()]) == 1024 * 256 * 4  # GELU's input
        True
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor.detach()  # with its graph, an operation that keeps its own output would keep itself for good

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    alive = {tensor.untyped_storage()._cdata for tensor in besides}
    total = sum(storage.nbytes() for key, storage in kept.items() if key not in alive)
    del result
    return total


def worked_out(build: Callable[[], tuple[torch.nn.Module, Any, Callable[[], Any]]], steps: int = 2) -> StepMemory:
    """The memory of a training step by part, worked out with fake tensors: nothing is computed and nothing allocated.

    ``build`` makes the model, its optimizer (or None) and the step, and all tensors. The last of ``steps`` counts, so
    that the optimizer has its state. Bytes are those of tensors, as a CPU keeps them: a kernel's scratch memory, and
    what a GPU's allocator rounds up, are left out.

    Example:
        >>> def build():
        ...     model = torch.nn.Linear(4096, 4096, bias=False)
        ...     x = torch.empty(8, 4096)
        ...     return model, None, lambda: model(x).sum().backward()
        >>> worked_out(build).at_peak["gradients"] // 2**20
        64
    """
    with FakeTensorMode(), RankMemory() as memory:
        model, optimizer, step = build()
        for _ in range(steps):
            with memory.step(model, *([optimizer] if optimizer else [])):
                step()
    assert memory.last_step is not None
    return memory.last_step
