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
from pathlib import Path

from tools.jupyter_settings import jupyter_variables
from tools.supported_python import NEWEST, OLDEST

STAMP = "course-setup.json"
INPUTS = ("requirements.txt", "constraints.txt", "pyproject.toml")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Of the pinned packages: what is downloaded, and what they take on the disk.
SIZES = {"cpu": ("0.5 GiB", "1.5 GiB"), "cuda": ("2.8 GiB", "7 GiB")}
_QUIET = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


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


def prepare(root: Path) -> Path:
    """Make or update the environment if that is needed, and return its Python."""
    python = venv_python(root)
    # IPython warns at each start, and takes another folder, where the folder around its own is not there.
    (root / ".jupyter").mkdir(exist_ok=True)
    stamp = _read_stamp(root)
    torch_index = os.environ.get("TORCH_INDEX_URL") or stamp.get("torch_index")
    digest = _digest(root, torch_index)
    if stamp.get("digest") == digest and _is_whole(root, stamp):
        return python

    started = time.monotonic()
    print("\n".join(what_comes(root, torch_index)), flush=True)
    if not _is_whole(root, stamp) and not _adopt(root):
        _create(root)
    stamp = {key: value for key, value in _read_stamp(root).items() if key != "digest"}
    _write_stamp(root, stamp)
    _install(root, torch_index, stamp)
    _write_stamp(root, {**stamp, "torch_index": torch_index, "digest": digest})
    print(f"Ready in {time.monotonic() - started:.0f} s. The next start takes no time.\n", flush=True)
    return python


def what_comes(root: Path, torch_index: str | None) -> list[str]:
    """What is about to be downloaded, and which build of torch suits a machine without an NVIDIA GPU."""
    if _torch_is_installed(root):
        return ["Bringing the packages in .venv up to date."]
    has_cuda = platform.system() == "Linux" and not (torch_index or "").rstrip("/").endswith("cpu")
    download, disk = SIZES["cuda" if has_cuda else "cpu"]
    lines = [f"Installing the course into .venv: about {download} to download, {disk} on the disk."]
    if has_cuda and not torch_index and not has_nvidia_gpu():
        lines += [
            f"No NVIDIA GPU found. Without CUDA it would be {SIZES['cpu'][0]} and {SIZES['cpu'][1]}. To choose that, "
            f"press Ctrl-C and run:  TORCH_INDEX_URL={CPU_INDEX} make lab\n",
        ]
    return lines


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
    test = f"import sys, pip; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
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
    uv = _uv(root)

    def install(words: str, *arguments: str) -> None:
        """By uv, which takes a fourth of the time, or else by pip, which says what is wrong."""
        print(f"Installing {words} ...", flush=True)
        if uv:
            command = [uv, "pip", "install", "--python", venv_python(root), *arguments]
            if subprocess.run(command, cwd=root, env=_variables_for_uv(root)).returncode == 0:
                return
            print("That did not work with uv; pip tries it.", flush=True)
        if _pip(root, "install", *arguments):
            raise SetupError(
                "pip says above what is wrong: mend it (free disk space, a connection, TORCH_INDEX_URL if you set it), "
                "then run the same command again. What was downloaded is kept."
            )

    if torch_index:
        if torch_index != stamp.get("torch_index") and _torch_is_installed(root):
            # An installed build of the pinned version would be good enough, and stay.
            _pip(root, "uninstall", "-y", "torch")
        pinned = re.search(r"^torch\s*==\S+", (root / "requirements.txt").read_text(encoding="utf-8"), re.M)[0]
        install(f"torch from {torch_index}", "--index-url", torch_index, pinned)
    install("the packages of the course", "-r", "requirements.txt", "-c", "constraints.txt")
    install("the course itself", "-e", ".", "--no-deps", "--no-build-isolation")


def _uv(root: Path) -> str | None:
    """The program uv: the machine's own, or one that pip puts into the environment, if it can."""
    folder = str(venv_python(root).parent)
    if not (found := shutil.which("uv") or shutil.which("uv", path=folder)):
        _pip(root, "install", "--quiet", "--retries", "0", "uv", stderr=subprocess.DEVNULL)
        found = shutil.which("uv", path=folder)
    return found


def _variables_for_uv(root: Path) -> dict[str, str]:
    """Environment variables with which uv takes packages from where pip is set up to take them from."""
    command = [venv_python(root), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, cwd=root, env=variables(root), capture_output=True, text=True).stdout
    # Variables come first in pip's list, and count more than its files.
    settings = {}
    for key, value in re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.M):
        settings.setdefault(key, value)
    words = {key: value.replace("\\n", " ").split() for key, value in settings.items()}
    named = {
        "UV_DEFAULT_INDEX": settings.get("index-url"),
        "UV_INDEX": " ".join(words.get("extra-index-url", ())),
        "UV_FIND_LINKS": ",".join(words.get("find-links", ())),
        "SSL_CERT_FILE": settings.get("cert"),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip does: of all indices, the one that has it
    }
    return {name: value for name, value in named.items() if value} | variables(root)


def _pip(root: Path, *arguments: str, **options: int) -> int:
    settings = dict(_QUIET)
    if "PYTHONDONTWRITEBYTECODE" not in os.environ:
        # Compiling everything takes as long as installing it; Python compiles what is imported when it first is.
        settings["PIP_NO_COMPILE"] = "1"
    command = [venv_python(root), "-m", "pip", *arguments]
    return subprocess.run(command, cwd=root, env=variables(root) | settings, **options).returncode
