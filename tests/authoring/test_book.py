"""The book: its lists agree with the notebooks, it builds without a warning, and it works without a network."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
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

from authoring.pages import claims_page, landing, lesson_list, readme, status_page
from authoring.pages.generated import BookError
from course_utils.records import store
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep, SweepPoint

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# A build takes half a minute, and many times that on a machine that is busy with other tests.
BUILD_LIMIT_S = 600
OUTSIDE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)

pytestmark = pytest.mark.timeout(2 * BUILD_LIMIT_S)


def toc_pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


PAGES = toc_pages()


def run_build(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "authoring.pages.build", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book, built anew where ``make book`` builds it, and once for all workers that share these tests."""
    folder, shared = ROOT / "book", tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    built = shared / "book is built"
    with FileLock(shared / "book.lock"):
        if not built.exists():
            done = run_build(ROOT, "--fresh")
            assert done.returncode == 0, done.stderr
            assert (folder / "_build/html/index.html").as_uri() in done.stdout
            built.touch()
    return folder


@pytest.fixture(scope="module")
def html(output: Path) -> Path:
    return output / "_build/html"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of what the book is made of, to damage."""
    for folder in ("book", "notebooks"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("_build", "_generated", "*.tmp")
        )
    return tmp_path


# The lists


def test_the_table_of_contents_holds_every_notebook_and_no_other():
    listed = [page.removeprefix("notebooks/") for page in PAGES if page.startswith("notebooks/")]
    assert listed == NOTEBOOKS


def test_the_table_links_built_lessons_and_marks_planned_ones():
    lessons = lesson_list.load_lessons()
    rows = lesson_list.lessons_table(lessons, {}).splitlines()
    for lesson in lessons:
        row = next(row for row in rows if row.startswith(f"| {lesson.number:02d} "))
        assert lesson.question in row
        assert (f"(notebooks/{lesson.stem}.ipynb)" in row) == lesson.built
        assert ("planned" in row) != lesson.built


def test_slugs_and_questions_are_unique():
    lessons = lesson_list.load_lessons()
    assert len({lesson.slug for lesson in lessons}) == len({lesson.question for lesson in lessons}) == len(lessons)


def test_an_unlisted_notebook_stops_the_build(copied: Path):
    shutil.copy(next((copied / "notebooks").glob("*.ipynb")), copied / "notebooks/99_surprise.ipynb")
    done = run_build(copied)
    assert done.returncode == 1
    assert "99_surprise" in done.stderr
    assert "lessons.yml" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_outdated_table_of_contents_stops_the_build(copied: Path):
    next((copied / "notebooks").glob("*.ipynb")).unlink()
    done = run_build(copied)
    assert done.returncode == 1
    assert "_toc.yml is out of date: run `make refresh`" in done.stderr


# The build


@pytest.mark.slow
def test_a_broken_link_fails_the_build_and_the_next_one_reads_all_pages_again(copied: Path):
    page = copied / "book/how_we_measure.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[nowhere](no_such_page.md)\n", encoding="utf-8")
    done = run_build(copied)
    assert done.returncode == 1
    assert "no_such_page" in done.stderr
    assert "Traceback" not in done.stderr
    # Sphinx would not repeat the warning for a page that it has cached there.
    assert list((copied / "book/_build").iterdir())
    assert not (copied / "book/_build/.doctrees").exists()


@pytest.mark.slow
def test_a_second_build_renders_nothing_again(output: Path, html: Path):
    before = {page: (html / f"{page}.html").stat().st_mtime_ns for page in PAGES}
    assert run_build(ROOT).returncode == 0
    assert {page: (html / f"{page}.html").stat().st_mtime_ns for page in PAGES} == before


def test_a_damaged_record_fails_the_build_with_one_message(tmp_path: Path):
    (tmp_path / "some-machine").mkdir()
    (tmp_path / "some-machine/measuring.json").write_text('{"schema_version": 1, "lesson"')
    done = run_build(ROOT, "--output", str(tmp_path), COURSE_REFERENCE_ROOT=str(tmp_path))
    assert done.returncode == 1
    assert "some-machine/measuring.json" in done.stderr
    assert "Traceback" not in done.stderr


# The generated pages


def comparison(name: str, environment: Environment) -> Comparison:
    base = Measurement("pageable", tuple(2e-3 + 1e-6 * (i % 7) for i in range(40)))
    fast = Measurement("pinned", tuple(1e-3 + 1e-6 * (i % 5) for i in range(40)))
    again = dataclasses.replace(base, label="pageable again", elapsed_s=base.elapsed_s[3:] + base.elapsed_s[:3])
    return Comparison(cases=(base, fast), control=again, environment=environment, name=name)


def save_record(
    root: Path, name: str, machine: str, device_kind: str, device_name: str, sizes: tuple[int, ...] = ()
) -> None:
    lesson = name.split("/")[0]
    environment = Environment(
        machine=machine,
        device_kind=device_kind,
        device_name=device_name,
        cpu_model="A CPU",
        cpu_cores=16,
        memory_bytes=64 * 2**30,
        os="Linux x86_64",
        python="3.11.7",
        torch="2.13.0",
        size="full",
        date="2026-01-02",
        gpu_count=int(device_kind != "cpu"),
        gpu_memory_bytes=141 * 2**30 if device_kind != "cpu" else None,
    )
    now = store.current_fingerprint(lesson, name)
    hashes = (now.code_hash, now.parameters_hash) if now else ("code", "parameters")
    result = comparison(name, environment)
    if sizes:
        points = tuple(SweepPoint(size, dataclasses.replace(result, name=None)) for size in sizes)
        result = Sweep(over="KiB", points=points, environment=environment, name=name)
    experiment = store.Experiment(name, result.kind, *hashes, result.to_record())
    store.save_lesson(
        store.LessonRecord(lesson, environment, {name: experiment}, "2026-01-02T03:04:05+00:00", 9.0), root
    )


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path / "records"))
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "results"))
    return tmp_path / "records"


def test_without_records_the_pages_say_so(records: Path):
    lessons = lesson_list.load_lessons()
    page = status_page.status_page(lessons)
    assert "No GPU run is recorded yet" in page
    assert "Nothing is recorded at all yet" in page
    example, figure = landing.headline(lessons)
    assert "Nothing is recorded yet" in example
    assert figure is None


def test_a_cpu_record_alone_still_says_that_no_gpu_run_is_recorded(records: Path):
    save_record(records, "pinned_memory/copy", "a-cpu-16-cores", "cpu", "A CPU")
    page = status_page.status_page(lesson_list.load_lessons())
    assert "No GPU run is recorded yet" in page
    assert "A CPU, 16 cores" in page
    assert "2026-01-02, full" in page


def test_the_status_page_names_what_is_not_recorded(records: Path):
    save_record(records, "pinned_memory/copy", "a-gpu", "cuda", "A GPU of ours")
    page = status_page.status_page(lesson_list.load_lessons())
    row = next(line for line in page.splitlines() if line.startswith("| `pinned_memory/overlap`"))
    assert "*not recorded yet*: needs a CUDA GPU" in row


def test_a_gpu_record_takes_the_headline_and_ends_the_notice(records: Path):
    save_record(records, "pinned_memory/copy", "a-cpu-16-cores", "cpu", "A CPU")
    save_record(records, "pinned_memory/copy", "a-gpu", "cuda", "A GPU of ours")
    lessons = lesson_list.load_lessons()
    page = status_page.status_page(lessons)
    assert "No GPU run is recorded yet" not in page
    assert "141 GiB" in page
    assert "`pinned_memory/copy`" in page
    example, figure = landing.headline(lessons)
    assert "A GPU of ours" in example
    assert "FASTER" in example
    assert figure is not None


def test_a_sweep_in_the_headline_is_told_at_its_last_value(records: Path):
    save_record(records, "pinned_memory/copy", "a-gpu", "cuda", "A GPU of ours", sizes=(64, 4096))
    example, figure = landing.headline(lesson_list.load_lessons())
    assert "At KiB = 4096, against pageable:" in example
    assert example.count("FASTER") == 1
    assert figure is not None


def test_your_own_runs_are_kept_apart(records: Path):
    save_record(store.results_root(), "pinned_memory/copy", "my-gpu", "cuda", "My GPU")
    page = status_page.status_page(lesson_list.load_lessons())
    assert "No GPU run is recorded yet" in page
    assert "My GPU" in page.split("## Your own runs")[1]


def test_the_same_record_gives_the_same_figure(records: Path):
    save_record(records, "pinned_memory/copy", "a-gpu", "cuda", "A GPU of ours")
    one, two = (landing.svg(landing.headline(lesson_list.load_lessons())[1]) for _ in range(2))
    assert one == two
    assert "<svg" in one


# The ledger's page


def test_the_ledgers_page_tells_of_every_claim_all_that_is_known_of_it():
    judgements = claims_page.judge_all()
    page = claims_page.claims_page(judgements, lesson_list.load_lessons())
    entries = {entry.split("\n")[0]: entry for entry in page.split("\n### ")[1:]}
    assert entries
    assert set(entries) == {judgement.claim.id for judgement in judgements}
    for judgement in judgements:
        claim, entry = judgement.claim, entries[judgement.claim.id]
        told = [claim.sentence, claim.condition, *claim.sources, *judgement.waits_for]
        told += [call.code.strip() for call in claim.calls]
        for part in claim.parts:
            told += [f"{verdict}: {text}" for verdict, text in part.steps]
            told += [f"{name} = {text}" for name, text in part.let]
        for part in judgement.parts:
            told += [words for machine in part.machines for _, words in machine.numbers]
            told += [machine.caption for machine in part.machines]
        assert [text for text in told if text.rstrip(".") not in entry] == []
        assert entry.index(f"{claims_page.SIGNS[claim.word]} {claim.word}<") < entry.index(f"**{claim.claim}**")


def test_the_section_that_measures_an_experiment_is_found():
    lesson = next(lesson for lesson in lesson_list.load_lessons() if lesson.slug == "caching_allocator")
    assert claims_page.heading_of(lesson.notebook, "caching_allocator/no_cap") == "The simulated training"
    assert claims_page.heading_of(lesson.notebook, "caching_allocator/no_such_thing") is None


def judged_on_a_machine() -> tuple[Any, Any]:
    judgements = claims_page.judge_all()
    return next((one, part) for one in judgements for part in one.parts if part.machines and not part.part.aside)


def test_machines_that_disagree_are_listed_with_their_own_verdicts():
    judged, part = judged_on_a_machine()
    first = dataclasses.replace(part.machines[0], verdict="confirmed")
    second = dataclasses.replace(first, machine="another", caption="Another machine", verdict="refuted")
    parts = (dataclasses.replace(part, machines=(first, second), verdict="depends"),)
    page = claims_page.claims_page([dataclasses.replace(judged, parts=parts)], lesson_list.load_lessons())
    assert "The recorded machines do not agree" in page
    assert f"{claims_page.badge('refuted')} on Another machine" in page
    assert f"{claims_page.badge('confirmed')} on {first.caption}" in page


def test_a_finding_that_the_ledger_does_not_have_is_an_error_that_names_it():
    lesson = next(lesson for lesson in lesson_list.load_lessons() if lesson.finding)
    wrong = dataclasses.replace(lesson, finding=(lesson.finding[0], "no such label"))
    with pytest.raises(BookError, match="'no such label'"):
        readme.table_with_findings([wrong], claims_page.judge_all(), "notebooks", "book/claims.md")


def test_one_line_under_the_table_says_what_every_sign_means():
    table = readme.table_with_findings(lesson_list.load_lessons(), claims_page.judge_all(), "notebooks", "c.md")
    (line,) = [line for line in table.split("</div>")[1].splitlines() if "](c.md): " in line]
    for verdict, sign in claims_page.SIGNS.items():
        assert f"{sign}&nbsp;{verdict} (" in line
    assert readme.legend("c.md") not in readme.table_with_findings([], [], "notebooks", "c.md")


def test_a_number_with_an_interval_is_found_before_a_bare_one():
    lesson = next(lesson for lesson in lesson_list.load_lessons() if lesson.slug == "mixed_precision")
    judged, part = judged_on_a_machine()
    told = dataclasses.replace(
        part.machines[0],
        verdict=part.verdict,
        numbers=(("bytes", "3 B"), ("time", "2 s (95% interval 1 s to 3 s)")),
    )
    claim = dataclasses.replace(judged.claim, lesson=lesson.slug, verdict="depends", parts=(part.part,))
    judged = dataclasses.replace(judged, claim=claim, parts=(dataclasses.replace(part, machines=(told,)),))
    table = readme.table_with_findings([dataclasses.replace(lesson, finding=())], [judged], "n", "c.md")
    assert "Time: **2 s (95% interval 1 s to 3 s)**<sup>1</sup>" in table
    assert "3 B" not in table
    assert f"<sup>1</sup> {told.caption}" in table


def test_the_status_page_says_what_waits_for_which_hardware():
    page = status_page.status_page(lesson_list.load_lessons(), claims_page.judge_all())
    waiting = page.split("## What waits for hardware")[1].split("## ")[0]
    row = next(line for line in waiting.splitlines() if line.startswith("| two CUDA GPUs |"))
    assert "`ddp/data_parallel`" in row
    assert "[L5](claims.md#l5)" in row


# The pages, read as files


@cache  # several tests read every page
def parse(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def html_files(html: Path) -> list[Path]:
    return [page for page in sorted(html.rglob("*.html")) if "_static" not in page.relative_to(html).parts]


def css_references(text: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = re.findall(r"""url\(\s*["']?([^"')]+)""", text)
    return found + re.findall(r"""@import\s+["']([^"']+)""", text)


def loaded_by(soup: BeautifulSoup) -> list[str]:
    """Everything that a browser fetches for a page by itself: scripts, styles, images, frames, media."""
    found = [tag["src"] for tag in soup.find_all(src=True)]
    found += [tag["href"] for tag in soup.find_all("link", href=True) if "canonical" not in tag.get("rel", [])]
    found += [part.split()[0] for tag in soup.find_all(srcset=True) for part in tag["srcset"].split(",")]
    found += [tag["data"] for tag in soup.find_all("object", data=True)]
    found += [reference for tag in soup.find_all("style") for reference in css_references(tag.get_text())]
    found += [reference for tag in soup.find_all(style=True) for reference in css_references(tag["style"])]
    return found


def test_the_book_is_at_most_40_mb(html: Path):
    assert sum(file.stat().st_size for file in html.rglob("*") if file.is_file()) <= 40 * 2**20


def test_every_page_of_the_table_of_contents_is_there(html: Path):
    missing = [page for page in [*PAGES, "index", "search"] if not (html / f"{page}.html").is_file()]
    assert not missing


def test_no_page_loads_anything_from_outside(html: Path):
    outside = [(page.name, ref) for page in html_files(html) for ref in loaded_by(parse(page)) if OUTSIDE.match(ref)]
    assert not outside
    # The name of SVG's namespace looks like an address, and is never asked for.
    scripts = [
        (page.name, script.get_text().replace('"http://www.w3.org/2000/svg"', ""))
        for page in html_files(html)
        for script in parse(page).find_all("script", src=False)
    ]
    assert scripts
    scripted = [(name, text[:200]) for name, text in scripts if "://" in text]
    assert not scripted


def test_everything_that_pages_and_styles_load_is_there(html: Path):
    missing = []
    for page in html_files(html):
        for reference in loaded_by(parse(page)):
            path = unquote(urlsplit(reference).path)
            if path and not reference.startswith("data:") and not (page.parent / path).is_file():
                missing.append((page.name, reference))
    for style in html.rglob("*.css"):
        for reference in css_references(style.read_text(encoding="utf-8")):
            if reference.startswith(("data:", "#")):
                continue
            if OUTSIDE.match(reference) or not (style.parent / unquote(urlsplit(reference).path)).is_file():
                missing.append((style.name, reference))
    assert not missing


def test_every_internal_link_and_anchor_resolves(html: Path):
    soups = {page.resolve(): parse(page) for page in html_files(html)}
    anchors = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in soups.items()}
    broken, checked = [], 0
    for page, soup in soups.items():
        for link in soup.find_all("a", href=True):
            target = urlsplit(link["href"])
            if target.scheme or target.netloc:
                continue
            checked += 1
            file = (page.parent / unquote(target.path)).resolve() if target.path else page
            fragment_is_there = not target.fragment or unquote(target.fragment) in anchors.get(file, [target.fragment])
            if not (file.is_file() and fragment_is_there):
                broken.append((page.name, link["href"]))
    assert not broken
    assert checked > 100


def test_the_first_page_leads_to_the_introduction(html: Path):
    refresh = parse(html / "index.html").find("meta", attrs={"http-equiv": "Refresh"})
    assert (html / refresh["content"].split("url=")[1]).resolve() == (html / f"{PAGES[0]}.html").resolve()


def test_no_number_on_the_landing_page_is_typed():
    text = (ROOT / "book/intro.md").read_text(encoding="utf-8")
    assert not re.findall(r"\d(?:\.\d+)?\s?(?:x\b|×|times|ms|µs|GB|GiB|TFLOP)", text)


# The pages, opened in a browser from the disk


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
        page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))

    def open(self, name: str, query: str = "") -> Any:
        self.page.goto((self._html / f"{name}.html").as_uri() + query, wait_until="load")
        self.page.wait_for_timeout(200)  # the theme's scripts run after loading
        return self.page

    def check(self) -> None:
        assert not self.errors
        assert not [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        message = "Chromium is missing: install it, for example with `apt-get install chromium`"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, html: Path) -> Iterator[Callable[..., Visit]]:
    contexts = []

    def start(width: int = 1280, scheme: str = "light") -> Visit:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        return Visit(context.new_page(), html)

    yield start
    for context in contexts:
        context.close()


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read(visit: Callable[..., Visit], name: str, scheme: str, width: int, tmp_path: Path):
    """No error, no network, no wider than the screen, and enough contrast. One visit: loading takes most of the time.

    The contrast is that of prose, notes, tables and table captions against what is really behind them (WCAG AA: 4.5).
    """
    tab = visit(width=width, scheme=scheme)
    page = tab.open(name)
    assert page.locator("h1:visible").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate(CONTRAST) == []
    assert len(page.screenshot(path=tmp_path / "page.png")) > 10_000
    tab.check()


@pytest.mark.browser
@pytest.mark.parametrize("name", ["index", "search", "genindex"])
def test_a_page_without_text_of_ours_opens_without_errors(visit: Callable[..., Visit], name: str):
    tab = visit()
    tab.open(name)
    # The first page sends on to another one. Here a locator that finds two headings is an error.
    tab.page.locator("h1:visible").wait_for(timeout=60_000)
    tab.check()


@pytest.mark.browser
def test_search_finds_pinned(visit: Callable[..., Visit]):
    tab = visit()
    page = tab.open("search", "?q=pinned")
    for target in ("book/glossary.html", "notebooks/04_pinned_memory.html"):
        page.locator(f'#search-results li a[href*="{target}"]').first.wait_for(timeout=60_000)
    page.locator("#search-results li a").first.click()
    page.locator("h1:visible").wait_for()
    tab.check()


@pytest.mark.browser
def test_search_opens_from_the_sidebar(visit: Callable[..., Visit]):
    tab = visit()
    page = tab.open(PAGES[0])
    page.locator(".bd-sidebar-primary .search-button__button").click()
    page.keyboard.type("pinned")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=pinned*")
    page.locator("#search-results li a").first.wait_for()
    tab.check()


def shown_claims(page: Any) -> list[str]:
    return page.locator("section section section:visible").evaluate_all("found => found.map(entry => entry.id)")


@pytest.mark.browser
def test_claims_can_be_filtered_without_a_mouse_and_the_choice_can_be_linked(visit: Callable[..., Visit]):
    tab = visit()
    page = tab.open("book/claims")
    everything = shown_claims(page)
    verdicts = {judgement.claim.id.lower(): judgement.claim.verdict for judgement in claims_page.judge_all()}
    assert set(everything) == set(verdicts)
    assert page.locator("output").inner_text() == f"{len(everything)} of {len(everything)} claims"

    page.locator("button.claim-refuted").focus()
    page.keyboard.press("Space")
    refuted = shown_claims(page)
    assert {verdicts[one] for one in refuted} == {"refuted"}
    page.locator(".claims-filter input").focus()
    page.keyboard.type("t8 ")
    assert "t8" in shown_claims(page)
    assert set(shown_claims(page)) < set(refuted)

    address = page.url
    assert "verdict=refuted" in address
    page.goto("about:blank")
    page.goto(address)
    assert "t8" in shown_claims(page)
    assert page.locator("button.claim-refuted").get_attribute("aria-pressed") == "true"
    assert page.locator("h2:visible").count() < 3

    page.locator(".claims-filter-all").focus()
    page.keyboard.press("Enter")
    assert shown_claims(page) == everything
    tab.check()


@pytest.mark.browser
def test_a_link_to_a_claim_shows_it_whatever_was_chosen_before(visit: Callable[..., Visit]):
    tab = visit()
    page = tab.open("book/claims", "#verdict=confirmed")
    assert "t8" not in shown_claims(page)
    page.evaluate("location.hash = '#t8'")
    page.locator("#t8").wait_for()
    assert 0 <= page.locator("#t8").bounding_box()["y"] < 900
    tab.check()


@pytest.mark.browser
def test_without_scripts_the_ledger_is_complete(chromium: Any, html: Path):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((html / "book/claims.html").as_uri())
    assert len(shown_claims(page)) == len(claims_page.judge_all())
    assert page.locator(".claims-filter").count() == 0
    context.close()


@pytest.mark.browser
def test_math_is_drawn_with_local_fonts(visit: Callable[..., Visit]):
    tab = visit()
    page = tab.open("book/how_we_measure")
    page.locator("mjx-container").first.wait_for()
    page.evaluate("MathJax.startup.promise")
    assert page.locator("span.math, div.math").count() == page.locator("mjx-container").count() >= 4
    assert page.locator("mjx-merror").count() == 0
    loaded = page.evaluate(
        "document.fonts.ready.then(() => [...document.fonts]"
        ".filter(f => f.family.includes('MJX') && f.status === 'loaded').length)"
    )
    assert loaded >= 2
    tab.check()


@pytest.mark.browser
def test_solutions_are_folded_and_open_with_a_click(visit: Callable[..., Visit]):
    tab = visit()
    opened = 0
    for name in (page for page in PAGES if page.startswith("notebooks/")):
        page = tab.open(name)
        for folded in page.locator("details.hide").all():
            code = folded.locator("pre").first
            assert not code.is_visible()
            folded.locator("summary").first.click()
            assert code.is_visible()
            opened += 1
    assert opened
    tab.check()


CONTRAST = """() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const c = channels(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.5) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const kinds = ["p", "td", "th", "caption", "dt", "dd"].map(kind => `article ${kind}`).join(", ");
  for (const e of document.querySelectorAll(kinds)) {
    if (!e.textContent.trim() || !e.checkVisibility()) continue;
    const [a, b] = [luminance(channels(getComputedStyle(e).color)), luminance(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) poor.push([e.tagName, e.textContent.trim().slice(0, 40), contrast.toFixed(2)]);
  }
  return poor;
}"""
