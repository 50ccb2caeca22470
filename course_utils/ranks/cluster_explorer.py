"""Memory per rank to play with: simulated live in JupyterLab, and over plans that were computed ahead in the book."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from course_utils.ranks.cluster import NOTES, STRATEGIES, points_of, settings_of, stored_plans
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint, GPTShape
from course_utils.records.store import RecordError
from course_utils.show.formats import format_bytes, format_count
from course_utils.show.viewer import StoredView, Viewer, field, stored_view, table_html

GIB = 2**30
_MEMORIES_GIB = (0, 16, 24, 40, 80, 141)
_CAPTION = "Each part at its own largest; the peak is the most at one time"
_HEADS = ("", *CLUSTER_PARTS, "peak", "at its peak", "the prediction is")
_PICTURE = "A bar for each row: what the memory of the fullest rank is made of at its peak. The table has the numbers."
SHAPES: Mapping[str, GPTShape] = {
    "0.12 billion": GPTShape(width=768, layers=12, heads=12, vocabulary=50257, context=1024),
    "1.3 billion": GPTShape(width=2048, layers=24, heads=16, vocabulary=50257, context=2048),
    "6.6 billion": GPTShape(width=4096, layers=32, heads=32, vocabulary=32000, context=2048),
    "13 billion": GPTShape(width=5120, layers=40, heads=40, vocabulary=32000, context=2048),
    "65 billion": GPTShape(width=8192, layers=80, heads=64, vocabulary=32000, context=2048),
}


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
        "cells": [*(format_bytes(point[part]) for part in (*CLUSTER_PARTS, "peak")), point.peak_phase, trust],
    }


def _state(rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> dict[str, Any]:
    fixed = {"words": _PICTURE, "parts": CLUSTER_PARTS, "caption": _CAPTION, "heads": _HEADS}
    return {**fixed, "rows": rows, "notes": notes}


def _memory_field(*more_gib: int) -> dict[str, Any]:
    sizes = sorted({*_MEMORIES_GIB, *more_gib})
    return field("memory", "memory of a device", [(f"{size} GiB" if size else "none", size * GIB) for size in sizes])


# The book


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
    form += [field("bars", "bars", views), _memory_field(memory_bytes // GIB)]
    chosen = {**settings[0], "bars": views[0], "memory": memory_bytes // GIB * GIB}
    page = stored_view("cluster", states, _without_scripts(states[0], chosen["memory"]), form, **chosen)
    words = ("; ".join(f"{key}: {value}" for key, value in setting.items()) for setting in settings)
    return StoredView("\n\n".join(f"{word}\n{plan!r}".lstrip() for word, plan in zip(words, plans, strict=True)), page)


def _state_of(plan: ClusterPlan) -> dict[str, Any]:
    rows = [_row(point, plan.trust(point)) for point in plan.points]
    return _state(rows, ["Simulated, on the rank that holds most.", *plan.notes, plan.environment.caption])


def _without_scripts(state: dict[str, Any], memory_bytes: int) -> str:
    """The first number of ranks, and what of it does not fit."""
    rows = [row for row in state["rows"] if row["views"][0] == state["rows"][0]["views"][0]]
    table = table_html(_CAPTION, _HEADS, [(row["label"], *row["cells"]) for row in rows])
    larger = [row["label"] for row in rows if 0 < memory_bytes < row["total"]]
    words = [f"Does not fit into {format_bytes(memory_bytes)}: {'; '.join(larger)}."] if larger else []
    return f"{table}\n<p>{html.escape(' '.join([*words, *state['notes']]))}</p>"


# JupyterLab


def cluster_explorer(shape: GPTShape | str = "1.3 billion", **first: Any) -> Viewer:
    """A form for JupyterLab: choose model, strategies, ranks, batch and sequence, and see what a rank needs.

    What the stored plans hold is there at once. The rest is simulated, in a process of its own; a bar appears as soon
    as it is known, and a new choice ends what is still running for the old one.

    Args:
        shape: the model, or a key of ``SHAPES``.
        **first: what is chosen at first: ``ranks``, ``batch``, ``length``, ``strategies``.
    """
    if isinstance(shape, str) and shape not in SHAPES:
        raise ValueError(f"there is no model {shape!r}; there are: {', '.join(SHAPES)}; or pass a GPTShape")
    shapes = dict(SHAPES)
    model = shape if isinstance(shape, str) else f"{format_count(shape.parameters)}, as given"
    if not isinstance(shape, str):
        shapes = {model: shape, **shapes}
    asked = {"ranks": 8, "batch": 1, "length": shapes[model].context, "strategies": ("ddp", "zero1", "zero2", "fsdp")}
    asked |= {key: value for key, value in first.items() if value is not None}
    settings_of(shapes[model], **asked)  # says what is wrong
    chosen = {"model": model, "precision": "bf16", "checkpointing": False, "memory": 80 * GIB}
    strategies = asked.pop("strategies")
    chosen |= {**asked, **{name: name in strategies for name in STRATEGIES}}
    viewer = Viewer(view="cluster", form=_form(shapes, chosen), chosen=chosen)
    _Simulation(viewer, shapes).answer()
    return viewer


def _form(shapes: Mapping[str, GPTShape], chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    def choice(key: str, label: str, values: Sequence[int]) -> dict[str, Any]:
        return field(key, label, sorted({*values, chosen[key]}))

    return [
        field("model", "parameters", shapes),
        choice("ranks", "ranks", [2**n for n in range(11)]),
        choice("batch", "sequences on a rank", (1, 2, 4, 8, 16, 32)),
        choice("length", "tokens in a sequence", (512, 1024, 2048, 4096, 8192)),
        field("precision", "precision", ("bf16", "fp32")),
        field("checkpointing", "checkpointing"),
        _memory_field(),
        *(field(name, name, hint=words) for name, words in STRATEGIES.items()),
    ]


class _Simulation:
    """Answers what is chosen in a form: with what is known at once, with the rest as it comes."""

    def __init__(self, viewer: Viewer, shapes: Mapping[str, GPTShape]) -> None:
        self.viewer = viewer
        self.shapes = shapes
        self.known = _stored_rows()
        self.points: list[dict[str, Any]] = []
        self.drawing = threading.Lock()
        self.simulating = threading.Lock()  # one at a time: each is a process that needs a core
        viewer.observe(self.answer, "chosen")

    def answer(self, _: Any = None) -> None:
        with self.drawing:
            try:
                self.points = self._chosen_points()
            except ValueError as error:
                self.points = []
                self._draw(f"{error}.")
                return
            self._draw()
            if not self._missing(self.points):
                return
            thread = threading.Thread(target=self._simulate, args=(self.points,), daemon=True)
        thread.start()

    def _chosen_points(self) -> list[dict[str, Any]]:
        chosen = self.viewer.chosen
        model = self.shapes[chosen["model"]]
        return settings_of(
            dataclasses.replace(model, context=max(model.context, chosen["length"])),
            strategies=[name for name in STRATEGIES if chosen[name]],
            **{key: chosen[key] for key in ("ranks", "batch", "length", "precision", "checkpointing")},
        )

    def _missing(self, points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [point for point in points if _key(point) not in self.known]

    def _draw(self, message: str = "") -> None:
        missing = self._missing(self.points)
        if missing and not message:
            message = f"simulating, {len(missing)} to go …"
        rows = [self.known[_key(point)] for point in self.points if _key(point) in self.known]
        self.viewer.message = message
        self.viewer.state = _state(rows, NOTES)

    def _simulate(self, points: list[dict[str, Any]]) -> None:
        def wanted() -> bool:
            return self.points == points

        with self.simulating:
            missing = self._missing(points)
            if not missing or not wanted():
                return
            try:
                with contextlib.closing(points_of(missing, wanted)) as simulated:
                    for asked, (point, trust) in zip(missing, simulated, strict=False):
                        self.known[_key(asked)] = _row(point, trust)
                        self._draw_if(wanted)
            except (RuntimeError, OSError, ValueError) as error:  # ValueError: a damaged record of the measured points
                self._draw_if(wanted, str(error))

    def _draw_if(self, wanted: Any, message: str = "") -> None:
        with self.drawing:
            if wanted():
                self._draw(message)


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)


def _stored_rows() -> dict[str, dict[str, Any]]:
    """What was computed ahead; nothing if that is damaged, for it can be simulated."""
    try:
        plans = stored_plans()
    except RecordError:
        return {}
    return {
        _key({**plan.parameters, "strategy": point.strategy, "ranks": point.ranks}): _row(point, plan.trust(point))
        for plan in plans
        for point in plan.points
    }
