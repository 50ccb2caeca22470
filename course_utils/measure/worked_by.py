"""What did the work that a result tells of: found out by itself, from counters that only grow.

Nothing that is timed is wrapped, and what makes the values of a table runs in no dispatch mode for this, which would
change what ``torch.compile`` makes of it. Four things are looked at:

- A timed case worked on the GPU if its first call took memory from the GPU's allocator, or returned tensors that lie
  there. Where neither is so (work in place, a CUDA graph), one more call, which is not timed, tells: see `touches`.
- What `tabulate` and `curves` are given was computed before. If the GPU's allocator gave out memory since the cell of
  the notebook began, or in a script since it started, the GPU worked: a table beside a measurement is made of it.
- Runs of the simulated allocator are counted. If there were any since the cell began, and the GPU did nothing, the
  result was simulated.
- Fake tensors are counted by PyTorch itself. Where they were used since the result before, without memory of a GPU and
  without a compiler, which uses them as well, the result was worked out.

No machine can see that numbers come from a formula: those who call say so by ``worked_by=``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.measure.devices import Device, device_under_test
from course_utils.measure.machine import device_kind
from course_utils.results.result import checked_worked_by


class _Counts(NamedTuple):
    """What has happened in this process so far."""

    on_gpu: int  # blocks that the GPU's allocator gave out, and runs of ranks on GPUs
    fake: int  # operations on fake tensors
    compiled: int  # functions that torch.compile looked at
    simulated: int  # runs of the simulated allocator

    @classmethod
    def now(cls) -> _Counts:
        allocations = device_under_test().allocations() if device_kind() != "cpu" else 0
        fake = FakeTensorMode.cache_hits + FakeTensorMode.cache_misses + sum(FakeTensorMode.cache_bypasses.values())
        dynamo = sys.modules.get("torch._dynamo.utils")
        compiled = sum(dynamo.counters["frames"].values()) if dynamo else 0
        simulator = sys.modules.get("course_utils.memory.allocator")
        return cls(allocations + _ranks_on_gpus, fake, compiled, simulator.Allocator.made if simulator else 0)


_ranks_on_gpus = 0


def ranks_worked_on_gpus() -> None:
    """Processes that this one started worked on GPUs, which its own allocator does not see."""
    global _ranks_on_gpus
    _ranks_on_gpus += 1


def begin_cell(*_: Any) -> None:
    """From here on counts what happens: IPython calls this before each cell."""
    global _at_cell, _at_result
    _at_cell = _at_result = _Counts.now()


def of_what_ran(worked_by: str | None = None) -> str:
    """What did the work of a result that is made now: a key of `WORKED_BY`, as this module's docstring tells.

    ``worked_by`` is what whoever makes the result says of it, if anything; a ValueError if it is no such key.
    """
    global _at_result
    before, now = _at_result, _Counts.now()
    _at_result = now
    if worked_by is not None:
        return checked_worked_by(worked_by)
    if now.fake > before.fake and (now.on_gpu, now.compiled) == (before.on_gpu, before.compiled):
        return "arithmetic"
    if now.on_gpu > _at_cell.on_gpu:
        return "gpu"
    return "simulation" if now.simulated > _at_cell.simulated else "cpu"


def lies_on(values: Any, kind: str) -> bool:
    """Whether tensors among values, however nested, lie on a kind of device. A fake tensor only says so."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return any(tensor.device.type == kind and not is_fake(tensor) for tensor in tensors)


class _Places(TorchDispatchMode):
    """Notes whether operations take or give tensors of one kind of device, or other ones."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.there, self.elsewhere = kind, False, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_there = lies_on((args, kwargs, result), self.kind)
        self.there, self.elsewhere = self.there or is_there, self.elsewhere or not is_there
        return result


def touches(fn: Callable[[], Any], device: Device) -> bool:
    """Whether a call that takes no memory on a device, and returns none, works there all the same.

    It is called with every operation looked at. Code that runs no operation of PyTorch replays a CUDA graph, or leaves
    the device alone: then a second call is queued behind a kernel that only spins, and the time of the device tells.
    """
    with contextlib.suppress(Exception), _Places(device.kind) as places:
        fn()
    if places.there or places.elsewhere:
        return places.there
    return device.prequeued_s(fn, 1, 1e-3) is not None


_at_cell = _at_result = _Counts.now()
if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()):
    _shell.events.register("pre_run_cell", begin_cell)
