"""The book: it builds without a warning, every page can be read, and it works without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup
from filelock import FileLock

from authoring.claims import load_claims
from course_utils.lesson_order import file_name
from course_utils.results.store import reference_root

ROOT = Path(__file__).resolve().parents[2]
# A build takes half a minute, and many times that on a machine that is busy with other tests.
BUILD_LIMIT_S = 600
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
OUTSIDE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)

pytestmark = pytest.mark.timeout(2 * BUILD_LIMIT_S)


def pages() -> list[str]:
    contents = yaml.safe_load((ROOT / "book/_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in contents["parts"] for chapter in part["chapters"]]
    below = [section for chapter in chapters for section in chapter.get("sections", [])]
    return [contents["root"], *(each["file"] for each in (*chapters, *below))]


PAGES = pages()
LESSONS = [page for page in PAGES if page.startswith("notebooks/")]


@pytest.fixture(scope="module")
def html() -> Path:
    """The book, built anew where ``make book`` builds it, and once for all workers that share these tests."""
    page, shared = ROOT / "book/_build/html/index.html", Path(os.environ["PYTEST_SHARED_FOLDER"])
    built = shared / "book is built"
    with FileLock(shared / "book.lock"):
        if not built.exists():
            command = [sys.executable, "-m", "authoring.pages.build"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
            assert done.returncode == 0, done.stderr
            assert page.as_uri() in done.stdout
            built.touch()
    return page.parent


# The pages, read as files


@cache  # several tests read every page
def parse(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def html_files(html: Path) -> list[Path]:
    return [page for page in sorted(html.rglob("*.html")) if "_static" not in page.relative_to(html).parts]


def css_references(text: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    references = re.findall(r"""url\(\s*["']?([^"')]+)""", text)
    return references + re.findall(r"""@import\s+["']([^"']+)""", text)


def loaded_by(soup: BeautifulSoup) -> list[str]:
    """Everything that a browser fetches for a page by itself: scripts, styles, images, frames, media."""
    references = [tag["src"] for tag in soup.find_all(src=True)]
    references += [tag["href"] for tag in soup.find_all("link", href=True) if "canonical" not in tag.get("rel", [])]
    references += [part.split()[0] for tag in soup.find_all(srcset=True) for part in tag["srcset"].split(",")]
    references += [tag["data"] for tag in soup.find_all("object", data=True)]
    references += [reference for tag in soup.find_all("style") for reference in css_references(tag.get_text())]
    references += [reference for tag in soup.find_all(style=True) for reference in css_references(tag["style"])]
    return references


def test_every_page_is_there_and_the_book_is_at_most_40_mb(html: Path):
    assert [page for page in [*PAGES, "index", "search"] if not (html / f"{page}.html").is_file()] == []
    assert sum(file.stat().st_size for file in html.rglob("*") if file.is_file()) <= 40 * 2**20


def test_a_page_weighs_at_most_1_5_mb_has_one_heading_and_its_solutions_are_folded(html: Path):
    for name in PAGES:
        path = html / f"{name}.html"
        page = parse(path)
        sources = {unquote(urlsplit(picture["src"]).path) for picture in page.select('img:not([src^="data:"])')}
        assert sum(file.stat().st_size for file in (path, *(path.parent / each for each in sources))) <= 1_500_000, name
        assert len(page.select("article h1")) == 1, name
        assert page.select("details.hide[open]") == [], name


def test_everything_that_pages_and_styles_load_is_there_and_nothing_is_loaded_from_outside(html: Path):
    loaded = [(page, reference) for page in html_files(html) for reference in loaded_by(parse(page))]
    styles = ((style, css_references(style.read_text(encoding="utf-8"))) for style in html.rglob("*.css"))
    loaded += [(style, reference) for style, references in styles for reference in references]
    for file, reference in loaded:
        path = unquote(urlsplit(reference).path)
        if path and not reference.startswith(("data:", "#")):
            assert not OUTSIDE.match(reference), (file.name, reference)
            assert (file.parent / path).is_file(), (file.name, reference)


def test_every_internal_link_and_anchor_resolves(html: Path):
    soups = {page.resolve(): parse(page) for page in html_files(html)}
    anchors = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in soups.items()}
    broken = []
    for page, soup in soups.items():
        for link in soup.find_all("a", href=True):
            target = urlsplit(link["href"])
            if target.scheme or target.netloc:
                continue
            file = (page.parent / unquote(target.path)).resolve() if target.path else page
            # What has a "=" is a choice of the claims' filter.
            fragment = "" if "=" in target.fragment else unquote(target.fragment)
            fragment_is_there = not fragment or fragment in anchors.get(file, [fragment])
            if not (file.is_file() and fragment_is_there):
                broken.append((page.name, link["href"]))
    assert not broken


def test_the_first_page_has_the_lessons_the_drop_zone_and_the_records_that_it_links(html: Path):
    page = parse(html / f"{PAGES[0]}.html")
    _, lessons = page.select("article table")
    assert len(lessons.select('a[href^="../notebooks/"]')) == len(LESSONS)
    linked = [html / "book" / unquote(link["href"]) for link in page.select("a.download")]
    records = {path.read_bytes() for path in reference_root().glob("*/*.json")}
    assert all(path.read_bytes() in records for path in linked)
    assert page.select_one(".own-program[data-python]") or "make trace ARGS=FILE" in page.get_text()
    counted = page.select('a[href^="claims.html#verdict="]')
    assert sum(int(link.get_text().split()[-1]) for link in counted) == len(load_claims())


def test_every_figure_is_described_by_words_of_its_own(html: Path):
    for name in LESSONS:
        words = [picture.get("alt", "") for picture in parse(html / f"{name}.html").select(".cell_output img")]
        assert all(len(each.split()) > 5 for each in words), name
        assert len({*words}) == len(words), name


def test_the_answer_to_a_prediction_is_folded_and_names_its_machine(html: Path):
    for name in LESSONS:
        card, *_ = parse(html / f"{name}.html").select(".course-predict details:not([open]) .course-card")
        assert card.select_one(".sentence").get_text().strip()
        assert re.match("Worked out|Simulated|Recorded: ", card.select_one(".head").get_text()), name


# Some pages, opened in a browser from the disk


OPENED = "book/what_to_use_when", "book/claims", f"notebooks/{file_name('pinned_memory')}"  # and the first page, below


class Visit:
    """A browser tab that notes what goes wrong and what is fetched."""

    def __init__(self, page: Any, html: Path) -> None:
        self.page = page
        self._html = html
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, name: str) -> Any:
        self.page.goto((self._html / f"{name}.html").as_uri(), wait_until="load")
        self.page.wait_for_timeout(200)  # the theme's scripts run after loading
        return self.page

    def check(self) -> None:
        assert not self.errors
        assert not [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture
def visit(chromium: Any, html: Path) -> Iterator[Callable[..., Visit]]:
    contexts = []

    def start(width: int = 1280, **options: Any) -> Visit:
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **options))
        return Visit(contexts[-1].new_page(), html)

    yield start
    for context in contexts:
        context.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", OPENED)
def test_a_page_can_be_read(visit: Callable[..., Visit], name: str):
    """No error, no network, no wider than a small screen, enough contrast in both themes, and solutions are folded.

    The contrast is that of prose, notes, tables and table captions against what is really behind them (WCAG AA: 4.5).
    """
    tab = visit(width=390, color_scheme="dark")
    page = tab.open(name)
    assert page.locator("h1:visible").count() == 1
    if page.locator("span.math, div.math").count():
        page.locator("mjx-container").first.wait_for()  # drawn by the MathJax of the book's own
    assert page.locator("mjx-merror").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    page.set_viewport_size({"width": 1280, "height": 900})
    end = page.locator("article").bounding_box()
    assert end["y"] + end["height"] <= 900 or name != "book/what_to_use_when", "one screen"
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=scheme)
        assert page.evaluate(CONTRAST) == []
    for folded in page.locator("details.hide").all():
        code = folded.locator("pre").first
        assert not code.is_visible()
        folded.locator("summary").first.click()
        assert code.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".bd-article details:not([open])").count() == 0, "on paper nothing can be opened"
    tab.check()


@pytest.mark.browser
def test_a_reader_guesses_and_sees_what_was_recorded(visit: Callable[..., Visit]):
    """By keyboard, on a small screen, without a kernel: one guess, and all that waited for it is there."""
    tab = visit(width=390)
    form = tab.open(f"notebooks/{file_name('pinned_memory')}").locator(".course-predict:has(form)")
    card = form.locator(".course-card").first
    answer = card.locator(".sentence").text_content().strip().rstrip(".")
    assert not card.is_visible()
    form.locator("form input").first.focus()
    tab.page.keyboard.type("2")
    tab.page.keyboard.press("Enter")
    assert card.is_visible()
    sentence = card.locator(".sentence").text_content()
    assert sentence.startswith("You said 2")
    assert answer in sentence
    tab.check()


@pytest.mark.browser
def test_the_first_page_leads_to_the_introduction_and_search_finds_pinned(visit: Callable[..., Visit]):
    tab = visit()
    page = tab.open("index")
    page.wait_for_url(f"**/{PAGES[0]}.html")
    page.locator("h1:visible").wait_for(timeout=60_000)
    end = page.locator("article").bounding_box()
    assert end["y"] + end["height"] <= 3.2 * 900, "three screens"
    page.locator(".bd-sidebar-primary .search-button__button").click()
    page.keyboard.type("pinned")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=pinned*")
    for target in ("book/glossary.html", f"notebooks/{file_name('pinned_memory')}.html"):
        page.locator(f'#search-results li a[href*="{target}"]').first.wait_for(timeout=60_000)
    tab.check()


def shown_claims(page: Any) -> list[str]:
    return page.locator(".claims tbody tr:visible a[id]").evaluate_all("found => found.map(anchor => anchor.id)")


@pytest.mark.browser
def test_claims_can_be_filtered_without_a_mouse_and_the_choice_can_be_linked(visit: Callable[..., Visit]):
    tab = visit()
    page = tab.open("book/claims")
    everything = shown_claims(page)
    words = {claim.id.lower(): claim.word for claim in load_claims()}
    assert set(everything) == set(words)
    page.locator("button.claim-no").focus()
    page.keyboard.press("Space")
    refuted = shown_claims(page)
    assert {words[claim] for claim in refuted} == {"No"}
    page.locator(".claims-filter input").focus()
    page.keyboard.type("cudamalloc ")
    assert shown_claims(page) == ["t8"]
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert shown_claims(page) == ["t8"]
    assert page.locator("button.claim-no").get_attribute("aria-pressed") == "true"
    tab.check()
