"""The forms that show simulated clusters: in JupyterLab, simulated live, and in the book, computed ahead."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from course_utils.ranks import cluster
from course_utils.ranks import cluster_explorer as module
from course_utils.ranks.cluster_explorer import GIB, SHAPES, cluster_explorer, cluster_frames
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint, GPTShape
from course_utils.records.unrecorded import Unrecorded
from course_utils.show.formats import format_count
from tests.example_results import CPU, plan_of
from tests.html_checks import Parsed

SHAPE = GPTShape(64, 2, 2, 128, 32)


def planned(**parameters: object) -> ClusterPlan:
    settings = {"batch": 1, "length": 2048, "precision": "bf16", "checkpointing": False, "optimizer": "foreach"}
    plan = plan_of()
    settings |= {"gradient_as_bucket_view": True, "backend": "nccl", **plan.parameters, **parameters}
    return dataclasses.replace(plan, parameters=settings)


# The figures


def test_the_figure_draws_the_peak_and_the_devices_memory() -> None:
    plan = planned()
    figure = plan.plot(memory_bytes=80 * GIB)
    (panel,) = figure.axes
    lengths: dict[float, float] = {}
    for bar in panel.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        lengths[row] = lengths.get(row, 0) + bar.get_width()
    points = sorted(plan.points, key=lambda point: point.ranks)
    assert list(lengths.values()) == pytest.approx([point.peak_bytes / GIB for point in points])
    assert any(list(line.get_xdata()) == [80, 80] for line in panel.lines)
    assert "80.0 GiB" in panel.get_xlabel()
    assert "80.0 GiB: zero1, 2 ranks" in figure.alt
    with pytest.raises(ValueError, match="memory of one device"):
        plan.plot(memory_bytes=0)


def test_a_large_device_is_still_in_the_figure() -> None:
    (panel,) = planned().plot(memory_bytes=500 * GIB).axes
    assert panel.get_xlim()[1] > 500


# The book


def test_frames_are_self_contained_and_have_fixed_ids() -> None:
    shown = cluster_frames([planned(), planned(batch=4)], name="demo")._repr_html_()
    parsed = Parsed(shown)
    assert parsed.outside == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert all(identity == "cluster-demo" or identity.startswith("cluster-demo-") for identity in parsed.ids)
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")
    assert cluster_frames([planned(), planned(batch=4)], name="demo")._repr_html_() == shown
    assert not re.search("@[A-Z]", shown)
    assert len(shown) < 60_000


def test_without_scripts_the_first_ranks_remain() -> None:
    shown = cluster_frames(planned())._repr_html_()
    static = shown.partition("<script>")[0]
    assert static.count('<tr><th scope="row">') == 3
    assert "ddp, 2 ranks" in static
    assert "108 GiB, does not fit" in static
    assert "not validated beyond 2 ranks" not in static  # zero1 was measured on 2
    assert "within 2.0% of 1 measured point" in static
    assert "hidden>" in static
    assert "<b>" not in static


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cluster_frames([]), "needs a plan"),
        (lambda: cluster_frames(planned(), name="A b"), "small letters"),
        (lambda: cluster_frames(planned(), memory_bytes=-1), "memory of one device"),
        (lambda: cluster_frames([planned(), planned()])._repr_html_(), "same settings"),
    ],
)
def test_errors_say_what_is_wrong(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_first_plan_is_shown_first_and_models_are_offered_by_size() -> None:
    larger = planned(layers=48)
    shown = cluster_frames([larger, planned()])._repr_html_()
    options = re.findall(r"<option[^>]*>[^<]* parameters</option>", shown)
    assert len(options) == 2
    assert [" selected" in option for option in options] == [False, True]
    assert f">{format_count(larger.shape.parameters)} parameters<" in options[1]


def test_plans_that_are_not_recorded_say_so() -> None:
    missing = Unrecorded("fsdp/seven_billion")
    assert cluster_frames(missing) is missing
    assert cluster_frames([planned(), missing], name="demo") is missing


@pytest.mark.browser
def test_the_books_form_works_from_a_file(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    plans = [planned(), planned(batch=4), planned(checkpointing=True)]
    first, second = (cluster_frames(plans, name=name)._repr_html_() for name in ("one", "two"))
    page_file = tmp_path / "page.html"
    page_file.write_text(f"<!doctype html><meta charset=utf-8>{first}{second}", encoding="utf-8")
    still_file = tmp_path / "still.html"
    still_file.write_text(f"<!doctype html><meta charset=utf-8>{first.partition('<script>')[0]}", encoding="utf-8")
    drawing = "document.querySelectorAll('#cluster-one-svg > g')[1].innerHTML"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(still_file.as_uri())
        by_python = page.evaluate(drawing)
        page.goto(page_file.as_uri())
        assert page.evaluate(drawing) == by_python
        page.select_option("#cluster-one-bars", label="fsdp_root on every number of ranks")
        assert page.locator("#cluster-one-rows th").all_text_contents() == [
            "fsdp_root, 2 ranks",
            "fsdp_root, 8 ranks",
            "fsdp_root, 1024 ranks",
        ]
        assert "does not fit" not in page.text_content("#cluster-one-svg")
        page.select_option("#cluster-one-memory", label="16 GiB")
        assert page.text_content("#cluster-one-svg").count("does not fit") == 3
        page.select_option("#cluster-one-setting-0", index=1)
        assert page.is_hidden("#cluster-one-none")
        page.select_option("#cluster-one-setting-1", index=1)
        assert page.is_visible("#cluster-one-none")
        page.select_option("#cluster-one-setting-0", index=0)
        assert page.is_hidden("#cluster-one-none")
        # What was chosen stays, and the other form on the page is not touched.
        assert page.locator("#cluster-one-rows tr").count() == 3
        assert page.locator("#cluster-two-rows th").first.text_content() == "ddp, 2 ranks"
        browser.close()
    assert errors == []


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


def parts_of(box):
    knobs, strategies, message, shown = box.children
    return (
        {knob.description: knob for knob in knobs.children},
        {one.description: one for one in strategies.children},
        message,
        shown,
    )


def wait_for(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    found = Simulated()
    monkeypatch.setattr(cluster, "points_of", found)
    return found


def test_the_explorer_simulates_what_it_does_not_know(simulated: Simulated) -> None:
    knobs, strategies, message, shown = parts_of(cluster_explorer(strategies=["ddp", "fsdp"], ranks=4))
    wait_for(lambda: "to go" not in message.value)
    assert simulated.asked == [("ddp", 4), ("fsdp", 4)]
    assert "fsdp, 4 ranks" in shown.value
    assert "id=" not in shown.value  # a page may hold it twice
    assert set(strategies) == set(cluster.STRATEGIES)
    strategies["zero1"].value = True
    wait_for(lambda: "zero1, 4 ranks" in shown.value)
    assert simulated.asked[2:] == [("zero1", 4)]
    strategies["zero1"].value = False
    knobs["memory of a device"].value = 16 * GIB
    assert "zero1" not in shown.value
    assert "dashed: the 16.0 GiB" in shown.value
    assert len(simulated.asked) == 3
    knobs["sequences on a rank"].value = 4
    wait_for(lambda: shown.value.count("does not fit") == 2)
    for one in strategies.values():
        one.value = False
    assert "at least one" in message.value
    assert shown.value == ""


def test_a_new_choice_ends_what_runs_for_the_old_one(simulated: Simulated) -> None:
    simulated.may_answer.clear()
    knobs, _, message, shown = parts_of(cluster_explorer(strategies=["ddp", "zero1", "fsdp"], ranks=4))
    wait_for(lambda: simulated.asked == [("ddp", 4)])
    assert "3 to go" in message.value
    for ranks in (16, 2, 64, 8):  # as fast as somebody clicks
        knobs["ranks"].value = ranks
    wait_for(lambda: ("ddp", 8) in simulated.asked)
    simulated.may_answer.set()
    wait_for(lambda: "to go" not in message.value)
    wait_for(lambda: simulated.running == 0)
    assert simulated.most_running == 1
    assert ("zero1", 4) not in simulated.asked
    assert "not validated" in shown.value
    assert "fsdp, 8 ranks" in shown.value
    assert "4 ranks" not in shown.value


def test_a_failure_is_shown_in_words(simulated: Simulated) -> None:
    _, _, message, shown = parts_of(cluster_explorer(strategies=["ddp"], batch=32))
    wait_for(lambda: "ended" in message.value)
    assert "&lt;here&gt;" in message.value
    assert shown.value == ""
    del simulated


def test_the_explorer_begins_with_what_is_given(simulated: Simulated) -> None:
    knobs, _, message, _ = parts_of(cluster_explorer(SHAPE, ranks=3, batch=5, length=32))
    assert knobs["parameters"].value.endswith("as given")
    assert (knobs["ranks"].value, knobs["sequences on a rank"].value, knobs["tokens in a sequence"].value) == (3, 5, 32)
    wait_for(lambda: "to go" not in message.value)
    assert len(simulated.asked) == 4
    for wrong, words in (
        ({"shape": "7B"}, "there is no model '7B'"),
        ({"ranks": 0}, "ranks is a whole number"),
        ({"strategies": ["zero9"]}, "no strategy 'zero9'"),
    ):
        with pytest.raises(ValueError, match=words):
            cluster_explorer(**wrong)


def test_every_offered_model_and_length_can_be_asked() -> None:
    for name, shape in SHAPES.items():
        assert float(name.split()[0]) == pytest.approx(shape.parameters / 1e9, rel=0.05)
        assert cluster.settings_of(shape, strategies=list(cluster.STRATEGIES), ranks=1024, batch=32)
    assert module.__doc__
    assert CPU.device_kind == "cpu"
