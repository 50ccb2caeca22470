"""Files that are made from other files: written whole and only when they differ, as pages or between two marks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from authoring.rendering import rendered
from course_utils.files import write_whole

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"


class BookError(Exception):
    """The book cannot be built. The message says what to do."""


def write(path: Path, content: str | bytes) -> bool:
    """Write a file unless it holds just that. Returns whether it changed."""
    if holds(path, content):
        return False
    write_whole(path, content.encode("utf-8") if isinstance(content, str) else content)
    return True


def holds(path: Path, content: str | bytes) -> bool:
    return path.is_file() and path.read_bytes() == (content.encode("utf-8") if isinstance(content, str) else content)


def page(template: str, **values: Any) -> str:
    return rendered(f"pages/{template}", **values).rstrip("\n") + "\n"


def fill(text: str, name: str, content: str) -> str:
    """Put content between a page's marks ``<!-- generated: NAME ... -->`` and ``<!-- /generated -->``."""
    marks = re.compile(rf"(<!-- generated: {re.escape(name)}\b[^>]*-->\n).*?(<!-- /generated -->)", re.DOTALL)
    filled, count = marks.subn(lambda match: match[1] + "\n" + content + "\n" + match[2], text)
    if count != 1:
        raise BookError(f"a page needs exactly one <!-- generated: {name} --> and <!-- /generated -->: put them back")
    return filled
