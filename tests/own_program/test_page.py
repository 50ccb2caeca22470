"""The page "Your own program": what it is put together from, and that it reads files in a browser without a network."""

from __future__ import annotations

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

from authoring.pages import build
from authoring.pages.generated import write
from own_program.page import pack
from own_program.traces.example import example_trace
from own_program.traces.trace_report import read_trace

ROOT = Path(__file__).resolve().parents[2]
READ_LIMIT_MS = 120_000  # many times what it takes, on a machine that is busy with other tests


def test_the_archive_answers_with_the_standard_library_alone(tmp_path: Path):
    """As in the browser: Python without installed packages, and nothing of the repository but the archive."""
    zipfile.ZipFile(io.BytesIO(pack.course_zip())).extractall(tmp_path / "course")
    (tmp_path / "trace.json.gz").write_bytes(example_trace())
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'course')!r})\n"
    program += "from own_program.file_reader import answer\nprint(answer('../{}.html', sys.argv[1]))"
    command = [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "trace.json.gz")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"] == repr(read_trace(tmp_path / "trace.json.gz"))
    assert re.search(r'href="\.\./\d\d_\w+\.html"', answer["html"])


def test_a_package_with_other_bytes_stops_the_build_and_is_not_kept(tmp_path: Path):
    package = tmp_path / f"pyodide-{pack.VERSION}.tgz"
    package.write_bytes(b"something else")
    with pytest.raises(pack.PageError, match="is not the file whose hash"):
        pack.python(tmp_path)
    assert not package.exists()


def test_a_book_that_is_built_without_npm_names_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pack.NoPyodideError, match="npm"):
        pack.python(tmp_path / "cache")
    reader = build.own_program_parts(can_run=False)["own_program_reader.md"]
    assert "make trace ARGS=FILE" in reader
    assert "<script" not in reader


# The page, built with its links turned to itself, and opened from the disk


class Page:
    """The page in a tab without a network."""

    def __init__(self, tab: Any, folder: Path) -> None:
        self.tab, self._folder = tab, folder
        self.errors: list[str] = []
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("request", lambda request: self._asked_for(request.url))

    def _asked_for(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.errors.append(url)

    def bring(self, **contents: bytes) -> Any:
        """Choose files, wait for the answer, and return its part of the page."""
        paths = [self._folder / f"{name}.json.gz" for name in contents]
        for age, (path, content) in enumerate(zip(paths, contents.values(), strict=True)):
            path.write_bytes(content)
            os.utime(path, (age, age))
        before = self.tab.locator(".own-answers > section").count()
        self.tab.locator(".own-program input").set_input_files(paths)
        return self.answer(before)

    def answer(self, before: int) -> Any:
        """The newest answer, when it has come after so many."""
        wait = "count => document.querySelectorAll('.own-answers > section').length > count"
        self.tab.wait_for_function(wait, arg=before, timeout=READ_LIMIT_MS)
        return self.tab.locator(".own-answers > section").first


@pytest.fixture(scope="module")
def page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    try:
        python = pack.python()
    except pack.NoPyodideError as error:
        pytest.skip(f"Pyodide cannot be had here: {error}")
    folder = tmp_path_factory.mktemp("book")
    shutil.copytree(ROOT / "book", folder / "book", ignore=shutil.ignore_patterns("_build", "_generated", "*.md"))
    for part, content in build.own_program_parts(can_run=True).items():
        write(folder / "book/_generated" / part, content)
    text = (ROOT / "book/own_program.md").read_text(encoding="utf-8")
    other_pages = r"\]\((?:\.\./notebooks/\w+\.ipynb|how_we_measure\.md)\)"
    (folder / "book/own_program.md").write_text(re.sub(other_pages, "](own_program.md)", text), encoding="utf-8")
    (folder / "book/_toc.yml").write_text("format: jb-book\nroot: book/own_program\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "ROOT", folder)
        build.render(folder / "out")
    pack.add_to(folder / "out/_build/html", python)
    context = chromium.new_context(viewport={"width": 390, "height": 844}, offline=True)
    opened = Page(context.new_page(), tmp_path_factory.mktemp("brought"))
    opened.tab.goto((folder / "out/_build/html/book/own_program.html").as_uri())
    yield opened
    context.close()


@pytest.mark.browser
def test_a_trace_gets_its_card_and_two_are_compared_the_older_one_first(page: Page, tmp_path: Path):
    answer = page.bring(trace=example_trace())
    (tmp_path / "trace.json.gz").write_bytes(example_trace())
    card, shown = read_trace(tmp_path / "trace.json.gz").card(), answer.locator(".course-card")
    assert shown.locator(".sentence").inner_text().replace("\xa0", " ") == card.words
    for item, advice in zip(shown.locator("ol > li").all(), card.plan, strict=True):
        assert advice.saving in item.inner_text().replace("\xa0", " ")
        assert item.locator("a").get_attribute("href") == f"../notebooks/{advice.notebook}.html"
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 390
    answer = page.bring(before=example_trace(), after=example_trace())
    assert answer.get_attribute("aria-label") == "before.json.gz → after.json.gz"
    answer.get_by_role("button", name="The other way round").click()
    page.tab.get_by_label("after.json.gz → before.json.gz").wait_for(timeout=READ_LIMIT_MS)
    assert page.errors == []  # nor was anything asked of a network


@pytest.mark.browser
def test_a_dropped_file_is_read_wherever_it_falls(page: Page):
    drop = """text => {
      const data = new DataTransfer();
      data.items.add(new File([text], "dropped.json"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    before = page.tab.locator(".own-answers > section").count()
    # Names in a file are text and nothing else.
    hostile = gzip.decompress(example_trace()).replace(b"ampere_sgemm_128x64_tn", b"sgemm<img src=x onerror=alert(1)>")
    page.tab.evaluate(drop, hostile.decode())
    answer = page.answer(before)
    assert (answer.locator(".course-card").count(), answer.locator("img").count()) == (1, 0)
