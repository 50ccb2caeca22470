"""JupyterLab for a demo: one document, large type, set-up done. The user's own settings are left alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat.sign import NotebookNotary

from authoring.demo import start_up
from course_utils.lesson_notebooks import read_notebook
from tools.jupyter_settings import OFFLINE, jupyter_variables, open_jupyterlab, write_settings

LARGE_TYPE = {"code-font-size": "20px", "content-font-size1": "22px", "ui-font-size1": "15px"}
"""Type sizes of the JupyterLab that shows a demo."""
_SETTINGS = {
    **OFFLINE,
    "@jupyterlab/notebook-extension:tracker": {
        **OFFLINE["@jupyterlab/notebook-extension:tracker"],
        "scrollPastEnd": True,
    },
}
_STYLE = Path(__file__).parent / "templates" / "demo.css"


def open_demo(path: Path, arguments: Sequence[str] = ()) -> int:
    variables = settings_of_its_own(path)
    root = path.parent.parent
    options = [f"--ServerApp.root_dir={root}", "--LabApp.custom_css=True"]
    options += [f"--LabApp.default_url=/doc/tree/{path.relative_to(root).as_posix()}"]
    options += ["--ServerApp.answer_yes=True"]  # Ctrl-C ends the demo without a question
    print(f"Opening {path.name}. Set-up runs while the page loads. Ctrl-C ends the demo.")
    return open_jupyterlab(sys.executable, [*options, *arguments], variables)


def settings_of_its_own(path: Path) -> dict[str, str]:
    """Writes settings for a demo's JupyterLab beside the demo, and returns the environment variables that name them."""
    home = path.parent / ".jupyter" / path.stem
    shutil.rmtree(home, ignore_errors=True)  # of the last time
    # Every kernel runs them first: also after "Restart kernel", the live cell is ready. One that fails, since somebody
    # edited it, stops no other.
    write_settings(home, _STYLE.read_text(encoding="utf-8"), start_up(read_notebook(path)), _SETTINGS)
    # The theme takes its type sizes only from what counts as the user's own choice.
    themes = home / "settings" / "@jupyterlab" / "apputils-extension" / "themes.jupyterlab-settings"
    themes.parent.mkdir(parents=True)
    themes.write_text(json.dumps({"overrides": LARGE_TYPE}), encoding="utf-8")
    _trust(path, home / "data")
    return jupyter_variables(home)


def _trust(path: Path, data: Path) -> None:
    """Signs the notebook: JupyterLab shows the scripts of stored explorers only in notebooks that are trusted."""
    data.mkdir(parents=True, exist_ok=True)
    notary = NotebookNotary(data_dir=str(data))
    notary.sign(nbformat.read(path, as_version=nbformat.NO_CONVERT))
    notary.store.close()
