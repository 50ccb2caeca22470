"""The file of a trace: JSON, compressed with gzip or not, of which each event is turned into less as it is decoded."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from course_utils.show.suggestions import file_in, typed
from own_program.waiting import waiting

HOW = (
    "Record with torch.profiler: profile(activities=[CPU, CUDA], "
    "schedule=schedule(wait=5, warmup=3, active=8, repeat=1)), step() after each training step, "
    "export_chrome_trace(...) at the end"
)
_MOST_TEXT = 768 << 20  # bytes: beyond, the events would not fit into a small machine's memory
_AN_EVENT_S = 8e-6  # to decode it, on two cores of a server
_NO_JSON = re.compile(r"(:\s*)[+-]?(?:inf|nan)(?:inity)?(?=\s*[,}])", re.IGNORECASE)  # as versions of Kineto wrote them


class TraceFileError(ValueError):
    """A file is no trace that can be read; the message says what is missing and how to record it right."""


def load(source: str | Path | bytes, take: Callable[[dict[str, Any]], Any]) -> tuple[str, dict[str, Any]]:
    """The name of a trace's file, and what it holds: each of its ``traceEvents`` as ``take`` returned it.

    Only what ``take`` returns is kept, so a long trace needs the memory of its text and of that.

    Raises:
        TraceFileError: it is no trace, is damaged or too large.
    """
    name = "the file" if isinstance(source, bytes) else Path(source).name
    text = _text(source, name)
    if not text.strip():
        raise TraceFileError(f"{name} is empty. {HOW}.")
    with waiting(f"Reading {name}", text.count('"ph"') * _AN_EVENT_S) as advance:

        def decoded(value: dict[str, Any]) -> Any:
            if "ph" not in value:
                return value
            advance(_AN_EVENT_S)
            return take(value)

        found = _decoded(text, name, decoded)
    found = {"traceEvents": found} if isinstance(found, list) else found
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        looks = f"looks like a memory snapshot ({typed('snapshot')} reads those)"
        why = looks if "device_traces" in found else "has no traceEvents, which a trace has"
        raise TraceFileError(f"{name} {why}. {HOW}.")
    return name, found


def _text(source: str | Path | bytes, name: str) -> str:
    content = source if isinstance(source, bytes) else _content(Path(source))
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(BytesIO(content)) as packed:
                content = packed.read(_MOST_TEXT + 1)
        except (EOFError, OSError, zlib.error):
            raise TraceFileError(f"{name} is damaged, or ends in the middle: copy or export it again.") from None
    if len(content) > _MOST_TEXT:
        most = f"{_MOST_TEXT >> 20} MiB of text"
        raise TraceFileError(f"{name} holds over {most}: record fewer steps, without with_stack.")
    what = ""
    if content.startswith(b"\x80"):
        what = f"a pickle, such as a memory snapshot ({typed('snapshot')} reads those)"
    elif content.startswith(b"PK"):
        what = "a zip archive or a torch checkpoint"
    if what:
        raise TraceFileError(f"{name} is {what}, not a trace of torch.profiler. {HOW}.")
    return content.decode(json.detect_encoding(content), "replace")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        if path.is_dir():
            raise TraceFileError(f"{file_in(path, 'trace', ('.json', '.json.gz'))}.") from None
        raise TraceFileError(f"{path} cannot be read: {error.strerror}.") from error


def _decoded(text: str, name: str, hook: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        try:
            return json.loads(text, object_hook=hook, strict=False)
        except json.JSONDecodeError:
            return json.loads(_NO_JSON.sub(r"\1null", text), object_hook=hook, strict=False)
    except (ValueError, RecursionError):
        if '"traceEvents"' in text or '"ph"' in text:
            raise TraceFileError(f"{name} is damaged, or ends in the middle: copy or export it again.") from None
        raise TraceFileError(f"{name} is not JSON, which a trace is. {HOW}.") from None
