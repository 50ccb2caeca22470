"""Reference records of a test's own: none, or a copy to damage; and calls that no earlier process has run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from authoring import calls
from course_utils.results import store


@pytest.fixture
def no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where reference records are read from: a folder that is not there yet."""
    root = tmp_path / "records"
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(root))
    return root


@pytest.fixture
def records(no_records: Path) -> Path:
    """A copy of the reference records, which all that reads records reads."""
    shutil.copytree(store.package_root() / "records", no_records)
    return no_records


@pytest.fixture
def none_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No earlier process has run a call."""
    monkeypatch.setattr(calls, "_ended", {})
    monkeypatch.setattr(calls, "_KEPT", tmp_path / "calls.json")
