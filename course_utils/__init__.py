"""Helpers of the course: measure PyTorch code honestly, keep the results, show them.

Names are loaded on first use: the command line starts without torch, and says what is wrong where torch does not start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_utils.allocator import simulate_allocator
    from course_utils.cluster import simulate_cluster
    from course_utils.display.prediction import predict
    from course_utils.limits import ceilings
    from course_utils.machine import environment, scaled
    from course_utils.memory import trace_memory
    from course_utils.observations import curves, tabulate
    from course_utils.ranks import run_ranks
    from course_utils.state import fresh
    from course_utils.store import recorded
    from course_utils.timing import compare, measure, sweep

_MODULE_OF = {
    "ceilings": "limits",
    "compare": "timing",
    "curves": "observations",
    "environment": "machine",
    "fresh": "state",
    "measure": "timing",
    "predict": "display.prediction",
    "recorded": "store",
    "run_ranks": "ranks",
    "scaled": "machine",
    "simulate_allocator": "allocator",
    "simulate_cluster": "cluster",
    "sweep": "timing",
    "tabulate": "observations",
    "trace_memory": "memory",
}

__all__ = [
    "ceilings",
    "compare",
    "curves",
    "environment",
    "fresh",
    "measure",
    "predict",
    "recorded",
    "run_ranks",
    "scaled",
    "simulate_allocator",
    "simulate_cluster",
    "sweep",
    "tabulate",
    "trace_memory",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
