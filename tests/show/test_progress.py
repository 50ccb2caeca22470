"""Progress of what takes long."""

from __future__ import annotations

import sys

import pytest

from course_utils.show.progress import progress

# ---- progress


class _Terminal:
    """A stream that says it is a terminal and keeps what is written."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Call it in the test to replace stderr: pytest puts its own back between a fixture and its test."""
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)

    def replace() -> _Terminal:
        stream = _Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace


def test_progress_of_a_long_wait_is_shown_and_cleared(terminal):
    stream = terminal()
    with progress("pinned_memory/copy", expected_s=30.0) as bar:
        bar.advance(10.0)
        bar.describe("second half")
        bar.advance(25.0)  # took longer than expected
        assert bar.shown
    assert "pinned_memory/copy" in stream.written
    assert "of about 30 s" in stream.written
    assert "second half" in stream.written
    assert stream.written.endswith("\r")  # the line was wiped


def test_progress_of_a_short_wait_is_silent(terminal):
    stream = terminal()
    with progress("quick", expected_s=1.0) as bar:
        bar.advance(0.5)
        bar.describe("still quick")
    assert not bar.shown
    assert stream.written == ""


def test_progress_appears_when_a_short_wait_becomes_long(terminal, monkeypatch):
    stream = terminal()
    from course_utils.show import progress as module

    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with progress("slow", expected_s=1.0) as bar:
        bar.advance(0.1)
        assert not bar.shown
        now[0] += 2.5
        bar.advance(0.1)
        assert bar.shown
    assert "slow" in stream.written


def test_progress_can_be_turned_off(terminal, monkeypatch):
    stream = terminal()
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    with progress("long", expected_s=100.0) as bar:
        bar.advance(50.0)
    assert not bar.shown
    assert stream.written == ""


def test_progress_writes_nothing_to_a_log_file(monkeypatch, capsys):
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    with progress("long", expected_s=100.0) as bar:
        bar.advance(50.0)
    assert capsys.readouterr().err == ""


def test_progress_in_a_notebook_is_gone_at_the_end_even_if_it_was_quicker_than_expected(monkeypatch):
    import tqdm.auto
    import tqdm.notebook

    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    monkeypatch.setattr(tqdm.auto, "tqdm", tqdm.notebook.tqdm)
    with progress("quicker", expected_s=30.0) as bar:
        bar.advance(20.0)
        widget = bar._bar.container
        assert widget.comm is not None
    assert widget.comm is None  # closed: JupyterLab takes it off the page


def test_progress_passes_errors_on(terminal):
    terminal()
    with pytest.raises(KeyboardInterrupt), progress("long", expected_s=100.0):
        raise KeyboardInterrupt
