"""A lesson as a learner meets it: a real JupyterLab in a real Chromium, with nothing reachable but this machine.

``COURSE_SCREENSHOTS`` names a folder for pictures.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from authoring.notebook_form import KERNELSPEC
from course_utils.lesson_notebooks import find_lesson, notebooks_root
from course_utils.lesson_order import file_name
from course_utils.show.page import custom_css
from tests.lab_in_browser import ARGUMENTS, START_S, TOKEN, Notebook, free_port, running
from tools.jupyter_settings import KERNEL_START, SAVES_NO_WIDGET, jupyter_variables, trust, write_settings
from tools.workspace import copy_pages

LESSON = find_lesson("measuring").path
RUN_S = 300

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
    copy_pages(notebooks_root().parent / "book", folder)
    return folder


@pytest.fixture(scope="module")
def lab(workspace: Path) -> Iterator[str]:
    """A JupyterLab of its own, with empty settings; gives its address."""
    home = workspace.parent
    write_settings(home, custom_css(), [KERNEL_START.read_text(encoding="utf-8")])
    trust(sys.executable, notebooks_root(), jupyter_variables(home))
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={workspace}"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1", *ARGUMENTS]
    command += [SAVES_NO_WIDGET, "--LabApp.custom_css=True"]
    with running(command, port, home, jupyter_variables(home)) as address:
        yield address


@pytest.fixture(scope="module")
def originals() -> dict[str, str]:
    return digest(notebooks_root())


@pytest.fixture(scope="module")
def lesson(chromium: Any, lab: str, originals: dict[str, str]) -> Notebook:
    """The lesson, opened, predicted and run from top to bottom."""
    address = f"{lab}/lab/tree/{LESSON.name}?token={TOKEN}"
    notebook = Notebook(chromium, address, width=1400, height=1000)
    notebook.run_cells_until_prediction()
    form = notebook.page.locator(".course-predict").first
    form.scroll_into_view_if_needed()
    form.locator("input").click()
    notebook.page.keyboard.type("2")
    notebook.page.keyboard.press("Enter")
    form.get_by_text("You said 2", exact=False).wait_for(timeout=60_000)
    notebook.picture("prediction")
    notebook.run("notebook:run-all-cells")
    notebook.page.wait_for_timeout(500)
    notebook.wait(notebook.finished, RUN_S, "all cells have run")
    return notebook


def solutions_of(notebook: Notebook) -> list[int]:
    """Where its folded cells with a stored output are: the solutions of its exercises."""
    tags = [set(cell["metadata"].get("tags", ())) for cell in notebook.cells()]
    return [index for index, those in enumerate(tags) if {"hide-cell", "stable"} <= those]


def test_no_cell_of_the_lesson_fails_and_everything_is_shown(lesson: Notebook):
    assert lesson.errors() == []
    page = lesson.page
    answer = page.locator(".sentence", has_text="You said 2").first
    answer.scroll_into_view_if_needed()
    assert answer.is_visible()
    right = page.locator(".jp-OutputArea-output", has_text="✓ Right").all()
    assert len(right) == len(solutions_of(lesson))
    assert all(output.is_visible() for output in right)
    for selector in ("table", "[role=img], img, svg:has(path)"):
        shown = page.locator(".jp-OutputArea-output").locator(selector).first
        shown.scroll_into_view_if_needed()
        box = shown.bounding_box()
        assert box["width"] > 50
        assert box["height"] > 20
    wide = page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea-output')]
            .filter(output => output.scrollWidth > output.clientWidth + 2)
            .map(output => output.innerText.slice(0, 80))"""
    )
    assert wide == [], "cut off at the right"
    lesson.picture("lesson")


def test_enter_locks_what_is_typed_counts_and_without_an_answer_it_is_folded(
    chromium: Any, lab: str, workspace: Path, originals: dict[str, str]
):
    """Also where the kernel is busy while somebody types, and after somebody began in the middle."""
    questions = {name: f"Which number is {name}?" for name in ("locked", "typed", "empty")}
    asks = [f"{name} = predict({question!r}, unit='sheep')\n{name}" for name, question in questions.items()]
    sources = ["from course_utils import predict\nimport time", *asks, "time.sleep(3)"]
    sources += ["display(locked.reveal(4), typed.reveal(24), empty.reveal(3))"]
    path = workspace / "predictions.ipynb"
    written = new_notebook(cells=[new_code_cell(source) for source in sources], metadata={"kernelspec": KERNELSPEC})
    path.write_text(nbformat.writes(written), encoding="utf-8")
    notebook = Notebook(chromium, f"{lab}/lab/workspaces/own/tree/{path.name}?token={TOKEN}", 1000, 1000)
    run, page = partial(notebook.run, "notebook:run-cell-and-select-next"), notebook.page
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    run()  # too early
    page.get_by_text("Run the lesson's first code cell first").wait_for(timeout=60_000)
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
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
    assert forms["empty"].first.locator("input").is_disabled(), "one answer, wherever it is given"
    assert notebook.errors() == []
    page.close()
    path.unlink()


def test_a_slider_is_moved_without_a_mouse(chromium: Any, lab: str, workspace: Path):
    """JupyterLab leaves it the arrow keys: no other cell is chosen, and the sentence follows.

    Of a card it is the sentence that is read, and of the allocator the paragraph that tells the event.
    """
    path = workspace / "slider.ipynb"
    source = "from course_utils.show.cards import Card\nfrom course_utils.show.viewer import slider\n"
    source += 'slider("batch", [(f"size {n}", Card(f"At size {n}.")) for n in (1, 2, 3)], Card("All."))'
    cell = new_code_cell(source)
    path.write_text(nbformat.writes(new_notebook(cells=[cell], metadata={"kernelspec": KERNELSPEC})), encoding="utf-8")
    notebook = Notebook(chromium, f"{lab}/lab/workspaces/slider/tree/{path.name}?token={TOKEN}", 1280, 800)
    notebook.run("notebook:run-all-cells")
    explorer = notebook.page.locator(".course-viewer:has([aria-live]):has(input[type=range])")
    slider, sentence = explorer.locator("input[type=range]"), explorer.locator("[aria-live] .sentence, p[aria-live]")
    slider.focus(timeout=60_000)
    seen = [sentence.inner_text()]
    for _ in range(int(slider.get_attribute("max"))):
        notebook.page.keyboard.press("ArrowRight")
        seen.append(sentence.inner_text())
    assert len(set(seen)) == len(seen)
    assert (slider.get_attribute("aria-valuetext") or slider.input_value()) in seen[-1]
    notebook.page.close()
    path.unlink()


def test_nothing_leaves_the_machine_and_only_the_learners_copy_changes(
    lesson: Notebook, workspace: Path, originals: dict[str, str]
):
    lesson.check_that_nothing_left_the_machine()
    lesson.save()
    assert (workspace / LESSON.name).read_bytes() != LESSON.read_bytes()
    assert digest(notebooks_root()) == originals


# A lesson that nobody has run

DDP = file_name("ddp")
OPENED = f"{file_name('fsdp')}.ipynb"
LINKS = (
    # from here, this link, leads to this document, and there to a heading that begins so
    (OPENED, f"{DDP}.ipynb", f"{DDP}.ipynb", f"{DDP[:2]} · "),
    (OPENED, "book/glossary.md#fsdp", "book/glossary.md", "FSDP"),
    ("book/claims.md", "book/reference/fsdp.md#t17", "book/reference/fsdp.md", "Under FSDP, build the optimizer"),
)
IN_VIEW = """([path, words]) => {
    const shown = window.jupyterapp.shell.currentWidget;
    if (shown?.context?.path !== path || !words) return shown?.context?.path === path;
    const headings = [...shown.node.querySelectorAll('h1, h2, h3, td strong')];
    const heading = headings.find(each => each.textContent.startsWith(words))?.getBoundingClientRect();
    const pane = shown.node.getBoundingClientRect();
    return heading?.height > 0 && heading.top >= pane.top - 1 && heading.bottom <= pane.bottom;
}"""


@pytest.fixture(scope="module")
def unrun(chromium: Any, lab: str) -> Notebook:
    return Notebook(chromium, f"{lab}/lab/workspaces/unrun/tree/{OPENED}?token={TOKEN}", 1280, 800)


def test_an_exercise_that_nobody_has_tried_is_not_given_away(unrun: Notebook):
    cells = unrun.page.locator(".jp-Notebook-cell")
    assert solutions_of(unrun)
    for index in solutions_of(unrun):
        cells.nth(index).scroll_into_view_if_needed()
        assert re.sub(r"\[\d*\]:", "", cells.nth(index).inner_text()).strip() == "# Solution"
    unrun.picture("unrun_solution")
    assert not any(mark.is_visible() for mark in unrun.page.get_by_text("✓").all())


def test_a_stored_card_has_its_style_and_its_bars_before_anything_is_run(unrun: Notebook):
    card = unrun.page.locator(".course-card:has(.bar)").first
    card.scroll_into_view_if_needed()
    assert card.locator(".bar svg").count()
    assert card.evaluate("card => getComputedStyle(card).borderRadius") == "8px"
    assert card.locator("tbody th").first.evaluate("label => getComputedStyle(label).textAlign") == "left"


@pytest.mark.parametrize(
    ("start", "link", "place", "heading"), LINKS, ids=lambda words: words.partition("#")[2] or words
)
def test_a_link_leads_to_its_document_and_heading(unrun: Notebook, start: str, link: str, place: str, heading: str):
    page = unrun.page
    factory = "Markdown Preview" if start.endswith(".md") else "Notebook"
    page.evaluate(
        "([path, factory]) => { window.jupyterapp.commands.execute('docmanager:open', { path, factory }); }",
        [start, factory],
    )
    unrun.wait(lambda: page.evaluate(IN_VIEW, [start, ""]), 60, f"{start} is open")
    # JupyterLab has taken a link over once it leads to the server's files.
    path, hash_, fragment = link.partition("#")
    end = f'[href$="{hash_}{fragment}"]' if hash_ else ':not([href*="#"])'
    found = page.locator(f'.jp-MainAreaWidget:not(.lm-mod-hidden) a[href*="/files/{path}"]{end}:visible').first
    found.scroll_into_view_if_needed(timeout=60_000)
    found.click()
    seen = []

    def arrived() -> bool:
        """And stays there, while what is around it is drawn."""
        seen.append(page.evaluate(IN_VIEW, [place, heading]))
        return seen[-5:] == [True] * 5

    unrun.wait(arrived, 30, f"{heading} is in view")


# A notebook that is opened again, when its kernel is gone


def opened_again(notebook: Notebook, chromium: Any, lab: str, path: Path) -> Notebook:
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    notebook.page.close()
    again = Notebook(chromium, f"{lab}/lab/workspaces/again/tree/{path.name}?token={TOKEN}", 1280, 800)
    outputs = sum(output.get("data") != {} for cell in again.cells() for output in cell.get("outputs", ()))
    drawn = again.page.locator(".jp-OutputArea-output")
    again.wait(lambda: drawn.count() >= outputs and not drawn.get_by_text("Loading widget").count(), 60, "it is drawn")
    assert not drawn.filter(has_text="Error").all_inner_texts()
    assert "widget-view" not in path.read_text(encoding="utf-8")
    return again


def test_a_lesson_that_was_run_can_be_read_without_its_kernel(
    lesson: Notebook, chromium: Any, lab: str, workspace: Path
):
    lesson.save()
    again = opened_again(lesson, chromium, lab, workspace / LESSON.name)
    assert again.page.locator(".course-card").count()
    again.page.close()
