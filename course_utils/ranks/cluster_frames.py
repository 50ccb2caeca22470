"""Memory per rank to play with: plans that were computed ahead."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint
from course_utils.show.formats import format_bytes, format_count
from course_utils.show.viewer import StoredView, field, stored_view, table_html

GIB = 2**30
_MEMORIES_GIB = (0, 16, 24, 40, 80, 141)
_CAPTION = "Each part at the peak: the most that all took at one time"
_HEADS = ("", *CLUSTER_PARTS, "peak", "at its peak", "the prediction is")
_PICTURE = "A bar for each row: what the memory of the fullest rank is made of at its peak. The table has the numbers."


def _row(point: ClusterPoint, trust: str) -> dict[str, Any]:
    """One bar, and its line of the table. In a view there are all strategies, or all numbers of ranks."""
    sizes = [point.at_peak[part] for part in CLUSTER_PARTS]
    many = "" if point.ranks == 1 else "s"
    return {
        "label": point.label,
        "views": [f"every strategy on {point.ranks} rank{many}", f"{point.strategy} on every number of ranks"],
        "bars": sizes,
        "titles": [f"{part}: {format_bytes(size)}" for part, size in zip(CLUSTER_PARTS, sizes, strict=True)],
        "total": sum(sizes),
        "peak": format_bytes(point.peak_bytes),
        "cells": [*map(format_bytes, (*sizes, point.peak_bytes)), point.peak_phase, trust],
    }


def _differences(plans: Sequence[ClusterPlan]) -> list[dict[str, str]]:
    """Of each plan the settings in which the plans differ."""
    settings = [
        {
            "model": f"{format_count(plan.shape.parameters)} parameters",
            "sequences on a rank": str(plan.parameters["batch"]),
            "tokens in a sequence": str(plan.parameters["length"]),
            "precision": plan.parameters["precision"],
            "checkpointing": "yes" if plan.parameters["checkpointing"] else "no",
            "AdamW": plan.parameters["optimizer"],
            "gradients are views of buckets": "yes" if plan.parameters["gradient_as_bucket_view"] else "no",
            "backend": plan.parameters["backend"],
        }
        for plan in plans
    ]
    different = [key for key in settings[0] if len({setting[key] for setting in settings}) > 1]
    return [{key: setting[key] for key in different} for setting in settings]


def cluster_frames(plans: Sequence[ClusterPlan], *, memory_bytes: int = 80 * GIB) -> StoredView:
    """Show plans that were computed ahead in a page without a kernel, such as the book. All it needs is in the page.

    A list to choose from appears for each setting in which the plans differ (model, batch, length, precision...), and
    one for strategies and ranks. Where scripts are not allowed, such as on GitHub, the first plan's first number of
    ranks remains. ``memory_bytes`` of a device are drawn as a line at first, in whole GiB; 0 for none.
    """
    settings = _differences(plans)
    if len({tuple(setting.values()) for setting in settings}) < len(plans):
        raise ValueError("two of the plans have the same settings: put their ranks and strategies into one plan")
    states = [{"when": setting, **_state_of(plan)} for plan, setting in zip(plans, settings, strict=True)]
    by_size = sorted(zip(plans, settings, strict=True), key=lambda pair: pair[0].shape.parameters)
    form = [field(key, key, dict.fromkeys(setting[key] for _, setting in by_size)) for key in settings[0]]
    # First the strategies on so many ranks, then each strategy on every number of them.
    rows = [row for state in states for row in state["rows"]]
    views = list(dict.fromkeys([row["views"][0] for row in rows] + [row["views"][1] for row in rows]))
    sizes_gib = sorted({*_MEMORIES_GIB, memory_bytes // GIB})
    memories = [(f"{size} GiB" if size else "none", size * GIB) for size in sizes_gib]
    form += [field("bars", "bars", views), field("memory", "memory of a device", memories)]
    chosen = {**settings[0], "bars": views[0], "memory": memory_bytes // GIB * GIB}
    page = stored_view("cluster", states, _without_scripts(states[0], chosen["memory"]), form, **chosen)
    words = ("; ".join(f"{key}: {value}" for key, value in setting.items()) for setting in settings)
    return StoredView("\n\n".join(f"{word}\n{plan!r}".lstrip() for word, plan in zip(words, plans, strict=True)), page)


def _state_of(plan: ClusterPlan) -> dict[str, Any]:
    rows = [_row(point, plan.trust(point)) for point in plan.points]
    notes = ["Simulated, on the rank that holds most.", *plan.notes, plan.caption]
    fixed = {"words": _PICTURE, "parts": CLUSTER_PARTS, "caption": _CAPTION, "heads": _HEADS}
    return {**fixed, "rows": rows, "notes": notes}


def _without_scripts(state: dict[str, Any], memory_bytes: int) -> str:
    """The first number of ranks, and what of it does not fit."""
    rows = [row for row in state["rows"] if row["views"][0] == state["rows"][0]["views"][0]]
    table = table_html(_CAPTION, _HEADS, [(row["label"], *row["cells"]) for row in rows])
    larger = [row["label"] for row in rows if 0 < memory_bytes < row["total"]]
    words = [f"Does not fit into {format_bytes(memory_bytes)}: {'; '.join(larger)}."] if larger else []
    return f"{table}\n<p>{html.escape(' '.join([*words, *state['notes']]))}</p>"
