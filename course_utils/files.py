"""Files: where the course is, and writing files whole: what is there is either the old file or the new one."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def package_root() -> Path:
    """The folder of ``course_utils``."""
    return Path(__file__).resolve().parent


def clone_root() -> Path | None:
    """The clone of the repository that the package is in; None for one from a wheel, which holds the lessons itself."""
    return None if (package_root() / "notebooks").is_dir() else package_root().parent


def variables_for_children(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with which another Python imports this very package, from a clone that is not installed."""
    # An installed package is found without it, and its folder would stand before Python's own library.
    path = [str(folder)] if (folder := clone_root()) else []
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, [*path, variables.get("PYTHONPATH")]))}


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is either the old one or the whole new one, whatever happens meanwhile.

    Args:
        path: the file; its folder is made.
        content: text is written as UTF-8.

    Raises:
        OSError: if the disk is full or cannot be written. The old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        # Temporary files are private by default; these are ordinary ones.
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        # Also after Ctrl-C. Once it is renamed there is nothing left to remove.
        Path(name).unlink(missing_ok=True)
