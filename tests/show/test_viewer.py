"""Explorers as a page shows them: with all they need inside, drawn by one script, readable without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from course_utils.memory.allocator_explorer import allocator_explorer, allocator_frames
from course_utils.show.cards import Card, Row
from course_utils.show.viewer import slider
from tests.html_checks import Parsed
from tests.memory.test_allocator_display import growing_requests, run_of

SETTINGS = ("", "expandable_segments:True")

ROOT = Path(__file__).resolve().parents[2]
CARDS = [
    (str(n), Card(f"At {n} it is faster.", (Row("vmap", "2× as fast", f"{n}.0 ms", "faster"),))) for n in (1, 2, 3)
]
ALL = Card("It is faster throughout.", tuple(row for _, card in CARDS for row in card.rows))
SHOWN = {
    "allocator": allocator_frames({options or "default": run_of(options) for options in SETTINGS})._repr_html_(),
    "slider": slider("batch", CARDS, ALL)._repr_html_(),
}


@pytest.mark.parametrize(
    ("name", "words"),
    [("allocator", "last asks for 90 MiB: nothing cached fits."), ("slider", "It is faster throughout.")],
)
def test_a_page_needs_no_other_file_and_without_scripts_words_remain(name: str, words: str) -> None:
    parsed = Parsed(SHOWN[name])
    assert (parsed.outside, parsed.ids) == ([], [])
    assert "http" not in SHOWN[name].replace('"http://www.w3.org/2000/svg"', "")
    assert words in re.sub(r"<(script|style).*?</\1>", "", SHOWN[name], flags=re.DOTALL)


def test_markup_in_names_stays_text() -> None:
    hostile = "</script><script>alert(1)</script>"
    shown = slider(hostile, [(hostile, Card(hostile))], Card(hostile))._repr_html_()
    assert shown.count("<script") == shown.count("</script>") == 2


# In a browser


@pytest.fixture(scope="module")
def page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All explorers on one page, opened from a file; errors of the script fail the test that ends with it."""
    file = tmp_path_factory.mktemp("viewer") / "page.html"
    parts = [f"<div id={name}>{shown}</div>" for name, shown in SHOWN.items()]
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
    for options in SETTINGS:
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
def test_a_slider_shows_the_card_of_each_value(page: Any) -> None:
    form = page.locator("#slider")
    slider, card = form.get_by_label("batch", exact=True), form.locator("[aria-live] .course-card")
    slider.focus()
    for name, expected in CARDS:
        assert slider.get_attribute("aria-valuetext") == form.locator("label b").inner_text() == name
        assert card.locator(".sentence").inner_text() == expected.words
        page.keyboard.press("ArrowRight")
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
    form.get_by_label("expandable_segments").check()
    limit = form.get_by_label("limit in MiB")
    limit.fill("40")
    limit.press("Enter")
    chosen = page.evaluate("window.model.content.chosen")
    assert (chosen["expandable_segments"], chosen["cap"]) == (True, 40)
    viewer.chosen = {**chosen, "expandable_segments": False}
    page.evaluate("state => window.model.answer(state)", viewer.state)
    assert "out of memory" in form.text_content()


@pytest.mark.browser
def test_on_a_phone_nothing_is_wider_than_the_page(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.querySelector('#allocator svg[role=img]').getAttribute('width') < 390")
    wide = "nodes => nodes.filter(node => node.getBoundingClientRect().right > 390).length"
    assert page.locator(".course-viewer svg, .course-form > *, .course-legend > *").evaluate_all(wide) == 0
    assert page.locator("[aria-live] *, .course-card").evaluate_all(wide) == 0
