"""A reader's own files go to the reader that is for them, by what is in them."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from own_program.file_reader import answer, read_file
from own_program.snapshots.snapshot_report import SnapshotError
from own_program.traces.example import example_trace
from own_program.traces.trace_report import TraceReport, read_trace

TRACE = gzip.decompress(example_trace())
SNAPSHOT = pickle.dumps({"segments": [], "device_traces": [[]]})


def test_the_content_decides_who_reads_a_file_and_not_its_name(tmp_path: Path):
    trace, snapshot = tmp_path / "given.pickle", tmp_path / "given.json.gz"
    for content in (TRACE, gzip.compress(TRACE)):
        trace.write_bytes(content)
        assert isinstance(read_file(trace), TraceReport)
    for content in (SNAPSHOT, gzip.compress(SNAPSHOT)):
        snapshot.write_bytes(content)
        with pytest.raises(SnapshotError, match="has no memory of any GPU"):
            read_file(snapshot)
    with pytest.raises(SnapshotError, match="is a trace of"):
        read_file(snapshot, trace)


def test_an_answer_is_the_card_as_html_and_as_text_or_a_sentence(tmp_path: Path):
    path = tmp_path / "given"
    path.write_bytes(TRACE)
    given, report = json.loads(answer("here/{}.html", str(path))), read_trace(path)
    assert given["text"] == repr(report)
    assert f'href="here/{report.plan[0].notebook}.html"' in given["html"]
    for content in (b"", b"\x89PNG", b'{"loss": [1.0]}', gzip.compress(b"text"), b"\x1f\x8b\x08\0", b"\x80\x04PK"):
        path.write_bytes(content)
        assert json.loads(answer("{}", str(path)))["sentence"].startswith("given ")
