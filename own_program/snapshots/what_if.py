"""The requests of a recorded history under other settings of the allocator, and with other requests.

Where much of the memory was there before the recording, other settings would have laid it out otherwise: a try then
begins with an empty allocator, which is first asked for what was in use. So does one with the recorded settings, which
all others are held against. It also tells how far tries are off, as it is guessed where the device puts new memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from course_utils.memory.allocator import Allocate, Allocator, AllocatorOptions, Event, Free
from own_program.snapshots.device_history import DeviceHistory
from own_program.snapshots.growth import Growth
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
LEAST_SAVING = 0.05
_SECONDS_AN_ENTRY = 6e-5  # of all tries together, on two cores


@dataclass(frozen=True)
class SimulatedSetting:
    """The same requests once more."""

    name: str  # the setting, as ``PYTORCH_ALLOC_CONF`` takes it, or in words
    reserved_bytes: int  # the peak of the reserved memory
    in_use_bytes: int  # the peak of what is in use
    device_allocs: int  # how often memory was taken from the device (cudaMalloc, or pages mapped)
    fails: bool  # whether a request was not met


@dataclass(frozen=True)
class WhatIf:
    """What the tries gave."""

    recorded_bytes: int  # the peak of the reserved memory as recorded
    replay: Replay  # the history itself, simulated from the recorded beginning
    base: SimulatedSetting  # the recorded settings, tried like the others
    settings: tuple[SimulatedSetting, ...]
    begins_empty: bool  # whether the tries ask anew for what was there before the recording
    mended: SimulatedSetting | None  # without what grows from step to step, if anything does

    @property
    def error(self) -> float:
        """How far the recorded settings' try is from the recorded peak, as a share of it."""
        return abs(self.base.reserved_bytes - self.recorded_bytes) / max(1, self.recorded_bytes)

    @property
    def before_bytes(self) -> int:
        """What a saving is counted from: the recorded peak, or that of the recorded settings' try if it is lower."""
        return min(self.recorded_bytes, self.base.reserved_bytes)

    @property
    def tries(self) -> tuple[SimulatedSetting, ...]:
        """All but that of the recorded settings."""
        return (*self.settings, self.mended) if self.mended else self.settings

    @property
    def none_helps(self) -> bool:
        """Whether a request failed, and does so in each try."""
        return self.base.fails and all(each.fails for each in self.tries)

    def saving(self, tried: SimulatedSetting) -> float:
        """By how much less a try reserves, as a share."""
        return 1 - tried.reserved_bytes / max(1, self.before_bytes)

    def counts(self, saving: float) -> bool:
        """Whether a saving is clearly more than the error, and worth a change."""
        return saving >= max(LEAST_SAVING, 0 if self.begins_empty else 2 * self.error)


def what_if(device: DeviceHistory, growth: Growth | None) -> WhatIf:
    """Try the settings that people reach for.

    Args:
        device: with a history that can be simulated.
        growth: what grows from step to step, if anything does.
    """
    tries, own = _Tries(device), device.simulated.options
    recorded = max([tries.replay.run.peak_reserved_bytes, *tries.replay.differences])
    settings = {text: options for text in _SETTINGS if (options := _on_top(own, text)) != own}
    mended = None
    with waiting("Trying other settings", _SECONDS_AN_ENTRY * len(device.entries)) as advance:
        tries.advance = lambda: advance(_SECONDS_AN_ENTRY * len(device.entries) / (len(settings) + 2))
        base = tries.tried("as recorded")
        tried = tuple(tries.tried(text, options) for text, options in settings.items())
        if growth:
            mended = tries.tried("what each step leaves, freed at its end", own, _mended(tries.events, growth))
    return WhatIf(recorded, tries.replay, base, tried, tries.begins_empty, mended)


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
        self.advance = lambda: None

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

    def tried(
        self, name: str, options: AllocatorOptions | None = None, events: Iterable[Event] | None = None
    ) -> SimulatedSetting:
        """Let them happen, under other options or with other events."""
        allocator = Allocator(options or self.snapshot.options, None, self.limit, self.replay.run.begin.ties)
        if not self.begins_empty:
            self.snapshot.begin(allocator)
        peak, in_use, met = allocator.reserved, allocator.allocated, True
        for event in self.events if events is None else events:  # without the curves that run_events writes down
            level = allocator.reserved
            met &= allocator.apply(event)
            in_use = max(in_use, allocator.allocated)
            for operation in allocator.operations:
                level += operation.change_bytes
                peak = max(peak, level)
        self.advance()
        return SimulatedSetting(name, peak, in_use, allocator.device_allocs, not met)


def _on_top(own: AllocatorOptions, text: str) -> AllocatorOptions:
    """The recorded options, with one of them changed; as they are if the two exclude each other."""
    attribute = text.partition(":")[0].replace("_mb", "_bytes")
    try:
        return replace(own, **{attribute: getattr(AllocatorOptions.parse(text), attribute)})
    except ValueError:
        return own


def _mended(events: Iterable[Event], growth: Growth) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Allocate):
            yield from map(Free, growth.ends.get(event.id, ()))
        yield event
