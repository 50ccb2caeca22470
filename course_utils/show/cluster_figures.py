"""Memory per rank as stacked bars, and what was measured beside what was simulated."""

from __future__ import annotations

import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.records.kinds.cluster_check import ClusterCheck
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan
from course_utils.records.kinds.table import Table
from course_utils.show.canvas import ResultFigure, styled
from course_utils.show.formats import format_bytes, format_count
from course_utils.show.table_figures import axis_unit, table_figure

# More measured points than this are drawn as one for each strategy and number of ranks.
_MOST_BARS = 12


@styled
def plan_figure(plan: ClusterPlan, *, memory_bytes: int | None, ax: Axes | None) -> Figure:
    """Draw the peaks; see `ClusterPlan.plot`."""
    if memory_bytes is not None and memory_bytes <= 0:
        raise ValueError(f"memory_bytes is the memory of one device, got {memory_bytes}")
    points = sorted(plan.points, key=lambda point: point.ranks)
    table = Table(
        columns=("", *CLUSTER_PARTS),
        rows=tuple((point.label, *(point.at_peak[part] for part in CLUSTER_PARTS)) for point in points),
        units=dict.fromkeys(CLUSTER_PARTS, "bytes"),
        environment=plan.environment,
    )
    fig = table_figure(table, CLUSTER_PARTS, stacked=True, ax=ax)
    panel = ax if ax is not None else fig.axes[0]
    panel.set_xlabel(panel.get_xlabel().replace("memory", "memory at the peak"))
    for row, (one, next_one) in enumerate(itertools.pairwise(points)):
        if one.ranks != next_one.ranks:
            panel.axhline(row + 0.5, color="#BBBBBB", lw=0.8, zorder=1)
    if memory_bytes is not None:
        scale, _ = axis_unit("bytes", max(point.peak_bytes for point in points))
        at = memory_bytes / scale
        panel.set_xlim(0, max(panel.get_xlim()[1], at * 1.16))
        panel.axvline(at, color="#000000", lw=1.3, ls=(0, (4, 3)), zorder=3)
        panel.set_xlabel(f"{panel.get_xlabel()}; dashed: the {format_bytes(memory_bytes)} of a device")
        for words in panel.texts:  # the line may pass behind a total
            words.set(zorder=4, bbox={"fc": "white", "ec": "none", "pad": 0.8})
    if isinstance(fig, ResultFigure) and ax is None:
        title = f"{plan.name or 'memory per rank'}: GPT of {format_count(plan.shape.parameters)} parameters, simulated"
        fig.texts[0].set_text(title)
        fits = ""
        if memory_bytes is not None:
            held = [point.label for point in points if point.peak_bytes <= memory_bytes]
            fits = f" A device has {format_bytes(memory_bytes)}: {'; '.join(held) or 'none'} fit."
        fig.alt = f"{title}.{fits} {fig.alt}"
    return fig


@styled
def check_figure(check: ClusterCheck, *, ax: Axes | None) -> Figure:
    """Draw measured and simulated peaks; see `ClusterCheck.plot`."""
    points = [point for point in check.points if "peak" in point.measured]
    if not points:
        raise ValueError("no peak was measured: there is nothing to draw; look at the table")
    if len(points) > _MOST_BARS:
        worst: dict[tuple[str, int], int] = {}
        for number, point in enumerate(points):
            key = (point.strategy, point.ranks)
            if key not in worst or point.deviation > points[worst[key]].deviation:
                worst[key] = number
        points = [points[number] for number in worst.values()]
    labels = [f"{point.strategy}, {point.ranks} ranks, {point.setting}" for point in points]
    rows = tuple(
        (label if labels.count(label) == 1 else f"{label} ({number})", p.measured["peak"], p.simulated["peak"])
        for number, (label, p) in enumerate(zip(labels, points, strict=True), 1)
    )
    table = Table(
        columns=("", "measured peak", "simulated peak"),
        rows=rows,
        units={"measured peak": "bytes", "simulated peak": "bytes"},
        environment=check.environment,
        name=check.name,
    )
    return table_figure(table, ("measured peak", "simulated peak"), stacked=False, ax=ax)
