"""What a step of the lesson is made of, and its picture: one loop without a worker, with one, with two."""

from __future__ import annotations

from typing import NamedTuple

from course_utils.lessons.data_loading.cases import IN_MEMORY
from course_utils.results.comparison import Comparison
from course_utils.show.timeline import Span, Timeline, timeline

_COLOURS = {"load": "orange", "step": "green", "price": "purple", "sending": "blue", "waits": ""}


class StepParts(NamedTuple):
    load: float  # seconds: what a step without a worker takes beyond the step alone
    step: float
    price: float  # what two workers leave, without the wait for the first batch
    sending: float  # what a batch of one worker takes beyond its load; the pass ends with one price and one step

    @classmethod
    def of(cls, steps: Comparison) -> StepParts:
        labels, count = ("step only", "no worker", "1 worker", "2 workers"), steps["2 workers"].measurement.items
        only, none, one, two = (a_batch(steps, label) for label in labels)
        load, price = none - only, two - only - (none - only) / count
        return cls(load, only, price, one - load - (only + price) / count)


def a_batch(passes: Comparison, label: str, batches: int = 0) -> float:
    return passes[label].median_s / (batches or passes[label].measurement.items)  # seconds


def step_words(steps: Comparison) -> str:
    none, *some = (f"{1e3 * a_batch(steps, case.label):.3g}" for case in steps if "worker" in case.label)
    return f"A step takes {none} ms without a worker; with one, two and three {some[0]}, {some[1]} and {some[2]} ms."


def memory_words(rows: Comparison) -> str:
    none, two = (f"{1e3 * a_batch(rows, label, IN_MEMORY):.3g} ms" for label in ("no worker", "2 workers"))
    return f"From memory, a batch takes {none} without a worker, {two} with two."


def unequal_words(passes: Comparison) -> str:
    equal, unequal, *mended = (f"{1e3 * a_batch(passes, case.label):.3g} ms" for case in passes)
    more, ahead, _ = mended
    return f"Unequal times: {unequal} a step, not {equal}. Two more workers: {more}; 16 batches ahead: {ahead}."


def lanes(steps: Comparison) -> Timeline:
    """Draw the first batches, as long as `data_loading/step` recorded their parts."""
    parts = StepParts.of(steps)
    panels = {name: _loop(parts, n) for n, name in enumerate(("No worker", "1 worker", "2 workers"))}
    load, step, price, sending = (f"{1e3 * each:.1f} ms" for each in parts)
    says = f"Load {load}, sending (blue) {sending}, price (purple) {price}, step {step}: two workers deliver in time."
    alt = "With one worker the loop waits in each step, with two for the first batch alone."
    return timeline(says, panels, _COLOURS, alt, **steps.stamp("worked out from its parts, to scale"))


def _loop(parts: StepParts, workers: int, batches: int = 5) -> dict[str, list[Span]]:
    """Batch by batch: which worker loads it from when on, and when the loop takes it."""
    now, loop, lanes = 0.0, [], [[] for _ in range(workers)]
    for number in range(batches):
        rows = [("load", parts.load), ("step", parts.step)]
        if workers:
            lane = lanes[number % workers]
            loaded = (number // workers) * (parts.load + parts.sending) + parts.load
            lane += [Span(loaded - parts.load, loaded, "load", "load")]
            lane += [Span(loaded, loaded + parts.sending, "sending", "sending")]
            rows = [("waits", lane[-1].end_s - now), ("price", parts.price), *rows[1:]]
        for what, length in rows:
            if length > 0:
                loop.append(Span(now, now + length, what, what))
                now += length
    return {"your loop": loop, **{f"worker {n + 1}": lane for n, lane in enumerate(lanes)}}
