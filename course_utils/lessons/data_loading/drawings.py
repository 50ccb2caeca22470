"""Drawing of the lesson: what the training process and its workers do in three loops."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.lanes import Span, lanes_figure
from course_utils.show.shapes import NOTE, ORANGE

# The lesson's example, in milliseconds.
LOAD, STEP = 15, 10
_SHOWN = 120
_COLOURS = {"load": ORANGE, "step": "#00664B", "wait": NOTE}

_Bars = list[tuple[str, float, float]]  # what, its start, its end


def steps_that_wait() -> ResultFigure:
    """Draw a loop without a worker, with one and with two: worked out from the example's times, not recorded."""
    titles = (
        "No worker: load, then step. 25 ms a step",
        "1 worker loads beside the steps, and is late. 15 ms a step",
        "2 workers keep up: only the first batch is waited for. 10 ms a step",
    )
    panels = {
        title: {
            lane: [Span(start / 1e3, min(end, _SHOWN) / 1e3, what, what) for what, start, end in bars]
            for lane, bars in _timeline(workers).items()
        }
        for workers, title in enumerate(titles)
    }
    return lanes_figure(
        "",
        panels,
        _COLOURS,
        "Three loops whose batch takes 15 ms to load and 10 ms to work on, worked out. Without a worker the training "
        "process loads and works in turn, 25 ms a step. With one worker it works while the worker loads the next "
        "batch, and waits 5 ms in each step: 15 ms. With two workers it waits for the first batch alone, and a step "
        "takes 10 ms; the workers pause now and then, since they are two batches ahead each.",
        "Worked out from the example, not recorded.",
    )


def _timeline(workers: int, load: float = LOAD, step: float = STEP, shown: float = _SHOWN) -> dict[str, _Bars]:
    """What each process does until ``shown``; batches go to the workers in turn, each two ahead, as in PyTorch.

    Example:
        >>> _timeline(1, shown=40)["training"]
        [('wait', 0, 15), ('step', 15, 25), ('wait', 25, 30), ('step', 30, 40)]
    """
    training: _Bars = []
    lanes: dict[str, _Bars] = {f"worker {number}": [] for number in range(workers)}
    free, taken, now = [0] * workers, [], 0
    while now < shown:
        batch = len(taken)
        if workers:
            worker = batch % workers
            asked = taken[batch - 2 * workers] if batch >= 2 * workers else 0
            begun = max(asked, free[worker])
            free[worker] = ready = begun + load
            lanes[f"worker {worker}"] += [("load", begun, ready)] if begun < shown else []
            training += [("wait", now, ready)] if ready > now else []
        else:
            ready = now + load
            training.append(("load", now, ready))
        taken.append(max(now, ready))
        now = taken[-1] + step
        training += [("step", taken[-1], now)] if taken[-1] < shown else []
    # Batches that are under way when the last one shown is taken.
    for batch in range(len(taken), len(taken) + 2 * workers):
        worker = batch % workers
        begun = max(taken[batch - 2 * workers] if batch >= 2 * workers else 0, free[worker])
        free[worker] = begun + load
        lanes[f"worker {worker}"] += [("load", begun, free[worker])] if begun < shown else []
    return {"training": training, **lanes}
