"""A progress bar that is there only when a wait is long, and leaves nothing behind."""

from __future__ import annotations

import os
from typing import Any

_QUIET_S = 1.0


def progress(label: str, expected_s: float) -> Any:
    """A progress bar for something that takes a while.

    It appears after a second, since most comparisons are decided by then, and disappears at the end. In a terminal it
    is written to stderr, in a notebook it is a widget. ``COURSE_PROGRESS=0`` turns it off.

    Returns:
        A context manager with ``advance(seconds)``, which adds to the expected seconds that are done, and
        ``describe(text)``.

    Example:
        >>> with progress("pinned_memory/copy", expected_s=0.1) as bar:
        ...     bar.advance(0.1)
    """
    from tqdm.auto import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no watcher thread beside a measurement

        def advance(self, seconds: float) -> None:
            if not self.disable:
                self.total = max(self.total, self.n + seconds)
            self.update(seconds)

        def describe(self, text: str) -> None:
            if not self.disable:
                self.set_description_str(text, refresh=self._time() >= self.start_t + self.delay)

        def close(self) -> None:
            # A notebook's bar that is not full is left behind, in red, as if something had failed.
            self.n = self.total
            super().close()

    in_notebook = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
    off = os.environ.get("COURSE_PROGRESS") == "0"
    return Bar(
        total=expected_s,
        desc=label,
        leave=False,
        delay=_QUIET_S,
        mininterval=0.2,
        bar_format="{desc} {bar} {n:.0f} s, at most about {total:.0f} s",
        # A notebook's output is no terminal and shows the bar all the same; a log file gets none.
        disable=off or (False if in_notebook else None),
    )
