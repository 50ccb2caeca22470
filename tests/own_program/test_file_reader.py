"""A reader's own files go to the reader that is for them, by what is in them."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from course_utils.show.cards import Card, Shown
from own_program import file_reader
from own_program.file_reader import FileError, answer, read_file
from own_program.traces.example import example_trace
from own_program.traces.trace_report import read_trace

TRACE = gzip.decompress(example_trace())
SNAPSHOT = {"segments": [], "device_traces": [[]]}
CONTENTS = {
    "trace": [TRACE, example_trace()],
    "snapshot": [pickle.dumps(SNAPSHOT), gzip.compress(pickle.dumps(SNAPSHOT)), json.dumps(SNAPSHOT).encode()],
}


class Read(Shown):
    """What stands in for a report: which reader was asked."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def card(self) -> Card:
        return Card(f"{self.kind} was read")


def test_the_content_decides_who_reads_a_file_and_not_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for kind in CONTENTS:
        monkeypatch.setattr(file_reader, f"read_{kind}", lambda *files, kind=kind: Read(kind))
    for kind, contents in CONTENTS.items():
        for content in contents:
            for name in ("given.json.gz", "given.pickle", kind):
                (tmp_path / name).write_bytes(content)
                assert read_file(tmp_path / name).kind == kind, content[:40]
    assert read_file(tmp_path / "snapshot", tmp_path / "snapshot").kind == "snapshot"
    with pytest.raises(FileError, match="A trace and a memory snapshot cannot be compared"):
        read_file(tmp_path / "trace", tmp_path / "snapshot")


def test_an_answer_is_the_card_as_html_and_as_text_or_a_sentence(tmp_path: Path):
    path = tmp_path / "given"
    path.write_bytes(TRACE)
    given, report = json.loads(answer("here/{}.html", str(path))), read_trace(path)
    assert given["text"] == repr(report)
    assert f'href="here/{report.plan[0].notebook}.html"' in given["html"]
    for content in (b"", b"\x89PNG", b'{"loss": [1.0]}', gzip.compress(b"text"), b"\x1f\x8b\x08\0", b"\x80\x04PK"):
        path.write_bytes(content)
        assert json.loads(answer("{}", str(path)))["sentence"].startswith("given ")
