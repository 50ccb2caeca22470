"""The project's own virtual environment: made once, checked by a stamp, repaired when its inputs change."""

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# JupyterLab saves no widget, of which nothing is left when the notebook is opened again.
SAVES_NO_WIDGET = "--ContentsManager.pre_save_hook=course_utils.show.saving.without_widgets"
STAMP = "course-setup.json"
INPUTS = ("requirements.txt", "constraints.txt", "pyproject.toml")
KERNEL_START = Path(__file__).with_name("kernel_start.py")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
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


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def venv_python(root: Path) -> Path:
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def variables(root: Path) -> dict[str, str]:
    """The environment variables for everything that runs inside the course.

    Jupyter's and IPython's folders lie inside the project: nothing is registered outside it, and a start-up file or a
    kernel in the user's home does not change what a lesson shows.
    """
    path = os.pathsep.join([str(venv_python(root).parent), os.environ.get("PATH", os.defpath)])
    return jupyter_variables(root / ".jupyter") | {"VIRTUAL_ENV": str(root / ".venv"), "PATH": path}


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


def prepare(root: Path) -> Path:
    python = venv_python(root)
    # IPython warns at each start, and takes another folder, where the folder around its own is not there.
    (root / ".jupyter").mkdir(exist_ok=True)
    stamp = _read_stamp(root)
    torch_index = os.environ.get("TORCH_INDEX_URL") or stamp.get("torch_index")
    digest = _digest(root, torch_index)
    if stamp.get("digest") == digest and _is_whole(root, stamp):
        return python

    started = time.monotonic()
    if not _is_whole(root, stamp) and not _adopt(root):
        _create(root)
    stamp = {key: value for key, value in _read_stamp(root).items() if key != "digest"}
    _write_stamp(root, stamp)
    for hint in size_hints(root, torch_index):
        print(hint)
    _install(root, torch_index, stamp)
    _write_stamp(root, {**stamp, "torch_index": torch_index, "digest": digest})
    print(f"Ready in {time.monotonic() - started:.0f} s. The next start takes no time.\n", flush=True)
    return python


def size_hints(root: Path, torch_index: str | None) -> list[str]:
    """What is worth knowing before torch is downloaded: which build suits a machine without an NVIDIA GPU."""
    if torch_index or _torch_is_installed(root) or platform.system() != "Linux" or has_nvidia_gpu():
        return []
    return [
        "No NVIDIA GPU found. The ordinary torch for Linux is a large download with CUDA; the CPU build is small.",
        f"To choose it, press Ctrl-C and run:  TORCH_INDEX_URL={CPU_INDEX} make lab\n",
    ]


def has_nvidia_gpu() -> bool:
    """Whether anything here points to an NVIDIA GPU with a driver."""
    signs = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/usr/lib/wsl/lib/nvidia-smi")
    return shutil.which("nvidia-smi") is not None or any(Path(sign).exists() for sign in signs)


def _digest(root: Path, torch_index: str | None) -> str:
    digest = hashlib.sha256((torch_index or "").encode())
    for name in INPUTS:
        digest.update(b"\0" + (root / name).read_bytes())
    return digest.hexdigest()


def _read_stamp(root: Path) -> dict:
    try:
        return json.loads((root / ".venv" / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _write_stamp(root: Path, stamp: dict) -> None:
    (root / ".venv" / STAMP).write_text(json.dumps(stamp, indent=1), encoding="utf-8")


def _identity(root: Path) -> dict[str, str]:
    """Return what makes an environment unusable when it changes: its folder (scripts name it) and its interpreter."""
    return {"folder": str(root), "interpreter": os.path.realpath(venv_python(root))}


def _is_whole(root: Path, stamp: dict) -> bool:
    return venv_python(root).exists() and _identity(root).items() <= stamp.items()


def _adopt(root: Path) -> bool:
    """Take over an environment that somebody else made here, if it has pip and a supported Python."""
    python = venv_python(root)
    if not python.exists() or _read_stamp(root):
        return False
    test = "import sys, pip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))"
    if subprocess.run([python, "-c", test], capture_output=True).returncode:
        return False
    _write_stamp(root, _identity(root))
    return True


def _create(root: Path) -> None:
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise SetupError(
            f"Python {version} has no venv module. Install it (Debian, Ubuntu: sudo apt install python{version}-venv; "
            f"elsewhere a full Python {version}, as python.org has), then run this again."
        )
    folder = root / ".venv"
    if folder.is_symlink():
        folder.unlink()  # what it points to may be another copy's, and would be emptied
    if folder.exists():
        print("The environment in .venv is incomplete or was moved: making it anew.")
    print(f"Making an environment in .venv (Python {platform.python_version()}).", flush=True)
    # Inside an environment sys.executable would be the one that is being replaced.
    base = getattr(sys, "_base_executable", None) or sys.executable
    done = subprocess.run([base, "-m", "venv", "--clear", folder], text=True, capture_output=True)
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise SetupError(f"Could not make {folder}: {reason}")
    _write_stamp(root, _identity(root))


def _torch_is_installed(root: Path) -> bool:
    packages = "Lib/site-packages" if os.name == "nt" else "lib/python3*/site-packages"
    return any((root / ".venv").glob(f"{packages}/torch-*.dist-info"))


def _install(root: Path, torch_index: str | None, stamp: dict) -> None:
    """Install all of it; only torch comes from ``torch_index``, everything else from the ordinary index."""
    if torch_index:
        if torch_index != stamp.get("torch_index") and _torch_is_installed(root):
            # pip takes any build of the pinned version for good enough and would keep the other one.
            _run_pip(root, "Removing the other build of torch", "uninstall", "-y", "torch")
        pinned = re.search(r"^torch\s*==\S+", (root / "requirements.txt").read_text(encoding="utf-8"), re.M)[0]
        _run_pip(root, f"Installing torch from {torch_index}", "install", "--index-url", torch_index, pinned)
    requirements = ("-r", "requirements.txt", "-c", "constraints.txt")
    _run_pip(root, "Installing the packages of the course", "install", *requirements)
    _run_pip(root, "Installing the course itself", "install", "-e", ".", "--no-deps", "--no-build-isolation")


def _run_pip(root: Path, words: str, *arguments: str) -> None:
    print(f"{words} ...", flush=True)
    settings = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if "PYTHONDONTWRITEBYTECODE" not in os.environ:
        # Compiling everything takes as long as installing it; Python compiles what is imported when it first is.
        settings["PIP_NO_COMPILE"] = "1"
    command = [venv_python(root), "-m", "pip", *arguments]
    if subprocess.run(command, cwd=root, env=variables(root) | settings).returncode:
        raise SetupError(
            "pip says above what is wrong: mend it (free disk space, a connection, TORCH_INDEX_URL if you set it), "
            "then run the same command again. What was downloaded is kept."
        )
