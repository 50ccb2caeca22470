"""What these tests measure takes the budgets that they state; a diagnosis has the clock of what measures."""

from __future__ import annotations

from tests.measure.conftest import _smoke_size, own_clock

__all__ = ["_smoke_size", "own_clock"]
