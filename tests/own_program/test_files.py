"""A reader's own files go to the reader that is for them, by what is in them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest

from course_utils.show.cards import Card, Shown
from own_program import files
from own_program.files import FileError, answer, read_file
from own_program.snapshots.snapshot_report import SnapshotError
from own_program.traces.example import example_trace
from own_program.traces.report import TraceError, read_trace

TRACE = gzip.decompress(example_trace())
SNAPSHOT = {"segments": [], "device_traces": [[]]}


def archive() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as packed:
        packed.writestr("checkpoint/data.pkl", b"\x80")
    return held.getvalue()


class Read(Shown):
    """What stands in for a report: which reader was asked."""

    def __init__(self, *asked: str) -> None:
        self.asked = asked

    def card(self) -> Card:
        return Card(f"{self.asked[0]} read {' and '.join(self.asked[1:])}")


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(kind: str, *files: Path | None) -> Read:
        return Read(kind, *(Path(file).name for file in files if file is not None))

    monkeypatch.setattr(files, "read_trace", lambda source, other=None: read("trace", source, other))
    monkeypatch.setattr(files, "read_snapshot", lambda source, later=None: read("snapshot", source, later))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (TRACE, "trace"),
        (example_trace(), "trace"),
        (b"\xef\xbb\xbf\n [ {" + b'"ph": "X"}]', "trace"),
        (b'{"deviceProperties": [' + b" " * 50_000 + b'], "traceEvents" : []}', "trace"),
        (pickle.dumps(SNAPSHOT), "snapshot"),
        (gzip.compress(pickle.dumps(SNAPSHOT)), "snapshot"),
        (json.dumps(SNAPSHOT).encode(), "snapshot"),
        (b'[{"device": 0, "segment_type": "large"}]', "snapshot"),
    ],
    ids=["JSON", "gzip", "bare events", "a long header", "pickle", "packed", "JSON of a snapshot", "segments alone"],
)
def test_the_content_decides_and_not_the_name(stand_ins: None, tmp_path: Path, content: bytes, kind: str):
    for name in ("given.json.gz", "given.pickle", "given"):
        (tmp_path / name).write_bytes(content)
        assert read_file(tmp_path / name).asked == (kind, name)


def test_two_of_a_kind_are_compared_and_a_snapshot_with_a_trace_is_not(stand_ins: None, tmp_path: Path):
    for name, content in (("a", TRACE), ("b", TRACE), ("c", pickle.dumps(SNAPSHOT)), ("d", archive())):
        (tmp_path / name).write_bytes(content)
    assert read_file(tmp_path / "a", tmp_path / "b").asked == ("trace", "a", "b")
    assert read_file(tmp_path / "c", tmp_path / "d").asked == ("snapshot", "c", "d")
    for pair in (("a", "c"), ("c", "a")):
        with pytest.raises(FileError, match="A trace and a memory snapshot cannot be compared"):
            read_file(*(tmp_path / name for name in pair))


@pytest.mark.parametrize(
    "content",
    [b"", archive(), b"\x89PNG", b"<html></html>", b'{"loss": [1.0]}', gzip.compress(b"text"), b"\x1f\x8b\x08\0"],
    ids=["empty", "zip", "picture", "page", "other JSON", "packed text", "damaged"],
)
def test_what_is_for_no_reader_gets_the_sentence_of_one(tmp_path: Path, content: bytes):
    (tmp_path / "given").write_bytes(content)
    with pytest.raises((SnapshotError, TraceError), match=r"^given ") as caught:
        read_file(tmp_path / "given")
    assert json.loads(answer("{}", str(tmp_path / "given"))) == {"sentence": str(caught.value)}


def test_an_answer_is_the_card_as_html_and_as_text(tmp_path: Path):
    (tmp_path / "trace.json").write_bytes(TRACE)
    given = json.loads(answer("here/{}.html", str(tmp_path / "trace.json")))
    report = read_trace(tmp_path / "trace.json")
    assert given["text"] == repr(report)
    assert f'href="here/{report.plan[0].notebook}.html"' in given["html"]


@pytest.mark.parametrize("error", [MemoryError(), KeyError("ts"), RecursionError("too deep")], ids=repr)
def test_no_failure_of_a_reader_reaches_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception):
    def fail(*_: Path | None) -> Shown:
        raise error

    monkeypatch.setattr(files, "read_trace", fail)
    (tmp_path / "trace.json").write_bytes(TRACE)
    sentence = json.loads(answer("{}", str(tmp_path / "trace.json")))["sentence"]
    assert ("make trace ARGS=FILE" if isinstance(error, MemoryError) else "trace.json could not be read") in sentence


def test_a_report_of_several_devices_shows_each(monkeypatch: pytest.MonkeyPatch):
    class Several(Read):
        def html(self, lessons: str) -> str:
            return f"each, with {lessons}"

    assert files.html(Several("snapshot"), "x/{}") == "each, with x/{}"
    assert "snapshot read a" in files.html(Read("snapshot", "a"), "{}")
