"""What can be wrong with a figure whatever it shows: texts that are cut off, too small, or on top of each other."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text


def visible_texts(fig: Figure) -> list[tuple[Text, Any]]:
    """Every visible, non-empty text of a figure with its box in pixels."""
    fig.canvas.draw()
    renderer = fig.canvas.get_renderer()
    found = []
    for item in fig.findobj(Text):
        if item.get_visible() and item.get_text().strip():
            box = item.get_window_extent(renderer)
            if box.width > 1:
                found.append((item, box))
    return found


def _drawn_tick_labels(fig: Figure) -> set[int]:
    drawn = []
    for ax in fig.axes:
        if not ax.axison:
            continue
        for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            low, high = min(low, high), max(low, high)
            for tick in axis.get_major_ticks():
                if low <= tick.get_loc() <= high:
                    drawn += [tick.label1]
    return set(map(id, drawn))


def problems_of_texts(fig: Figure, smallest: float = 9) -> list[str]:
    """What a reader would stumble over, in words. Tick labels that lie outside of their axes do not count."""
    texts = visible_texts(fig)  # draws, and only then are the ticks known
    ticks = _drawn_tick_labels(fig)
    tick_labels = {id(label) for ax in fig.axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels())}
    texts = [(item, box) for item, box in texts if id(item) not in tick_labels or id(item) in ticks]
    width, height = fig.get_size_inches() * fig.dpi
    problems = []
    for item, box in texts:
        if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1:
            problems.append(f"{item.get_text()!r} leaves the figure")
        if item.get_fontsize() < smallest:
            problems.append(f"{item.get_text()!r} is too small")
    for i, (one, a) in enumerate(texts):
        for other, b in texts[i + 1 :]:
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            along = min(a.y1, b.y1) - max(a.y0, b.y0)
            if across > 1 and along > 1:
                problems.append(f"{one.get_text()!r} overlaps {other.get_text()!r}")
    return problems
