"""The colours of figures and drawings, by the names that they have in ``colours.css``: ``BLUE``, ``GREY_22``.

Example:
    >>> from course_utils.show.colours import BLUE_INK
    >>> BLUE_INK
    '#005a8c'
"""

from __future__ import annotations

import re
from pathlib import Path

SHEET = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
"""The style sheet that names them."""
_NAMED = {name.upper().replace("-", "_"): value for name, value in re.findall(r"--course-([\w-]+): (#\w+);", SHEET)}


def __getattr__(name: str) -> str:
    try:
        return _NAMED[name]
    except KeyError:
        raise AttributeError(f"colours.css has no colour {name!r}") from None
