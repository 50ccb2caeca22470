"""Files that are made from other files: written whole and only when they differ, as pages or between two marks."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"


class BookError(Exception):
    """The book cannot be built. The message says what to do."""


def write(path: Path, content: str | bytes) -> bool:
    """Write a file unless it holds just that: Sphinx renders a page again when its file is newer.

    Args:
        path: the file; its folder is made.
        content: text, written with the same line ends everywhere, or bytes.

    Returns:
        Whether the file changed. A stop in between leaves the old file whole.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        # Temporary files are private by default.
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def fill(text: str, name: str, content: str) -> str:
    """Put content between a page's marks ``<!-- generated: NAME ... -->`` and ``<!-- /generated -->``.

    Args:
        text: the page.
        name: what the marks are called.
        content: what goes between them.

    Returns:
        The page with the new content.

    Raises:
        BookError: if the page does not have these marks exactly once.
    """
    marks = re.compile(rf"(<!-- generated: {re.escape(name)}\b[^>]*-->\n).*?(<!-- /generated -->)", re.DOTALL)
    if len(marks.findall(text)) != 1:
        raise BookError(
            f"README.md needs exactly one pair of <!-- generated: {name} --> and <!-- /generated -->: put them back"
        )
    return marks.sub(lambda match: match[1] + "\n" + content + "\n" + match[2], text)
