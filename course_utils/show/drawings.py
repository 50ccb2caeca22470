"""Drawings of mechanisms: SVG files in the lessons' folders, each with its own words for people who cannot see it."""

from __future__ import annotations

import base64
import html
import re
from dataclasses import dataclass
from pathlib import Path

_LESSONS = Path(__file__).resolve().parents[1] / "lessons"


@dataclass(frozen=True, repr=False)
class Drawing:
    """A drawing that shows itself: a picture in a notebook, a page or a slide, words in a terminal.

    Attributes:
        svg: the text of its file.
    """

    svg: str

    @property
    def alt(self) -> str:
        """What it shows, in words: the ``<title>`` of the file."""
        return html.unescape(re.search("<title>(.+?)</title>", self.svg, re.DOTALL)[1])

    def _repr_html_(self) -> str:
        # A picture: JupyterLab removes SVG's own elements from the outputs of a notebook that is not trusted.
        data = base64.b64encode(self.svg.encode()).decode()
        return f'<img src="data:image/svg+xml;base64,{data}" alt="{html.escape(self.alt)}">'

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def drawing(name: str) -> Drawing:
    """Returns a lesson's drawing by its lesson and its name: the file ``lessons/<lesson>/<name>.svg``.

    Example:
        >>> drawing("activation_checkpointing/what_is_kept").alt.startswith("What is kept")
        True
    """
    return Drawing((_LESSONS / f"{name}.svg").read_text(encoding="utf-8"))
