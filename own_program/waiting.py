"""A progress bar for whoever waits for a large file, where there is one: not in a page, nor in a log."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_S = 2.0


@contextmanager
def waiting(label: str, expected_s: float) -> Iterator[Callable[[float], object]]:
    """Give something to call with seconds' worth of work that is done.

    Example:
        >>> with waiting("Reading trace.json", expected_s=0.1) as advance:
        ...     advance(0.1)
    """
    if expected_s < _QUIET_S or importlib.util.find_spec("tqdm") is None:
        yield lambda seconds: None
        return
    from course_utils.show.progress import progress

    with progress(label, expected_s) as bar:
        yield bar.advance
