"""What to type instead: a name that exists, a file of a folder, a command as it was started."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the choice that comes closest, or nothing.

    Example:
        >>> did_you_mean("recrod", ["check", "record"])
        " (did you mean 'record'?)"
    """
    close = difflib.get_close_matches(str(name), list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def typed(command: str) -> str:
    """A command of the course as this person types it: ``make`` says in COURSE_TYPED how it was started.

    Example:
        >>> typed("record pinned_memory --reference")
        '`course record pinned_memory --reference`'
    """
    verb, _, rest = command.partition(" ")
    start = os.environ.get("COURSE_TYPED", "")
    if start == "make":
        quoted = f'"{rest}"' if " " in rest else rest
        return f"`make {verb} ARGS={quoted}`" if rest else f"`make {verb}`"
    return f"`{start or 'course'} {command}`"


def file_in(folder: Path, what: str, endings: tuple[str, ...]) -> str:
    """Return in a sentence, without its full stop, which file of a folder to read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "a.json").touch()
        ...     file_in(Path(folder), "trace", (".json",)).replace(folder, "runs")
        'runs is a folder with 1 trace: read runs/a.json'
    """
    names = sorted(each.name for each in folder.iterdir() if each.name.endswith(endings))
    if not names:
        return f"{folder} is a folder without a {what} ({' or '.join(endings)})"
    several = f"{len(names)} {what}s: read one at a time, such as" if len(names) > 1 else f"1 {what}: read"
    return f"{folder} is a folder with {several} {folder / names[0]}"
