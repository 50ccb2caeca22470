"""What these tests measure takes the budgets that they state, at whatever size the other tests run."""

from __future__ import annotations

import pytest

from tests.own_clock import own_clock

__all__ = ["own_clock"]


@pytest.fixture(autouse=True)
def _smoke_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_SIZE", "smoke")
