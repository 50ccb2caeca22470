"""What JupyterLab's server does before it saves a notebook; ``make lab`` names it."""

from __future__ import annotations

from typing import Any


def without_widgets(model: dict[str, Any], **_: Any) -> None:
    """Leave widgets out of a saved notebook where an output has another form.

    They live in the kernel, so JupyterLab would show "Error displaying widget" in their place when it is opened again.
    """
    for cell in model["content"]["cells"] if model["type"] == "notebook" else ():
        for output in cell.get("outputs", ()):
            if len(data := output.get("data", {})) > 1:
                data.pop("application/vnd.jupyter.widget-view+json", None)
