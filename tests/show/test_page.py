"""What a page needs once: the style, the scripts; and the colours, which have one place."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from course_utils.show.cards import Card, Row, amount_axis
from course_utils.show.page import bare, dressed, scripts, style
from course_utils.show.prediction import predict
from course_utils.show.viewer import slider

ROOT = Path(__file__).resolve().parents[2]
CONTRAST = (ROOT / "tests" / "authoring" / "contrast.js").read_text(encoding="utf-8")
CARD = Card("It is 3.", (Row("a", value="3"),), amount_axis([3], str), head="You, just now", title="lesson/experiment")
SHOWN = (CARD, predict("How many?").reveal(3), slider("n", [("1", CARD), ("2", CARD)], CARD))


@pytest.mark.parametrize("shown", SHOWN, ids=("card", "prediction", "explorer"))
def test_what_is_stored_has_neither_style_nor_script_and_keeps_its_data(shown: Any):
    live = shown._repr_html_()
    stored = bare(live)
    assert live.count("<style>") == 1
    assert not re.search("<style>|<script>|light-dark", stored)
    assert dressed(stored) == live
    data = stored.count('<script type="application/json">')
    assert scripts(stored).count("<script>") == live.count("<script>") == data


def test_every_colour_that_a_style_sheet_asks_for_is_there():
    paths = [path for part in ("course_utils", "authoring", "book/_static") for path in (ROOT / part).rglob("*.[cj]*")]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix in {".css", ".j2"}]
    asked = {name for text in texts for name in re.findall(r"var\((--course-[\w-]+)\)", text)}
    assert len(asked) > 40
    assert asked <= set(re.findall(r"^ *(--course-[\w-]+):", style(), re.MULTILINE))


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 800)])
def test_head_and_tint_can_be_read(chromium: Any, theme: str, width: int):
    recorded = dataclasses.replace(CARD, head="Recorded: NVIDIA H200, 27 Nov 2026", is_recorded=True)
    page = chromium.new_page(viewport={"width": width, "height": 600})
    cards = dressed(CARD.html() + recorded.html())
    page.set_content(f'<!doctype html><html data-theme="{theme}"><body><article>{cards}</article></body></html>')
    grounds = "cards => new Set(cards.map(card => getComputedStyle(card).backgroundColor)).size"
    assert page.locator(".course-card").evaluate_all(grounds) == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CONTRAST) == []
    page.close()
