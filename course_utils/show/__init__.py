"""How results show themselves: text and HTML tables, figures, verdicts in words.

Everything is loaded on first use, so that importing the course stays quick and needs neither matplotlib nor ipywidgets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_utils.show.figures import figure
    from course_utils.show.quantities import format_bytes, format_rate, format_ratio, format_seconds
    from course_utils.show.tables import html, text
    from course_utils.show.verdicts import verdict_sentence

_MODULE_OF = {
    "figure": "figures",
    "format_bytes": "quantities",
    "format_rate": "quantities",
    "format_ratio": "quantities",
    "format_seconds": "quantities",
    "html": "tables",
    "text": "tables",
    "verdict_sentence": "verdicts",
}

__all__ = [
    "figure",
    "format_bytes",
    "format_rate",
    "format_ratio",
    "format_seconds",
    "html",
    "text",
    "verdict_sentence",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
