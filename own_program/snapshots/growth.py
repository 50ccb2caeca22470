"""Steps in a recorded history, and memory that each of them leaves behind.

Nothing in a snapshot says where a step begins. A line that asks for memory again and again, with a backward pass
between, is taken for one; without training one that is called from outside of all modules: layers are no steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from statistics import median

from own_program.snapshots.device_history import DeviceHistory
from own_program.snapshots.stacks import BACKWARD, CACHE, FORWARD, NO_STACK, OPTIMIZER, WEIGHTS, Stack

_LEAST_ROUNDS = 4  # the first may set up what stays, and what the last one keeps may still be freed
_LEAST_GROWN = 0.05  # of the peak in use
_LEAST_ALIKE = 0.5  # of what two neighbouring rounds ask for
_MOST_MARKERS = 50
_MOST_KEPT = 0.5  # of what a round without training asks for; layers of one pass keep more, for a backward pass
_BACKWARD = (BACKWARD, NO_STACK)
_MEANT_TO_STAY = (WEIGHTS, CACHE)
_LEAST_BACKWARD = 0.05  # of all requests: a few without a stack are no backward pass


@dataclass(frozen=True)
class Growth:
    """What each round of a loop leaves behind, never freed in the recording."""

    stack: Stack  # of what is left behind, of the line that leaves the most
    bytes_a_round: float  # in the median
    rounds: int  # without the first
    bytes: int  # of all rounds together


class _AskedFor:
    """What a history asks for: blocks with their stacks, in the order of the requests."""

    def __init__(self, device: DeviceHistory) -> None:
        self.blocks = [each for each in device.history.allocations if each.born]
        self.stacks = [device.stack_of(block) for block in self.blocks]
        known: dict[tuple[object, ...], int] = {}
        each_once = {id(stack): stack for stack in self.stacks}.values()
        numbers = {id(stack): known.setdefault(stack.path, len(known)) for stack in each_once}
        self.lines = [numbers[id(stack)] for stack in self.stacks]  # of each request a number for its path
        without = sum(stack.kind == NO_STACK for stack in self.stacks)
        told = device.trains or any(stack.kind in (BACKWARD, OPTIMIZER) for stack in self.stacks)
        self.trains = told or without > _LEAST_BACKWARD * len(self.stacks)
        self.has_backward = self.trains and any(stack.kind in _BACKWARD for stack in self.stacks)
        self.surely = told and self.has_backward  # else something else may be without a stack

    def rounds(self) -> Iterator[list[int]]:
        """Where rounds begin, as indices of requests: of each line that may begin one, that with the most first.

        If there are backward passes, each round has one.
        """
        tells = [s.kind in _BACKWARD if self.has_backward else s.in_module or s.kind == FORWARD for s in self.stacks]
        passed = list(accumulate(tells, initial=0))  # how many there were before each request
        markers: dict[int, list[int]] = {}
        for index, stack in enumerate(self.stacks):
            if stack.path and stack.kind not in _BACKWARD:
                begins = markers.setdefault(self.lines[index], [])
                if not begins or passed[index] > passed[begins[-1]]:
                    begins.append(index)
        often = sorted((begins for begins in markers.values() if len(begins) >= _LEAST_ROUNDS), key=len, reverse=True)
        outside = [begins for begins in often if not self._is_inside(begins[0])]
        # Of as many rounds those that begin first will do.
        inside = {len(begins): begins for begins in reversed(often) if self._is_inside(begins[0])}.values()
        return filter(self._alike, islice(chain(outside, inside), _MOST_MARKERS))

    def _is_inside(self, index: int) -> bool:
        return self.stacks[index].in_module or self.stacks[index].kind == FORWARD

    def _alike(self, begins: Sequence[int]) -> bool:
        """Whether neighbouring rounds ask at the same lines. Sizes may vary, as those of batches do."""
        rounds = [set(self.lines[start:end]) for start, end in pairwise(begins)]
        return median(len(a & b) / len(a | b) for a, b in pairwise(rounds)) >= _LEAST_ALIKE


def growth_of(device: DeviceHistory) -> Growth | None:
    """What each round leaves behind; None if next to nothing, or where no rounds can be told."""
    if device.simulated is None or not device.has_stacks:
        return None
    requests, least = _AskedFor(device), _LEAST_GROWN * device.allocated_bytes[device.peak]
    for number, begins in enumerate(requests.rounds()):
        # Of the loop that is most of it any end will do; a rarer one that ended long ago only filled something.
        longest = max(end - start for start, end in pairwise(begins))
        if number and len(requests.stacks) - begins[-1] > 2 * longest:
            continue
        growth = _left(requests, begins)
        if growth is None or growth.bytes_a_round * growth.rounds < least:
            continue
        # An optimizer's state comes late where more of a model is trained from some step on.
        if number == 0 or growth.stack.kind != OPTIMIZER:
            return growth
    return None


def _left(requests: _AskedFor, begins: Sequence[int]) -> Growth | None:
    """What rounds leave behind, at lines that do so in each of them."""
    blocks, stacks, lines = requests.blocks, requests.stacks, requests.lines
    rounds = [range(*span) for span in pairwise(begins)][1:]
    left = [[i for i in each if blocks[i].died is None and stacks[i].kind not in _MEANT_TO_STAY] for each in rounds]
    always = set.intersection(*({lines[i] for i in each} for each in left))
    left = [[i for i in each if lines[i] in always] for each in left]
    if not always:
        return None
    held: Counter[int] = Counter()
    for i in (i for each in left for i in each):
        held[lines[i]] += blocks[i].size_bytes
    asked = sum(blocks[i].size_bytes for each in rounds for i in each)
    if not requests.surely and held.total() >= _MOST_KEPT * asked:
        return None
    most = stacks[lines.index(held.most_common(1)[0][0])]
    sizes = [sum(blocks[i].size_bytes for i in kept) for kept in left]
    return Growth(most, median(sizes), len(rounds), sum(sizes))


def trains(device: DeviceHistory) -> bool:
    """Whether a backward pass or an optimizer is in the recording."""
    return _AskedFor(device).trains
