"""The report: records of two machines on one page that needs nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import re

import pytest

from course_utils.commands import cli, report_page
from course_utils.lesson_notebooks import find_lessons
from course_utils.results.curves import Curve, Curves
from course_utils.results.environment import Environment
from tests import made_up_records
from tests.sandbox import Sandbox, sandbox
from tests.sandbox import here as sandbox_here

__all__ = ["sandbox"]

TODAY = datetime.date(2026, 1, 2)
NAMES = tuple(f"alpha/{name}" for name in ("loops", "over_n", "one", "kernels", "loss"))


def results(slower: float) -> list:
    """Results of four kinds."""
    times_s = {"short": 1e-3, "long <&> twice": slower * 1e-3}
    here = made_up_records.CPU
    return [
        made_up_records.comparison("alpha/loops", times_s),
        made_up_records.sweep("alpha/over_n", (2000, 8000), lambda n: times_s),
        made_up_records.table("alpha/one", [{"case": "one loop", "took": 1e-3}], {"took": "s"}),
        made_up_records.table("alpha/kernels", [{"case": "mask", "kernel": "math", "peak": 2**20}], {"peak": "bytes"}),
        Curves((Curve("fp32", (1, 2), (2.5, 1.25)),), "step", "reserved (MiB)", here, name="alpha/loss"),
    ]


@pytest.fixture
def mine(sandbox: Sandbox) -> Environment:
    cells = [f'measure(name="{name}", parameters={{"n": 5000}})' for name in NAMES]
    sandbox.notebook("00_alpha", *cells)
    return dataclasses.replace(sandbox_here(), date="2026-01-01")


@pytest.fixture
def other(mine: Environment) -> Environment:
    """A machine that is not this one, and sorts before it: an accelerator."""
    return dataclasses.replace(
        mine, machine="other-gpu", device_kind="cuda", device_name="Other GPU", gpu_count=1, size="full"
    )


@pytest.fixture
def both(sandbox: Sandbox, mine: Environment, other: Environment) -> Sandbox:
    made_up_records.write(sandbox.results, mine, results(2.0))
    made_up_records.write(sandbox.reference, other, results(1.5))
    return sandbox


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def sections_of(page: str) -> dict[str, str]:
    return dict(re.findall(r'<section aria-labelledby="(\w+)">(.*?)</section>', page, flags=re.DOTALL))


def test_the_cards_of_both_machines_stand_side_by_side(both, mine, other):
    page, problems = report_page.render(TODAY)
    assert problems == []
    cards = re.findall(r'<div class="cards">(.*?</div>\n</div>)\n</div>', page, flags=re.DOTALL)
    assert len(cards) == len(NAMES)
    own, recorded = (text_of(card) for card in cards[0].split('<div class="course-card recorded">'))
    assert f"yours, smoke sizes, {mine.machine}" in own
    assert f"recorded, full sizes, {other.machine}" in own
    assert f"Recorded: {other.title}" in recorded
    for words in (own, recorded):
        assert "▼ 2." in words or "▼ 1." in words
    for shown in (*NAMES, "value", "one loop", "mask", "reserved (MiB)"):
        assert shown in text_of(page)


def test_the_page_holds_everything_and_escapes_what_it_shows(both):
    page, _ = report_page.render(TODAY)
    assert report_page.render(TODAY)[0] == page
    assert "Written on 2026-01-02" in page
    assert "long &lt;&amp;&gt;" in page
    assert "<&>" not in page
    links = re.findall(r'(?:src|href|action|srcset)="([^"]*)"', page)
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not re.search(r"@import|url\(", page)


def test_every_committed_record_can_be_shown(sandbox, monkeypatch):
    for name in ("COURSE_REFERENCE_ROOT", "COURSE_NOTEBOOKS"):
        monkeypatch.delenv(name)
    page, problems = report_page.render(TODAY)
    assert problems == []
    anchors = set(re.findall(r'id="(\w+)"', page))
    assert anchors >= {lesson.name for lesson in find_lessons()}
    assert {link[1:] for link in re.findall(r'href="(#\w+)"', page)} <= anchors
    assert "Nothing is recorded on this machine yet" in text_of(page)


def test_your_own_lessons_are_marked_and_the_others_folded(both, other):
    both.notebook("01_beta", 'measure(name="beta/one")')
    made_up_records.write(both.reference, other, [dataclasses.replace(results(1.5)[2], name="beta/one")])
    page, _ = report_page.render(TODAY)
    assert [name for name, inside in sections_of(page).items() if '<details class="others">' in inside] == ["01_beta"]
    assert re.findall(r'<li class="here"><a href="#(\w+)"', page) == ["00_alpha"]
    assert "● marks the lessons that you have recorded" in page
    assert "Not recorded on this machine yet. Run course record beta ." in text_of(page)


def test_a_bad_record_is_named_and_the_rest_is_shown(both, other, mine, capsys, tmp_path):
    path = both.reference / other.machine / "alpha.json"
    path.write_text(path.read_text()[:200])
    assert cli.main(["report", "--output", str(tmp_path)]) == 1
    page = (tmp_path / "report.html").read_text()
    assert f'<th scope="row">{mine.title}' in page
    assert 'class="course-card"' in page
    # The page may be read by somebody else: who made it hears of it as well.
    for said in (page, capsys.readouterr().err):
        assert "other-gpu/alpha.json cannot be read" in said


def test_a_busy_machine_and_other_code_are_noticed_beside_the_numbers(both, mine):
    page, _ = report_page.render(TODAY)
    assert "Other programs" not in page
    assert "has changed" not in page
    busy = dataclasses.replace(results(2.0)[0], busy="Other programs kept 1.3 of 2 cores busy.")
    made_up_records.write(both.results, mine, [busy])
    path = both.notebooks / "00_alpha.ipynb"
    path.write_text(path.read_text().replace("measure(name", "measure(lambda: 1, name"))
    page, _ = report_page.render(TODAY)
    assert "Other programs kept 1.3 of 2 cores busy" in page
    assert "code has changed since" in page


def test_the_command_writes_the_page_and_prints_its_path(both, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "--output", "pages/mine.html"]) == 0
    page = tmp_path / "pages/mine.html"
    assert capsys.readouterr().out == f"{page}\nOpen it in a browser: {page.as_uri()}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["mine.html"]
    assert cli.main(["report", "--output", str(page / "report.html")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Choose another place with --output." in error


@pytest.mark.browser
def test_a_browser_shows_both_machines_on_a_desk_and_on_a_phone(chromium, both, tmp_path):
    path = tmp_path / "report.html"
    report_page.build(path)
    page = chromium.new_page()
    page.goto(path.as_uri())
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        cards = page.locator(".cards").first.locator(".course-card")
        first, second = (cards.nth(i).bounding_box() for i in range(2))
        assert (first["y"] == second["y"]) == (width > 640)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
