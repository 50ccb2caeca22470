"""The course as somebody has it who installed the wheel: no clone is in reach."""

from __future__ import annotations

import functools
import os
import sys
import zipfile
from pathlib import Path

from filelock import FileLock

from tools.wheel import build


@functools.cache
def installed() -> Path:
    """The folder with the installed wheel, made once for all workers; packages that it needs are those of here."""
    folder = Path(os.environ["PYTEST_SHARED_FOLDER"])
    target, ready = folder / "site-packages", folder / "wheel is installed"
    with FileLock(folder / "wheel.lock"):
        if not ready.exists():
            # A wheel of Python alone is installed once it is unpacked.
            with zipfile.ZipFile(build(sys.executable, folder)) as wheel:
                wheel.extractall(target)
            ready.touch()
    return target


def variables(target: Path, **more: str) -> dict[str, str]:
    """Environment variables with which a program finds the installed course, and nothing points it to a clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COURSE_", "PYTHONPATH"))}
    return {**kept, "PYTHONPATH": str(target), "COURSE_SIZE": os.environ["COURSE_SIZE"], **more}
