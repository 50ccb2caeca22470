"""What the lesson shows: its loop in its words, both steps as lanes, and their parts beside the record."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from course_utils import recorded
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from course_utils.records.verdicts import verdict_words
from course_utils.show.cards import Card
from course_utils.show.tables import Column, Grid
from course_utils.show.timeline import Span, Timeline, timeline

STEPS = {1: "short step", 8: "long step"}
WAYS = {
    "pageable": "plain loader",
    "pinned": "pinning loader",
    "prefetched": "prefetched",
    "pinned before, no loader": "pinned before",
    "stays on the GPU": "stays",
}
_COLOURS = {"work": "green", "transfer": "blue", "copy": "orange", "pin": "purple", "touch": "ochre"}
_COLOURS |= {"rest": "grey", "waits": ""}


def seconds_a_step(loop: Sweep, products: int, way: str) -> float:
    case = loop[products][way].measurement
    return case.median_s / case.items


def in_words(loop: Sweep, *ways: str) -> Sweep:
    """A loop in the lesson's words, with these of its ways; the record behind it, too."""
    shown, points = loop.showing([way for way in WAYS if WAYS[way] in (ways or WAYS.values())], per="step"), []
    for each in shown:
        cases = tuple(replace(case, label=WAYS[case.label]) for case in each.comparison.cases)
        points.append(SweepPoint(STEPS[each.value], replace(each.comparison, cases=cases, whole=None)))
    behind = loop.behind and in_words(loop.behind, *ways)
    return replace(shown, points=tuple(points), over="step", whole=None, behind=behind)


def point(loop: Sweep) -> str:
    """What the loop shows, in a sentence for each step length."""
    said = []
    for products, kind in STEPS.items():
        plain, pinned, _, before, _ = (f"{1e3 * seconds_a_step(loop, products, way):.2f}" for way in WAYS)
        verdict = verdict_words(loop[products]["pinned"])
        said.append(f"{kind.capitalize()}: plain loader {plain} ms, pinning {pinned} ({verdict}), before {before}.")
    return " ".join(said)


class Parts(NamedTuple):
    """What one batch of 16 MiB takes on the H200 and its CPU, each recorded apart from the loop, in seconds."""

    touch: float  # the CPU's first read of a batch that a worker made
    copy: float  # `.to("cuda")` of pageable memory, with the transfer of its pieces
    pin: float  # `.pin_memory()`: until it and the call that queues the transfer return
    transfer: float  # `.to("cuda")` of pinned memory

    @classmethod
    def of_record(cls) -> Parts:
        batch = recorded("pinned_memory/copy", machine="nvidia-h200")["16 MiB"]
        arrived = recorded("pinned_memory/arrived_batch", machine="nvidia-h200")
        pin = batch["pin_memory() in the loop"].measurement.enqueue_median_s
        touch = arrived["just arrived"].median_s - arrived["read before"].median_s
        return cls(touch, batch["pageable"].median_s, pin, batch["pinned, non_blocking"].median_s)

    def added_up(self, work: float) -> dict[str, float]:
        """A step by the parts alone, each way."""
        thread, before = self.touch + self.pin, self.transfer + work
        times = self.touch + self.copy + work, max(thread, before), max(thread, self.transfer, work), before
        return dict(zip(WAYS, times, strict=False))


def lanes() -> Timeline:
    """Draw a step of both lengths, from the plain loader and with pin_memory=True, as long as the H200 recorded it."""
    loop, parts, panels = recorded("pinned_memory/training_loop", machine="nvidia-h200"), Parts.of_record(), {}
    thread = parts.touch + parts.pin
    touch, copy, pin, transfer = zip(("touch", "copy", "pin", "transfer"), parts, strict=True)
    for products, kind in STEPS.items():
        plain, pinned, *_, work = (seconds_a_step(loop, products, way) for way in WAYS)
        left = pinned - thread if thread > parts.transfer + work else 0.0  # of the loader's thread, if all wait for it
        panels[f"{kind.capitalize()}, plain loader: {1e3 * plain:.2f} ms"] = {
            "your thread": _row(("rest", plain - parts.touch - parts.copy - work), touch, copy, ("waits", work)),
            "GPU": _row(("waits", plain - work), ("work", work)),
        }
        panels[f"{kind.capitalize()}, pinning loader: {1e3 * pinned:.2f} ms"] = {
            "loader's thread": _row(touch, pin, ("rest", left)),
            "GPU": _row(transfer, ("work", work), ("waits", pinned - parts.transfer - work)),
        }
    says = (
        f"For a batch the loader's thread needs {1e3 * thread:.1f} ms and more: hidden behind the long step, "
        "longer than the short one."
    )
    alt = "In the short step the GPU waits most of the time, in the long one with pin_memory=True hardly ever."
    return timeline(says, panels, _COLOURS, alt, **loop.stamp("one step each, to scale"))


def _row(*parts: tuple[str, float]) -> list[Span]:
    ends = [sum(length for _, length in parts[:place]) for place in range(len(parts) + 1)]
    return [Span(ends[place], ends[place + 1], what, what) for place, (what, _) in enumerate(parts)]


def parts_card() -> Card:
    """Steps by their parts, beside what the H200 recorded; with and without ``.item()``."""
    rows, missing, alone = [], [], []
    for name, words, first in (("training_loop", "", 4), ("training_loop_item", ", .item()", 2)):
        loop = recorded(f"pinned_memory/{name}", machine="nvidia-h200")
        for products in loop.values:
            sums = Parts.of_record().added_up(seconds_a_step(loop, products, "stays on the GPU"))
            for way, sum_s in list(sums.items())[:first]:
                case, took_s = loop[products][way], seconds_a_step(loop, products, way)
                (alone if way.startswith("pinned before") else missing).append(took_s - sum_s)
                both = f"{1e3 * sum_s:.2f} ms", f"{1e3 * took_s:.2f} ms"
                rows.append((f"{STEPS[products]}{words}, {WAYS[way]}", *both, verdict_words(case)))
    labels, *cells = zip(*rows, strict=True)
    columns = Column("", labels, numeric=False), *map(Column, ("parts", "recorded", "against plain"), cells)
    says = (
        f"Without a loader the parts add up, within {1e6 * max(map(abs, alone)):.0f} µs. With one, up to "
        f"{1e3 * max(missing):.2f} ms a step are missing: more than pinning wins or loses in a short step."
    )
    return Card(says, table=Grid("One step", columns), **loop.stamp("parts: added up"))
