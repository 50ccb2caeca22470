"""Measure a training step, try what is safe, and rank what to change first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_utils.show.cards import Shown


def diagnose(step: Callable[[], Any]) -> Shown:
    """Diagnose one training step."""
    raise NotImplementedError
