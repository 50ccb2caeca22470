"""PyTorch's memory history without a GPU: a CPU's storages are followed, and met by a simulated allocator."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from course_utils.memory.allocator import Allocate, Allocator, AllocatorOptions, Free, SegmentState
from course_utils.memory.live_storages import LiveStorages, TracedBlock

_DEVICE_BYTES = 80 * 2**30  # of the GPU that is not there
_HIDDEN = ("course_utils/memory/", "memory_snapshots/cases.py", "memory_snapshots/stand_in.py", "_python_dispatch.py")
_STATES = {"allocated": "active_allocated", "awaiting free": "active_pending_free", "free": "inactive"}


class _Recorder(LiveStorages):
    """Notes stacks as CUDA's history does with ``stacks="python"``: a backward pass, in autograd's thread, has none."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks: dict[TracedBlock, list[Any]] = {}
        self._shared: dict[tuple[Any, int], dict[str, Any]] = {}  # frames, so that the file stays small

    def _add(self, storage: torch.UntypedStorage, born: int) -> TracedBlock:
        block = super()._add(storage, born)
        in_backward = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
        self.stacks[block] = [] if in_backward or not born else [*self._stack_of(sys._getframe(1))]
        return block

    def _stack_of(self, frame: FrameType | None) -> Iterator[dict[str, Any]]:
        while frame is not None:
            code = frame.f_code
            if not any(part in code.co_filename for part in _HIDDEN):
                here = {"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name}
                yield self._shared.setdefault((code, frame.f_lineno), here)
            frame = frame.f_back

    def snapshot(self, cap_bytes: int | None = None) -> dict[str, Any]:
        """What happened so far, as the simulated allocator would have met it; up to the first request over the cap."""
        allocator, trace = Allocator(AllocatorOptions(), cap_bytes, _DEVICE_BYTES), []
        sized = {number: block for number, block in enumerate(self.blocks) if block.size_bytes}
        stacks = {number: self.stacks[block] for number, block in sized.items()}
        events: list[Any] = [(block.born, Allocate(number, block.size_bytes)) for number, block in sized.items()]
        events += [(block.died, Free(number)) for number, block in sized.items() if block.died is not None]
        for moment, event in sorted(events, key=lambda event: event[0]):
            allocates, at = isinstance(event, Allocate), (self.times_ns[moment] - self.times_ns[0]) // 1000
            common = {"size": sized[event.id].size_bytes, "stream": 0, "time_us": at}
            common["frames"] = stacks[event.id] if allocates else []
            address = 0 if allocates else allocator.live[event.id].address
            met = allocator.apply(event)
            if not moment:  # what was there before is in no history
                continue
            for call in allocator.operations:
                trace.append(common | {"action": call.action, "addr": call.address, "size": call.bytes})
            if not met:
                trace.append(common | {"action": "oom", "device_free": _DEVICE_BYTES - allocator.reserved})
                break
            address = allocator.live[event.id].address if allocates else address
            actions = ["alloc"] if allocates else ["free_requested", "free_completed"]
            trace += [common | {"action": action, "addr": address} for action in actions]
        segments = [_segment(segment, stacks) for segment in allocator.state().segments]
        return {"segments": segments, "device_traces": [trace], "allocator_settings": {}}


def _segment(segment: SegmentState, stacks: dict[int, list[Any]]) -> dict[str, Any]:
    blocks, where = [], {"device": 0, "address": segment.address, "stream": 0, "is_expandable": False}
    for block in segment.blocks:
        known = {"requested_size": block.requested_bytes, "frames": stacks.get(block.id, [])}
        known = known if block.state == "allocated" else {"requested_size": 0, "frames": []}
        blocks.append({"address": block.address, "size": block.bytes, "state": _STATES[block.state]} | known)
    used = sum(block["size"] for block in blocks if block["state"] != "inactive")
    sizes = {"total_size": segment.bytes, "allocated_size": used, "active_size": used}
    sizes["requested_size"] = sum(block["requested_size"] for block in blocks)
    pool = {"segment_type": segment.pool, "segment_pool_id": (0, 0)}
    return where | sizes | pool | {"frames": [], "blocks": blocks}


@contextmanager
def memory_history() -> Iterator[Callable[..., Any]]:
    """Follow a CPU program, and give a function that dumps what PyTorch's allocator would have written so far."""
    with _Recorder() as recorder:
        yield lambda path, cap_bytes=None: Path(path).write_bytes(pickle.dumps(recorder.snapshot(cap_bytes)))
