"""Read a memory snapshot: what held the memory at its peak, and which setting of the allocator would need less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from course_utils.show.advice import Advice
from course_utils.show.cards import Bar, Card, Row, Shown, Toned, amount_axis
from course_utils.show.formats import format_bytes, format_percent, format_seconds, listed
from course_utils.show.page import dressed
from course_utils.show.tables import Column, Grid
from own_program.snapshots.device_history import DeviceHistory, FailedRequest, Holder, frames_of
from own_program.snapshots.growth import Growth, growth_of
from own_program.snapshots.memory_advice import plan_of
from own_program.snapshots.snapshot_file import SnapshotError, SnapshotFile, read_file
from own_program.snapshots.stacks import NO_STACK, CodeLine, read_stack
from own_program.snapshots.what_if import WhatIf, what_if

__all__ = ["DeviceReport", "SnapshotError", "SnapshotReport", "read_snapshot"]

_MOST_ROWS = 7
_MOST_PLACES = 25
_FILE_LETTERS, _NAME_LETTERS = 20, 26
_SHORT_S = 1.0
_LEAST_SHARE = 1e-3  # of what is in use, to be named
_RECORD = (
    "No history: call torch.cuda.memory._record_memory_history(max_entries=100_000) before the steps, to see the "
    "peak, who held it, and what other settings would need."
)
_STACKS = 'Not recorded with stacks: leave context and stacks as they are ("all") to see which line holds what.'


@dataclass(frozen=True, eq=False, repr=False)
class DeviceReport(Shown):
    """What one device of a snapshot shows."""

    name: str  # of the file
    device: DeviceHistory
    growth: Growth | None  # what each step leaves behind, if anything
    tries: WhatIf | None  # the same requests under other settings; None without a history that can be replayed

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that tensors held at once."""
        return self.device.allocated_bytes[self.device.peak]

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was taken from the device."""
        return self.device.history.reserved_bytes[self.device.reserved_peak]

    @property
    def lost_bytes(self) -> int:
        """What was reserved and not in use while the most was reserved, at the moment with the most in use."""
        return self.peak_reserved_bytes - self.device.allocated_bytes[self.device.reserved_peak]

    @cached_property
    def holders(self) -> list[Holder]:
        """What held the memory at the peak, the most first."""
        return self.device.holders(self.device.peak)

    @cached_property
    def plan(self) -> tuple[Advice, ...]:
        """What to change, the most first."""
        return plan_of(self.device, self.tries, self.growth)

    def card(self) -> Card:
        """What held the peak, what other settings would need, and what to change."""
        rows = tuple(self._rows())
        return Card(
            self._sentence(),
            rows,
            amount_axis([row.bar.high for row in rows], format_bytes),
            heads=("probably for", "at the peak" if self.device.entries else "held"),
            table=self._what_if_table(),
            plan=self.plan,
            warning=self._warning(),
            notes=tuple(self._notes()),
            provenance=self._provenance(),
            title=self.name,
        )

    def _sentence(self) -> list[str | Toned]:
        gpu, held = f"GPU {self.device.device}", format_bytes(self.peak_allocated_bytes)
        reserved = format_bytes(self.peak_reserved_bytes)
        if failure := self.device.failure:
            asked = format_bytes(failure.requested_bytes)
            words = f" at a request of {asked}: {format_bytes(failure.reserved_bytes)} were reserved, and "
            words += f"{format_bytes(failure.allocated_bytes)} of them in use"
            if failure.others_hold(self.peak_reserved_bytes):
                left = format_bytes(failure.device_free_bytes)
                words += f"; the device had {left} left, so others hold the rest (nvidia-smi)"
            return [f"{gpu} ", Toned("ran out of memory", "slower"), f"{words}."]
        if not self.device.entries:
            short = f"its history of {_entries(self.device.few)} is too short to tell a peak"
            why = short if self.device.few else "the snapshot has no history"
            return [f"{gpu} has {reserved} reserved, and {held} of it in use; {why}."]
        before = ""
        if self.tries and self.tries.begins_empty:
            began = self.device.history.reserved_bytes[0]
            much = "all" if began >= self.peak_reserved_bytes else format_bytes(began)
            before = f", {much} of it from before the recording"
        start = f"{gpu} held up to {held} in tensors, and {reserved} reserved{before}: "
        if not self.plan:
            return [start, Toned("nothing stands out", "same"), "."]
        first = self.plan[0]
        return [start, Toned(first.change, "faster"), f" ({first.saving})." if first.saving else "."]

    def _rows(self) -> Iterator[Row]:
        for holder in self.holders[:_MOST_ROWS]:
            stack = holder.stack
            label = _short(stack.place) if stack.place else stack.kind
            words = [stack.kind] if stack.place else []
            words += [f"{holder.blocks} blocks"] if holder.blocks > 1 else []
            words += [f"from {stack.caller}"] if stack.caller else []
            yield Row(label, ", ".join(words), format_bytes(holder.bytes), bar=Bar(0.0, float(holder.bytes)))
        if rest := self.holders[_MOST_ROWS:]:
            held, label = sum(holder.bytes for holder in rest), f"{len(rest)} other place{'s' * (len(rest) > 1)}"
            yield Row(label, "", format_bytes(held), bar=Bar(0.0, float(held)))

    def _what_if_table(self) -> Grid | None:
        tries = self.tries
        if tries is None or tries.none_helps:
            return None
        recorded = replace(tries.base, reserved_bytes=tries.recorded_bytes)
        several = [recorded, *tries.settings]
        if tries.error >= _LEAST_SHARE:  # shown beside, so that a reader sees how far tries are off
            name = f"as recorded, {'begun empty' if tries.begins_empty else 'tried'}"
            several.insert(1, replace(tries.base, name=name))
        peaks = ["runs out" if each.fails else format_bytes(each.reserved_bytes) for each in several]
        changes = ["" if each.fails else _change(-tries.saving(each)) for each in several]
        columns = (
            Column("the same requests", tuple(each.name for each in several), numeric=False),
            Column("reserved peak", tuple(peaks)),
            Column("change", ("", *changes[1:])),
        )
        own = tries.replay.run.begin.options.text
        return Grid(f"What if, simulated{f', each beside {own}' if own else ''}. {self._error()}", columns)

    def _error(self) -> str:
        replay, words = self.tries.replay, "Your history is reproduced to the byte"
        if not replay.agrees:
            words = f"Your history is reproduced but for {len(replay.differences)} of {len(replay.run)} events"
        if self.tries.begins_empty:
            return f"{words}; the tries begin with an empty allocator."
        error = self.tries.error
        return f"{words}; the tries are off by {format_percent(error)}." if error >= _LEAST_SHARE else f"{words}."

    def _warning(self) -> str:
        if self.device.problem:
            return f"The history cannot be replayed: {self.device.problem}. Shown is what the end of it holds."
        return _RECORD if not self.device.entries else "" if self.device.has_stacks else _STACKS

    def _notes(self) -> Iterator[str]:
        device = self.device
        if device.failure:
            yield _failure_words(device.failure, self.peak_reserved_bytes)
        if self.tries and self.tries.none_helps:
            yield f"The request is met under none of the {len(self.tries.settings)} settings that were simulated."
        kinds = device.kinds(device.peak)
        held = sum(kinds.values())
        if device.has_stacks and held:
            named = [(kind, size / held) for kind, size in kinds.most_common(5) if size >= _LEAST_SHARE * held]
            yield f"By what it is for: {', '.join(f'{kind} {format_percent(share)}' for kind, share in named)}."
        if device.entries and self.lost_bytes > _LEAST_SHARE * self.peak_reserved_bytes:
            lost = f"{format_bytes(self.lost_bytes)} ({format_percent(self.lost_bytes / self.peak_reserved_bytes)})"
            older = device.history.reserved_bytes[0] >= self.peak_reserved_bytes
            why = "; that cache is older than the recording, and how it came about is not in the file" if older else ""
            yield f"When the most was reserved, {lost} of it was not in use{why}."
        if device.give_backs:
            yield f"Cached memory was given back {_give_back_words(device.give_backs)}."
        if self.tries and 0 < device.seconds < _SHORT_S:
            yield f"The recording covers only {format_seconds(device.seconds)}."
        if device.private_bytes:
            yield (
                f"{format_bytes(device.private_bytes)} are in private pools (a CUDA graph, torch.cuda.MemPool), which "
                "share nothing with the rest: counted here, and nothing is simulated."
            )

    def _provenance(self) -> str:
        device, words = self.device, []
        if device.entries:
            words.append(_entries(len(device.entries)))
            words += [f"over {format_seconds(device.seconds)}"] if device.seconds else []
            if device.simulated and device.simulated.start.segments:
                words.append("the recording begins after the program")
        if device.simulated:
            assumed = "" if device.settings else " (not recorded, assumed)"
            words.append(f"options: {device.simulated.options.text or 'defaults'}{assumed}")
        return ", ".join(words)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _short(place: CodeLine) -> str:
    """A place for the first column of a card, which is narrow."""
    file, _, rest = repr(place).partition(":")
    shown = file if len(file) <= _FILE_LETTERS else f"{file[:9]}…{file[10 - _FILE_LETTERS :]}"
    name = rest.partition(" ")[2]
    return f"{shown}:{place.line} {name if len(name) <= _NAME_LETTERS else name[: _NAME_LETTERS - 1] + '…'}"


def _change(share: float) -> str:
    return "0" if abs(share) < 5e-4 else f"{'+' if share > 0 else '−'}{format_percent(abs(share))}"


def _failure_words(failure: FailedRequest, most_reserved: int) -> str:
    free, unused = failure.device_free_bytes, failure.reserved_bytes - failure.allocated_bytes
    words = f"{format_bytes(unused)} were reserved and not in use"
    if failure.largest_free_bytes:
        words += f", in pieces of at most {format_bytes(failure.largest_free_bytes)}"
    if free is not None:
        words += f"; the device had {format_bytes(free)} left"
        if failure.limited:
            words += ", which is enough: the process was limited"
        elif not failure.others_hold(most_reserved):
            words += f". If the device has much more than {format_bytes(free + failure.reserved_bytes)}, others hold "
            words += "the rest (nvidia-smi); no snapshot says it"
    where = f" at {failure.stack.place}" if failure.stack.place else ""
    return f"The request that failed{where} asked for {format_bytes(failure.requested_bytes)}: {words}."


def _give_back_words(counts: Mapping[str, int]) -> str:
    reasons = {"empty_cache": "by empty_cache()", "retry": "to try a request again (the device was full)"}
    times = [({1: "once", 2: "twice"}.get(count, f"{count} times"), reason) for reason, count in counts.items()]
    return listed(f"{often} {reasons.get(reason, 'for a reason that is not recorded')}" for often, reason in times)


@dataclass(frozen=True, eq=False, repr=False)
class SnapshotReport(Shown):
    """What a snapshot shows: a card for a device, with one before them if there are several."""

    name: str
    devices: tuple[DeviceReport, ...]

    def card(self) -> Card:
        """The device's card; of several, one that names each."""
        if len(self.devices) == 1:
            return self.devices[0].card()
        most = max(self.devices, key=lambda report: report.peak_reserved_bytes)
        failed = [f"GPU {report.device.device}" for report in self.devices if report.device.failure]
        held = f"GPU {most.device.device} the most, {format_bytes(most.peak_reserved_bytes)} reserved"
        words: list[str | Toned] = [f"{len(self.devices)} GPUs, {held}."]
        if failed:
            words = [f"{len(self.devices)} GPUs: ", Toned(f"{listed(failed)} ran out of memory", "slower"), "."]
        columns = (
            Column("", tuple(f"GPU {report.device.device}" for report in self.devices), numeric=False),
            Column("most in tensors", tuple(format_bytes(report.peak_allocated_bytes) for report in self.devices)),
            Column("most reserved", tuple(format_bytes(report.peak_reserved_bytes) for report in self.devices)),
        )
        return Card(words, table=Grid("", columns), title=self.name)

    @property
    def cards(self) -> tuple[Card, ...]:
        """All cards: of several devices first the one that names them."""
        parts = tuple(report.card() for report in self.devices)
        return parts if len(parts) == 1 else (self.card(), *parts)

    def __repr__(self) -> str:
        return "\n\n\n".join(map(repr, self.cards))

    def _repr_html_(self) -> str:
        return dressed(self.html())

    def html(self, lessons: str = "{}.ipynb") -> str:
        """The cards for a page, as :meth:`Card.html` makes them."""
        return "\n".join(card.html(lessons) for card in self.cards)


def read_snapshot(
    source: str | Path | bytes | Mapping[str, Any] | Sequence[Any],
    later: str | Path | None = None,
    *,
    device: int | None = None,
) -> SnapshotReport | Card:
    """Read a memory snapshot: what held the memory at its peak, and what would need less.

    The requests of the history are replayed to a simulated allocator, as recorded and under other settings. Nothing in
    the file is run, and neither torch nor a GPU is needed.

    Args:
        source: what ``torch.cuda.memory._dump_snapshot`` wrote, as a file or its bytes, or ``_snapshot()``'s value.
        later: a second file of the same program: what holds more in it, by line, is a card.
        device: the index of the GPU to read; by default each that has memory or a history.

    Returns:
        A report that shows itself as a card, in bytes (1 GiB is 1024^3); of several devices a card each.

    Raises:
        SnapshotError: if it is no snapshot that can be read; one sentence says what is missing.

    Source: the shape of a snapshot, ``torch.cuda.memory._snapshot`` of PyTorch 2.13.0,
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/memory.py

    Example:
        >>> alloc = {"action": "alloc", "addr": 2**21, "size": 2**20, "stream": 0, "frames": []}
        >>> segment = {"action": "segment_alloc", "addr": 2**21, "size": 2**21, "stream": 0, "frames": []}
        >>> blocks = [{"size": 2**20, "state": "active_allocated"}, {"size": 2**20, "state": "inactive"}]
        >>> end = {"address": 2**21, "total_size": 2**21, "stream": 0, "segment_type": "small", "blocks": blocks}
        >>> report = read_snapshot({"segments": [end], "device_traces": [[segment, alloc]]})
        >>> report.card().words
        'GPU 0 held up to 1.00 MiB in tensors, and 2.00 MiB reserved: nothing stands out.'
    """
    file = read_file(source)
    if later is not None:
        return _grown(file, read_file(later), device)
    found = file.devices
    if device is not None and device not in found:
        held = f"it has {listed(map(str, found))}" if found else "it has none"
        raise SnapshotError(f"{file.name} has no memory of GPU {device}: {held}")
    if not found:
        raise SnapshotError(
            f"{file.name} has no memory of any GPU: it was dumped before the program used one; dump it after some steps"
        )
    return SnapshotReport(file.name, tuple(_read(file, each) for each in (found if device is None else [device])))


def _read(file: SnapshotFile, number: int) -> DeviceReport:
    try:
        device = DeviceHistory(file, number)
        growth = growth_of(device) if device.entries else None
        tries = what_if(device) if device.simulated and device.entries else None
        report = DeviceReport(file.name, device, growth if tries else None, tries)
        report.card()  # finds what else makes no sense
        return report
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise SnapshotError(f"{file.name} is damaged: its history or its settings make no sense") from None


def _grown(earlier: SnapshotFile, later: SnapshotFile, device: int | None) -> Card:
    """Subtract what each line holds in one snapshot from what it holds in another; neither needs a history."""
    (sizes, blocks), (more_sizes, more_blocks) = (_held(file, device) for file in (earlier, later))
    if any((*sizes, *more_sizes)) and not any(sizes.keys() & more_sizes.keys()):
        names = f"{earlier.name} and {later.name}"
        raise SnapshotError(f"{names} have no line in common: are both of one program, and recorded from its start?")
    ends = [max((e.get("time_us", 0) for trace in file.traces for e in trace), default=0) for file in (earlier, later)]
    if 0 < ends[1] < ends[0]:
        raise SnapshotError(f"{later.name} is older than {earlier.name}: name the earlier file first")
    grew = Counter({line: size - sizes[line] for line, size in more_sizes.items() if size > sizes[line]})
    rows = [
        (line or NO_STACK, f"+{format_bytes(size)}", f"{more_blocks[line] - blocks[line]:+}")
        for line, size in grew.most_common(_MOST_PLACES)
    ]
    columns = zip(("line", "more", "blocks"), zip(*rows, strict=True), strict=False)
    table = Grid("", tuple(Column(head, cells, numeric=head != "line") for head, cells in columns))
    first, last = (format_bytes(sum(held.values())) for held in (sizes, more_sizes))
    held = f"{first} in {earlier.name}, {last} in {later.name}"
    return Card(f"In use: {held}. {'What grew:' if rows else 'No line grew.'}", table=table if rows else None)


def _held(file: SnapshotFile, device: int | None) -> tuple[Counter[str], Counter[str]]:
    """Bytes and blocks in use at the end, by line."""
    sizes, counts = Counter(), Counter()
    for segment in file.segments:
        for block in segment["blocks"] if device in (None, segment.get("device", 0)) else ():
            if block["state"] != "inactive":
                stack = read_stack(frames_of(block))
                line = str((stack.in_module and stack.caller) or stack.place or "")
                sizes[line] += block["size"]
                counts[line] += 1
    return sizes, counts
