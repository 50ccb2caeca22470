"""The form that shows simulated clusters, computed ahead."""

from __future__ import annotations

import dataclasses

import pytest

from course_utils.ranks.cluster_frames import GIB, cluster_frames
from course_utils.records.kinds.cluster_plan import ClusterPlan
from tests.example_results import plan_of
from tests.html_checks import content_of


def planned(**parameters: object) -> ClusterPlan:
    settings = {"batch": 1, "length": 2048, "precision": "bf16", "checkpointing": False, "optimizer": "foreach"}
    plan = plan_of()
    settings |= {"gradient_as_bucket_view": True, "backend": "nccl", **plan.parameters, **parameters}
    return dataclasses.replace(plan, parameters=settings)


# The figures


def test_the_figure_draws_the_peak() -> None:
    plan = planned()
    figure = plan.plot()
    (panel,) = figure.axes
    lengths: dict[float, float] = {}
    for bar in panel.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        lengths[row] = lengths.get(row, 0) + bar.get_width()
    points = sorted(plan.points, key=lambda point: point.ranks)
    assert list(lengths.values()) == pytest.approx([point.peak_bytes / GIB for point in points])


# The explorer; what a browser makes of it is in tests/show/test_viewer.py


def test_frames_hold_every_plan() -> None:
    plans = [planned(layers=48), planned()]
    frames = cluster_frames(plans)
    first, second = repr(frames).split("\n\nmodel: ")
    assert (first.partition("\n")[2], second.partition("\n")[2]) == (repr(plans[0]), repr(plans[1]))
    assert first.startswith("model: ")
    content = content_of(frames._repr_html_())
    model, bars, memory = content["form"]
    # Models are offered by size, and the first plan is shown first.
    assert [words for words, _ in model["options"]] == [state["when"]["model"] for state in reversed(content["states"])]
    assert content["chosen"] == {**content["states"][0]["when"], "bars": bars["options"][0][1], "memory": 80 * GIB}
    assert [memory["options"][4][1], memory["options"][0][1]] == [80 * GIB, 0]
    for state, plan in zip(content["states"], plans, strict=True):
        assert [row["total"] for row in state["rows"]] == [sum(point.at_peak.values()) for point in plan.points]
        assert state["rows"][0]["cells"][-1] == plan.trust(plan.points[0])


def test_plans_with_the_same_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="same settings"):
        cluster_frames([planned(), planned()])
