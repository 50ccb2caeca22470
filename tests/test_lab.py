"""A lesson as a learner meets it: a real JupyterLab in a real Chromium, with nothing reachable but this machine.

Lesson 00 unless ``COURSE_LAB_LESSON`` names another one; ``COURSE_SCREENSHOTS`` names a folder that keeps the pictures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from course_utils.records.lessons import find_lesson, notebooks_root

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "a-token-for-this-test"
LESSON = os.environ.get("COURSE_LAB_LESSON", "00")
# Seconds, but on a machine that is busy with other tests it takes many times that.
START_S = 120
RUN_S = 300 if LESSON == "00" else 600

# Console errors of JupyterLab itself, which no lesson causes.
HARMLESS = (
    "favicon",
    # JupyterLab asks for settings and workspaces that a new installation does not have yet.
    "the server responded with a status of 404",
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(START_S + RUN_S + 60)]


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def end_tree(process: psutil.Popen) -> list[psutil.Process]:
    """Ends a process with its kernels, and returns what is still alive after all."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = [*process.children(recursive=True), process]
        process.terminate()  # JupyterLab ends its kernels itself, if it gets the time
        _, alive = psutil.wait_procs(tree, timeout=30)
        for left in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        return psutil.wait_procs(alive, timeout=30)[1]
    return []


def digest(folder: Path) -> dict[str, str]:
    # Other tests run lessons and their programs at the same time, and Python keeps their bytecode.
    left_out = {".ipynb_checkpoints", "__pycache__"}
    files = (path for path in folder.rglob("*") if path.is_file() and not left_out & set(path.parts))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner's copy of the notebooks, stored outputs included."""
    folder = tmp_path_factory.mktemp("learner") / "workspace"
    shutil.copytree(notebooks_root(), folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return folder


@pytest.fixture(scope="module")
def lab(workspace: Path) -> Iterator[str]:
    """A JupyterLab of its own, with empty settings; gives its address."""
    home = workspace.parent / "jupyter"
    config = home / "config"
    (config / "labconfig").mkdir(parents=True)
    overrides = {
        # All cells are in the page, not only those in view.
        "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/extensionmanager-extension:plugin": {"enabled": False},
    }
    (config / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(overrides), encoding="utf-8")
    folders = {
        "JUPYTER_CONFIG_DIR": config,
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "IPYTHONDIR": home / "ipython",
    }
    environment = {**os.environ, **{name: str(folder) for name, folder in folders.items()}, "COURSE_SIZE": "smoke"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={workspace}"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1"]
    command += [f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"]
    log = workspace.parent / "jupyterlab.log"
    with open(log, "w", encoding="utf-8") as output:
        process = psutil.Popen(command, cwd=workspace, env=environment, stdout=output, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for_server(f"{address}/api/status?token={TOKEN}", process, log)
        yield address
    finally:
        left = end_tree(process)
    assert not left, f"these processes could not be ended: {left}"


def wait_for_server(address: str, process: psutil.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-3000:]}")


class Notebook:
    """The open lesson: JupyterLab's own model of it, through ``window.jupyterapp``."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def run(self, command: str) -> None:
        """Starts a command of JupyterLab, and does not wait for what it started."""
        self.page.evaluate("command => { window.jupyterapp.commands.execute(command); }", command)

    def cells(self) -> list[dict[str, Any]]:
        return self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells"
        )

    def ready(self) -> bool:
        """Whether the notebook is open and its kernel waits."""
        return self.page.evaluate(
            """() => {
                const widget = window.jupyterapp?.shell.currentWidget;
                return widget?.context?.isReady === true
                    && widget.content.model?.cells.length > 0
                    && widget.sessionContext?.session?.kernel?.status === 'idle';
            }"""
        )

    def wait(self, condition: Any, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"after {seconds:g} s still waiting until {what}")
            self.page.wait_for_timeout(200)

    def run_cells_until_prediction(self) -> None:
        """Runs cell after cell, as a learner does, until the form is there."""
        form = self.page.locator(".course-predict")
        for _ in self.cells():
            if form.count():
                return
            self.run("notebook:run-cell-and-select-next")
            self.page.wait_for_timeout(100)
            self.wait(self.ready, 60, "a cell has run")
            self.page.wait_for_timeout(300)  # a form is drawn a moment after its cell has run
        form.first.wait_for(timeout=60_000)

    def errors(self) -> list[str]:
        return [
            f"cell {number}: {output['ename']}: {output['evalue']}"
            for number, cell in enumerate(self.cells(), start=1)
            for output in cell.get("outputs", [])
            if output["output_type"] == "error"
        ]

    def finished(self) -> bool:
        """Whether the kernel has nothing left to do: every code cell has its number, or one has failed."""
        code = [cell for cell in self.cells() if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        prompts = self.page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        numbered = all(cell["execution_count"] for cell in code) and "[*]:" not in prompts
        return self.ready() and (numbered or bool(self.errors()))


def is_local(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")


def picture(page: Any, name: str) -> None:
    """Keeps a picture of the whole page for people to look at, if they said where."""
    folder = os.environ.get("COURSE_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.fixture(scope="module")
def page(lab: str) -> Iterator[Any]:
    """A page in a Chromium that can reach this machine alone; keeps the requests and console errors."""
    from playwright.sync_api import sync_playwright

    browser_path = chromium()
    if browser_path is None:
        message = "Chromium is not installed. On Debian or Ubuntu: sudo apt-get install chromium"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    arguments.append("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=arguments)
        try:
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.requested, page.errors = [], []
            page.on("request", lambda request: page.requested.append(request.url))
            page.on("websocket", lambda connection: page.requested.append(connection.url))
            page.on("console", lambda line: page.errors.append(line.text) if line.type == "error" else None)
            page.on("pageerror", lambda error: page.errors.append(str(error)))
            yield page
        finally:
            browser.close()


@pytest.fixture(scope="module")
def lesson(page: Any, lab: str) -> Notebook:
    """The lesson, opened, predicted and run from top to bottom."""
    before = digest(notebooks_root())
    page.before = before
    page.goto(f"{lab}/lab/tree/{find_lesson(LESSON).path.name}?token={TOKEN}")
    notebook = Notebook(page)
    notebook.wait(notebook.ready, START_S, "the notebook is open and its kernel is ready")
    notebook.run_cells_until_prediction()
    form = page.locator(".course-predict").first
    form.scroll_into_view_if_needed()
    form.locator("input[type=number], input[type=text]").first.fill("2")
    form.locator("button").first.click()
    form.get_by_text("Locked", exact=False).first.wait_for(timeout=60_000)
    picture(page, f"lesson_{LESSON}_prediction")
    notebook.run("notebook:run-all-cells")
    page.wait_for_timeout(500)
    notebook.wait(notebook.finished, RUN_S, "all cells have run")
    return notebook


def test_no_cell_of_the_lesson_fails(lesson: Notebook):
    assert lesson.errors() == []


def test_the_prediction_is_compared_with_the_measurement(lesson: Notebook):
    answer = lesson.page.get_by_text("You said 2", exact=False).first
    answer.scroll_into_view_if_needed()
    assert answer.is_visible()
    picture(lesson.page, f"lesson_{LESSON}_revealed")


@pytest.mark.parametrize(("what", "selector"), [("table", "table"), ("figure", "img, svg[role=img], svg:has(path)")])
def test_a_figure_and_a_table_are_visible(lesson: Notebook, what: str, selector: str):
    shown = lesson.page.locator(".jp-OutputArea-output").locator(selector)
    assert shown.count(), f"no output holds a {what}"
    shown.first.scroll_into_view_if_needed()
    box = shown.first.bounding_box()
    assert box, f"the {what} is hidden"
    assert box["width"] > 50
    assert box["height"] > 20
    picture(lesson.page, f"lesson_{LESSON}_{what}")


def test_every_output_fits_the_page(lesson: Notebook):
    """Nothing is cut off at the right."""
    wide = lesson.page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea-output')]
            .filter(output => output.scrollWidth > output.clientWidth + 2)
            .map(output => output.innerText.slice(0, 80))"""
    )
    assert wide == []


def test_no_request_leaves_the_machine(lesson: Notebook):
    assert lesson.page.requested
    assert [address for address in lesson.page.requested if not is_local(address)] == []


def test_the_console_has_no_unexpected_errors(lesson: Notebook):
    assert [error for error in lesson.page.errors if not any(known in error for known in HARMLESS)] == []


def test_only_the_learners_copy_changes(lesson: Notebook, workspace: Path):
    original = find_lesson(LESSON).path
    copy = workspace / original.name
    lesson.run("docmanager:save")
    lesson.wait(lambda: copy.read_bytes() != original.read_bytes(), 20, "the notebook is saved")
    assert digest(notebooks_root()) == lesson.page.before
    assert [cell for cell in json.loads(copy.read_text(encoding="utf-8"))["cells"] if cell.get("outputs")]


def test_a_picture_of_the_whole_lesson_is_kept(lesson: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = Path(os.environ.get("COURSE_SCREENSHOTS") or tmp_path)
    monkeypatch.setenv("COURSE_SCREENSHOTS", str(folder))
    page = lesson.page
    # JupyterLab scrolls inside the page, so a picture of all of it needs a page that is as tall as the lesson.
    height = page.locator(".jp-Notebook-cell").evaluate_all(
        "cells => cells.reduce((sum, c) => sum + c.offsetHeight, 0)"
    )
    page.set_viewport_size({"width": 1400, "height": min(int(height) + 200, 16_000)})
    page.locator(".jp-Notebook-cell").first.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    picture(page, f"lesson_{LESSON}")
    assert (folder / f"lesson_{LESSON}.png").stat().st_size > 10_000
