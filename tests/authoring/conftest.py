"""Copies to damage: of the reference records; and calls that no earlier process has run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from authoring import calls
from course_utils.results import store


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the reference records, which all that reads records reads."""
    target = tmp_path / "records"
    for machine in store.machines(store.reference_root()):
        shutil.copytree(store.reference_root() / machine, target / machine)
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(target))
    return target


@pytest.fixture
def none_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No earlier process has run a call."""
    monkeypatch.setattr(calls, "_ended", {})
    monkeypatch.setattr(calls, "_KEPT", tmp_path / "calls.json")
