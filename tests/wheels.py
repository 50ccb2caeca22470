"""The course as somebody has it who installed the wheel: no clone is in reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.wheel import build


def installed(folder: Path) -> Path:
    """Build the wheel and install it into a folder, which is returned; packages that it needs are those of here."""
    wheel = build(sys.executable, folder)
    target = folder / "site-packages"
    offline = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", target, wheel], check=True)
    return target


def variables(target: Path, **more: str) -> dict[str, str]:
    """Environment variables with which a program finds the installed course, and nothing points it to a clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COURSE_", "PYTHONPATH"))}
    return {**kept, "PYTHONPATH": str(target), "COURSE_SIZE": os.environ["COURSE_SIZE"], **more}
