"""A lesson as a learner meets it: a real JupyterLab in a real Chromium, with nothing reachable but this machine.

Lesson 00 unless ``COURSE_LAB_LESSON`` names another one; ``COURSE_SCREENSHOTS`` names a folder that keeps the pictures.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from authoring.execution import KERNELSPEC
from course_utils.records.lessons import find_lesson, notebooks_root
from tests.jupyterlab import ARGUMENTS, START_S, TOKEN, Notebook, free_port, running
from tools.environment import OFFLINE, jupyter_variables

LESSON = os.environ.get("COURSE_LAB_LESSON", "00")
RUN_S = 300 if LESSON == "00" else 600

pytestmark = [pytest.mark.browser, pytest.mark.timeout(START_S + RUN_S + 60)]


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
    home = workspace.parent
    # All cells are in the page, not only those in view.
    overrides = OFFLINE | {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}
    settings = home / "config" / "labconfig" / "default_setting_overrides.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(overrides), encoding="utf-8")
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={workspace}"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1", *ARGUMENTS]
    with running(command, port, home, jupyter_variables(home)) as address:
        yield address


@pytest.fixture(scope="module")
def originals() -> dict[str, str]:
    return digest(notebooks_root())


@pytest.fixture(scope="module")
def lesson(chromium: Any, lab: str, originals: dict[str, str]) -> Notebook:
    """The lesson, opened, predicted and run from top to bottom."""
    address = f"{lab}/lab/tree/{find_lesson(LESSON).path.name}?token={TOKEN}"
    notebook = Notebook(chromium, address, width=1400, height=1000)
    notebook.run_cells_until_prediction()
    form = notebook.page.locator(".course-predict").first
    form.scroll_into_view_if_needed()
    form.locator("input").click()
    notebook.page.keyboard.type("2")
    notebook.page.keyboard.press("Enter")
    form.get_by_text("You said 2", exact=False).wait_for(timeout=60_000)
    notebook.picture(f"lesson_{LESSON}_prediction")
    notebook.run("notebook:run-all-cells")
    notebook.page.wait_for_timeout(500)
    notebook.wait(notebook.finished, RUN_S, "all cells have run")
    return notebook


def test_no_cell_of_the_lesson_fails(lesson: Notebook):
    assert lesson.errors() == []


def test_the_prediction_is_compared_with_the_measurement(lesson: Notebook):
    answer = lesson.page.locator(".sentence", has_text="You said 2").first
    answer.scroll_into_view_if_needed()
    assert answer.is_visible()
    lesson.picture(f"lesson_{LESSON}_revealed")


def test_enter_locks_what_is_typed_counts_and_without_an_answer_it_is_folded(
    chromium: Any, lab: str, workspace: Path, originals: dict[str, str]
):
    """Also where the kernel is busy while somebody types."""
    questions = {name: f"Which number is {name}?" for name in ("locked", "typed", "empty")}
    asks = [f"{name} = predict({question!r}, unit='sheep')\n{name}" for name, question in questions.items()]
    sources = ["from course_utils import predict\nimport time", *asks, "time.sleep(3)"]
    sources += ["display(locked.reveal(4), typed.reveal(24), empty.reveal(3))"]
    path = workspace / "predictions.ipynb"
    written = new_notebook(cells=[new_code_cell(source) for source in sources], metadata={"kernelspec": KERNELSPEC})
    path.write_text(nbformat.writes(written), encoding="utf-8")
    notebook = Notebook(chromium, f"{lab}/lab/workspaces/own/tree/{path.name}?token={TOKEN}", 1000, 1000)
    run, page = partial(notebook.run, "notebook:run-cell-and-select-next"), notebook.page
    for _ in sources[:-1]:
        run()
    forms = {name: page.locator(".course-predict", has_text=question) for name, question in questions.items()}
    for name, digits in (("locked", "5"), ("typed", "12")):
        forms[name].locator("input").click(timeout=60_000)
        page.keyboard.type(digits)
        if name == "locked":
            page.keyboard.press("Enter")
            forms[name].get_by_text("You said 5 sheep", exact=False).wait_for()
    page.locator(".jp-CodeCell .jp-InputArea-editor").last.click()
    run()
    sentences = page.locator(".sentence")
    notebook.wait(lambda: sentences.count() == 3, 60, "the answers are there")
    assert sentences.nth(0).inner_text() == "You said 5 sheep. It is 4 sheep: a little less than what you expected."
    assert sentences.nth(1).inner_text() == "You said 12 sheep. It is 24 sheep: twice what you expected."
    assert not sentences.nth(2).is_visible()
    forms["empty"].last.locator("input").click()
    page.keyboard.type("3 sheep")
    page.keyboard.press("Enter")
    assert sentences.nth(2).inner_text() == "You said 3 sheep. It is 3 sheep: as you expected."
    assert notebook.errors() == []
    page.close()
    path.unlink()


@pytest.mark.parametrize(("what", "selector"), [("table", "table"), ("figure", "img, svg[role=img], svg:has(path)")])
def test_a_figure_and_a_table_are_visible(lesson: Notebook, what: str, selector: str):
    shown = lesson.page.locator(".jp-OutputArea-output").locator(selector)
    assert shown.count(), f"no output holds a {what}"
    shown.first.scroll_into_view_if_needed()
    box = shown.first.bounding_box()
    assert box, f"the {what} is hidden"
    assert box["width"] > 50
    assert box["height"] > 20


def test_a_slider_is_moved_without_a_mouse(lesson: Notebook):
    """JupyterLab leaves it the arrow keys: no other cell is chosen, and the sentence follows.

    Of a card it is the sentence that is read, and of the allocator the paragraph that tells the event.
    """
    explorers = lesson.page.locator(".course-viewer:has([aria-live]):has(input[type=range])")
    assert explorers.count() or LESSON != "00", "the lesson has no slider"
    for explorer in explorers.all():
        slider = explorer.locator("input[type=range]")
        sentence = explorer.locator("[aria-live] .sentence, p[aria-live]")
        slider.scroll_into_view_if_needed()
        slider.focus()
        seen = [sentence.inner_text()]
        for _ in range(int(slider.get_attribute("max"))):
            lesson.page.keyboard.press("ArrowRight")
            seen.append(sentence.inner_text())
        assert len(set(seen)) == len(seen)
        assert (slider.get_attribute("aria-valuetext") or slider.input_value()) in seen[-1]


def test_every_output_fits_the_page(lesson: Notebook):
    """Nothing is cut off at the right."""
    wide = lesson.page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea-output')]
            .filter(output => output.scrollWidth > output.clientWidth + 2)
            .map(output => output.innerText.slice(0, 80))"""
    )
    assert wide == []


def test_nothing_leaves_the_machine_and_the_console_has_no_unexpected_errors(lesson: Notebook):
    lesson.check_that_nothing_left_the_machine()


def has_outputs(notebook: Path) -> bool:
    """While the server writes a file, it is empty or half there."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except ValueError:
        return False
    return any(cell.get("outputs") for cell in cells)


def test_only_the_learners_copy_changes(lesson: Notebook, workspace: Path, originals: dict[str, str]):
    original = find_lesson(LESSON).path
    copy = workspace / original.name
    lesson.run("docmanager:save")
    saved = lambda: copy.read_bytes() != original.read_bytes() and has_outputs(copy)  # noqa: E731
    lesson.wait(saved, 20, "the notebook is saved, with its outputs")
    assert digest(notebooks_root()) == originals
    # For people to look at: JupyterLab scrolls inside the page, so a picture of all of it needs a page as tall.
    height = lesson.page.locator(".jp-Notebook-cell").evaluate_all(
        "cells => cells.reduce((h, c) => h + c.offsetHeight, 0)"
    )
    lesson.page.set_viewport_size({"width": 1400, "height": min(int(height) + 200, 16_000)})
    lesson.picture(f"lesson_{LESSON}")
