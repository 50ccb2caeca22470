"""Building the wheel: one file with the whole course, for a machine where there is no clone."""

import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PARTS = ("course_utils", "own_program", "notebooks", "tools", "pyproject.toml", "README.md", "LICENSE", "LICENSE-text")
# The environment has what building takes, so that nothing is fetched.
_OFFLINE = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")


def build(python: Path | str, target: Path) -> Path:
    """Build the wheel with an environment's Python into a folder, and return its path.

    Raises:
        subprocess.CalledProcessError: if pip fails. It says why by itself.
    """
    # In a copy: nothing of an earlier build gets in, and the clone stays as it is.
    with tempfile.TemporaryDirectory(prefix="course-wheel-") as folder:
        source, built = Path(folder, "source"), Path(folder, "built")
        source.mkdir()
        for name in _PARTS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source)
        subprocess.run([python, "-m", "pip", "wheel", *_OFFLINE, "--wheel-dir", built, source], check=True)
        (wheel,) = built.glob("*.whl")
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, target))
