"""A caching allocator with a history, for tensors that are really on the CPU: stands in for ``torch.cuda``.

It sees the same operations as a trace does, gives every new storage a segment of its own at the storage's address, and
writes down what PyTorch's allocator would: ``segment_alloc``, ``alloc``, ``free_requested``... with the metadata that
was set. Sizes in a test are multiples of 512 bytes, so that rounded blocks do not overlap on the CPU's heap.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BLOCK = 512


class ScriptedHistory(TorchDispatchMode):
    """Enter it around what is traced; pass it to ``on_cuda`` as ``api``.

    Args:
        scratch_op: an operation during which memory is taken that becomes no tensor.
        scratch_bytes: how much.
    """

    def __init__(self, scratch_op: str = "", scratch_bytes: int = 0) -> None:
        super().__init__()
        self.scratch_op, self.scratch_bytes = scratch_op, scratch_bytes
        self.recording: list[dict[str, Any]] | None = None
        self.calls: list[str] = []
        self.metadata = ""
        self.allocated = self.peak = self.reserved = self.device_allocs = 0
        self.live: dict[int, int] = {}  # address to bytes
        self.clock_us = 1_000_000
        self._refs: dict[int, weakref.ref[Any]] = {}
        self.memory = types.SimpleNamespace(
            _record_memory_history=self._record,
            _snapshot=self._snapshot,
            _set_memory_metadata=self._set_metadata,
            memory_stats=self._stats,
            reset_peak_memory_stats=self._reset_peak,
        )

    # What stands in for torch.cuda.

    def is_initialized(self) -> bool:
        return False  # a CPU build of torch cannot be asked whether the history is on

    def synchronize(self, device: Any) -> None:
        self.calls.append("synchronize")

    def _record(self, enabled: str | None, **options: Any) -> None:
        self.calls.append(f"record {enabled}")
        if enabled is not None:
            assert options["stacks"] == "python"
            self.recording = []

    def _snapshot(self) -> dict[str, Any]:
        segments = [
            {
                "device": 0,
                "address": address,
                "total_size": size,
                "segment_type": "large",
                "is_expandable": False,
                "blocks": [{"address": address, "size": size, "requested_size": size, "state": "active_allocated"}],
            }
            for address, size in self.live.items()
        ]
        self._entry("snapshot", 0, 0)
        entries = list(self.recording or [])
        return {"segments": segments, "device_traces": [entries], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}

    def _set_metadata(self, text: str) -> None:
        self.metadata = text

    def _stats(self, device: Any) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "num_device_alloc": self.device_allocs,
            "num_alloc_retries": 0,
        }

    def _reset_peak(self, device: Any) -> None:
        self.peak = self.allocated

    # What happens.

    def adopt(self, *tensors: torch.Tensor) -> None:
        """Let tensors from before have their memory from here."""
        for tensor in tensors:
            self._allocate(tensor.untyped_storage())

    def take(self, address: int, size: int) -> None:
        """Give out a block that is no tensor's."""
        rounded = -(-size // BLOCK) * BLOCK
        self.live[address] = rounded
        self.allocated += rounded
        self.reserved += rounded
        self.device_allocs += 1
        self.peak = max(self.peak, self.allocated)
        self._entry("segment_alloc", address, rounded)
        self._entry("alloc", address, size)

    def give(self, address: int) -> None:
        """Take a block back."""
        rounded = self.live.pop(address)
        self.allocated -= rounded
        self.reserved -= rounded
        for action in ("free_requested", "free_completed", "segment_free"):
            self._entry(action, address, rounded)

    def _entry(self, action: str, address: int, size: int) -> None:
        self.clock_us += 10
        if self.recording is not None:
            self.recording.append(
                {
                    "action": action,
                    "addr": address,
                    "size": size,
                    "stream": 0,
                    "time_us": self.clock_us,
                    "user_metadata": self.metadata,
                    "frames": [],
                }
            )

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._refs or not storage.nbytes():
            return
        address = storage.data_ptr()

        def gone(_: Any) -> None:
            del self._refs[key]
            self.give(address)

        self._refs[key] = weakref.ref(storage, gone)
        self.take(address, storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func.__name__.partition(".")[0] == self.scratch_op:
            self.take(1 << 60, self.scratch_bytes)
            self.give(1 << 60)
        for value in tree_leaves(output):
            if isinstance(value, torch.Tensor):
                self._allocate(value.untyped_storage())
        return output
