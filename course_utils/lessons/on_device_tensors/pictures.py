"""What the lesson draws: a wait in each step, as long as the H200 recorded it."""

from __future__ import annotations

from course_utils import recorded
from course_utils.show.timeline import Span, Timeline, timeline

PREPARED_MS = 0.5  # by Python, for each step
_COLOURS = {"prepares": "orange", "works": "green", "waits": "", "idle": ""}
_STEPS = 3


def lanes() -> Timeline:
    """Three steps with a wait after each, and without."""
    loop, prepared = recorded("host_device_syncs/on_gpu", machine="nvidia-h200"), PREPARED_MS / 1e3
    waits, once = (loop[PREPARED_MS][way].median_s for way in ("a read in each step", "one read at the end"))
    first = (waits - once) / 19  # until the GPU has work: of twenty steps, nineteen more wait
    waiting, work = waits / 20, waits / 20 - first
    panels = {
        f"Python waits in each step: {1e3 * waiting:.2f} ms a step": {
            "Python": _row(("prepares", prepared), ("waits", waiting - prepared)),
            "GPU": _row(("idle", first), ("works", work)),
        },
        f"Python never waits: {1e3 * work:.2f} ms a step": {
            "Python": _row(("prepares", first)),
            "GPU": [Span(0, first, "idle"), *_row(("works", work), begin=first)],
        },
    }
    says = f"A wait makes the step {1e3 * first:.3f} ms longer: Python prepares {PREPARED_MS} ms for it."
    alt = "With a wait, the GPU stands idle while Python prepares. Without, Python prepares while the GPU works."
    return timeline(says, panels, _COLOURS, alt, legend=True, **loop.stamp("three steps, to scale"))


def _row(*parts: tuple[str, float], begin: float = 0.0) -> list[Span]:
    spans = []
    for what, length in parts * _STEPS:
        spans.append(Span(begin, begin := begin + length, what, what))
    return spans
