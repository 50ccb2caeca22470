"""Explorers as a page shows them: with all they need inside, drawn by one script, readable without it."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from course_utils.memory.allocator_explorer import allocator_explorer, allocator_frames
from course_utils.show.cards import MARKS
from course_utils.show.formats import format_bytes
from tests.example_results import RESULTS
from tests.html_checks import Parsed, content_of
from tests.memory.test_allocator_display import EVERY, growing_requests, run_of

ROOT = Path(__file__).resolve().parents[2]
TRACE = RESULTS["trace"]
SWEEP = RESULTS["sweep of four"]


def explorers() -> dict[str, Any]:
    return {
        "allocator": allocator_frames({options or "default": run_of(options) for options in EVERY}),
        "sweep": SWEEP.explore(),
        **{name: result.explore() for name, result in RESULTS.items() if name.startswith("trace")},
    }


SHOWN = {name: explorer._repr_html_() for name, explorer in explorers().items()}
every_explorer = pytest.mark.parametrize("name", SHOWN)


def without_scripts(shown: str) -> str:
    return re.sub(r"<(script|style).*?</\1>", "", shown, flags=re.DOTALL)


@every_explorer
def test_a_page_needs_no_other_file_and_has_no_ids(name: str) -> None:
    parsed = Parsed(SHOWN[name])
    assert parsed.outside == []
    assert "http" not in SHOWN[name].replace('"http://www.w3.org/2000/svg"', "")
    assert parsed.ids == []
    assert len(SHOWN[name]) < 120_000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("allocator", "last asks for 90 MiB: nothing cached fits."),
        ("trace", format_bytes(TRACE.peak_bytes)),
        ("sweep", ">vmap, batch 3<"),
    ],
)
def test_without_scripts_words_and_tables_remain(name: str, words: str) -> None:
    assert words in without_scripts(SHOWN[name])


def test_pages_are_the_same_in_every_process() -> None:
    code = "from tests.show.test_viewer import SHOWN; print(*SHOWN.values(), sep='', end='')"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=240).stdout
    assert printed.decode() == "".join(SHOWN.values())


def test_markup_in_names_stays_text() -> None:
    hostile = "</script><script>alert(1)</script>"
    blocks = tuple(dataclasses.replace(block, line=hostile, module=hostile) for block in TRACE.blocks)
    shown = dataclasses.replace(TRACE, label=hostile, blocks=blocks).explore()._repr_html_()
    assert shown.count("<script") == shown.count("</script>") == 2
    assert hostile in content_of(shown)["states"][0]["texts"]
    assert "<b>" not in SHOWN["allocator"]


def test_a_trace_holds_every_block() -> None:
    for name, trace in RESULTS.items():
        if name.startswith("trace"):
            state = content_of(SHOWN[name])["states"][0]
            blocks = {(size, born, died, state["kinds"][kind][0]) for size, born, died, kind, *_ in state["blocks"]}
            assert len(state["blocks"]) == len(trace.blocks)
            assert blocks == {(b.size_bytes, b.born, b.died, b.kind) for b in trace.blocks}
            assert trace.card().html() in SHOWN[name]  # the table, too, for a page that runs no script
            assert repr(trace.explore()) == repr(trace)


# In a browser


@pytest.fixture(scope="module")
def page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All explorers on one page, opened from a file; errors of the script fail the test that ends with it."""
    file = tmp_path_factory.mktemp("viewer") / "page.html"
    parts = [f"<div id={name}>{SHOWN[name]}</div>" for name in ("allocator", "trace", "sweep")]
    file.write_text(f"<!doctype html><meta charset=utf-8>{''.join(parts)}<div id=live></div>", encoding="utf-8")
    opened = chromium.new_page(viewport={"width": 900, "height": 700})
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(file.as_uri())
    yield opened
    opened.close()
    assert errors == []


@pytest.mark.browser
def test_events_are_stepped_through_and_played(page: Any) -> None:
    form = page.locator("#allocator")
    words, slider = form.locator(".course-words"), form.get_by_label("event", exact=True)
    assert words.text_content() == "Before the first event."
    for options in EVERY[:2]:
        run = run_of(options)
        form.get_by_label("Allocator").select_option(options or "default")
        slider.press("Home")
        for after in range(1, len(run) + 1):
            slider.press("ArrowRight")
            assert run.words(after - 1) in words.text_content()
            blocks = sum(len(segment.blocks) for segment in run.state(after).segments)
            assert form.locator("svg[role=img] rect").count() == blocks
    form.get_by_label("one event back").click()
    assert slider.input_value() == str(len(run) - 1)
    form.get_by_text("play", exact=True).click()
    page.wait_for_function(f"document.querySelector('#allocator input').value === '{len(run)}'")


@pytest.mark.browser
def test_a_trace_is_zoomed_and_names_what_is_pointed_at(page: Any) -> None:
    form = page.locator("#trace")
    words, picture = form.locator(".course-words"), form.locator("svg.course-trace")
    assert "Point at a block" in words.text_content()
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    # Near the floor there are weights, at all times; near the top of the peak there are temporaries.
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 27)
    assert "3.00 MiB of weights · Net.layers.0 · from before the call to after the call" in words.text_content()
    form.get_by_text("Around the peak").click()
    assert f"Event {TRACE.peak_moment} " in words.text_content()
    assert format_bytes(TRACE.peak_bytes) in words.text_content()
    assert "event 0, " not in picture.text_content()
    picture.dblclick(position={"x": 5, "y": 5})
    assert "event 0, " in picture.text_content()
    box = picture.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 200, steps=3)
    page.mouse.up()
    assert "event 0, " not in picture.text_content()
    picture.press("ArrowRight")
    assert "The largest block: " in words.text_content()
    picture.press("Escape")
    assert "event 0, " in picture.text_content()


def card_shown(form: Any) -> tuple[str, list[list[str]]]:
    """The sentence of a slider's card, and its rows: who, the verdict, the value."""
    card = form.locator("[aria-live] .course-card")
    rows = card.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [row.querySelector('th'), ...row.querySelectorAll('td:not(.bar)')]"
        ".map(cell => cell.textContent.replaceAll('\\u00a0', ' ')))"
    )
    return card.locator(".sentence").inner_text().replace("\xa0", " "), rows


@pytest.mark.browser
def test_a_slider_shows_what_was_recorded_at_each_value(page: Any) -> None:
    form = page.locator("#sweep")
    slider = form.get_by_label("batch", exact=True)
    slider.focus()
    bars = set()
    for point in SWEEP.points:
        card = point.comparison.card()
        assert slider.get_attribute("aria-valuetext") == form.locator("label b").inner_text() == str(point.value)
        sentence, rows = card_shown(form)
        assert sentence == f"At batch {point.value}: {card.words}"
        assert rows == [[row.label, f"{MARKS.get(row.tone, '')} {row.words}".strip(), row.value] for row in card.rows]
        dots = form.locator("[aria-live] circle").evaluate_all("dots => dots.map(dot => dot.getAttribute('cx'))")
        bars.add(tuple(dots))
        page.keyboard.press("ArrowRight")
    assert len(bars) == len(SWEEP.points)
    everything = form.locator("details > .course-card")
    assert not everything.is_visible()
    form.get_by_text("All values").press("Enter")
    assert everything.is_visible()


_MOUNT = """async ([source, content]) => {
    const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    const called = {};
    window.model = {
        content, get: (key) => content[key], set: (key, value) => { content[key] = value; }, save_changes() {},
        on: (name, call) => { called[name] = call; },
        answer: (state) => { content.state = state; called["change:state"](); },
    };
    module.default.render({ model: window.model, el: document.getElementById("live") });
}"""


@pytest.mark.browser
def test_as_a_widget_it_asks_python_and_draws_the_answer(page: Any) -> None:
    viewer = allocator_explorer(growing_requests(), cap_bytes=110 * 2**20)
    content = {key: getattr(viewer, key) for key in ("view", "form", "chosen", "state", "message")}
    page.evaluate(_MOUNT, [(ROOT / "course_utils/show/viewer.js").read_text(encoding="utf-8"), content])
    form = page.locator("#live")
    form.get_by_label("event", exact=True).press("End")
    assert "PYTORCH_ALLOC_CONF" in form.text_content()
    form.get_by_label("expandable_segments").check()
    form.get_by_label("max_split_size_mb").select_option("32")
    limit = form.get_by_label("limit in MiB")
    limit.fill("40")
    limit.press("Enter")
    chosen = page.evaluate("window.model.content.chosen")
    assert (chosen["expandable_segments"], chosen["max_split_size_mb"], chosen["cap"]) == (True, 32, 40)
    viewer.chosen = {**chosen, "expandable_segments": False}
    page.evaluate("state => window.model.answer(state)", viewer.state)
    assert "where the run ends" in form.locator(".course-words").text_content()
    assert "out of memory" in form.text_content()


@pytest.mark.browser
def test_on_a_telephone_nothing_is_wider_than_the_page(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.querySelector('#allocator svg[role=img]').getAttribute('width') < 390")
    wide = "nodes => nodes.filter(node => node.getBoundingClientRect().right > 390).length"
    assert page.locator(".course-viewer svg, .course-form > *, .course-legend > *").evaluate_all(wide) == 0
    assert page.locator("[aria-live] *, .course-card").evaluate_all(wide) == 0
