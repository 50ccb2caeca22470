"""A demo as an instructor meets it: `make demo` in a real Chromium, its live cells run with nothing before them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from authoring.demo import demo_notebook
from authoring.demo_lab import LARGE_TYPE
from course_utils.records.lessons import find_lesson, notebooks_root
from tests.test_lab import HARMLESS, Notebook, chromium, end_tree, free_port, is_local, picture, wait_for_server

ROOT = Path(__file__).resolve().parents[2]
LESSON = os.environ.get("COURSE_DEMO_LESSON", "04")
TOKEN = "a-token-for-this-test"
READY_S, RUN_S = 180, 300  # on a machine that is busy with other tests

pytestmark = [pytest.mark.browser, pytest.mark.timeout(READY_S + RUN_S + 60)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The demo in a page that can reach this machine alone."""
    from playwright.sync_api import sync_playwright

    browser_path = chromium()
    if browser_path is None:
        message = "Chromium is not installed. On Debian or Ubuntu: sudo apt-get install chromium"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    home = tmp_path_factory.mktemp("instructor")
    (home / "notebooks").symlink_to(notebooks_root(), target_is_directory=True)
    (home / "book").symlink_to(ROOT / "book", target_is_directory=True)
    variables = {**os.environ, "COURSE_NOTEBOOKS": str(home / "notebooks"), "COURSE_SIZE": "smoke", "TMPDIR": str(home)}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    port = free_port()
    command = [sys.executable, "-m", "authoring", "demo", LESSON, "--no-browser", f"--port={port}"]
    command += [f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"]
    log = home / "demo.log"
    with open(log, "w", encoding="utf-8") as output:
        process = psutil.Popen(command, cwd=home, env=variables, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for_server(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", process, log)
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        arguments.append("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=arguments)
            try:
                page = browser.new_page(viewport={"width": 1600, "height": 900})
                page.requested, page.errors = [], []
                page.on("request", lambda request: page.requested.append(request.url))
                page.on("console", lambda line: page.errors.append(line.text) if line.type == "error" else None)
                # What a browser opens by itself: no path, so JupyterLab's own choice of a page is tried, too.
                page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
                notebook = Notebook(page)
                notebook.wait(notebook.ready, READY_S, "the demo is open and its set-up has run")
                yield notebook
            finally:
                browser.close()
    finally:
        left = end_tree(process)
    assert not left, f"these processes could not be ended: {left}"


def test_one_document_opens_in_large_type(opened: Notebook):
    assert "/doc/tree/demo/" in opened.page.url
    sizes = opened.page.evaluate(
        "() => ['.jp-RenderedMarkdown p', '.cm-content'].map("
        "name => getComputedStyle(document.querySelector(name)).fontSize)"
    )
    assert sizes == [LARGE_TYPE["content-font-size1"], LARGE_TYPE["code-font-size"]]
    picture(opened.page, f"demo_{LESSON}")


def test_the_notes_are_there_and_folded(opened: Notebook):
    assert "Notes for the instructor" in opened.cells()[0]["source"]
    notes = opened.page.get_by_text("Where people go wrong", exact=False)
    assert not notes.count() or not notes.first.is_visible()


def test_the_live_cells_run_with_nothing_run_before_them(opened: Notebook):
    """Only the code cells of the path itself: the folded set-up has run when the kernel started."""
    cells = opened.cells()
    folded = {cell["id"] for cell in demo_notebook(find_lesson(LESSON))["cells"] if cell["id"].startswith("set-up")}
    live = [index for index, cell in enumerate(cells) if "experiment" in cell["metadata"].get("tags", [])]
    last = live[-1]
    for index in range(last + 1):
        if cells[index]["cell_type"] != "code" or cells[index]["id"] in folded:
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
    assert re.search(r"FASTER|SLOWER|SAME|UNCLEAR", shown), shown[:500]
    small = opened.page.evaluate(
        "() => [...document.querySelectorAll('.jp-OutputArea-output td, .jp-OutputArea-output .widget-label')]"
        ".map(part => parseFloat(getComputedStyle(part).fontSize)).filter(size => size < 20)"
    )
    assert small == [], "results and controls are read from the last row"
    wrapped = opened.page.evaluate(
        "() => [...document.querySelectorAll('.jp-CodeCell .cm-content')].every(part => "
        "part.classList.contains('cm-lineWrapping'))"
    )
    assert wrapped, "a long line of code would be cut off"
    opened.page.evaluate(
        "index => window.jupyterapp.shell.currentWidget.content.widgets[index].node.scrollIntoView()", last
    )
    picture(opened.page, f"demo_{LESSON}_live")


def test_no_request_of_the_demo_leaves_the_machine(opened: Notebook):
    assert opened.page.requested
    assert [address for address in opened.page.requested if not is_local(address)] == []
    assert [error for error in opened.page.errors if not any(known in error for known in HARMLESS)] == []
