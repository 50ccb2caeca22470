"""A progress bar that is there only when a wait is long, and leaves nothing behind."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any, Self

_QUIET_S = 2.0


class Progress:
    """A wait of known length. Use it through :func:`progress`."""

    def __init__(self, label: str, expected_s: float) -> None:
        self._label = label
        self._expected_s = max(float(expected_s), 0.0)
        self._done_s = 0.0
        self._started = time.monotonic()
        self._bar: Any = None
        self._allowed = os.environ.get("COURSE_PROGRESS", "1") != "0"

    @property
    def shown(self) -> bool:
        """Whether a bar has been asked for; a terminal that is not one (a log file) still shows nothing."""
        return self._bar is not None

    def advance(self, seconds: float) -> None:
        """Report work that is done since the last call.

        Args:
            seconds: how many of the expected seconds this piece of work stands for (an increment, not a total).
        """
        self._done_s += seconds
        unfinished = self._done_s < self._expected_s
        if self._bar is None and unfinished and time.monotonic() - self._started > _QUIET_S:
            self._show()
        if self._bar is not None:
            self._bar.total = max(self._bar.total, self._done_s)
            self._bar.update(self._done_s - self._bar.n)

    def describe(self, text: str) -> None:
        """Change the text before the bar.

        Args:
            text: what is going on now.
        """
        self._label = text
        if self._bar is not None:
            self._bar.set_description_str(text)

    def _show(self) -> None:
        if not self._allowed:
            return
        from tqdm.auto import tqdm
        from tqdm.notebook import tqdm as notebook_tqdm

        class Bar(tqdm):
            monitor_interval = 0  # no watcher thread beside a measurement

        self._bar = Bar(
            total=self._expected_s,
            initial=min(self._done_s, self._expected_s),
            desc=self._label,
            leave=False,
            mininterval=0.2,
            bar_format="{desc} {bar} {n:.0f} of about {total:.0f} s",
            # A notebook's output is no terminal and shows the bar all the same; a log file gets none.
            disable=False if issubclass(tqdm, notebook_tqdm) else None,
        )

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._expected_s > _QUIET_S:
            self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            # A notebook's bar that is not full is left behind, in red, as if something had failed.
            self._bar.n = self._bar.total
            self._bar.close()


def progress(label: str, expected_s: float) -> Progress:
    """A progress bar for something that takes a while.

    It appears when more than 2 s are expected, or when more than 2 s have passed and work is left. In a terminal it is
    written to stderr, in a notebook it is a widget; it disappears at the end. ``COURSE_PROGRESS=0`` turns it off.

    Args:
        label: what is going on, for example the experiment's name.
        expected_s: seconds that the whole will take, roughly.

    Returns:
        A context manager with ``advance(seconds)`` and ``describe(text)``.

    Example:
        >>> with progress("pinned_memory/copy", expected_s=0.1) as bar:
        ...     bar.advance(0.1)
    """
    return Progress(label, expected_s)
