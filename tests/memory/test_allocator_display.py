"""The drawings of the simulated allocator, the form for JupyterLab and the frames for the book."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.memory import allocator_explorer as module
from course_utils.memory.allocator import (
    Allocate,
    AllocatorOptions,
    AllocatorRun,
    EmptyCache,
    Event,
    Free,
    RecordStream,
    simulate_allocator,
)
from course_utils.memory.allocator_explorer import MOST_FRAMES, allocator_explorer, allocator_frames
from course_utils.memory.allocator_figures import memory_figure, rows_of, state_figure
from tests.figure_checks import problems_of_texts
from tests.html_checks import Parsed

MIB = 2**20


def growing_requests() -> list[Event]:
    """Two pools, two streams, cached blocks, a block that waits, and a request that only fits after a release."""
    events: list[Event] = []
    for step, size in enumerate((30, 33, 29, 36)):
        events += [Allocate(f"x{step}", size * MIB), Allocate(f"s{step}", 300 * 1024), Free(f"x{step}")]
    events += [Allocate("<b>", 3 * MIB, stream=3), RecordStream("<b>", 7), Free("<b>"), Allocate("last", 90 * MIB)]
    return events


def run_of(options: str = "", cap: int | None = 110) -> AllocatorRun:
    return simulate_allocator(growing_requests(), options=options, cap_bytes=None if cap is None else cap * MIB)


EVERY = ("", "expandable_segments:True", "roundup_power2_divisions:2", "max_split_size_mb:32")
every_run = pytest.mark.parametrize("options", EVERY)


# Figures


@every_run
def test_states_are_drawn_so_that_they_can_be_read(options: str) -> None:
    run = run_of(options)
    for after in (0, 1, 5, len(run) - 1, len(run)):
        figure = state_figure(run.state(after), title=f"After {after} events")
        assert problems_of_texts(figure) == []
        assert figure.alt.endswith(".")
        assert figure.get_size_inches()[0] == 8


def test_a_drawn_state_has_a_box_for_each_block_at_its_place() -> None:
    state = simulate_allocator(
        [Allocate("a", 8 * MIB), Allocate("b", 4 * MIB), Free("a"), Allocate("c", 40 * MIB)]
    ).state(4)
    (panel,) = state_figure(state).axes
    boxes = sorted((patch.get_y(), patch.get_x(), patch.get_width()) for patch in panel.patches)
    assert [(round(y), x, width) for y, x, width in boxes] == [(0, 0, 8), (0, 8, 4), (0, 12, 8), (1, 0, 40)]
    assert [text.get_text() for text in panel.texts] == ["b", "c"]
    colours = {
        patch.get_x(): (patch.get_facecolor(), patch.get_hatch()) for patch in panel.patches if patch.get_y() < 0
    }
    assert colours[0] == colours[12] != colours[8]


def test_pages_of_one_expandable_segment_share_a_row() -> None:
    events = [Allocate(n, 20 * MIB) for n in "abc"] + [Free("b"), EmptyCache()]
    state = simulate_allocator(events, options="expandable_segments:True").state(len(events))
    assert len(state.segments) == 2
    ((label, segments),) = rows_of(state, "large")
    assert label == "expandable, 40.0 MiB"
    assert [offset for offset, _ in segments] == [0, 40 * MIB]
    assert problems_of_texts(state_figure(state)) == []


def test_a_recorded_stream_is_an_address_and_is_shortened() -> None:
    run = simulate_allocator([Allocate("a", 12 * MIB, stream=0x55D0C0A1B2C3)], options="expandable_segments:True")
    assert rows_of(run.state(1), "large")[0][0] == "expandable, stream …b2c3"
    assert problems_of_texts(state_figure(run.state(1))) == []


def test_more_segments_than_fit_are_counted() -> None:
    run = simulate_allocator([Allocate(n, 20 * MIB) for n in range(30)])
    figure = state_figure(run.state(30))
    assert "10 more segments are not drawn" in figure.axes[0].get_xlabel()
    assert problems_of_texts(figure) == []


@every_run
@pytest.mark.parametrize("cap", [None, 110, 95])
def test_memory_is_drawn_so_that_it_can_be_read(options: str, cap: int | None) -> None:
    run = run_of(options, cap)
    figure = run.plot()
    assert problems_of_texts(figure) == []
    assert ("cannot be met" in figure.alt) == (run.out_of_memory is not None)
    (panel,) = figure.axes
    drawn = [list(line.get_ydata()) for line in panel.lines]
    assert [0, *(size / MIB for size in run.reserved_bytes)] in drawn


def test_figures_draw_into_axes_that_are_given() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert memory_figure(run_of(), ax=left) is figure
    assert state_figure(simulate_allocator([Allocate("a", 100)]).state(1), ax=right) is figure
    assert left.lines
    assert right.patches
    with pytest.raises(ValueError, match="both pools are in use"):
        state_figure(run_of().state(2), ax=right)


def test_nothing_at_all_can_be_drawn() -> None:
    run = simulate_allocator([])
    assert problems_of_texts(run.plot()) == []
    assert state_figure(run.state(0)).alt.startswith("0 segments with 0 B")


# The book


def frames(name: str = "test"):
    return allocator_frames({options or "default": run_of(options) for options in EVERY}, name=name)


def test_frames_are_self_contained_and_have_fixed_ids() -> None:
    text = frames()._repr_html_()
    parsed = Parsed(text)
    assert parsed.outside == []
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert len(set(parsed.ids)) == len(parsed.ids) == 11
    assert all(name.startswith("allocator-test") for name in parsed.ids)
    assert len(text) < 200_000
    assert set(parsed.ids).isdisjoint(Parsed(frames("other")._repr_html_()).ids)


def test_frames_are_the_same_in_every_process() -> None:
    code = (
        "from course_utils.memory.allocator import *; "
        "from course_utils.memory.allocator_explorer import allocator_frames; "
        "run = simulate_allocator([Allocate('a', 3 * 2**20), Free('a')]); print(allocator_frames(run)._repr_html_())"
    )
    root = Path(module.__file__).resolve().parents[2]
    said = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, encoding="utf-8"
        ).stdout
        for _ in range(2)
    ]
    run = simulate_allocator([Allocate("a", 3 * MIB), Free("a")])
    assert said[0] == said[1] == allocator_frames(run)._repr_html_() + "\n"


def test_without_scripts_the_last_moment_remains() -> None:
    run = run_of()
    text = re.sub(r"<script>.*?</script>", "", allocator_frames(run)._repr_html_(), flags=re.DOTALL)
    assert 'id="allocator-frames-form" hidden' in text
    assert "last asks for 90 MiB: nothing cached fits." in text
    assert text.count("<rect class=") > 5
    assert repr(allocator_frames(run)).startswith("default options\n16 events")


def test_names_and_messages_cannot_become_markup() -> None:
    text = frames()._repr_html_()
    assert "<b>" not in text
    data = json.loads(re.search(r"cases = (\[.*?\]);\n", text)[1])
    assert any("<b> asks for 3 MiB" in frame[1] for frame in data[0]["frames"])
    assert not any("<b>" in frame[0] for case in data for frame in case["frames"])


def test_every_frame_draws_its_state() -> None:
    for options in EVERY:
        run = run_of(options)
        data = json.loads(re.search(r"cases = (\[.*?\]);\n", allocator_frames(run)._repr_html_())[1])
        assert len(data[0]["frames"]) == len(run) + 1
        for after, (drawing, words, _) in enumerate(data[0]["frames"]):
            blocks = [block for segment in run.state(after).segments for block in segment.blocks]
            assert drawing.count("<rect") == len(blocks)
            assert drawing.count("allocator-fr") == sum(block.state == "free" for block in blocks)
            xs = [float(x) + float(w) for x, w in re.findall(r' x="([\d.]+)" y="\d+" width="([\d.]+)"', drawing)]
            assert all(x <= module._LEFT + module._WIDTH + 1 for x in xs)
            ys = [float(y) for y in re.findall(r' y="([\d.]+)" width', drawing)]
            assert all(y + module._BOX <= data[0]["height"] for y in ys)
            assert words == (
                f"Event {after} of {len(run)}: {run.words(after - 1)}" if after else "Before the first event."
            )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: allocator_frames({}), "needs a run"),
        (lambda: allocator_frames(run_of(), name="Two words"), "small letters, digits and dashes, got 'Two words'"),
        (
            lambda: allocator_frames(simulate_allocator([Allocate(n, 1) for n in range(MOST_FRAMES)])),
            "are too many for a page",
        ),
        (lambda: allocator_explorer([Free("a")]), "event 0: 'a' is freed, but was never allocated"),
        (lambda: allocator_explorer([], options="bogus:1"), "no option 'bogus'"),
    ],
)
def test_errors_say_what_is_wrong(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.browser
def test_the_books_frames_work_from_a_file(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    page_file = tmp_path / "page.html"
    both = frames("one")._repr_html_() + frames("two")._repr_html_()
    page_file.write_text(f"<!doctype html><meta charset=utf-8>{both}", encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(page_file.as_uri())
        words = page.locator("#allocator-one-words")
        assert words.text_content() == "Before the first event."
        for number, options in enumerate(EVERY):
            run = run_of(options)
            page.select_option("#allocator-one-case", str(number))
            for _ in range(len(run)):
                page.click("#allocator-one-back")
            for after in range(1, len(run) + 1):
                page.click("#allocator-one-next")
                assert words.text_content() == f"Event {after} of {len(run)}: {run.words(after - 1)}"
                blocks = sum(len(segment.blocks) for segment in run.state(after).segments)
                assert page.locator("#allocator-one-svg > g:last-of-type rect").count() == blocks
            assert page.locator("#allocator-one-at").input_value() == str(len(run))
        assert page.locator("#allocator-two-words").text_content() == "Before the first event."
        page.click("#allocator-two-play")
        page.wait_for_function("document.getElementById('allocator-two-at').value === '2'")
        page.click("#allocator-two-play")
        browser.close()
    assert errors == []


# JupyterLab


def parts_of(box):
    knobs, message, controls, shown = box.children
    return {knob.description: knob for knob in knobs.children}, message, controls.children, shown


def test_the_explorer_steps_and_scrubs() -> None:
    run = run_of()
    _, _, (play, back, on, at), shown = parts_of(allocator_explorer(growing_requests(), cap_bytes=110 * MIB))
    assert (play.max, at.max) == (len(run), len(run))
    assert "Before the first event." in shown.value
    on.click()
    assert at.value == 1
    assert "x0 asks for 30 MiB" in shown.value
    back.click()
    back.click()
    assert at.value == 0
    at.value = len(run)
    assert "last asks for 90 MiB" in shown.value
    at.value = len(run) - 1
    assert "&lt;b&gt;" in shown.value
    assert "<b>" not in shown.value
    assert "id=" not in shown.value  # a page may hold it twice
    on.click()
    on.click()
    assert at.value == len(run)


def test_the_explorer_has_a_knob_for_every_option() -> None:
    knobs, message, (*_, at), shown = parts_of(allocator_explorer(growing_requests(), cap_bytes=110 * MIB))
    at.value = at.max
    changes = {
        "expandable_segments": True,
        "max_split_size_mb": 32,
        "max_non_split_rounding_mb": 64,
        "roundup_power2_divisions": 4,
        "garbage_collection_threshold": 0.5,
        "large_segment_size_mb": 32,
    }
    assert set(changes) | {"limit in MiB (0: none)"} == set(knobs)
    for name, value in changes.items():
        knobs[name].value = value
        assert f"{name}:{value}" in message.value
    chosen = AllocatorOptions.parse(",".join(f"{name}:{value}" for name, value in changes.items()))
    run = simulate_allocator(growing_requests(), options=chosen, cap_bytes=110 * MIB)
    assert module._numbers(run, len(run)) in shown.value
    knobs["limit in MiB (0: none)"].value = 40
    assert "out of memory" in shown.value
    before = shown.value
    knobs["large_segment_size_mb"].value = 64  # larger than max_split_size_mb
    assert "max_split_size_mb must be at least 64" in message.value
    assert shown.value == before
    knobs["max_split_size_mb"].value = 0  # shown as "none"
    assert "large_segment_size_mb:64" in message.value


def test_the_explorer_begins_with_the_options_that_are_given() -> None:
    options = "max_split_size_mb:48,roundup_power2_divisions:2,large_segment_size_mb:24"
    knobs, message, *_ = parts_of(allocator_explorer([Allocate("a", 1)], options=options))
    assert knobs["max_split_size_mb"].value == 48
    assert AllocatorOptions.parse(options).text in message.value


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ({"options": "roundup_power2_divisions:32"}, "roundup_power2_divisions", 32),
        ({"options": "roundup_power2_divisions:64"}, "roundup_power2_divisions", 64),
        ({"options": "garbage_collection_threshold:0.9995"}, "garbage_collection_threshold", 0.9995),
        ({"options": "large_segment_size_mb:40"}, "max_non_split_rounding_mb", 0),  # shown as "default"
        ({"options": "max_non_split_rounding_mb:77"}, "max_non_split_rounding_mb", 77),
        ({"cap_bytes": 1}, "limit in MiB (0: none)", 1),
        ({"cap_bytes": 0}, "limit in MiB (0: none)", 1),
        ({"cap_bytes": 25 * MIB + 1}, "limit in MiB (0: none)", 26),
        ({"cap_bytes": 2**45}, "limit in MiB (0: none)", 2**25),
        (
            {"options": "per_process_memory_fraction:0.2", "device_bytes": 200 * MIB},
            "limit in MiB (0: none)",
            40,
        ),
    ],
)
def test_the_explorer_takes_every_option_that_pytorch_takes(arguments: dict, name: str, value: float) -> None:
    events = [Allocate("a", 30 * MIB), Free("a"), Allocate("b", 31 * MIB)]
    knobs, message, (*_, at), shown = parts_of(allocator_explorer(events, **arguments))
    assert knobs[name].value == value
    if "options" in arguments and "fraction" not in arguments["options"]:
        assert arguments["options"] in message.value
    at.value = at.max
    limit = knobs["limit in MiB (0: none)"].value
    run = simulate_allocator(
        events,
        options=AllocatorOptions.parse(arguments.get("options", "").replace("per_process_memory_fraction:0.2", "")),
        cap_bytes=limit * MIB or None,
        device_bytes=arguments.get("device_bytes"),
    )
    assert module._numbers(run, len(run)) in shown.value


def test_the_explorer_says_what_is_still_shown() -> None:
    knobs, message, *_ = parts_of(allocator_explorer([Allocate("a", 1)], options="max_split_size_mb:32"))
    knobs["large_segment_size_mb"].value = 64
    assert message.value.endswith("Still shown: max_split_size_mb:32.")
    with pytest.raises(ValueError, match="options must be AllocatorOptions"):
        allocator_explorer([], options=5)


def test_the_explorer_takes_a_long_trace() -> None:
    events: list[Event] = []
    for number in range(3000):
        events += [Allocate(number, (number % 40 + 1) * MIB), Free(number)]
    *_, (*_, at), shown = parts_of(allocator_explorer(events, cap_bytes=500 * MIB))
    at.value = 4321
    assert "Event 4321 of 6000" in shown.value
