"""What the lesson draws: what a read cost beside the law, and steps of two loops as lanes, to scale."""

from __future__ import annotations

from dataclasses import dataclass

from course_utils import recorded
from course_utils.results.sweep import Sweep
from course_utils.show.cards import Bar, Card, Row, amount_axis
from course_utils.show.timeline import Span, Timeline, timeline

STEPS = 20  # of a loop; the one that reads once still waits after the last
EACH, ONCE = "a read in each step", "one read at the end"
_NAMES = {0.5: "C", 0: "A", 2: "B", 8: "D"}  # the loops of the text, the predicted one first
_COLOURS = {"prepares": "orange", "queues": "ochre", "in .item()": "grey", "works": "green"}


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}\u00a0ms"


@dataclass(frozen=True)
class Loop:
    """One preparing time of the sweep: seconds of a step."""

    prepare_s: float
    gpu_s: float
    with_s: float
    without_s: float
    queue_s: float  # what Python takes to queue it

    @classmethod
    def of(cls, loops: Sweep, prepare_ms: float) -> Loop:
        each, once = (loops[prepare_ms][way].median_s / STEPS for way in (EACH, ONCE))
        read_s = (loops[0][EACH].median_s - loops[0][ONCE].median_s) / (STEPS - 1)
        gpu_s = loops[0][ONCE].median_s / STEPS - read_s / STEPS
        python = {ms: loops[ms][ONCE].median_s / STEPS for ms in loops.values}
        # Where Python is slower, its steps follow each other but for the last one's work. Elsewhere it queues as there.
        queues = [s - ms / 1e3 - gpu_s / STEPS for ms, s in python.items() if s > 1.1 * gpu_s]
        return cls(prepare_ms / 1e3, gpu_s, each, once, min(queues, default=0.0))

    @property
    def cost_s(self) -> float:
        return (self.with_s - self.without_s) * STEPS / (STEPS - 1)  # of one read: all but one were left out

    @property
    def wait_s(self) -> float:
        return self.with_s - self.prepare_s - self.queue_s

    @property
    def idle_s(self) -> float:
        return self.with_s - self.gpu_s


def costs(loops: Sweep) -> Card:
    """What one read costs, measured, beside the two times whose shorter one bounds it."""
    at = {value: Loop.of(loops, value) for value in _NAMES if value in loops.values}
    rows = []
    for value, loop in at.items():
        name = f"{_NAMES[value]}:\u00a0{value:g}\u00a0ms"
        loop_ms = ", ".join(f"{1e3 * STEPS * s:.{int(s < 5e-3)}f}" for s in (loop.with_s, loop.without_s))
        both = ", ".join(f"{1e3 * s:.{2 + (s < 1e-3)}f}" for s in (loop.wait_s, loop.idle_s))
        rows.append(Row(name, loop_ms, _ms(loop.cost_s), bar=Bar(0.0, max(loop.cost_s, 0.0)), second=both))
    first, most = next(iter(at)), max(at, key=lambda value: at[value].cost_s)
    says = (
        f"Where Python prepares {first:g} ms, one .item() costs {_ms(at[first].cost_s)}; "
        f"at {most:g} ms it costs the most here, {_ms(at[most].cost_s)}."
    )
    axis = amount_axis([loop.cost_s for loop in at.values()], _ms)
    stamp = loops.stamp(f"the GPU works {_ms(at[first].gpu_s)} a step", "medians of 20 steps")
    heads, numbers = ("with, without (ms)", "one costs"), loops.card().numbers
    return Card(says, tuple(rows), axis, heads, second="waits, idles (ms)", notes=loops.notes, numbers=numbers, **stamp)


def lanes() -> Timeline:
    """Two steps of loops C and B with a read in each and without, as long as the H200 recorded them."""
    loops, panels, gaps = recorded("host_device_syncs/on_gpu", machine="nvidia-h200"), {}, []
    for value in (0.5, 2):
        loop = Loop.of(loops, value)
        for way, step_s in (("with .item()", loop.with_s), ("without", loop.prepare_s + loop.queue_s)):
            python, gpu, free_s = [], [], 0.0
            for number, start_s in enumerate((0.0, step_s), start=1):
                prepared_s, queued_s = start_s + loop.prepare_s, start_s + loop.prepare_s + loop.queue_s
                python.append(Span(start_s, prepared_s, "prepares", f"prepares {number}"))
                python.append(Span(prepared_s, queued_s, "queues"))
                # The GPU begins with the first kernel, while Python queues the others.
                begins_s = max(free_s, start_s + loop.with_s - loop.gpu_s)
                gap_s, free_s = begins_s - free_s, begins_s + loop.gpu_s
                gpu.append(Span(begins_s, free_s, "works", f"works {number}"))
                if way != "without":
                    python.append(Span(queued_s, start_s + step_s, "in .item()", ".item()"))
            gaps.append(_ms(gap_s))  # before the second step
            panels[f"{_NAMES[value]}: prepares {value:g} ms, {way}"] = {"Python": python, "GPU": gpu}
    says = (
        f"Before its second step the GPU idles, with .item() and without: in C {gaps[0]} and {gaps[1]}, "
        f"in B {gaps[2]} and {gaps[3]}."
    )
    alt = "Without .item(), Python prepares the second batch while the GPU works on the first."
    return timeline(says, panels, _COLOURS, alt, legend=True, **loops.stamp("two steps each, to scale"))
