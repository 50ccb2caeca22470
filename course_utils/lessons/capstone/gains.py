"""What the rounds say of each technique: its gain as the first, as the last, and its fair share of the whole."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from course_utils.lessons.capstone.cases import NAIVE, OTHERS, STACK, choices, label
from course_utils.results import paired
from course_utils.results.comparison import Comparison
from course_utils.results.table import Table


def gains(steps: Comparison, beside: Comparison) -> list[dict[str, Any]]:
    """How many times as fast the step is by each technique, with 99% intervals.

    As the first it is put into the naive step. As the last it is taken out of the full one; what is in no stack is put
    on top of it.
    """
    rows, stack = [], frozenset(STACK)
    for name in (*STACK, *OTHERS):
        of, rest = (steps if name in stack else beside), stack - {name}
        if label(rest | {name}) not in of.labels:
            continue  # torch does not have it here
        row = {"technique": name} | _times(of, "first", _logs(of, NAIVE, label([name])))
        row |= _times(of, "last", _logs(of, label(rest), label(rest | {name})))
        rows.append(row | _times(of, "share", _fair(steps, name) if name in stack else []))
    return rows


def _logs(of: Comparison, slow: str, fast: str) -> list[float]:
    return paired.log_ratios(of[slow].measurement.elapsed_s, of[fast].measurement.elapsed_s)


def _times(of: Comparison, what: str, logs: Sequence[float]) -> dict[str, Any]:
    """The median over the rounds, its interval, and whether it is beyond what identical code differed by."""
    if not logs:
        return dict.fromkeys((what, f"{what} low", f"{what} high", f"{what} is"))
    interval, ratio = paired.ratio_interval(logs, of.confidence), math.exp(statistics.median(logs))
    verdict = paired.decide(1 / ratio, interval.inverse(), of.noise)
    low, high = interval.ends if interval.bounded and interval.low else (None, None)
    return {what: ratio, f"{what} low": low, f"{what} high": high, f"{what} is": verdict.lower()}


def _fair(steps: Comparison, name: str) -> list[float]:
    """Round by round, the mean over all orders of what a technique brings when its turn comes: its Shapley value."""
    total, count = [0.0] * steps.rounds, len(STACK)
    for on in choices():
        if name not in on:
            weight = math.factorial(len(on)) * math.factorial(count - len(on) - 1) / math.factorial(count)
            logs = _logs(steps, label(on), label(on | {name}))
            total = [so_far + weight * log for so_far, log in zip(total, logs, strict=True)]
    return total


def best(steps: Comparison, alone: Table) -> list[dict[str, Any]]:
    """The fastest choice of one technique, of two, and so on: what they promise, and how it is to all."""
    rows = []
    for count in range(1, len(STACK) + 1):
        on = min((on for on in choices() if len(on) == count), key=lambda on: steps[label(on)].ratio)
        row = {"lines": str(count), "the fastest choice": label(on), "times as fast": steps[label(on)].speedup}
        row["alone, multiplied"] = math.prod(alone[name]["first"] for name in on)
        rows.append(row | _times(steps, "full stack", _logs(steps, label(on), label(STACK))))
    return rows


def equal(runs: Mapping[str, Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
    """Of each stack the last loss, and how far it is from the first stack's, seed by seed: the 95% interval.

    The margin is the standard deviation of the first stack's losses over the seeds. And what share of the tokens a
    stack needs for the loss that the first one has after four fifths.
    """
    naive = next(iter(runs.values()))
    finals = [run[-1] for run in naive]
    rows, margin = [], statistics.stdev(finals) if len(finals) > 1 else math.inf
    for name, each in runs.items():
        apart = [mine[-1] - theirs for mine, theirs in zip(each, finals, strict=True)]
        low, high = paired.median_interval(apart, 0.95).ends
        worse = "worse" if low > margin else "not shown"
        row = {"stack": name, "validation loss": statistics.median(run[-1] for run in each)}
        row |= {"apart": statistics.median(apart), "low": low, "high": high, "margin": margin}
        row["verdict"] = "same" if -margin < low and high < margin else worse
        needs = [_share(run, goal[-2]) for run, goal in zip(each, naive, strict=True)]
        rows.append(row | {"tokens to the goal": statistics.median(needs)})
    return rows


def _share(losses: Sequence[float], goal: float) -> float:
    """Of all tokens, on straight lines between the looks; infinite if the goal is not reached."""
    for at, after in enumerate(losses[1:]):
        if after <= goal:
            return (at + (losses[at] - goal) / (losses[at] - after)) / (len(losses) - 1)
    return math.inf
