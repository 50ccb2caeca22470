"""The normal form of notebooks: what is stored, what is refused, and that nbval sees what part from it."""

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
from course_utils.results.lessons import LessonError
from course_utils.results.notebook_files import read_notebook
from tests.made_up_notebooks import code, save, stream, text

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def untidy(tmp_path: Path) -> Path:
    """A notebook with every kind of cell, as JupyterLab may leave it after a run."""
    return save(
        tmp_path / "01_untidy.ipynb",
        text("# 01 · Untidy   \n\nText  \n\n", id="intro", metadata={"collapsed": True}),
        code("import math  \n\n", outputs=[], execution_count=17, metadata={"scrolled": True, "ExecuteTime": 5}),
        code("x = 1", outputs=[stream("noise")], id="intro"),
        code("print('ran')", "experiment", outputs=[stream("ran\n")], execution_count=3, id="live"),
        code(
            "print('a' * 3)\nmath.pi > 3",
            "stable",
            outputs=[
                stream("aaa\n"),
                {
                    "output_type": "execute_result",
                    "data": {"text/plain": ["Tr", "ue"], "image/png": "iVBORw0KGgo=\n"},
                    "metadata": {"needs_background": "light", "image/png": {"width": 3}},
                    "execution_count": 99,
                },
            ],
        ),
        code("y = 2", "hide-cell", id="solution"),
        code("   "),
        kernelspec={"name": "venv", "display_name": "my own", "language": "python"},
        language_info={"name": "python", "version": "3.11.7", "file_extension": ".py"},
        widgets={"application/vnd.jupyter.widget-state+json": {"state": {}}},
    )


def test_the_normal_form(untidy: Path):
    assert notebook_form.write(untidy, execute=False)
    notebook = read_notebook(untidy)
    intro, imports, plain, live, stable, solution = notebook["cells"]
    assert intro["source"] == "# 01 · Untidy\n\nText"
    assert intro["metadata"] == imports["metadata"] == {}
    assert imports["source"] == "import math"
    assert (imports["execution_count"], plain["execution_count"]) == (1, 2)
    assert plain["outputs"] == live["outputs"] == []
    assert live["execution_count"] is None
    assert live["metadata"]["tags"] == ["experiment", "nbval-ignore-output"]
    assert stable["execution_count"] == 4
    assert stable["outputs"][0] == stream("aaa\n")
    assert stable["outputs"][1]["data"] == {"text/plain": "True", "image/png": "iVBORw0KGgo=\n"}
    assert stable["outputs"][1]["metadata"] == {"image/png": {"width": 3}}
    assert stable["outputs"][1]["execution_count"] == 4
    assert solution["metadata"] == {"tags": ["hide-cell"], "jupyter": {"source_hidden": True}}
    assert (intro["id"], live["id"], solution["id"]) == ("intro", "live", "solution")
    assert len({cell["id"] for cell in notebook["cells"]}) == 6
    assert notebook["metadata"] == {
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
        "language_info": {"name": "python"},
    }


def test_a_solution_begins_with_its_name_and_its_output_is_folded():
    exercise, folded = text("## Exercises\n\n### Exercise 1 · sums · 3 min"), code("# Add.\na + b", "hide-cell")
    stored, _ = notebook_form.normalised({"cells": [exercise, code("..."), folded]}, "01_untidy.ipynb")
    _, start, solution = stored["cells"]
    assert (start["source"], start["metadata"]) == ("...", {})
    assert solution["source"] == "# Solution\n# Add.\na + b"
    assert solution["metadata"]["jupyter"] == {"source_hidden": True, "outputs_hidden": True}


def test_a_stored_question_has_an_execution_count_for_nbval():
    """It fails a cell that has outputs and no count."""
    question = code('predict("How many times as long?", unit="times as long")', "experiment")
    stored, problems = notebook_form.normalised({"cells": [question]}, "04_pinned_memory.ipynb")
    assert stored["cells"][0]["outputs"]
    assert (stored["cells"][0]["execution_count"], problems) == (1, [])


def test_writing_twice_changes_nothing_and_satisfies_the_check(untidy: Path):
    assert notebook_form.check(untidy)
    notebook_form.write(untidy, execute=False)
    stored = untidy.read_text(encoding="utf-8")
    notebook = nbformat.reads(stored, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert nbformat.writes(notebook) + "\n" == stored, "as JupyterLab would save it"
    assert not notebook_form.write(untidy, execute=False)
    assert notebook_form.check(untidy) == []


WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
ERROR = {"output_type": "error", "ename": "KeyError", "evalue": "", "traceback": []}


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (code("x", "experimental"), "unknown tag experimental. The tags are experiment, hide-cell"),
        (code("x", "experiment", "stable", outputs=[stream("x")]), "both experiment and stable"),
        (code("x", "nbval-ignore-output"), "never be checked"),
        (code("x", "stable"), "a stable cell without output. Run: python -m authoring.notebook_form --write"),
        (code("x", "stable", outputs=[stream("careful", "stderr")]), "on stderr"),
        (code("x", "stable", outputs=[stream("in /home/me/x.py")]), "'/home/me', an address or a path"),
        (code("x", "stable", outputs=[ERROR]), "is an error, KeyError"),
        (
            code("x", "stable", outputs=[{"output_type": "display_data", "metadata": {}, "data": WIDGET}]),
            "a widget in a stable cell",
        ),
        ({"cell_type": "raw", "source": "x", "metadata": {}}, "a raw cell"),
        (text("x", "slide", "subslide"), "both slide and subslide. Keep one"),
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


def test_write_executes_and_keeps_the_outputs_of_stable_cells_alone(tmp_path: Path):
    path = save(
        tmp_path / "01_a.ipynb",
        code("import os\nimport time\nx = 20"),
        code("x += 1\nprint(time.time())", "experiment"),
        code(
            "print(os.environ['COURSE_SIZE'], flush=True)\nprint(os.path.basename(os.getcwd()))\nx * 2",
            "stable",
            outputs=[stream("old")],
        ),
    )
    assert notebook_form.write(path)
    cells = read_notebook(path)["cells"]
    assert [bool(cell["outputs"]) for cell in cells] == [False, False, True]
    assert cells[2]["outputs"][0]["text"] == f"smoke\n{tmp_path.name}\n", "two pieces of one stream are one text"
    assert cells[2]["outputs"][1]["data"] == {"text/plain": "42"}
    assert notebook_form.check(path) == []
    assert not notebook_form.write(path), "a second run gave another notebook"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", r"01_a.ipynb failed, and was left as it was.\nCell 2 \(c1\) raised:[\s\S]*ZeroDivision"),
        ("import os; os._exit(1)", "the kernel died"),
    ],
)
def test_write_leaves_a_notebook_that_fails_as_it_was(tmp_path: Path, source: str, message: str):
    path = save(tmp_path / "01_a.ipynb", text("# A"), code(source), code("print(1)", "stable"))
    before = path.read_bytes()
    with pytest.raises(LessonError, match=message):
        notebook_form.write(path, timeout_s=1)
    assert path.read_bytes() == before


def test_the_command(untidy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(untidy.parent))
    assert notebook_form.main(["--check"]) == 1
    shown = capsys.readouterr().err
    assert "01_untidy.ipynb is not in normal form. Run: python -m authoring.notebook_form --write" in shown
    assert len(shown.splitlines()) < 25
    bad = save(untidy.parent / "00_bad.ipynb", code("x", "nonsense"))
    assert notebook_form.main(["--write", "--no-execute"]) == 1
    captured = capsys.readouterr()
    assert "unknown tag nonsense" in captured.err
    assert captured.out == "01_untidy.ipynb: written\n", "it goes on after a bad notebook"
    bad.unlink()
    assert notebook_form.main(["--check"]) == 0
    assert capsys.readouterr().out == "1 notebook in normal form\n"


# nbval: the options and the root conftest make it strict


def nbval(folder: Path, seconds: int = 100) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder / "conftest.py")
    environment = {key: value for key, value in os.environ.items() if key != "COURSE_SIZE"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "--color=no", "-q", "--rootdir", str(folder)]
    command += ["-c", "/dev/null", "--nbval", f"--nbval-cell-timeout={seconds}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture
def tidy(tmp_path: Path):
    """Makes a notebook in normal form, with executed stable cells, and then replaces some of its text."""

    def make(*cells: dict | str, replace: tuple[str, str] | None = None) -> Path:
        path = save(tmp_path / "01_a.ipynb", *cells)
        notebook_form.write(path)
        if replace:
            stored = path.read_text()
            assert replace[0] in stored
            path.write_text(stored.replace(*replace))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("cells", "replace", "message"),
    [
        (["x = 1", code("print(x + 1)", "stable")], ('"x = 1"', '"x = 2"'), "Cell outputs differ"),
        (["x = 1", code("print(1)", "stable")], ('"x = 1"', '"x = 1; print(x)"'), "Unexpected output fields"),
        (
            [code("print(1)", "stable")],
            ('"print(1)"', json.dumps("import warnings; warnings.warn('careful'); print(1)")),
            "stderr",
        ),
    ],
    ids=["changed", "untagged cell prints", "warning"],
)
def test_nbval_sees_what_is_wrong(tidy, cells: list, replace: tuple[str, str] | None, message: str):
    run = nbval(tidy(*cells, replace=replace))
    assert run.returncode == 1
    assert message in run.stdout


def test_nbval_sees_a_dead_kernel_at_once(tidy):
    run = nbval(tidy(code("import os; os._exit(1)", "experiment"), "x = 1"), seconds=110)  # it must not wait for this
    assert run.returncode == 1
    assert "The kernel died" in run.stdout


@pytest.mark.slow
def test_nbval_ends_a_cell_that_hangs(tidy):
    hanging = "while True:\n    try:\n        import time; time.sleep(60)\n    except BaseException: pass"
    run = nbval(tidy(code(hanging, "experiment")), seconds=2)
    assert run.returncode == 1
    assert "Timeout of 2 seconds exceeded" in run.stdout
