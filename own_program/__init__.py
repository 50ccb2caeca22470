"""What a reader brings: a training step to diagnose, a trace or a memory snapshot to read, a page that reads files.

It stands on ``course_utils``, which knows nothing of it. Names are loaded on first use: the readers need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from own_program.diagnosis.diagnose import diagnose
    from own_program.snapshots.snapshot_report import read_snapshot
    from own_program.traces.trace_report import read_trace

_MODULE_OF = {
    "diagnose": "diagnosis.diagnose",
    "read_snapshot": "snapshots.snapshot_report",
    "read_trace": "traces.trace_report",
}

__all__ = ["diagnose", "read_snapshot", "read_trace"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
