"""What a page needs once for all that the course shows in it: the style, and the scripts of forms and explorers.

A result's HTML holds neither, and so neither do stored outputs: another colour changes no notebook. Who makes a page
brings them. The book, the slides and ``make lab`` have them for all of their outputs, and the live output of a cell
brings its own, since it may be shown anywhere: in JupyterLab one of them is enough for all cards on the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from course_utils.show.colours import SHEET

_HERE = Path(__file__).parent
# What is drawn or styled, by its class in a page, and the file names of its style and script.
_PARTS = {"course-card": "cards", "course-predict": "prediction", "course-viewer": "viewer"}
_ADDED = re.compile(r"\s*<(style|script)>.*?</\1>\s*", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def style(*names: str) -> str:
    """The course's style sheets as one: of cards, forms and explorers, or of those that are named."""
    sheets = ((_HERE / f"{name}.css").read_text(encoding="utf-8") for name in names or _PARTS.values())
    return "\n".join([SHEET, *sheets])


def custom_css() -> str:
    """The style for JupyterLab's ``custom.css``, which comes before JupyterLab's own: a class named twice outweighs it.

    Example:
        >>> ".course-card.course-card p" in custom_css()
        True
    """
    return re.sub(rf"\.({'|'.join(_PARTS)})\b(?!-)", r".\1.\1", style(*_PARTS.values(), "jupyterlab"))


def scripts(html: str) -> str:
    """The elements that draw what is still undrawn in a page that holds this HTML; "" if there is nothing to draw."""
    # No modules: they draw at once, and pages that are opened from a disk may load none.
    return "\n".join(
        f'<script>(function () {{\n"use strict";\n{_script(name)}\n'
        f'for (const at of document.querySelectorAll(".{part}:has(> script)")) drawing.drawStored(at);\n}}());</script>'
        for part, name in _PARTS.items()
        if f'class="{part}"' in html and (_HERE / f"{name}.js").is_file()
    )


def _script(name: str) -> str:
    text = (_HERE / f"{name}.js").read_text(encoding="utf-8")
    return text.replace("export default", "const drawing =").strip()


def dressed(html: str) -> str:
    """HTML with the style and the scripts that it needs, for a page that has none.

    Example:
        >>> dressed('<div class="course-card"></div>').startswith("<style>")
        True
    """
    names = [name for part, name in _PARTS.items() if f'class="{part}' in html]
    # On one line: a notebook's file has a line for each line of an output.
    sheet = f"<style>{' '.join(_COMMENT.sub('', style(*names)).split())}</style>\n" if names else ""
    return "\n".join(filter(None, (f"{sheet}{html}", scripts(html))))


def bare(html: str) -> str:
    """HTML without what `dressed` adds.

    Example:
        >>> bare(dressed('<div class="course-card"></div>'))
        '<div class="course-card"></div>'
    """
    return _ADDED.sub("", html)
