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
    assert intro["source"] == "# 01 · Untidy\n\nText"
    assert intro["metadata"] == imports["metadata"] == {}
    assert imports["source"] == "import math"
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
    kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    assert notebook["metadata"] == {"kernelspec": kernelspec, "language_info": {"name": "python"}}
    stored = untidy.read_text(encoding="utf-8")
    assert nbformat.writes(nbformat.reads(stored, nbformat.NO_CONVERT)) + "\n" == stored, "as JupyterLab would save it"
    assert not notebook_form.write(untidy, execute=False)
    assert notebook_form.check(untidy) == []


def test_a_stored_question_has_an_execution_count_for_nbval():
    """It fails a cell that has outputs and no count."""
    question = code('predict("How many times as long?", unit="times as long")', "experiment")
    stored, problems = notebook_form.tidied({"cells": [question]}, "04_pinned_memory.ipynb")
    assert stored["cells"][0]["outputs"]
    assert (stored["cells"][0]["execution_count"], problems) == (1, [])


WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
ERROR = {"output_type": "error", "ename": "KeyError", "evalue": "", "traceback": []}


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (code("x", "experimental"), "unknown tag experimental. The tags are demo, experiment, hide-cell"),
        (code("x", "experiment", "stable", outputs=[stream("x")]), "both experiment and stable"),
        (code("x", "nbval-ignore-output"), "never be checked"),
        (code("x", "stable"), "a stable cell without output. Run: python -m authoring.notebook_form --execute"),
        (code("x", "stable", outputs=[stream("careful", "stderr")]), "a warning or log .'careful'"),
        (code("x", "stable", outputs=[stream("in /home/me/x.py")]), "'/home/me', an address or a path"),
        (code("x", "stable", outputs=[ERROR]), "is an error, KeyError"),
        (code("x", "stable", outputs=[{"output_type": "display_data", "metadata": {}, "data": WIDGET}]), "a widget in"),
        ({"cell_type": "raw", "source": "x", "metadata": {}}, "a raw cell"),
        (code("x", "experiment", "slide"), "a code cell tagged slide"),
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


def test_ordinary_output_is_not_refused(tmp_path: Path):
    words = "ratio 1/2 and a/b/c </td></tr> https://pytorch.org/tmp/x 0xFF run/data"
    path = save(tmp_path / "01_a.ipynb", code("x", "stable", outputs=[stream(words)]))
    assert notebook_form.write(path, execute=False)


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


def test_the_command_goes_on_after_a_bad_notebook(
    untidy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(untidy.parent))
    assert notebook_form.main([]) == 1
    shown = capsys.readouterr().err
    assert "01_untidy.ipynb is not as it has to be. Run: make lint ARGS=--fix" in shown
    assert len(shown.splitlines()) < 25
    save(untidy.parent / "00_bad.ipynb", code("x", "nonsense"))
    assert notebook_form.main(["--write"]) == 1
    captured = capsys.readouterr()
    assert "unknown tag nonsense" in captured.err
    assert captured.out == "01_untidy.ipynb: written\n"


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
    run = _nbval(tmp_path)
    assert run.returncode == 1
    assert all(words in run.stdout for words in ("Cell outputs differ", "Unexpected output fields", "stderr"))
    assert "3 failed" in run.stdout


def test_nbval_sees_a_dead_kernel_at_once(tmp_path: Path):
    path = save(tmp_path / "01_a.ipynb", code("import os; os._exit(1)", "experiment"), "x = 1")
    notebook_form.write(path, execute=False)
    run = _nbval(tmp_path, seconds=110)  # it must not wait for this
    assert run.returncode == 1
    assert "The kernel died" in run.stdout


def _nbval(folder: Path, seconds: int = 100) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder / "conftest.py")
    environment = {key: value for key, value in os.environ.items() if key != "COURSE_SIZE"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "--color=no", "-q", "--rootdir", str(folder)]
    command += ["-c", "/dev/null", "--nbval", f"--nbval-cell-timeout={seconds}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
