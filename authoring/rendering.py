"""Texts from templates: all that is generated is put together in ``authoring/templates``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from authoring.evidence import in_words

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    # Nothing is escaped in Markdown; all values are ours.
    autoescape=lambda name: name.endswith(".html.j2"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["words"] = in_words
# To a lesson, from a page of the book.
_TEMPLATES.filters["link"] = lambda lesson: f"[{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.path.name})"


def rendered(template: str, **values: Any) -> str:
    """A text from a template."""
    return _TEMPLATES.get_template(f"{template}.j2").render(values)
