"""Steps in a recorded history, and memory that each of them leaves behind.

Nothing in a snapshot says where a step begins. A line outside of all modules that asks for memory again and again, with
a call of a module or a backward pass between, is taken for one: layers of one forward pass are no steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from course_utils.memory.cuda_history import Allocation
from own_program.snapshots.history import DeviceHistory
from own_program.snapshots.stacks import BACKWARD, CACHE, FORWARD, NO_STACK, OPTIMIZER, WEIGHTS, Stack

_LEAST_ROUNDS = 4  # the first may set up what stays, and what the last one keeps may still be freed
_LEAST_ALIKE = 0.5  # of what two neighbouring rounds ask for
_MOST_MARKERS = 50
_MOST_KEPT = 0.5  # of what a round without training asks for; layers of one pass keep more, for a backward pass
_BACKWARD = (BACKWARD, NO_STACK)


@dataclass(frozen=True)
class Growth:
    """What each round of a loop leaves behind, never freed in the recording.

    Attributes:
        stack: of what is left behind, of the line that leaves the most.
        bytes_a_round: in the median.
        rounds: how many there are, without the first.
        ends: of each request that begins a round, the names of the blocks that the round before has left.
    """

    stack: Stack
    bytes_a_round: float
    rounds: int
    ends: Mapping[int, Sequence[int]]


def rounds_of(requests: Sequence[Stack]) -> Iterator[list[int]]:
    """Where rounds begin, as indices of requests: of each line that may begin one, that with the most first.

    If there are backward passes, each round has one. Rounds into which weights are brought are layers, and no steps.
    """
    trains = any(stack.kind in _BACKWARD for stack in requests)
    tells = [stack.kind in _BACKWARD if trains else stack.in_module or stack.kind == FORWARD for stack in requests]
    passed = list(accumulate(tells, initial=0))  # how many there were before each request
    lines = _numbered(requests)
    markers: dict[int, list[int]] = {}
    for index, stack in enumerate(requests):
        if stack.path and not stack.in_module and stack.kind not in (*_BACKWARD, FORWARD):
            begins = markers.setdefault(lines[index], [])
            if not begins or passed[index] > passed[begins[-1]]:
                begins.append(index)
    often = sorted((begins for begins in markers.values() if len(begins) >= _LEAST_ROUNDS), key=len, reverse=True)
    return (begins for begins in often[:_MOST_MARKERS] if _alike(lines, begins) and not _brings(requests, begins))


def _brings(requests: Sequence[Stack], begins: Sequence[int]) -> bool:
    """Whether all rounds but the first bring weights."""
    rounds = [requests[start:end] for start, end in pairwise(begins)][1:]
    return all(any(stack.kind == WEIGHTS for stack in each) for each in rounds)


def _numbered(requests: Sequence[Stack]) -> list[int]:
    """Of each request a number that stands for its path."""
    known: dict[tuple[object, ...], int] = {}
    numbers = {id(stack): known.setdefault(stack.path, len(known)) for stack in {id(s): s for s in requests}.values()}
    return [numbers[id(stack)] for stack in requests]


def _alike(lines: Sequence[int], begins: Sequence[int]) -> bool:
    """Whether neighbouring rounds ask at the same lines. Sizes may vary, as those of batches do."""
    rounds = [set(lines[start:end]) for start, end in pairwise(begins)]
    return median(len(a & b) / len(a | b) for a, b in pairwise(rounds)) >= _LEAST_ALIKE


def growth_of(device: DeviceHistory) -> Growth | None:
    """What each round leaves behind; None if nothing, or where no rounds can be told."""
    if device.whole is not device.common or not device.has_stacks:
        return None
    blocks = [each for each in device.history.allocations if each.born]
    # A request's name in the simulation is its number among those of the history, the failed ones included.
    requests = [entry["action"] for entry in device.entries if entry["action"] in ("alloc", "oom")]
    names = [number for number, action in enumerate(requests, 1) if action == "alloc"]
    stacks = [device.stack_of(block) for block in blocks]
    lines = _numbered(stacks)
    for number, begins in enumerate(rounds_of(stacks)):
        # Of the loop that is most of it any end will do; a rarer one that ended long ago only filled something.
        longest = max(end - start for start, end in pairwise(begins))
        if number == 0 or len(stacks) - begins[-1] <= 2 * longest:
            growth = _left(blocks, stacks, lines, names, begins)
            # An optimizer's state comes late where more of a model is trained from some step on.
            if growth is not None and (number == 0 or growth.stack.kind != OPTIMIZER):
                return growth
    return None


def _left(
    blocks: Sequence[Allocation],
    stacks: Sequence[Stack],
    lines: Sequence[int],
    names: Sequence[int],
    begins: Sequence[int],
) -> Growth | None:
    """What each round leaves behind, given where they begin."""
    rounds = [range(*span) for span in pairwise(begins)][1:]
    left = [[i for i in each if blocks[i].died is None and stacks[i].kind not in (WEIGHTS, CACHE)] for each in rounds]
    always = set.intersection(*({lines[i] for i in each} for each in left))  # only what every round leaves
    left = [[i for i in each if lines[i] in always] for each in left]
    if not always:
        return None
    asked = sum(blocks[i].size_bytes for each in rounds for i in each)
    if not _trains(stacks) and sum(blocks[i].size_bytes for each in left for i in each) >= _MOST_KEPT * asked:
        return None
    held: Counter[int] = Counter()
    for i in (i for each in left for i in each):
        held[lines[i]] += blocks[i].size_bytes
    most = stacks[lines.index(held.most_common(1)[0][0])]
    ends = {names[each.stop]: [names[i] for i in kept] for each, kept in zip(rounds, left, strict=True)}
    return Growth(most, median(sum(blocks[i].size_bytes for i in kept) for kept in left), len(rounds), ends)


def loops_without_training(device: DeviceHistory) -> bool:
    """Whether a model is called again and again, and nothing is trained."""
    stacks = [device.stack_of(block) for block in device.history.allocations if block.born]
    return not _trains(stacks) and any(True for _ in rounds_of(stacks))


def _trains(stacks: Sequence[Stack]) -> bool:
    return any(stack.kind in (*_BACKWARD, OPTIMIZER) for stack in stacks)
