"""The page "Your own program": what it is put together from, and that it reads files in a browser without a network."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from authoring.execution import KERNELSPEC
from authoring.pages import build
from authoring.pages.generated import write
from own_program.files import example
from own_program.page import pack
from own_program.page.pack import PageError
from own_program.traces.events import HOW
from own_program.traces.example import example_trace
from own_program.traces.trace_report import TraceFileError, read_trace

ROOT = Path(__file__).resolve().parents[2]
READ_LIMIT_MS = 120_000  # many times what it takes, on a machine that is busy with other tests

# What is packed


def test_the_archive_has_the_same_bytes_each_time_and_the_licences_of_what_it_carries():
    packed = pack.course_zip()
    assert packed == pack.course_zip()
    names = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert len(names) == len(set(names))
    for library in ("jinja2", "markupsafe"):
        assert [name for name in names if name.startswith(f"{library}/LICENSE")]


def test_the_archive_answers_with_the_standard_library_alone(tmp_path: Path):
    """As in the browser: Python without installed packages, and nothing of the repository but the archive."""
    zipfile.ZipFile(io.BytesIO(pack.course_zip())).extractall(tmp_path / "course")
    (tmp_path / "trace.json.gz").write_bytes(example_trace())
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'course')!r})\n"
    program += "from own_program.files import answer\nprint(answer('../{}.html', sys.argv[1]))"
    command = [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "trace.json.gz")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    # Only the name differs: the reader is told that of a file.
    assert answer["text"] == repr(read_trace(tmp_path / "trace.json.gz"))
    assert 'class="course-card"' in answer["html"]
    assert re.search(r'href="\.\./\d\d_\w+\.html"', answer["html"])


def test_the_script_carries_what_it_was_given():
    script = pack.script({"a.bin": bytes(range(256)) * 10, "b.mjs": b"export default 1"})
    files = json.loads(re.search(r"window\.coursePython = (\{.*\});", script, re.DOTALL)[1])
    unpacked = {name: gzip.decompress(base64.b64decode(text)) for name, text in files.items()}
    assert unpacked == {"a.bin": bytes(range(256)) * 10, "b.mjs": b"export default 1"}


def test_a_package_with_other_bytes_stops_the_build_and_is_not_kept(tmp_path: Path):
    package = tmp_path / f"pyodide-{pack.VERSION}.tgz"
    package.write_bytes(b"something else")
    with pytest.raises(PageError, match="is not the file whose hash"):
        pack.python(tmp_path)
    assert not package.exists()


def test_a_book_that_is_built_without_npm_names_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pack.NoPyodideError, match="npm"):
        pack.python(tmp_path / "cache")
    reader = build.own_program_parts(can_run=False)["own_program_reader.md"]
    assert "make trace ARGS=FILE" in reader
    assert "make snapshot ARGS=FILE" in reader
    assert "<script" not in reader


def test_a_book_without_pyodide_keeps_no_script_of_an_earlier_build(tmp_path: Path):
    write(tmp_path / pack.SCRIPT, "old")
    pack.add_to(tmp_path, None)
    assert not (tmp_path / pack.SCRIPT).exists()


def test_the_example_has_a_plan_whose_lessons_are_there():
    plan = example().plan
    assert plan
    assert [advice.lesson for advice in plan if not (ROOT / f"notebooks/{advice.notebook}.ipynb").is_file()] == []


def test_the_page_records_as_the_readers_messages_say():
    recipe = re.compile(r"schedule\(wait=(\d+), warmup=(\d+), active=(\d+), repeat=1\)")
    page = (ROOT / "book/own_program.md").read_text(encoding="utf-8")
    said = recipe.findall(HOW)
    assert said == recipe.findall(page) != []
    (steps,) = re.findall(r"at least (\d+) steps", page)
    assert int(steps) == sum(map(int, said[0]))


# The page, built with its links turned to itself, and opened from the disk

OTHER_PAGES = re.compile(r"\]\((?:\.\./notebooks/\w+\.ipynb|how_we_measure\.md)\)")
CARD = '<div class="course-card"><a href="10_other.ipynb">a lesson</a> <a href="99_nowhere.ipynb">none</a></div>'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small book: the page with its reader, the page without it, and a notebook that shows a card."""
    folder = tmp_path_factory.mktemp("book")
    try:
        python = pack.python()
    except pack.NoPyodideError as error:
        python = None
        reason = str(error)
    shutil.copytree(ROOT / "book", folder / "book", ignore=shutil.ignore_patterns("_build", "_generated", "*.md"))
    text = OTHER_PAGES.sub("](own_program.md)", (ROOT / "book/own_program.md").read_text(encoding="utf-8"))
    for name, can_run in (("own_program", True), ("without", False)):
        for part, content in build.own_program_parts(can_run).items():
            write(folder / f"book/_generated/{name}/{part}", content)
        (folder / f"book/{name}.md").write_text(text.replace("_generated/", f"_generated/{name}/"))
    (folder / "notebooks").mkdir()
    output = {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": {"text/html": CARD}}
    cell = {"cell_type": "code", "execution_count": 1, "id": "a", "metadata": {}, "source": "1", "outputs": [output]}
    title = {"cell_type": "markdown", "id": "b", "metadata": {}, "source": "# A lesson"}
    for name, cells in (("24_own", [title, cell]), ("10_other", [title])):
        known = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
        notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": known, "cells": cells}
        (folder / f"notebooks/{name}.ipynb").write_text(json.dumps(notebook))
    contents = ["book/own_program", "book/without", "notebooks/24_own", "notebooks/10_other"]
    toc = f"format: jb-book\nroot: {contents[0]}\nchapters:\n" + "".join(f"  - file: {name}\n" for name in contents[1:])
    (folder / "book/_toc.yml").write_text(toc)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "ROOT", folder)
        build.render(folder / "out")
    html = folder / "out/_build/html"
    pack.add_to(html, python)
    if python is None:
        (html / "reason").write_text(reason)
    return html


def test_a_cards_links_to_lessons_lead_to_their_pages(built: Path):
    page = (built / "notebooks/24_own.html").read_text(encoding="utf-8")
    assert '<a href="10_other.html">a lesson</a>' in page
    assert '<a href="99_nowhere.ipynb">none</a>' in page, "what the book lacks stays as it is"


class Page:
    """The page in a tab without a network."""

    def __init__(self, tab: Any, folder: Path) -> None:
        self.tab, self._folder = tab, folder
        self.errors: list[str] = []
        self.requests: list[str] = []
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))

    def bring(self, *names: str, contents: dict[str, bytes]) -> Any:
        """Choose files, wait for the answer, and return its part of the page."""
        paths = []
        for name in names:
            paths.append(self._folder / name)
            paths[-1].write_bytes(contents[name])
            os.utime(paths[-1], (len(paths), len(paths)))
        answers = self.tab.locator(".own-answers > section")
        before = answers.count()
        self.tab.locator(".own-program input").set_input_files(paths)
        wait = "count => document.querySelectorAll('.own-answers > section').length > count"
        self.tab.wait_for_function(wait, arg=before, timeout=READ_LIMIT_MS)
        return answers.first


@pytest.fixture(scope="module")
def page(built: Path, chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if (built / "reason").exists():
        pytest.skip(f"Pyodide cannot be had here: {(built / 'reason').read_text()}")
    context = chromium.new_context(viewport={"width": 390, "height": 844}, offline=True)
    opened = Page(context.new_page(), tmp_path_factory.mktemp("brought"))
    opened.tab.goto((built / "book/own_program.html").as_uri())
    yield opened
    context.close()


def words(card: Any) -> list[str]:
    """The words of a card in a page, in their order, without what is folded and what CSS adds."""
    return card.inner_text().split()


@pytest.mark.browser
def test_nothing_is_loaded_before_a_file_comes(page: Page):
    assert not [url for url in page.requests if url.endswith(pack.SCRIPT.name)]
    assert page.tab.locator("#an-example .course-card").is_visible()


@pytest.mark.browser
def test_a_trace_gets_the_card_that_the_command_line_prints(page: Page, tmp_path: Path):
    answer = page.bring("trace.json.gz", contents={"trace.json.gz": example_trace()})
    (tmp_path / "trace.json.gz").write_bytes(example_trace())
    command = [sys.executable, "-m", "own_program.command", "trace", str(tmp_path / "trace.json.gz")]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    card = read_trace(tmp_path / "trace.json.gz").card()
    shown = answer.locator(".course-card")
    assert shown.locator(".sentence").inner_text().replace("\xa0", " ") == card.words
    assert " ".join(card.words.split()) in " ".join(printed.split())
    assert shown.locator("ol > li").count() == len(card.plan) > 0
    for item, advice in zip(shown.locator("ol > li").all(), card.plan, strict=True):
        assert advice.saving in item.inner_text().replace("\xa0", " ")
        assert " ".join(advice.because.split()) in " ".join(printed.split())
        assert item.locator("a").get_attribute("href") == f"../notebooks/{advice.notebook}.html"
    assert not page.tab.locator("#an-example").is_visible()
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.browser
def test_two_traces_are_compared_the_older_one_first(page: Page):
    names = ("before.json.gz", "after.json.gz")
    answer = page.bring(*names, contents=dict.fromkeys(names, example_trace()))
    assert answer.get_attribute("aria-label") == "before.json.gz → after.json.gz"
    assert answer.locator(".course-card").count() == 1
    answer.get_by_role("button", name="The other way round").click()
    page.tab.get_by_label("after.json.gz → before.json.gz").wait_for(timeout=READ_LIMIT_MS)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["picture.json", "cut.json.gz"])
def test_what_is_no_trace_gets_a_sentence_and_the_next_file_is_read(page: Page, name: str):
    contents = {"picture.json": b"\x89PNG\r\n", "cut.json.gz": b"\x1f\x8b\x08\x00", "good.json.gz": example_trace()}
    answer = page.bring(name, contents=contents)
    assert answer.locator(".course-card").count() == 0
    sentence = answer.locator(".own-sentence").inner_text()
    assert name in sentence or "file" in sentence
    assert "Error" not in sentence
    assert page.bring("good.json.gz", contents=contents).locator(".course-card").count() == 1


@pytest.mark.browser
def test_names_in_a_file_are_text_and_nothing_else(page: Page):
    hostile = gzip.decompress(example_trace()).replace(b"ampere_sgemm_128x64_tn", b"sgemm<img src=x onerror=alert(1)>")
    answer = page.bring("trace.json", contents={"trace.json": hostile})
    assert answer.locator(".course-card").count() == 1
    assert answer.locator("img").count() == 0


@pytest.mark.browser
def test_reading_can_be_cancelled_and_the_page_reads_on(page: Page, tmp_path: Path):
    (tmp_path / "first.json.gz").write_bytes(example_trace())
    page.tab.reload()
    page.tab.locator(".own-program input").set_input_files(tmp_path / "first.json.gz")
    page.tab.get_by_role("button", name="Cancel").click()  # Python is starting, which takes seconds
    assert not page.tab.locator(".own-progress").is_visible()
    assert page.tab.evaluate("document.activeElement.textContent") == "Choose a file"
    page.bring("second.json.gz", contents={"second.json.gz": example_trace()})
    heads = page.tab.locator(".own-answers > section").all()
    assert [head.get_attribute("aria-label") for head in heads] == ["second.json.gz"]


@pytest.mark.browser
def test_a_dropped_file_is_read_wherever_it_falls(page: Page):
    before = page.tab.locator(".own-answers > section").count()
    drop = """text => {
      const data = new DataTransfer();
      data.items.add(new File([text], "dropped.json"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    page.tab.evaluate(drop, gzip.decompress(example_trace()).decode())
    page.tab.locator(".own-answers > section").nth(before).wait_for(timeout=READ_LIMIT_MS)
    assert page.tab.get_by_label("dropped.json").locator(".course-card").count() == 1


@pytest.mark.browser
def test_the_page_asked_nothing_of_a_network_and_raised_no_error(page: Page):
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    refused = page.tab.evaluate("fetch('http://127.0.0.1:9/').catch(() => 'refused')")
    assert refused == "refused"


@pytest.mark.browser
def test_a_page_without_python_names_the_commands(built: Path, chromium: Any):
    tab = chromium.new_page()
    tab.goto((built / "book/without.html").as_uri())
    assert "make trace ARGS=FILE" in tab.locator("article").inner_text()
    assert tab.locator(".own-drop").count() == 0
    tab.close()


def test_an_error_of_a_reader_is_a_sentence():
    with pytest.raises(TraceFileError):
        read_trace(b"<html>")
