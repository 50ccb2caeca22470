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
import threading
import time
from pathlib import Path

STAMP = "course-setup.json"
LOG = "course-setup.log"
INPUTS = ("requirements.txt", "constraints.txt", "pyproject.toml")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LARGE_MB = 20
"""Downloads from this size on get a line of their own."""


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def venv_python(root: Path) -> Path:
    """Return where the environment's Python is, or will be."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def variables(root: Path) -> dict[str, str]:
    """Return the environment variables for everything that runs inside the course.

    Jupyter's and IPython's folders lie inside the project: nothing is registered outside it, and a start-up file or a
    kernel in the user's home does not change what a lesson shows.
    """
    jupyter = root / ".jupyter"
    changed = {
        "VIRTUAL_ENV": str(root / ".venv"),
        "PATH": os.pathsep.join([str(venv_python(root).parent), os.environ.get("PATH", os.defpath)]),
        "JUPYTER_CONFIG_DIR": str(jupyter / "config"),
        "JUPYTER_DATA_DIR": str(jupyter / "data"),
        "JUPYTER_RUNTIME_DIR": str(jupyter / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(jupyter / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(jupyter / "workspaces"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "IPYTHONDIR": str(jupyter / "ipython"),
    }
    dropped = {"PYTHONHOME", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH"}
    return {name: value for name, value in os.environ.items() if name not in dropped} | changed


def prepare(root: Path) -> Path:
    """Return the environment's Python, after making or updating the environment where that is needed."""
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
    print(f"Ready in {_duration(time.monotonic() - started)}. The next start takes no time.\n", flush=True)
    return python


def pip_commands(root: Path, torch_index: str | None) -> list[tuple[str, list[str]]]:
    """Return what is installed, in order: words for the screen, and pip's arguments.

    Only torch comes from ``torch_index``; everything else comes from the ordinary index.
    """
    commands = []
    if torch_index:
        commands.append((f"torch from {torch_index}", ["--index-url", torch_index, torch_requirement(root)]))
    commands.append(("the packages of the course", ["-r", "requirements.txt", "-c", "constraints.txt"]))
    commands.append(("the course itself", ["-e", ".", "--no-deps", "--no-build-isolation"]))
    return commands


def torch_requirement(root: Path) -> str:
    """Return the line of requirements.txt that pins torch."""
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return next(line.strip() for line in lines if re.match(r"torch\s*==", line))


def size_hints(root: Path, torch_index: str | None) -> list[str]:
    """Return what is worth knowing before torch is downloaded: which build suits a machine without an NVIDIA GPU."""
    if torch_index or _torch_is_installed(root) or platform.system() != "Linux" or has_nvidia_gpu():
        return []
    hints = [
        "No NVIDIA GPU found. The ordinary torch for Linux is a large download with CUDA; the CPU build is small.",
        f"To choose it, press Ctrl-C and run:  TORCH_INDEX_URL={CPU_INDEX} make lab",
    ]
    if Path("/dev/kfd").exists():
        hints.append("For an AMD GPU, set TORCH_INDEX_URL to the ROCm address that pytorch.org/get-started shows.")
    return [*hints, ""]


def has_nvidia_gpu() -> bool:
    """Say whether anything here points to an NVIDIA GPU with a driver."""
    signs = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/usr/lib/wsl/lib/nvidia-smi")
    return shutil.which("nvidia-smi") is not None or any(Path(sign).exists() for sign in signs)


def venv_remedy(version: tuple[int, int], release: str) -> str:
    """Return the line that installs the venv module.

    Args:
        version: Major and minor version of the Python in use.
        release: The text of /etc/os-release, empty where there is none.
    """
    name = f"Python {version[0]}.{version[1]}"
    families = re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', release, flags=re.MULTILINE)
    if {"debian", "ubuntu"} & set(" ".join(families).split()):
        return f"{name} has no venv module. Install it: sudo apt install python{version[0]}.{version[1]}-venv"
    return (
        f"{name} lacks its venv or ensurepip module. Install a full {name} (python.org has one), then run this again."
    )


def _digest(root: Path, torch_index: str | None) -> str:
    digest = hashlib.sha256((torch_index or "").encode())
    for name in INPUTS:
        digest.update(b"\0" + (root / name).read_bytes())
    return digest.hexdigest()


def _read_stamp(root: Path) -> dict:
    try:
        stamp = json.loads((root / ".venv" / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


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
        release = Path("/etc/os-release")
        raise SetupError(venv_remedy(sys.version_info[:2], release.read_text() if release.exists() else ""))
    folder = root / ".venv"
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


def _site_packages(root: Path) -> list[Path]:
    pattern = "Lib/site-packages" if os.name == "nt" else "lib/python3*/site-packages"
    return sorted((root / ".venv").glob(pattern))


def _torch_is_installed(root: Path) -> bool:
    return any(any(folder.glob("torch-*.dist-info")) for folder in _site_packages(root))


def _install(root: Path, torch_index: str | None, stamp: dict) -> None:
    python = venv_python(root)
    if torch_index and torch_index != stamp.get("torch_index") and _torch_is_installed(root):
        # pip takes any build of the pinned version for good enough and would keep the other one.
        _run_pip(root, "removing the other build of torch", [python, "-m", "pip", "uninstall", "-y", "torch"])
    for words, arguments in pip_commands(root, torch_index):
        _run_pip(root, f"Installing {words}", [python, "-m", "pip", "install", *arguments])


def _run_pip(root: Path, words: str, command: list) -> None:
    """Run pip with its many lines in a log, and show what a person wants to see of them.

    Raises:
        SetupError: pip failed.
    """
    log_path = root / ".venv" / LOG
    settings = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    if "PYTHONDONTWRITEBYTECODE" not in os.environ:
        # Compiling everything takes as long as installing it; Python compiles what is imported when it first is.
        settings["PIP_NO_COMPILE"] = "1"
    print(f"{words} ...", flush=True)
    lines: list[str] = []
    ended = threading.Event()
    with (
        open(log_path, "a", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=root,
            env=variables(root) | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        threading.Thread(target=_count_seconds, args=[ended], daemon=True).start()
        try:
            for line in process.stdout:
                log.write(line)
                lines.append(line.rstrip())
                if words_of_step := _step(line):
                    print(f"  {words_of_step}", flush=True)
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            ended.set()
    if code:
        raise SetupError(_explain(lines, log_path))


def _count_seconds(ended: threading.Event) -> None:
    """Show on a terminal that something is still going on."""
    started = time.monotonic()
    while sys.stdout.isatty() and not ended.wait(1):
        print(f"\r  {_duration(time.monotonic() - started)} ", end="\r", flush=True)


def _step(line: str) -> str | None:
    """Return what one of pip's lines tells a person who waits: a large download, or the writing at the end."""
    download = re.match(r"\s*Downloading (\S+) \(([\d.]+) ([MG])B\)", line)
    if download:
        name, size, unit = download.groups()
        megabytes = float(size) * (1000 if unit == "G" else 1)
        package = "-".join(name.split("/")[-1].split("-")[:2])
        return f"downloading {package} ({size} {unit}B)" if megabytes >= LARGE_MB else None
    if line.startswith("Installing collected packages:"):
        return f"writing {line.count(',') + 1} packages to .venv"
    return None


def _explain(lines: list[str], log_path: Path) -> str:
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-8:]
    text = "\n".join(lines)
    if "No space left" in text:
        advice = "The disk is full: free some space"
    elif re.search("Temporary failure in name resolution|Network is unreachable|NewConnectionError|timed out", text):
        advice = "The package index could not be reached: check the connection"
    elif "No matching distribution" in text:
        advice = "A package was not found: check the connection, and TORCH_INDEX_URL if you set it"
    else:
        advice = f"All of pip's words are in {log_path}: mend what it names"
    return "\n".join([*errors[-8:], "", f"{advice}, then run the same command again. What was downloaded is kept."])


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
