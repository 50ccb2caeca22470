"""The forms that show simulated clusters: in JupyterLab, simulated live, and in the book, computed ahead."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from course_utils.ranks import cluster
from course_utils.ranks import cluster_explorer as module
from course_utils.ranks.cluster_explorer import GIB, cluster_explorer, cluster_frames
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint, GPTShape
from course_utils.show.viewer import Viewer
from tests.example_results import plan_of
from tests.html_checks import content_of

SHAPE = GPTShape(64, 2, 2, 128, 32)


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


# The explorers; what a browser makes of them is in tests/show/test_viewer.py


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cluster_frames([planned(), planned()]), "same settings"),
        (lambda: cluster_explorer("7B"), "there is no model '7B'"),
        (lambda: cluster_explorer(ranks=0), "ranks is a whole number"),
        (lambda: cluster_explorer(strategies=["zero9"]), "no strategy 'zero9'"),
    ],
)
def test_errors_say_what_is_wrong(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# JupyterLab


class Simulated:
    """In place of the simulation: notes what it is asked, and waits until it may answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.running = self.most_running = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, points, wanted):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for point in points:
                self.asked.append((point["strategy"], point["ranks"]))
                wait_for(lambda: self.may_answer.is_set() or not wanted())
                if not wanted():
                    return
                if point["batch"] == 32:
                    raise cluster.ClusterError("the simulation ended <here>")
                size = GIB * point["batch"]
                sizes = dict.fromkeys(CLUSTER_PARTS, size)
                yield (
                    ClusterPoint(point["strategy"], point["ranks"], *[size] * 5, 5 * size, sizes, "backward"),
                    "not validated",
                )
        finally:
            self.running -= 1


def wait_for(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    simulation = Simulated()
    monkeypatch.setattr(module, "points_of", simulation)
    return simulation


def labels(viewer: Viewer) -> list[str]:
    return [row["label"] for row in viewer.state["rows"]]


def choose(viewer: Viewer, **values: object) -> None:
    viewer.chosen = {**viewer.chosen, **values}


def test_what_was_computed_ahead_is_there_at_once(simulated: Simulated) -> None:
    viewer = cluster_explorer("6.6 billion", ranks=64)
    assert labels(viewer) == ["ddp, 64 ranks", "zero1, 64 ranks", "zero2, 64 ranks", "fsdp, 64 ranks"]
    choose(viewer, model="1.3 billion", ranks=1024, checkpointing=True)
    assert len(labels(viewer)) == 4
    assert (viewer.message, simulated.asked) == ("", [])


def test_the_explorer_simulates_what_it_does_not_know(simulated: Simulated) -> None:
    viewer = cluster_explorer(strategies=["ddp", "fsdp"], ranks=4)
    wait_for(lambda: "to go" not in viewer.message)
    assert simulated.asked == [("ddp", 4), ("fsdp", 4)]
    assert labels(viewer) == ["ddp, 4 ranks", "fsdp, 4 ranks"]
    choose(viewer, zero1=True)
    wait_for(lambda: "zero1, 4 ranks" in labels(viewer))
    assert simulated.asked[2:] == [("zero1", 4)]
    choose(viewer, zero1=False, memory=16 * GIB)
    assert "zero1, 4 ranks" not in labels(viewer)
    assert len(simulated.asked) == 3
    choose(viewer, **dict.fromkeys(cluster.STRATEGIES, False))
    assert "at least one" in viewer.message
    assert labels(viewer) == []


def test_a_new_choice_ends_what_runs_for_the_old_one(simulated: Simulated) -> None:
    simulated.may_answer.clear()
    viewer = cluster_explorer(strategies=["ddp", "zero1", "fsdp"], ranks=4)
    wait_for(lambda: simulated.asked == [("ddp", 4)])
    assert viewer.message == "simulating, 3 to go …"
    for ranks in (16, 2, 64, 128):  # as fast as somebody clicks
        choose(viewer, ranks=ranks)
    wait_for(lambda: ("ddp", 128) in simulated.asked)
    simulated.may_answer.set()
    wait_for(lambda: "to go" not in viewer.message)
    wait_for(lambda: simulated.running == 0)
    assert simulated.most_running == 1
    assert ("zero1", 4) not in simulated.asked
    assert labels(viewer) == ["ddp, 128 ranks", "zero1, 128 ranks", "fsdp, 128 ranks"]
    assert viewer.state["rows"][0]["cells"][-1] == "not validated"


@pytest.mark.usefixtures("simulated")
def test_a_failure_is_shown_in_words() -> None:
    viewer = cluster_explorer(strategies=["ddp"], batch=32)
    wait_for(lambda: "ended" in viewer.message)
    assert viewer.message == "the simulation ended <here>"
    assert labels(viewer) == []
