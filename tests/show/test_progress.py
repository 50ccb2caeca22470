"""Progress of what takes long."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from course_utils.show.progress import progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_wait_is_shown_and_wiped_also_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    now = time.time()

    def interrupted() -> None:
        with progress("pinned_memory/copy", expected_s=30.0) as bar:
            bar.advance(0.5)
            assert stream.getvalue() == ""
            monkeypatch.setattr(bar, "_time", lambda: now + 60)
            bar.advance(34.5)  # took longer than expected
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "pinned_memory/copy" in stream.getvalue()
    assert stream.getvalue().endswith("\r")


@pytest.mark.parametrize(("stream", "asked"), [(io.StringIO(), "1"), (_Terminal(), "0")])
def test_a_bar_can_be_turned_off_and_a_log_file_gets_none(
    stream: io.StringIO, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COURSE_PROGRESS", asked)
    with progress("long", expected_s=100.0) as bar:
        bar.advance(50.0)
    assert stream.getvalue() == ""


def test_the_bars_of_a_cell_are_one_output_that_is_html_and_empty_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    shell = SimpleNamespace(kernel=object(), execution_count=3)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    outputs: list[list[dict[str, str]]] = []

    def shown(content: dict[str, str], **_: Any) -> SimpleNamespace:
        outputs.append([content])
        return SimpleNamespace(update=lambda content, **_: outputs[-1].append(content))

    monkeypatch.setattr("IPython.display.display", shown)
    late = time.time() + 60
    for _ in range(2):
        with progress("outer <sweep>", expected_s=30.0) as outer, progress("inner", expected_s=1.0) as inner:
            monkeypatch.setattr(outer, "_time", lambda: late)
            monkeypatch.setattr(inner, "_time", lambda: late)
            inner.advance(0.5)
            outer.describe("width &c.")
            both = outputs[-1][-1]["text/html"]
            assert "</progress> width &amp;c.: 0 s, at most about 30 s<br><progress" in both
            assert both.endswith("</progress> inner: 0 s, at most about 1 s")
        shell.execution_count += 1
    assert [contents[-1] for contents in outputs] == [{}, {}]
