"""What the lesson shows: its loop in its words, and both steps as lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from course_utils import recorded
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.show.timeline import Span, Timeline, timeline

STEPS = {8: "long step", 1: "short step"}
WAYS = {
    "pageable": "plain loader",
    "pinned": "pinning loader",
    "pinned, non_blocking": "+ non_blocking",
    "prefetched": "prefetched",
    "pinned before, no loader": "pinned before",
    "stays on the GPU": "stays",
}
_COLOURS = {"work": "green", "transfer": "blue", "copy": "orange", "pin": "purple", "rest": "grey", "waits": ""}


def seconds_a_step(loop: Sweep, products: int, way: str) -> float:
    case = loop[products][way].measurement
    return case.median_s / case.items


def in_words(loop: Sweep, *ways: str) -> Sweep:
    """A loop in the lesson's words, with these of its ways; the record behind it, too."""
    shown, points = loop.showing([way for way in WAYS if WAYS[way] in (ways or WAYS.values())], per="step"), []
    for each in sorted(shown, key=lambda each: [*STEPS].index(each.value)):
        cases = tuple(replace(case, label=WAYS[case.label]) for case in each.comparison.cases)
        points.append(SweepPoint(STEPS[each.value], replace(each.comparison, cases=cases, whole=None)))
    behind = loop.behind and in_words(loop.behind, *ways)
    return replace(shown, points=tuple(points), over="step", whole=None, behind=behind)


def point(loop: Sweep) -> str:
    """What the loop shows, in a sentence for each step length."""
    said = []
    for products, kind in STEPS.items():
        plain, pinned = (1e3 * seconds_a_step(loop, products, way) for way in ("pageable", "pinned"))
        verdict = loop[products]["pinned"].cell
        said.append(f"{kind.capitalize()}: plain loader {plain:.2f} ms, pinning {pinned:.2f} ms ({verdict}).")
    return " ".join(said)


class BatchParts(NamedTuple):
    """What one batch of 16 MiB takes on the H200 and its CPU, each recorded apart from the loop, in seconds."""

    copy: float  # `.to("cuda")` of a batch from a worker, with the transfer of its pieces
    pin: float  # `.pin_memory()` of such a batch: until it and the call that queues the transfer return
    transfer: float  # `.to("cuda", non_blocking=True)` of pinned memory

    @classmethod
    def of_record(cls) -> BatchParts:
        batch = recorded("pinned_memory/copy", machine="nvidia-h200")["16 MiB"]
        arrived = recorded("pinned_memory/arrived_batch", machine="nvidia-h200")
        first_read = arrived["just arrived"].median_s - arrived["read before"].median_s
        pin = batch["pin_memory() in the loop"].measurement.enqueue_median_s
        return cls(first_read + batch["pageable"].median_s, first_read + pin, batch["pinned, non_blocking"].median_s)


def lanes() -> Timeline:
    """Draw a step of both lengths, from the plain loader and with pin_memory=True, as long as the H200 recorded it."""
    loop, parts, panels, copied = (
        recorded("pinned_memory/training_loop", machine="nvidia-h200"),
        BatchParts.of_record(),
        {},
        {},
    )
    copy, pin, transfer = zip(("copy", "pin", "transfer"), parts, strict=True)
    for products, kind in STEPS.items():
        plain, pinned, work = (
            seconds_a_step(loop, products, way) for way in ("pageable", "pinned", "stays on the GPU")
        )
        copied[kind] = f"{1e3 * (work + parts.copy):.2f} ms"
        left = pinned - parts.pin if parts.pin > parts.transfer + work else 0.0  # of the thread, if all wait for it
        panels[f"{kind.capitalize()}, plain loader: {1e3 * plain:.2f} ms"] = {
            "your thread": _row(("rest", plain - parts.copy - work), copy, ("waits", work)),
            "GPU": _row(("waits", plain - work), ("work", work)),
        }
        panels[f"{kind.capitalize()}, pinning loader: {1e3 * pinned:.2f} ms"] = {
            "loader's thread": _row(pin, ("rest", left)),
            "GPU": _row(transfer, ("work", work), ("waits", pinned - parts.transfer - work)),
        }
    says = (
        f"Pinning takes {1e3 * parts.pin:.2f} ms. Work and copy take {copied['long step']} in the long step, "
        f"{copied['short step']} in the short one."
    )
    alt = "In the short step the GPU waits most of the time, in the long one with pin_memory=True hardly ever."
    return timeline(says, panels, _COLOURS, alt, **loop.stamp("one step each, to scale"))


def _row(*parts: tuple[str, float]) -> list[Span]:
    ends = [sum(length for _, length in parts[:place]) for place in range(len(parts) + 1)]
    return [Span(ends[place], ends[place + 1], what, what) for place, (what, _) in enumerate(parts)]
