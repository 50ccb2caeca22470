"""A progress bar that is there only when a wait is long, and leaves nothing behind."""

from __future__ import annotations

import html
import os
import sys
from typing import Any

_QUIET_S = 1.0
# Of a notebook: the lines of its open bars by when they began, and the output that shows them with its cell's number.
_lines: dict[float, str] = {}
_output: tuple[int, Any] = (0, None)


def progress(label: str, expected_s: float) -> Any:
    """A progress bar for something that takes a while.

    It appears after a second, since most comparisons are decided by then, and disappears at the end. In a terminal it
    is written to stderr. In a notebook it is no widget, but HTML that is updated in place: what is saved in the middle
    can be read later, without a kernel. ``COURSE_PROGRESS=0`` turns it off.

    Returns:
        A context manager with ``advance(seconds)``, which adds to the expected seconds that are done, and
        ``describe(text)``.

    Example:
        >>> with progress("pinned_memory/copy", expected_s=0.1) as bar:
        ...     bar.advance(0.1)
    """
    from tqdm import tqdm

    class TerminalBar(tqdm):
        monitor_interval = 0  # no watcher thread beside a measurement

        def advance(self, seconds: float) -> None:
            if not self.disable:
                self.total = max(self.total, self.n + seconds)
            self.update(seconds)

        def describe(self, text: str) -> None:
            if not self.disable:
                self.set_description_str(text, refresh=self._time() >= self.start_t + self.delay)

    class NotebookBar(TerminalBar):
        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            bar = f'<progress value="{self.n:.1f}" max="{self.total:.1f}" style="vertical-align: middle"></progress>'
            _lines[self.start_t] = f"{bar} {html.escape(self.desc)}: {self.n:.0f} s, at most about {self.total:.0f} s"
            _draw()

        def close(self) -> None:
            self.disable = True
            self._decr_instances(self)
            if _lines.pop(getattr(self, "start_t", None), None):
                _draw()

    off = os.environ.get("COURSE_PROGRESS") == "0"
    in_notebook = getattr(_shell(), "kernel", None) is not None
    return (NotebookBar if in_notebook and not off else TerminalBar)(
        total=expected_s,
        desc=label,
        leave=False,
        delay=_QUIET_S,
        mininterval=0.2,
        bar_format="{desc} {bar} {n:.0f} s, at most about {total:.0f} s",
        # A notebook's output is no terminal and shows the bar all the same; a log file gets none.
        disable=off or (False if in_notebook else None),
    )


def _shell() -> Any:
    """The IPython that this runs in; whoever has not imported it is in none."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def _draw() -> None:
    """Bring the cell's output for its bars up to date: one for all, the outer bar first, and empty without any."""
    global _output
    from IPython.display import display

    lines = [_lines[began] for began in sorted(_lines)]
    content = {"text/html": "<br>".join(lines), "text/plain": "Measuring."} if lines else {}
    cell, shown = _output
    if cell == _shell().execution_count:
        shown.update(content, raw=True)
    elif lines:
        _output = (_shell().execution_count, display(content, raw=True, display_id=True))
