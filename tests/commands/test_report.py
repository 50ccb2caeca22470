"""The report: records of two machines on one page that needs nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import shutil

import pytest

from course_utils.commands import cli, report
from course_utils.results import store
from course_utils.results.ceilings import Ceiling, Ceilings
from course_utils.results.curves import Curve, Curves
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from tests import made_up_records
from tests.sandbox import Sandbox, sandbox
from tests.sandbox import here as sandbox_here

__all__ = ["sandbox"]

TODAY = datetime.date(2026, 1, 2)
NAMES = tuple(f"alpha/{name}" for name in ("loops", "over_n", "one", "limits", "kernels", "loss", "ranks", "words"))


def results(slower: float) -> list:
    """One result of each kind."""
    times_s = {"short": 1e-3, "long <&> twice": slower * 1e-3}
    samples = (1e-3, 1.1e-3, 1.2e-3) * 3
    anywhere = made_up_records.CPU
    return [
        made_up_records.comparison("alpha/loops", times_s),
        made_up_records.sweep("alpha/over_n", (2000, 8000), lambda n: times_s),
        Measurement("one loop", samples, environment=anywhere, name="alpha/one"),
        Ceilings((Ceiling("additions", "FLOP/s", 50_000, samples),), anywhere, name="alpha/limits"),
        made_up_records.table("alpha/kernels", [{"case": "mask", "kernel": "math", "peak": 2**20}], {"peak": "bytes"}),
        Curves((Curve("fp32", (1, 2), (2.5, 1.25)),), "step", "reserved (MiB)", anywhere, name="alpha/loss"),
        made_up_records.ranks("alpha/ranks", "steps", {"alone": 1e-3, "together": 2e-3}),
        made_up_records.table("alpha/words", [{"case": "mask", "kernel": "math"}]),
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


def test_both_machines_stand_side_by_side_with_verdict_and_interval(both, mine, other):
    page = report.render(TODAY)
    (table,) = re.findall(r'<table class="side stack".*?</table>', page, flags=re.DOTALL)[:1]
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table, flags=re.DOTALL)
    assert [head.partition("<small>")[0] for head in heads[1:]] == [mine.title, other.title]
    assert "this machine, smoke sizes, 2026-01-01" in table
    assert "recorded, full sizes" in table
    for root, machine in ((both.results, mine), (both.reference, other)):
        case = store.load_lesson(root / machine.machine / "alpha.json").result("alpha/loops")["long <&> twice"]
        assert f"▼ {case.in_words()}" in text_of(table)
    assert table.count('class="verdict ') == 2
    assert "2026-01-02" in page


def test_every_kind_of_result_is_shown(both):
    words = text_of(report.render(TODAY))
    for name in NAMES:
        assert name in words
    assert "value 2000: long" in words
    assert "twice, against short" in words
    assert "one loop" in words
    assert "FLOP/s" in words
    assert "kernel: math; peak: 1.00 MiB" in words
    assert "1.25 at step 2" in words
    assert "steps: together, against alone" in words


def test_the_page_holds_everything_and_escapes_what_it_shows(both):
    page = report.render(TODAY)
    assert report.render(datetime.date(2026, 1, 3)) == page.replace("Written on 2026-01-02", "Written on 2026-01-03")
    assert "long &lt;&amp;&gt; twice" in page
    assert "<&>" not in page
    links = re.findall(r'(?:src|href|action|srcset)="([^"]*)"', page)
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert "@import" not in page
    assert "url(" not in page
    for target in (link[1:] for link in links if link.startswith("#")):
        assert page.count(f'id="{target}"') == 1


def test_committed_records_beside_a_course_of_ones_own_weigh_at_most_125_kb_a_lesson(tmp_path, monkeypatch):
    """The records with most in them: figures take their time."""
    committed_root = store.reference_root()
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path / "reference"))
    largest = sorted(committed_root.glob("*/*.json"), key=lambda path: path.stat().st_size)[-4:]
    committed = {path.stem: path for path in largest}
    for path in committed.values():
        record = store.load_lesson(path)
        store.save_lesson(record, store.reference_root())
        mine = dataclasses.replace(record.environment, machine="mine", device_name="Mine")
        store.save_lesson(dataclasses.replace(record, environment=mine), store.results_root())
    path = tmp_path / "report.html"
    _, unread = report.build(tmp_path)
    page = path.read_text(encoding="utf-8")
    assert unread == ""
    assert set(re.findall(r'<section aria-labelledby="(\w+)">', page)) >= set(committed)
    assert page.count("<details><summary>All numbers of Mine") >= 4 * len(committed)
    assert path.stat().st_size <= 125_000 * len(committed)


# What is missing or wrong


def test_a_lesson_that_only_others_recorded_says_so(sandbox, mine, other):
    made_up_records.write(sandbox.reference, other, results(1.5))
    words = text_of(report.render(TODAY))
    assert "Nothing is recorded on this machine yet" in words
    assert "Not recorded on this machine yet. Run course record alpha ." in words
    assert "other-gpu" in words


def folded(page: str) -> list[str]:
    """Lessons of which only the heading shows until they are opened."""
    sections = re.findall(r'<section aria-labelledby="(\w+)">(.*?)</section>', page, flags=re.DOTALL)
    return [slug for slug, inside in sections if '<details class="others">' in inside]


def test_your_own_lessons_are_marked_and_the_others_folded(both, other):
    both.notebook("01_beta", 'measure(name="beta/one")')
    both.notebook("02_gamma", 'measure(name="gamma/one")')
    made_up_records.write(both.reference, other, [dataclasses.replace(results(1.5)[2], name="beta/one")])
    page = report.render(TODAY)
    assert folded(page) == ["beta"]
    assert re.findall(r'<li class="here"><a href="#(\w+)"', page) == ["alpha"]
    assert "● marks the lessons that you have recorded" in page
    # The whole page folded would show nothing.
    shutil.rmtree(both.results)
    page = report.render(TODAY)
    assert folded(page) == []
    assert "●" not in page.partition("</style>")[2]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda text: text[:200], "other-gpu/alpha.json cannot be read"),
        (lambda text: json.dumps(json.loads(text) | {"schema_version": 99}), "has schema version 99"),
        (lambda text: '{"name": "package"}', "is not a record of this course"),
    ],
)
def test_a_bad_record_is_named_and_the_rest_is_shown(both, other, mine, how, message, capsys, tmp_path):
    path = both.reference / other.machine / "alpha.json"
    path.write_text(how(path.read_text()))
    page = report.render(TODAY)
    assert "Not everything could be shown" in page
    assert message in page
    assert f'<th scope="row">{mine.title}' in page
    assert 'class="verdict ' in page
    # The page may be read by somebody else: who made it hears of it as well.
    assert cli.main(["report", "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    path = tmp_path / "report.html"
    assert printed.out == f"{path}\nOpen it in a browser: {path.as_uri()}\n"
    assert printed.err.startswith("Not on the page, because it cannot be read:\n")
    assert message in printed.err


def test_a_damaged_experiment_is_named_and_the_others_are_shown(both, other):
    path = both.reference / other.machine / "alpha.json"
    data = json.loads(path.read_text())
    data["experiments"]["alpha/loops"]["data"].pop("cases")
    path.write_text(json.dumps(data))
    page = report.render(TODAY)
    assert re.search(r"experiment &#39;alpha/loops&#39; (recorded on|of) other-gpu", page)
    assert "Restore the file from git" in page
    assert page.count("recorded, full sizes") > 3


def test_a_busy_machine_is_noticed_beside_its_numbers(both, mine):
    assert "Other programs" not in report.render(TODAY)
    busy = dataclasses.replace(results(2.0)[0], busy="Other programs kept 1.3 of 2 cores busy.")
    made_up_records.write(both.results, mine, [busy])
    notice = f"{mine.title} (this machine, smoke sizes, 2026-01-01): Other programs kept 1.3 of 2 cores busy."
    assert notice in report.render(TODAY)


def test_other_code_is_noticed(both):
    path = both.notebooks / "00_alpha.ipynb"
    assert "has changed" not in report.render(TODAY)
    path.write_text(path.read_text().replace("measure(name", "measure(lambda: 1, name"))
    assert "code has changed since" in report.render(TODAY)


# The file


def test_the_command_writes_the_page_and_prints_its_path(both, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "--output", "pages/mine.html"]) == 0
    page = tmp_path / "pages/mine.html"
    assert capsys.readouterr().out == f"{page}\nOpen it in a browser: {page.as_uri()}\n"
    assert (tmp_path / "pages/mine.html").read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["mine.html"]
    assert cli.main(["report", "--output", "pages"]) == 0
    assert (tmp_path / "pages/report.html").exists()


def test_a_page_that_cannot_be_written_is_one_clear_line(both, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert cli.main(["report", "--output", str(tmp_path / "file" / "report.html")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Choose another place with --output." in error


# In a browser


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_shows_both_machines_and_asks_for_nothing(chromium, both, mine, tmp_path, width, scheme):
    path = tmp_path / "report.html"
    report.build(path)
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert errors == []
    cells = page.locator("table.side").first.locator("tbody td")
    first, second = (cells.nth(i).bounding_box() for i in range(2))
    if width > 640:
        assert first["y"] == second["y"]
    else:
        assert first["y"] < second["y"]
        assert mine.title in cells.first.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture = page.locator("img").first
    assert picture.evaluate("image => image.complete && image.naturalWidth > 300")
    assert picture.evaluate("image => image.getBoundingClientRect().right") <= width
    assert picture.get_attribute("alt").endswith(".")
    light = sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))))
    assert (light > 600) == (scheme == "light")
    page.close()


def test_claims_come_before_the_lessons(both):
    page = report.render(TODAY, "<p>of <b>mine</b></p>")
    assert page.index("by your records</h2>\n<p>of <b>mine</b></p>") < page.index('id="alpha"')
