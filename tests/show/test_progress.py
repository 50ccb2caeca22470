"""Progress of what takes long."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable

import pytest

from course_utils.show.progress import progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], _Terminal]:
    """Call it in the test to replace stderr: pytest puts its own back between a fixture and its test."""
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)

    def replace() -> _Terminal:
        stream = _Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace


def test_a_long_wait_is_shown_and_wiped_also_after_an_interruption(
    terminal: Callable[[], _Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal()
    now = time.time()

    def interrupted() -> None:
        with progress("pinned_memory/copy", expected_s=30.0) as bar:
            bar.advance(0.5)
            assert stream.getvalue() == ""
            monkeypatch.setattr(bar, "_time", lambda: now + 60)
            bar.advance(9.5)
            bar.describe("second half")
            bar.advance(25.0)  # took longer than expected
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "pinned_memory/copy" in stream.getvalue()
    assert "at most about 30 s" in stream.getvalue()
    assert "second half" in stream.getvalue()
    assert stream.getvalue().endswith("\r")


def test_a_short_wait_is_silent_until_it_becomes_long(
    terminal: Callable[[], _Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal()
    now = time.time()
    with progress("quick", expected_s=1.0) as bar:
        bar.advance(0.5)
        bar.describe("still quick")
    assert stream.getvalue() == ""
    with progress("slow", expected_s=1.0) as bar:
        monkeypatch.setattr(bar, "_time", lambda: now + 60)
        bar.advance(0.5)
        assert "slow" in stream.getvalue()


def test_a_bar_can_be_turned_off_and_a_log_file_gets_none(
    terminal: Callable[[], _Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", log)
        with progress("long", expected_s=100.0) as bar:
            bar.advance(50.0)
    stream = terminal()
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    with progress("long", expected_s=100.0) as bar:
        bar.advance(50.0)
    assert log.getvalue() == stream.getvalue() == ""


def test_a_bar_in_a_notebook_is_gone_at_the_end_even_if_it_was_quicker_than_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tqdm.auto
    import tqdm.notebook

    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    monkeypatch.setattr(tqdm.auto, "tqdm", tqdm.notebook.tqdm)
    for expected_s in (30.0, 1.0):
        with progress("quicker", expected_s=expected_s) as bar:
            bar.advance(expected_s / 2)
            widget = bar.container
            assert widget.comm is not None
        assert widget.comm is None  # closed: JupyterLab takes it off the page
