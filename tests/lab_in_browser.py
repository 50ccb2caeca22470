"""A real JupyterLab for the tests, and the notebook that is open in it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "a-token-for-this-test"
# What every JupyterLab here is started with: our own token, and its model open to the page.
ARGUMENTS = (f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True")
# Seconds, but on a machine that is busy with other tests it takes many times that.
START_S = 180
# Console errors of JupyterLab itself, which no lesson causes.
HARMLESS = (
    "favicon",
    # JupyterLab asks for settings and workspaces that a new installation does not have yet.
    "the server responded with a status of 404",
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def running(command: Sequence[str], port: int, home: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Runs a program that serves JupyterLab at a port; gives its address, and ends it with its kernels."""
    environment = {**os.environ, **variables}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    log = home / "jupyterlab.log"
    with open(log, "w", encoding="utf-8") as output:
        process = psutil.Popen(command, cwd=home, env=environment, stdout=output, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for_server(f"{address}/api/status?token={TOKEN}", process, log)
        yield address
    finally:
        left = _end_tree(process)
    assert not left, f"these processes could not be ended: {left}"


def _wait_for_server(address: str, process: psutil.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-3000:]}")


def _end_tree(process: psutil.Popen) -> list[psutil.Process]:
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


class Notebook:
    """The open notebook: JupyterLab's own model of it, through ``window.jupyterapp``."""

    def __init__(self, browser: Any, address: str, width: int, height: int) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("websocket", lambda connection: self.requested.append(connection.url))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)
        self.wait(self.ready, START_S, "the notebook is open and its kernel is ready")

    def run(self, command: str) -> None:
        """Starts a command of JupyterLab, and does not wait for what it started."""
        self.page.evaluate("command => { window.jupyterapp.commands.execute(command); }", command)

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")

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

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"after {seconds:g} s still waiting until {what}")
            self.page.wait_for_timeout(200)

    def run_cells_until_prediction(self) -> None:
        """Runs cell after cell, as a learner does, until the form is there: the stored question has no field."""
        form = self.page.locator(".course-predict input")
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

    def picture(self, name: str) -> None:
        """Keeps a picture of the whole page for people to look at, if COURSE_SCREENSHOTS names a folder."""
        folder = os.environ.get("COURSE_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)

    def check_that_nothing_left_the_machine(self) -> None:
        assert self.requested
        assert [address for address in self.requested if not _is_local(address)] == []
        assert [words for words in self.complaints if not any(known in words for known in HARMLESS)] == []


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")
