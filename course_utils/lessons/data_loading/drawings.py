"""Drawing of lesson 05: what the training process and its workers do in three loops."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import NOTE, ORANGE, Pen

GREEN = "#00664B"
# The lesson's example, in milliseconds.
LOAD, STEP = 15, 10
_SHOWN = 120

_Bars = list[tuple[str, float, float]]  # what, its start, its end


def steps_that_wait() -> ResultFigure:
    """Draw a loop without a worker, with one and with two: worked out from the example's times, not recorded."""
    width, height = 8.0, 3.75
    pen = Pen(width, height)
    left, lane_h, pitch = 1.33, 0.25, 0.31
    unit = (width - left - 0.15) / _SHOWN
    colours = {"step": GREEN, "load": ORANGE, "wait": NOTE}
    titles = (
        "No worker: load, then step. 25 ms a step",
        "1 worker loads beside the steps, and is late. 15 ms a step",
        "2 workers keep up: only the first batch is waited for. 10 ms a step",
    )
    for workers, (title, top) in enumerate(zip(titles, (3.6, 2.72, 1.53), strict=True)):
        pen.write(0.12, top, title, "black", 10, style="italic")
        for lane, (name, bars) in enumerate(_timeline(workers).items()):
            y = top - 0.46 - lane * pitch
            pen.write(0.12, y + lane_h / 2, name, size=9)
            pen.area(left, y, _SHOWN * unit, lane_h, 0.02)
            for what, start, end in bars:
                end = min(end, _SHOWN)
                pen.area(left + start * unit + 0.015, y, (end - start) * unit - 0.03, lane_h, 0.04, fc=colours[what])
                if (end - start) * unit > 0.3:
                    middle = left + (start + end) / 2 * unit
                    pen.write(middle, y + lane_h / 2, what, "white", 9, ha="center")
    pen.axis((left, 0.27), (width - 0.15, 0.27), lw=1)
    pen.write(width - 0.15, 0.12, f"time, {_SHOWN} ms (worked out from the example, not recorded)", NOTE, 9, ha="right")
    return pen.described(
        "Three loops whose batch takes 15 ms to load and 10 ms to work on, worked out. Without a worker the training "
        "process loads and works in turn, 25 ms a step. With one worker it works while the worker loads the next "
        "batch, and waits 5 ms in each step: 15 ms. With two workers it waits for the first batch alone, and a step "
        "takes 10 ms; the workers pause now and then, since they are two batches ahead each."
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
