"""What the lesson draws: a wait in each step, as long as the H200 recorded it."""

from __future__ import annotations

from course_utils import recorded
from course_utils.show.timeline import Span, Timeline, timeline

PREPARED_MS = 0.5  # by Python, for each step
_COLOURS = {"prepares": "orange", "queues": "ochre", "works": "green", "waits": "grey", "idle": ""}


def lanes() -> Timeline:
    """Three steps with a wait after each, and without."""
    loop, prepared = recorded("host_device_syncs/on_gpu", machine="nvidia-h200"), PREPARED_MS / 1e3
    waits, once = (loop[PREPARED_MS][way].median_s for way in ("a read in each step", "one read at the end"))
    first = (waits - once) / 19  # until the GPU has work: of twenty steps, nineteen more wait
    waiting, work = waits / 20, waits / 20 - first
    queued = loop[2]["one read at the end"].median_s / 20 - 0.002 - loop[0]["one read at the end"].median_s / 400
    busy = ("prepares", prepared), ("queues", queued)  # the GPU begins with the first kernel
    panels = {
        f"Python waits in each step: {1e3 * waiting:.2f} ms a step": {
            "Python": _row(*busy, ("waits", waiting - prepared - queued)),
            "GPU": _row(("idle", first), ("works", work)),
        },
        f"Python never waits: {1e3 * work:.2f} ms a step": {
            "Python": _row(*busy),
            "GPU": [Span(0, first, "idle"), *_row(("works", work), begin=first)],
        },
    }
    says = f"A wait makes the step {1e3 * first:.3f} ms longer: Python prepares {PREPARED_MS} ms, and queues."
    alt = "With a wait, the GPU stands idle while Python prepares. Without, Python prepares while the GPU works."
    return timeline(says, panels, _COLOURS, alt, legend=True, **loop.stamp("three steps, to scale"))


def _row(*parts: tuple[str, float], begin: float = 0.0) -> list[Span]:
    spans = []
    for what, length in parts * 3:  # steps
        spans.append(Span(begin, begin := begin + length, what, what))
    return spans
