"""Texts from templates: all that is generated is put together in ``authoring/templates``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    # Nothing is escaped in Markdown; all values are ours.
    autoescape=lambda name: name.endswith(".html.j2"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TO_A_NOTEBOOK = re.compile(r'(<a href=")([\w./-]+)\.ipynb(?=["#])')
# To a lesson, from a page of the book.
_TEMPLATES.filters["link"] = lambda lesson: f"[{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.path.name})"


def rendered(template: str, **values: Any) -> str:
    return _TEMPLATES.get_template(f"{template}.j2").render(values)


def linked_to_pages(html: str, is_page: Callable[[str], bool]) -> str:
    """HTML of a notebook's output whose links to notebooks lead to pages, where there is one at that place.

    Example:
        >>> linked_to_pages('<a href="10_a_lesson.ipynb">', {"10_a_lesson"}.__contains__)
        '<a href="10_a_lesson.html">'
    """
    return _TO_A_NOTEBOOK.sub(lambda link: f"{link[1]}{link[2]}.html" if is_page(link[2]) else link[0], html)
