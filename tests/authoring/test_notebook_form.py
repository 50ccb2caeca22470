"""The form of notebooks: what is stored, what is refused, and that nbval sees what parts from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from authoring import notebook_form
from course_utils.lesson_notebooks import LessonError, read_notebook
from tests.made_up_notebooks import code, save, stream, text

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def untidy(tmp_path: Path) -> Path:
    """A notebook with every kind of cell, as JupyterLab may leave it after a run."""
    picture = {"text/plain": ["Tr", "ue"], "image/png": "iVBORw0KGgo=\n"}
    beside = {"needs_background": "light", "image/png": {"width": 3}}
    result = {"output_type": "execute_result", "data": picture, "metadata": beside, "execution_count": 99}
    return save(
        tmp_path / "01_untidy.ipynb",
        text("# 01 · Untidy   \n\nText  \n\n", id="intro", metadata={"collapsed": True}),
        code("import math  \n\n", outputs=[], execution_count=17, metadata={"scrolled": True, "ExecuteTime": 5}),
        code("x = 1", outputs=[stream("noise")], id="intro"),
        code("print('ran')", "experiment", outputs=[stream("ran\n")], execution_count=3, id="live"),
        code("print('a' * 3)\nmath.pi > 3", "stable", outputs=[stream("aaa\n"), result]),
        text("## Exercise · sums · 3 min"),
        code("y = 2", "hide-cell", id="solution"),
        code("   "),
        kernelspec={"name": "venv", "display_name": "my own", "language": "python"},
        widgets={"application/vnd.jupyter.widget-state+json": {"state": {}}},
    )


def test_the_form_and_that_writing_twice_changes_nothing(untidy: Path):
    assert notebook_form.check(untidy)
    assert notebook_form.write(untidy, execute=False)
    notebook = read_notebook(untidy)
    intro, imports, plain, live, stable, _, solution = notebook["cells"]
    assert intro["metadata"] == imports["metadata"] == {}
    assert (imports["execution_count"], plain["execution_count"]) == (1, 2)
    assert plain["outputs"] == live["outputs"] == []
    assert live["execution_count"] is None
    assert live["metadata"]["tags"] == ["experiment", "nbval-ignore-output"]
    assert stable["outputs"][0] == stream("aaa\n")
    assert stable["outputs"][1]["data"] == {"text/plain": "True", "image/png": "iVBORw0KGgo=\n"}
    assert stable["outputs"][1]["metadata"] == {"image/png": {"width": 3}}
    assert stable["outputs"][1]["execution_count"] == stable["execution_count"] == 4
    folded = {"source_hidden": True, "outputs_hidden": True}
    assert (solution["source"], solution["metadata"]["jupyter"]) == ("# Solution\ny = 2", folded)
    assert len({cell["id"] for cell in notebook["cells"]}) == 7
    stored = untidy.read_text(encoding="utf-8")
    assert nbformat.writes(nbformat.reads(stored, nbformat.NO_CONVERT)) + "\n" == stored, "as JupyterLab would save it"
    assert not notebook_form.write(untidy, execute=False)
    assert notebook_form.check(untidy) == []


WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
ERROR = {"output_type": "error", "ename": "KeyError", "evalue": "", "traceback": []}


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (code("x", "experimental"), "unknown tag experimental. The tags are demo, experiment, hide-cell"),
        (code("x", "experiment", "stable", outputs=[stream("x")]), "both experiment and stable"),
        (code("x", "stable"), "a stable cell without output. Run: python -m authoring.notebook_form --execute"),
        (code("x", "stable", outputs=[stream("in /home/me/x.py")]), "'/home/me', an address or a path"),
        (code("x", "stable", outputs=[ERROR]), "is an error, KeyError"),
        (code("x", "stable", outputs=[{"output_type": "display_data", "metadata": {}, "data": WIDGET}]), "a widget in"),
    ],
)
def test_what_is_refused_is_named_with_notebook_and_cell(tmp_path: Path, cell: dict, message: str):
    path = save(tmp_path / "01_a.ipynb", text("# A"), cell)
    before = path.read_bytes()
    assert notebook_form.check(path)
    with pytest.raises(LessonError, match=message) as error:
        notebook_form.write(path, execute=False)
    assert "01_a.ipynb, cell 2 ('" in str(error.value)
    assert path.read_bytes() == before, "a refused notebook was written all the same"


def test_writing_executes_keeps_stable_outputs_alone_and_leaves_what_fails_as_it_was(tmp_path: Path):
    shown = "print(os.environ['COURSE_SIZE'], flush=True)\nprint(os.path.basename(os.getcwd()))\nx * 2"
    cells = [
        code("import os\nimport time\nx = 20"),
        code("x += 1\nprint(time.time())", "experiment"),
        code(shown, "stable", outputs=[stream("old")]),
    ]
    path = save(tmp_path / "01_a.ipynb", *cells)
    assert notebook_form.write(path)
    stored = read_notebook(path)["cells"]
    assert [bool(cell["outputs"]) for cell in stored] == [False, False, True]
    assert stored[2]["outputs"][0]["text"] == f"smoke\n{tmp_path.name}\n", "two pieces of one stream are one text"
    assert stored[2]["outputs"][1]["data"] == {"text/plain": "42"}
    assert notebook_form.check(path) == []
    before = save(path, *cells[:2], code("1 / 0"), cells[2]).read_bytes()
    with pytest.raises(
        LessonError, match=r"01_a.ipynb failed, and was left as it was.\nCell 3 \(c2\) raised:[\s\S]*Zero"
    ):
        notebook_form.write(path)
    assert path.read_bytes() == before


# nbval: the options and the root conftest make it strict


def test_nbval_sees_what_is_wrong(tmp_path: Path):
    """A changed output, an untagged cell that prints, a warning: each in a notebook of its own."""
    warns = json.dumps("import warnings; warnings.warn('careful'); print(1)")
    printed = {"outputs": [stream("1\n")]}
    for name, cells, replace in (
        ("01_a", ["x = 1", code("print(x)", "stable", **printed)], ('"x = 1"', '"x = 2"')),
        ("02_b", ["x = 1", code("print(1)", "stable", **printed)], ('"x = 1"', '"print(5)"')),
        ("03_c", [code("print(1)", "stable", **printed)], ('"print(1)"', warns)),
    ):
        path = save(tmp_path / f"{name}.ipynb", *cells)
        notebook_form.write(path, execute=False)
        path.write_text(path.read_text().replace(*replace))
    shutil.copy(ROOT / "conftest.py", tmp_path / "conftest.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "--color=no", "-q", "--rootdir", str(tmp_path)]
    command += ["-c", "/dev/null", "--nbval", "--nbval-cell-timeout=100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert all(words in run.stdout for words in ("Cell outputs differ", "Unexpected output fields", "stderr"))
    assert "3 failed" in run.stdout
