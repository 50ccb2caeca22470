"""A demo as an instructor meets it: `make demo` in a real Chromium, its live cells run with nothing before them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from authoring.demo import LARGE_TYPE, tags_of
from course_utils.lesson_notebooks import notebooks_root
from tests.lab_in_browser import ARGUMENTS, START_S, TOKEN, Notebook, free_port, running

ROOT = Path(__file__).resolve().parents[2]
LESSON = "flash_attention"
RUN_S = 300  # on a machine that is busy with other tests

pytestmark = [pytest.mark.browser, pytest.mark.timeout(START_S + RUN_S + 60)]


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """The demo, as a browser opens it by itself: no path, so JupyterLab's own choice of a page is tried, too."""
    home = tmp_path_factory.mktemp("instructor")
    (home / "notebooks").symlink_to(notebooks_root(), target_is_directory=True)
    port = free_port()
    command = [sys.executable, "-m", "authoring", "demo", LESSON, "--no-browser", f"--port={port}", *ARGUMENTS]
    variables = {"COURSE_NOTEBOOKS": str(home / "notebooks"), "COURSE_SIZE": "smoke"}
    with running(command, port, home, variables) as address:
        yield Notebook(chromium, f"{address}/?token={TOKEN}", width=1600, height=900)


def test_one_document_opens_in_large_type_and_asks_in_the_largest(opened: Notebook):
    assert "/doc/tree/demo/" in opened.page.url
    sizes = opened.page.evaluate(
        "() => ['.jp-RenderedMarkdown p', '.cm-content'].map("
        "name => getComputedStyle(document.querySelector(name)).fontSize)"
    )
    assert sizes == [LARGE_TYPE["content-font-size1"], LARGE_TYPE["code-font-size"]]
    question = opened.page.locator(".course-predict .question").first
    question.wait_for(timeout=60_000)
    assert question.evaluate("words => parseFloat(getComputedStyle(words).fontSize)") >= 1.5 * float(sizes[0][:-2])


def test_the_live_cells_run_with_nothing_run_before_them(opened: Notebook):
    """Only the code cells of the path itself: the folded set-up has run when the kernel started."""
    cells = opened.cells()
    last = max(index for index, cell in enumerate(cells) if "experiment" in tags_of(cell))
    for index, cell in enumerate(cells[: last + 1]):
        if cell["cell_type"] != "code" or "demo" not in tags_of(cell):
            continue
        opened.page.evaluate(
            "index => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = index; }", index
        )
        opened.run("notebook:run-cell")
        opened.page.wait_for_timeout(300)
        opened.wait(opened.ready, RUN_S, "a cell has run")
    assert opened.errors() == []
    opened.page.wait_for_timeout(500)
    shown = str(opened.cells()[last]["outputs"])
    assert "You, just now" in shown, shown[:500]
    opened.check_that_nothing_left_the_machine()
