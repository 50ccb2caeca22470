"""Copies to damage: of the reference records, and of the whole course."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from course_utils.records import store

ROOT = Path(__file__).resolve().parents[2]
_MADE = ("_build", "_generated", "mathjax", "__pycache__", "*.tmp")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A copy of the reference records."""
    target = tmp_path / "records"
    for machine in store.machines(store.reference_root()):
        shutil.copytree(store.reference_root() / machine, target / machine)
    return target


@pytest.fixture
def course_copy(tmp_path: Path) -> Path:
    """A copy of all that the book and the pages are made of, with the programs that make them."""
    folder = tmp_path / "copy"
    for name in ("authoring", "book", "course_utils", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*_MADE))
    shutil.copy(ROOT / "README.md", folder / "README.md")
    return folder
