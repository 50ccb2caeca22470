"""How many times as large the batch of one trace is as another's, by the shapes that operators were given."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from own_program.traces.events import MARK, OP, Trace
from own_program.traces.steps import Kind, marked_steps

OTHER_SIZES = 0.0
_LEAST, _AGREEING = 3, 0.9  # changed shapes, and which part of them must say the same
_MUCH = 0.1  # of all shapes, weights among them: if so many differ, steps do other work
_WEIGHTS = {"aten::linear": 1, "aten::conv1d": 1, "aten::conv2d": 1, "aten::conv3d": 1, "aten::embedding": 0}
_WEIGHTS |= {"aten::convolution": 1, "torch::autograd::AccumulateGrad": 0}

Shape = tuple[int, ...]
Shapes = dict[str, list[Shape]]  # of an operator's calls and their inputs, one after the other


def batch_ratio(before: Trace, after: Trace, kinds: Sequence[tuple[Kind, Kind]]) -> float:
    """How many times as many samples a step of the second trace has.

    It is 1 where nothing differs or no shapes were recorded, and `OTHER_SIZES` where they differ in another way.
    """
    found: Counter[float] = Counter()
    within: Counter[float] = Counter()  # from step to step of one trace
    for old, new in kinds:
        sides = _shapes(before, old), _shapes(after, new)
        found.update(map(_ratio, *sides))
        within.update(_ratio(*two) for side in sides for two in pairwise(side))
    if not found or 2 * within[1.0] < within.total():  # sizes vary anyhow
        return 1.0
    ratio, count = found.most_common(1)[0]  # a last batch may be smaller than others
    return ratio if 2 * count > found.total() else OTHER_SIZES


def _shapes(trace: Trace, kind: Kind) -> list[Shapes]:
    """What was given to the operators of each step."""
    marks = dict(marked_steps(trace.events[MARK]))
    operators = trace.events[OP]
    found = []
    for start, end in (marks[step.number] for step in kind.steps if step.number in marks):
        shapes: Shapes = defaultdict(list)
        first, last = (bisect_left(operators, at, key=attrgetter("start")) for at in (start, end))
        for operator in operators[first:last]:
            for place, shape in enumerate(operator.shapes or ()):
                lists = shape if shape and isinstance(shape[0], tuple) else [shape]  # an input may be a list of tensors
                what = f"weight {operator.name}" if _WEIGHTS.get(operator.name) == place else operator.name
                shapes[what] += filter(None, lists)
        found.append(shapes)
    return found


def _ratio(before: Shapes, after: Shapes) -> float:
    changed: Counter[float] = Counter()  # how many times as large, and how often
    compared, weights = 0, False
    for name in before.keys() & after.keys():
        if len(before[name]) == len(after[name]):
            compared += len(before[name])
            differing = [pair for pair in zip(before[name], after[name], strict=True) if pair[0] != pair[1]]
            changed.update(math.prod(new) / max(1, math.prod(old)) for old, new in differing)
            weights = weights or (bool(differing) and name.startswith("weight "))
    if changed.total() < _LEAST:
        return 1.0
    ratio, agreeing = changed.most_common(1)[0]
    if ratio and not weights and agreeing >= _AGREEING * changed.total():
        return ratio
    return OTHER_SIZES if changed.total() >= _MUCH * compared else 1.0
