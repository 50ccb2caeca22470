"""The pictures of a memory trace: what is drawn is what was traced, and every block can be pointed at."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from course_utils.records.kinds.memory_trace import MEMORY_KINDS
from course_utils.records.memory_pictures import KIND_COLOURS, stacking
from course_utils.show.formats import format_bytes
from course_utils.show.memory_figures import MemoryExplorer, _ticks
from tests.example_results import RESULTS
from tests.figure_checks import problems_of_texts, visible_texts

TRACES = [name for name in RESULTS if name.startswith("trace")]
TRACE = RESULTS["trace"]


def test_areas_are_stacked_to_the_totals() -> None:
    panel = TRACE.plot().axes[0]
    scale = 2**20
    tops = []
    for area in panel.collections[: len(TRACE.by_kind())]:
        ends = area.get_paths()[0].vertices
        tops.append(max(y for _, y in ends))
    by_kind, sums = TRACE.by_kind(), [0] * TRACE.moments
    for top, values in zip(tops, by_kind.values(), strict=True):
        sums = [a + b for a, b in zip(sums, values, strict=True)]
        assert top == pytest.approx(max(sums) / scale)
    assert max(tops) == pytest.approx(TRACE.peak_bytes / scale)
    assert any(text.get_text() == f"peak {format_bytes(TRACE.peak_bytes)}" for text in panel.texts)


@pytest.mark.parametrize("by", ["kind", "module"])
@pytest.mark.parametrize("x", ["event", "time"])
@pytest.mark.parametrize("name", TRACES)
def test_no_text_is_cut_off_or_overlaps(name: str, by: str, x: str) -> None:
    fig = RESULTS[name].plot(by=by, x=x)
    assert problems_of_texts(fig) == []
    shown = {item.get_text() for item, _ in visible_texts(fig)}
    groups = RESULTS[name].by_kind() if by == "kind" else []
    assert set(groups) <= shown


def test_reserved_memory_is_a_line_above_the_areas() -> None:
    trace = RESULTS["trace on a GPU"]
    lines = [line for line in trace.plot().axes[0].lines if len(line.get_xdata()) == trace.moments + 1]
    (reserved,) = lines
    assert [y * 2**20 for y in reserved.get_ydata()[:-1]] == pytest.approx(list(trace.reserved_bytes))
    assert "reserved up to" in trace.plot().alt


def test_many_modules_are_put_together() -> None:
    fig = TRACE.plot(by="module")
    names = {item.get_text() for item, _ in visible_texts(fig)}
    assert "other modules" in names
    assert len([name for name in names if name.startswith("Net.layers.")]) == 7


def test_wrong_choices_are_named() -> None:
    with pytest.raises(ValueError, match="'kind' or 'module', got 'size'"):
        TRACE.plot(by="size")
    with pytest.raises(ValueError, match="'event' or 'time', got 'ms'"):
        TRACE.plot(x="ms")
    host = Figure()
    assert TRACE.plot(ax=host.add_subplot(), by="module") is host


def test_kinds_have_colours_of_their_own() -> None:
    assert set(KIND_COLOURS) == set(MEMORY_KINDS)
    assert len(set(KIND_COLOURS.values())) == len(MEMORY_KINDS)


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [(30.0, [0, 10, 20, 30]), (1.1, [0, 0.25, 0.5, 0.75, 1.0]), (5.0, [0, 1, 2, 3, 4, 5]), (131, [0, 50, 100])],
)
def test_ticks_are_round(highest: float, ticks: list[float]) -> None:
    assert _ticks(highest) == pytest.approx(ticks)


# The picture to zoom into


class _Page(HTMLParser):
    """Collects ids, the texts and the addresses of what a page asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if "id" in named:
            self.ids.append(named["id"])
        self.links += [named[key] for key in ("src", "href") if key in named]

    def handle_data(self, data: str) -> None:
        self.text += data


def _data(shown: str) -> dict[str, Any]:
    return json.loads(re.search(r"data = (\{.*?\});\n", shown)[1].replace("\\u003c", "<"))


@pytest.mark.parametrize("name", TRACES)
def test_the_page_holds_every_block_and_asks_for_nothing(name: str) -> None:
    trace = RESULTS[name]
    shown = trace.explore()._repr_html_()
    page = _Page()
    page.feed(shown)
    assert page.links == []
    assert not re.search(r"(?<!www\.w3\.org/2000/svg)https?://(?!www\.w3\.org/2000/svg)", shown)
    assert len(page.ids) == len(set(page.ids)) >= 5
    assert "@" not in re.sub(r"data = .*", "", shown.split("<script>")[1])  # every place-holder was filled
    data = _data(shown)
    assert [row[:3] for row in data["blocks"]] == [[b.size_bytes, b.born, b.died] for b in stacking(trace)]
    assert [data["kinds"][row[3]] for row in data["blocks"]] == [b.kind for b in stacking(trace)]
    assert tuple(data["times"]) == trace.times_us
    assert data["peak"] == trace.peak_moment
    assert trace._repr_html_() in shown  # the table, too, for a page that runs no script
    assert repr(trace.explore()) == repr(trace)


def test_two_traces_on_one_page_do_not_share_ids() -> None:
    pages = []
    for trace in (TRACE, dataclasses.replace(TRACE, label="another"), RESULTS["trace of steps"]):
        page = _Page()
        page.feed(trace.explore()._repr_html_())
        pages.append(set(page.ids))
    assert not pages[0] & pages[1]
    assert not pages[0] & pages[2]


def test_markup_in_names_stays_text() -> None:
    hostile = "</script><script>alert(1)</script>"
    blocks = tuple(dataclasses.replace(block, line=hostile, module=hostile) for block in TRACE.blocks)
    shown = dataclasses.replace(TRACE, label=hostile, blocks=blocks).explore()._repr_html_()
    assert shown.count("<script>") == shown.count("</script>") == 1
    assert _data(shown)["texts"][0] == hostile


def test_pages_are_the_same_in_every_process(pytestconfig: pytest.Config) -> None:
    code = (
        "import sys; from tests.example_results import RESULTS\n"
        "for name in RESULTS:\n"
        "    if name.startswith('trace'):\n"
        "        sys.stdout.buffer.write(RESULTS[name].explore()._repr_html_().encode())\n"
    )
    pages = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=pytestconfig.rootpath,
            capture_output=True,
            check=True,
            timeout=240,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert pages[0] == pages[1]
    assert len(pages[0]) > 20_000


@pytest.mark.browser
def test_the_picture_is_zoomed_and_names_what_is_pointed_at(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    import shutil

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs Chromium on the PATH")
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{TRACE.explore()._repr_html_()}", encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 700})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(file.as_uri())
        says, picture = page.locator("[id$=says]"), page.locator("svg")
        assert "Point at a block" in says.inner_text()
        box = picture.bounding_box()
        # Near the floor there are weights, at all times; near the top of the peak there are temporaries.
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 49)
        assert "3.00 MiB of weights · Net.layers.0 · from before the call to after the call" in says.inner_text()
        page.get_by_text("Around the peak").click()
        assert f"Event {TRACE.peak_moment} " in says.inner_text()
        assert format_bytes(TRACE.peak_bytes) in says.inner_text()
        drawn = page.locator("[id$=drawn]").inner_html()
        start = re.search(r"event (\d+), ", drawn)[1]
        assert int(start) > 0
        picture.dblclick(position={"x": 5, "y": 5})
        assert "event 0, " in page.locator("[id$=drawn]").inner_html()
        page.mouse.move(box["x"] + 200, box["y"] + 200)
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 200, steps=3)
        page.mouse.up()
        assert "event 0, " not in page.locator("[id$=drawn]").inner_html()
        picture.focus()
        page.keyboard.press("ArrowRight")
        assert "The largest block: " in says.inner_text()
        page.keyboard.press("Escape")
        assert "event 0, " in page.locator("[id$=drawn]").inner_html()
        assert problems == []
        browser.close()


def test_an_explorer_shows_its_trace() -> None:
    assert isinstance(TRACE.explore(), MemoryExplorer)
    assert TRACE.explore().trace is TRACE
