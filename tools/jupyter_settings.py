"""JupyterLab as the course starts it: its settings, its folders, and what its kernels run first."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# JupyterLab saves no widget, of which nothing is left when the notebook is opened again.
SAVES_NO_WIDGET = "--ContentsManager.pre_save_hook=course_utils.show.saving.without_widgets"
KERNEL_START = Path(__file__).with_name("kernel_start.py")
# Settings of JupyterLab. The course works offline: no news, no look for updates, no list of extensions.
OFFLINE = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/extensionmanager-extension:plugin": {"enabled": False},
    "@jupyterlab/notebook-extension:tracker": {
        # All cells are in the page. Where JupyterLab guesses how high those out of view are, a link in a lesson misses.
        "windowingMode": "none",
        "codeCellConfig": {"lineNumbers": False, "lineWrap": True},  # a long line is read, not cut off
    },
}


def jupyter_variables(home: Path) -> dict[str, str]:
    """The environment variables with which all that Jupyter and IPython write goes to one folder."""
    folders = {f"JUPYTER_{name.upper()}_DIR": home / name for name in ("config", "data", "runtime")}
    folders |= {f"JUPYTERLAB_{name.upper()}_DIR": home / name for name in ("settings", "workspaces")}
    folders["IPYTHONDIR"] = home / "ipython"
    dropped = {"PYTHONHOME", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "JUPYTERLAB_DIR"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {name: str(folder) for name, folder in folders.items()} | {"JUPYTER_PREFER_ENV_PATH": "1"}


def write_settings(home: Path, css: str, start_up: Sequence[str], settings: Mapping[str, dict] = OFFLINE) -> None:
    """Write JupyterLab's settings and style, and what each of its kernels runs first, for `jupyter_variables`."""
    files = {"config/labconfig/default_setting_overrides.json": json.dumps(settings), "config/custom/custom.css": css}
    files |= {f"ipython/profile_default/startup/{n:02d}-course.py": source for n, source in enumerate(start_up)}
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")


def trust(python: Path | str, notebooks: Path, settings: dict[str, str]) -> None:
    """Sign the course's notebooks: of one that nobody here has run or signed, JupyterLab drops what is drawn.

    An unchanged copy has the same signature; one that a learner changed is trusted once it has run.
    """
    command = [str(python), "-m", "nbformat.sign", *map(str, sorted(notebooks.glob("*.ipynb")))]
    subprocess.run(command, env=settings, capture_output=True, check=False)


def open_jupyterlab(python: Path | str, arguments: list[str], settings: dict[str, str]) -> int:
    """Start JupyterLab, in place of this process where the system can do that, and return its exit code."""
    command = [str(python), "-m", "jupyterlab", SAVES_NO_WIDGET, *arguments]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # in a container there is often no other user
    if os.name != "nt":
        # Its signals and its questions are its own.
        sys.stdout.flush()
        os.execve(command[0], command, settings)
    return subprocess.run(command, env=settings).returncode
