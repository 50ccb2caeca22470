"""Timelines: who does what when, as lanes. Schematic: lengths are drawn, not measured."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from course_utils.show.canvas import WIDTH_IN, ResultFigure
from course_utils.show.colours import AMBER, GREY_22, GREY_DD, ORANGE, ORANGE_INK, SKY

_PYTHON, _DEVICE, _CLOCK, _WAIT = SKY, AMBER, ORANGE, GREY_DD
_LAUNCH, _KERNEL, _CALLS = 1.0, 3.0, 3


def launch_timeline() -> ResultFigure:
    """Three asynchronous calls on two lanes, timed without waiting and with waiting.

    Returns:
        A figure. It has no scale: it shows the order of events.

    Example:
        >>> launch_timeline().alt.startswith("Two timelines")
        True
    """
    figure = ResultFigure(figsize=(WIDTH_IN, 3.7), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True)
    figure.subplots_adjust(left=0.11, right=0.985, top=0.92, bottom=0.1, hspace=0.42)
    _calls(top, "Without waiting: the clock stops when the last call is queued", waits=False)
    _calls(bottom, "With waiting: the clock stops when the work is done", waits=True)
    bottom.set_xlabel("time (schematic, no scale)", fontsize=10, color=GREY_22)
    figure.alt = (
        "Two timelines of the same three calls. Python queues each call in a short time and the device works through "
        "the queue in a long time. Without waiting, the clock stops after the third call is queued, while the device "
        "still has most of the work before it. With waiting, the clock stops when the device is done."
    )
    return figure


def _calls(axes: Axes, title: str, waits: bool) -> None:
    end_of_launches = _LAUNCH * _CALLS
    end_of_work = _LAUNCH + _KERNEL * _CALLS
    for call in range(_CALLS):
        _bar(axes, 1, _LAUNCH * call, _LAUNCH, _PYTHON, f"call {call + 1}")
        _bar(axes, 0, _LAUNCH + _KERNEL * call, _KERNEL, _DEVICE, f"work of call {call + 1}")
    if waits:
        _bar(axes, 1, end_of_launches, end_of_work - end_of_launches, _WAIT, "synchronise: Python waits")
    stop = end_of_work if waits else end_of_launches
    for moment in (0, stop):
        axes.plot([moment, moment], [-0.5, 1.75], color=_CLOCK, linewidth=2, clip_on=False, zorder=0)
    axes.annotate(
        "", (stop, 1.68), (0, 1.68), arrowprops={"arrowstyle": "<->", "color": _CLOCK, "shrinkA": 0, "shrinkB": 0}
    )
    axes.text(stop + 0.12, 1.6, "what you time", color=ORANGE_INK, fontsize=10, va="center", clip_on=False)
    axes.set_title(title, loc="left", fontsize=10.5, color=GREY_22, pad=9)
    axes.set_yticks([1, 0], ["Python", "device"], fontsize=10.5, color=GREY_22)
    axes.set_xticks([])
    axes.set_xlim(-0.15, end_of_work + 2.7)
    axes.set_ylim(-0.5, 1.75)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _bar(axes: Axes, lane: int, start: float, length: float, colour: str, label: str) -> None:
    axes.barh(lane, length, left=start, height=0.62, color=colour, edgecolor="white", linewidth=1.5)
    axes.text(start + length / 2, lane, label, ha="center", va="center", fontsize=9.5, color=GREY_22)
