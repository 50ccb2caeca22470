"""Helpers of the course: measure PyTorch code honestly, keep the results, show them.

Names are loaded on first use: the command line starts without torch, and says what is wrong where torch does not start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_utils.measure.ceilings import ceilings
    from course_utils.measure.compare import compare
    from course_utils.measure.fresh import fresh
    from course_utils.measure.machine import environment, scaled
    from course_utils.measure.sweep import sweep
    from course_utils.measure.tabulate import tabulate
    from course_utils.results.store import recorded
    from course_utils.show.prediction import predict

_MODULE_OF = {
    "ceilings": "measure.ceilings",
    "compare": "measure.compare",
    "environment": "measure.machine",
    "fresh": "measure.fresh",
    "predict": "show.prediction",
    "recorded": "results.store",
    "scaled": "measure.machine",
    "sweep": "measure.sweep",
    "tabulate": "measure.tabulate",
}

__all__ = ["ceilings", "compare", "environment", "fresh", "predict", "recorded", "scaled", "sweep", "tabulate"]


def __getattr__(name: str) -> Any:
    if name in ("diagnose", "read_snapshot", "read_trace"):
        raise ImportError(f"{name} has a package of its own: from own_program import {name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
