"""Files that are made from other files: written whole and only when they differ, as pages or between two marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from course_utils.records.files import write_whole

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
_TEMPLATES = Path(__file__).resolve().parents[1] / "templates" / "pages"


class BookError(Exception):
    """The book cannot be built. The message says what to do."""


def write(path: Path, content: str | bytes) -> bool:
    """Write a file unless it holds just that: Sphinx renders a page again when its file is newer.

    Returns:
        Whether the file changed. A stop in between leaves the old file whole.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        return False
    write_whole(path, data)
    return True


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def page(template: str, **values: Any) -> str:
    """A file, from its template in ``authoring/templates/pages``."""
    return _environment().get_template(f"{template}.j2").render(values).rstrip("\n") + "\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def fill(text: str, name: str, content: str) -> str:
    """Put content between a page's marks ``<!-- generated: NAME ... -->`` and ``<!-- /generated -->``.

    Raises:
        BookError: if the page does not have these marks exactly once.
    """
    marks = re.compile(rf"(<!-- generated: {re.escape(name)}\b[^>]*-->\n).*?(<!-- /generated -->)", re.DOTALL)
    if len(marks.findall(text)) != 1:
        raise BookError(
            f"README.md needs exactly one pair of <!-- generated: {name} --> and <!-- /generated -->: put them back"
        )
    return marks.sub(lambda match: match[1] + "\n" + content + "\n" + match[2], text)
