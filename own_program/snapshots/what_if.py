"""The requests of a recorded history under other settings of the allocator.

Where much of the memory was there before the recording, other settings would have laid it out otherwise: a try then
begins with an empty allocator, which is first asked for what was in use. So does one with the recorded settings, which
all others are held against. It also tells how far tries are off, as it is guessed where the device puts new memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from course_utils.memory.allocator import (
    DEFAULT_LARGE_SEGMENT_BYTES,
    Allocate,
    Allocator,
    AllocatorOptions,
    Event,
    Free,
)
from own_program.snapshots.device_history import DeviceHistory
from own_program.snapshots.replay import Replay
from own_program.waiting import waiting

_SETTINGS = (
    "expandable_segments:False",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
)
_EARLIER_SHARE = 0.5  # of the peak that was there before, from which on a try begins empty
LEAST_SAVING, LEAST_BYTES = 0.05, 2 * DEFAULT_LARGE_SEGMENT_BYTES
_SECONDS_A_REQUEST = 8e-6  # of a try, for each entry of the history, on two cores


@dataclass(frozen=True)
class SimulatedSetting:
    """The same requests once more."""

    name: str  # the setting, as ``PYTORCH_ALLOC_CONF`` takes it, or in words
    reserved_bytes: int  # the peak of the reserved memory
    fails: bool  # whether a request was not met


@dataclass(frozen=True)
class WhatIf:
    """What the tries gave."""

    recorded_bytes: int  # the peak of the reserved memory as recorded
    replay: Replay  # the history itself, simulated from the recorded beginning
    base: SimulatedSetting  # the recorded settings, tried like the others
    settings: tuple[SimulatedSetting, ...]
    begins_empty: bool  # whether the tries ask anew for what was there before the recording

    @property
    def error(self) -> float:
        """How far the recorded settings' try is from the recorded peak, as a share of it."""
        return abs(self.base.reserved_bytes - self.recorded_bytes) / max(1, self.recorded_bytes)

    @property
    def before_bytes(self) -> int:
        """What a saving is counted from: the recorded peak, or that of the recorded settings' try if it is lower."""
        return min(self.recorded_bytes, self.base.reserved_bytes)

    @property
    def none_helps(self) -> bool:
        """Whether a request failed, and does so in each try."""
        return self.base.fails and all(each.fails for each in self.settings)

    def saving(self, tried: SimulatedSetting) -> float:
        """By how much less a try reserves, as a share."""
        return 1 - tried.reserved_bytes / max(1, self.before_bytes)

    def is_worth(self, tried: SimulatedSetting) -> bool:
        """Whether a try saves clearly more than the error, and than how the last segments happen to be filled."""
        least = max(LEAST_SAVING, 0 if self.begins_empty else 2 * self.error)
        return self.saving(tried) >= least and self.before_bytes - tried.reserved_bytes >= LEAST_BYTES


def what_if(device: DeviceHistory) -> WhatIf:
    """Try the settings that people reach for, on a device with a history that can be simulated."""
    tries, own = _Tries(device), device.simulated.options
    recorded = max([tries.replay.run.peak_reserved_bytes, *tries.replay.differences])
    settings = {text: options for text in _SETTINGS if (options := _on_top(own, text)) != own}
    tried = []
    with waiting("Trying other settings", _SECONDS_A_REQUEST * len(device.entries) * (len(settings) + 1)) as advance:
        for text, options in {"as recorded": own, **settings}.items():
            tried.append(tries.tried(text, options))
            advance(_SECONDS_A_REQUEST * len(device.entries))
    return WhatIf(recorded, tries.replay, tried[0], tuple(tried[1:]), tries.begins_empty)


class _Tries:
    """The requests of a history, to be met once more."""

    def __init__(self, device: DeviceHistory) -> None:
        self.snapshot, self.limit = device.simulated, device.limit_bytes
        self.replay = self.snapshot.replay(device_bytes=self.limit)
        if self.limit is not None and self.replay.run.out_of_memory is None:  # something else stood in the way
            self.limit, self.replay = None, self.snapshot.replay()
        before = self.snapshot.start.reserved_bytes
        self.begins_empty = before > _EARLIER_SHARE * self.replay.run.peak_reserved_bytes
        self.events = list(self._events())

    def _events(self) -> Iterator[Event]:
        """What happened, and before that what was in use at the beginning, where a try begins empty."""
        for segment in self.snapshot.start.segments if self.begins_empty else ():
            for block in segment.blocks:
                if block.state != "free":
                    yield Allocate(block.id, block.requested_bytes, segment.stream)
        asked = (entry.action for entry in self.snapshot.entries if entry.action in ("alloc", "oom"))
        failing = {number for number, action in enumerate(asked, 1) if action == "oom"}  # by their names
        for event in self.replay.run.events:
            fails = isinstance(event, Allocate | Free) and event.id in failing
            if not fails or isinstance(event, Allocate):
                yield event
            if fails and isinstance(event, Allocate):
                yield Free(event.id)  # nobody holds what was not given

    def tried(self, name: str, options: AllocatorOptions) -> SimulatedSetting:
        """Let them happen under some options."""
        allocator = Allocator(options, None, self.limit, self.replay.run.begin.ties)
        if not self.begins_empty:
            self.snapshot.begin(allocator)
        peak, met = allocator.reserved, True
        for event in self.events:  # without the curves that run_events writes down
            level = allocator.reserved
            met &= allocator.apply(event)
            for operation in allocator.operations:
                level += operation.change_bytes
                peak = max(peak, level)
        return SimulatedSetting(name, peak, not met)


def _on_top(own: AllocatorOptions, text: str) -> AllocatorOptions:
    """The recorded options, with one of them changed; as they are if the two exclude each other."""
    attribute = text.partition(":")[0].replace("_mb", "_bytes")
    try:
        return replace(own, **{attribute: getattr(AllocatorOptions.parse(text), attribute)})
    except ValueError:
        return own
