"""What happened on one device of a snapshot: every block with its stack, the curves, and what held the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from course_utils.memory.allocator import GIVES_BACK, AllocatorState, round_size, segment_size
from course_utils.memory.cuda_history import Allocation, History, read_history
from own_program.snapshots.replay import DeviceSnapshot, snapshot_of
from own_program.snapshots.snapshot_file import SEGMENT_ACTIONS, SnapshotFile, pool_of
from own_program.snapshots.stacks import EARLIER, NOTHING, Stack, read_stack

_LEAST_DEVICE_BYTES = 3 * 2**29
_BEFORE = Stack(None, None, EARLIER, False, ())
_FEWEST = 10  # entries that say something of a program that ran before them


class Holder(NamedTuple):
    """Blocks that were asked for at the same line, for the same purpose."""

    stack: Stack  # that of the largest
    bytes: int
    blocks: int


@dataclass(frozen=True)
class FailedRequest:
    """A request for which there was not enough memory, and what stood in its way."""

    requested_bytes: int
    device_free_bytes: int | None  # what the device still had, other programs' memory taken off; None: not recorded
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int | None  # the largest cached block; None if the history does not fit the segments
    stack: Stack

    @property
    def limited(self) -> bool:
        """Whether the device had enough left, so that something else stood in the way."""
        return (self.device_free_bytes or 0) >= segment_size(round_size(self.requested_bytes))

    def others_hold(self, most_reserved: int) -> bool:
        """Whether others must hold memory of the device, whose size is in no snapshot.

        It is less than this program had reserved before, or than any device has that PyTorch runs on.
        """
        if self.device_free_bytes is None or self.limited:
            return False
        return self.reserved_bytes + self.device_free_bytes < max(most_reserved, _LEAST_DEVICE_BYTES)


class DeviceHistory:
    """One device of a snapshot."""

    def __init__(self, file: SnapshotFile, device: int) -> None:
        self.device = device
        self.trains = file.trains
        self.segments = file.segments_of(device)
        self.entries = file.traces[device] if device < len(file.traces) else ()  # the oldest first
        self.few = 0  # how many entries there were, where they are too few to tell anything
        if self.entries and self._says_little():
            self.few, self.entries = len(self.entries), ()
        self.settings = file.settings
        private = [segment for segment in self.segments if pool_of(segment, "segment_pool_id")]
        self.private_bytes = sum(segment["total_size"] for segment in private)
        self.whole: DeviceSnapshot | None = None
        self.simulated: DeviceSnapshot | None = None  # the same, if it can be simulated: without private pools
        self.problem = ""  # why there is none: the history contradicts the segments
        self._stacks: dict[int, Stack] = {}
        try:
            self.whole = snapshot_of(self.segments, self.entries, self.settings)
            self.simulated = None if private or any(pool_of(each, "pool_id") for each in self.entries) else self.whole
        except ValueError as error:
            self.problem = str(error)
        self.history = self._history()

    def _says_little(self) -> bool:
        """Whether nothing was asked for, or next to nothing of a program that ran before."""
        actions = Counter(entry["action"] for entry in self.entries)
        if not actions["alloc"] or actions["oom"]:
            return not actions["oom"]
        taken = sum(
            -entry["size"] if entry["action"] in GIVES_BACK else entry["size"]
            for entry in self.entries
            if entry["action"] in SEGMENT_ACTIONS
        )
        return len(self.entries) < _FEWEST and sum(segment["total_size"] for segment in self.segments) > taken

    def _history(self) -> History:
        """Blocks over time; of the end alone if the history does not fit."""
        value = {"segments": self.segments, "allocator_settings": self.settings}
        entries = self.entries if self.whole is not None else ()
        if entries:
            value["segments"] = _listed(self.whole.start)
        history = read_history(value, entries, self.device)
        ends: dict[int, Mapping[str, Any]] = {}  # by address, which older snapshots leave out
        for segment in self.segments:
            starts = accumulate((block["size"] for block in segment["blocks"]), initial=segment["address"])
            ends.update(zip(starts, segment["blocks"], strict=False))
        for allocation in history.allocations:
            if allocation.born == 0 and allocation.died is None:  # its stack may be known from the end
                allocation.frames = frames_of(ends.get(allocation.address, {}))
        return history

    @cached_property
    def allocated_bytes(self) -> list[int]:
        """In tensors, at each moment of the history; 0 is before the first entry."""
        changes = [0] * (len(self.history.times_us) + 1)
        for allocation in self.history.allocations:
            changes[allocation.born] += allocation.size_bytes
            if allocation.died is not None:
                changes[allocation.died] -= allocation.size_bytes
        return list(accumulate(changes[:-1]))

    @cached_property
    def peak(self) -> int:
        """The moment at which tensors held the most."""
        return max(range(len(self.allocated_bytes)), key=self.allocated_bytes.__getitem__)

    @cached_property
    def reserved_peak(self) -> int:
        """The moment of the most reserved memory at which the most of it was in use."""
        both = zip(self.history.reserved_bytes, self.allocated_bytes, strict=True)
        return max(enumerate(both), key=lambda item: item[1])[0]

    @property
    def seconds(self) -> float:
        """How long the recording is, as far as it is known."""
        return self.history.times_us[-1] / 1e6

    def stack_of(self, block: Allocation) -> Stack:
        """The stack of a block."""
        return self.read(block.frames) if block.frames or block.born or not self.entries else _BEFORE

    def read(self, frames: Sequence[Mapping[str, Any]]) -> Stack:
        """The stack that frames tell."""
        if id(frames) not in self._stacks:  # a snapshot shares the lists of stacks that are the same
            self._stacks[id(frames)] = read_stack(frames) if frames and isinstance(frames, list | tuple) else NOTHING
        return self._stacks[id(frames)]

    @cached_property
    def has_stacks(self) -> bool:
        """Whether any block has one."""
        return any(allocation.frames for allocation in self.history.allocations)

    def live(self, moment: int) -> list[Allocation]:
        """The blocks that are in use at a moment."""
        blocks = self.history.allocations
        return [each for each in blocks if each.born <= moment and (each.died is None or each.died > moment)]

    def holders(self, moment: int) -> list[Holder]:
        """What holds the memory at a moment, the most first."""
        groups: dict[Any, list[Allocation]] = {}
        for block in self.live(moment):
            stack = self.stack_of(block)
            groups.setdefault((stack.kind, stack.place), []).append(block)
        held = []
        for blocks in groups.values():
            largest = max(blocks, key=lambda block: block.size_bytes)
            held.append(Holder(self.stack_of(largest), sum(block.size_bytes for block in blocks), len(blocks)))
        return sorted(held, key=lambda holder: -holder.bytes)

    def kinds(self, moment: int) -> Counter[str]:
        """Bytes by what they are for, at a moment."""
        kinds: Counter[str] = Counter()
        for holder in self.holders(moment):
            kinds[holder.stack.kind] += holder.bytes
        return kinds

    @cached_property
    def give_backs(self) -> Counter[str]:
        """How often cached memory went back to the device, by why: ``empty_cache``, ``retry`` or ``unknown``."""
        counts: Counter[str] = Counter()
        runs = [list(run) for _, run in groupby(self.entries, key=lambda entry: entry["action"] in GIVES_BACK)]
        for run, after in pairwise([*runs, [{"action": "the end"}]]):
            if run[0]["action"] in GIVES_BACK:
                empties = any(place.name == "empty_cache" for place in self.read(run[0].get("frames") or ()).path)
                retries = after[0]["action"] in ("segment_alloc", "segment_map", "oom")
                counts["empty_cache" if empties else "retry" if retries else "unknown"] += 1
        return counts

    @cached_property
    def failure(self) -> FailedRequest | None:
        """The first request that failed."""
        at = next((at for at, entry in enumerate(self.entries) if entry["action"] == "oom"), None)
        if at is None:
            return None
        entry, moment, largest = self.entries[at], 0, None
        if self.whole is not None:
            moment = sum(each["action"] not in ("free_completed", "oom") for each in self.entries[:at])
            segments = self.whole.state_before(at).segments
            free = (block.bytes for segment in segments for block in segment.blocks if block.state == "free")
            largest = max(free, default=0)
        left = entry.get("device_free")
        left = left if isinstance(left, int) else None
        reserved, allocated = self.history.reserved_bytes[moment], self.allocated_bytes[moment]
        return FailedRequest(entry["size"], left, reserved, allocated, largest, self.read(entry.get("frames") or ()))

    @property
    def was_short(self) -> bool:
        """Whether a request failed, or cached memory had to be given back for one."""
        return bool(self.failure or self.give_backs["retry"])

    @property
    def limit_bytes(self) -> int | None:
        """What the device could give, if a request failed and what was left is recorded."""
        failure = self.failure
        if failure is None or failure.device_free_bytes is None:
            return None
        return failure.reserved_bytes + failure.device_free_bytes


def frames_of(block: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The stack of a block: PyTorch before 2.1 had it in a history of its own."""
    frames = block.get("frames")
    if not frames and isinstance(block.get("history"), list) and block["history"]:
        frames = block["history"][0].get("frames") if isinstance(block["history"][0], Mapping) else None
    return frames if isinstance(frames, list | tuple) else ()


def _listed(state: AllocatorState) -> list[dict[str, Any]]:
    """A state as a snapshot lists it."""
    words = {"allocated": "active_allocated", "awaiting free": "active_pending_free", "free": "inactive"}
    return [
        {
            "address": segment.address,
            "total_size": segment.bytes,
            "is_expandable": segment.expandable,
            "blocks": [{"size": block.bytes, "state": words[block.state]} for block in segment.blocks],
        }
        for segment in state.segments
    ]
