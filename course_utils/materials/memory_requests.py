"""What a training step asks of the allocator, at any length: traced at two lengths, and on the line through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from course_utils.memory.allocator import Allocate, Event, Free
from course_utils.memory.live_storages import LiveStorages, TracedBlock


@dataclass(frozen=True)
class Requests:
    """The requests of one kind of work."""

    blocks: tuple[TracedBlock, ...]  # each request, as traced at the shorter of two lengths
    bytes_per_token: tuple[int, ...]  # by how much each of them grows with every further token in a row
    length: int  # that shorter length
    moments: int  # of the trace

    def sizes(self, length: int) -> list[int]:
        """Bytes of each request, with ``length`` tokens in a row."""
        longer = length - self.length
        pairs = zip(self.blocks, self.bytes_per_token, strict=True)
        return [block.size_bytes + longer * growth for block, growth in pairs]

    def events(self, length: int, label: Any, factor: int = 1) -> list[Event]:
        """The requests and releases, in the order of the trace, with all sizes ``factor`` times as large."""
        at: list[list[Event]] = [[] for _ in range(self.moments)]
        for number, (block, size) in enumerate(zip(self.blocks, self.sizes(length), strict=True)):
            name = f"{label}.{number}"
            at[block.born].append(Allocate(name, factor * size))
            if block.died is not None:
                at[block.died].append(Free(name))
        return [event for moment in at for event in moment]


def trace_requests(work: Callable[[int], Any], lengths: tuple[int, int] = (32, 96)) -> Requests:
    """Trace a step at two lengths, on the CPU.

    What ``work`` returns outlives it: an optimizer with its state, for example. What was there before is no request.

    Raises:
        ValueError: if the step does other things at the two lengths, or a size is no straight line over the length.

    Example:
        >>> double = trace_requests(lambda length: torch.ones(length) * 2)
        >>> double.sizes(50)
        [200, 200]
    """
    (short, moments), (long, _) = (_traced(work, length) for length in lengths)
    if [(block.born, block.died) for block in short] != [(block.born, block.died) for block in long]:
        raise ValueError(f"work does not ask for the same blocks at lengths {lengths[0]} and {lengths[1]}")
    step = lengths[1] - lengths[0]
    growths = [b.size_bytes - a.size_bytes for a, b in zip(short, long, strict=True)]
    if step < 1 or any(growth % step for growth in growths):
        raise ValueError(f"sizes are no straight line through lengths {lengths[0]} and {lengths[1]}")
    return Requests(tuple(short), tuple(growth // step for growth in growths), lengths[0], moments)


def _traced(work: Callable[[int], Any], length: int) -> tuple[list[TracedBlock], int]:
    """The blocks that a call asks for, and the number of moments."""
    with LiveStorages() as storages:
        _outlives = work(length)
    return [block for block in storages.blocks if block.born and block.size_bytes], len(storages.times_ns)


def training_events(
    kinds: Mapping[str, Requests], lengths: Sequence[int], model: torch.nn.Module, factor: int = 1
) -> tuple[list[Event], list[int]]:
    """A whole training: the weights, a ``first step`` that makes the optimizer's state, and every other ``step``.

    Gives the events, and after how many of them each step ends. ``lengths`` are the tokens in a row of each batch; all
    sizes are multiplied by ``factor``.
    """
    events: list[Event] = [Allocate(name, factor * weight.nbytes) for name, weight in model.named_parameters()]
    ends = []
    for number, length in enumerate(lengths):
        events += kinds["step" if number else "first step"].events(length, number, factor)
        ends.append(len(events))
    return events, ends
