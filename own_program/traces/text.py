"""A trace's text, piece by piece: a huge file, one that is cut short and a damaged one are read as well."""

from __future__ import annotations

import codecs
import json
import os
import re
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from course_utils.show.suggestions import file_in, typed
from own_program.waiting import waiting

HOW = (
    "Record with torch.profiler: profile(activities=[CPU, CUDA], "
    "schedule=schedule(wait=5, warmup=3, active=8, repeat=1)), step() after each training step, "
    "export_chrome_trace(...) at the end"
)
_PIECE = 1 << 18  # bytes that are read at once
_PACKED_PIECE = 1 << 12  # of a compressed file: a damaged piece is lost as a whole
_MOST_TEXT = 768 << 20  # bytes: beyond, the events would not fit into a small machine's memory
_MOST_VALUE = 1 << 26  # letters of a single value
_SURE = 1 << 23  # bytes after which a compressed file's ratio is known well enough
_BYTES_A_SECOND = {False: 20e6, True: 2e6}  # that are read, on two cores of a server; compressed ones are fewer

_PERFETTO = "in Perfetto's own format (protobuf)"
_ENDINGS = {
    ".nsys-rep": "a report of Nsight Systems", ".ncu-rep": "a report of Nsight Compute", ".pftrace": _PERFETTO
}  # fmt: skip
_FOREIGN = (
    (rb"\x80", f"a pickle, such as a memory snapshot ({typed('snapshot')} reads those)"),
    (rb"PK", "a zip archive (unpack it first, if a trace is in it) or a torch checkpoint"),
    (rb"SQLite", "a database, such as an export of Nsight Systems"),
    (rb"\x89PNG", "an image"),
    (rb"\s*<", "a page or XML"),
    (rb"\x28\xb5\x2f\xfd", "compressed with zstd (unpack it first)"),
    (rb"\n(?s:.{0,14})[\x00-\x08\x0e-\x1f\x80-\xff]", _PERFETTO),
    (rb"[{\[]\x00|\x00[{\[]", "in UTF-16 without its mark (save it as UTF-8)"),
    (rb"(?s:.{0,62})[\x00-\x08\x0e-\x1f]", "binary"),
)
_LOOKS = {
    "device_traces": " It looks like a memory snapshot.",
    "nodes": " It looks like an execution trace, which tells no durations.",
}
_LIKE_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*[{\[]\s*(["{\[\]}\d]|$)')
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_NEXT = re.compile(r"\}\s*,\s*(?=\{)")  # from one event to the next
_WHOLE = re.compile(r"(.*\})\s*,\s*(?=\{)", re.DOTALL)
_NO_JSON = re.compile(r"(:\s*)[+-]?(?:inf|nan)(?:inity)?(?=\s*[,}])", re.IGNORECASE)  # as versions of Kineto wrote them
_DECODE = json.JSONDecoder(strict=False).raw_decode
_INTEGER = 18  # digits: Python refuses to read, write or divide ones that are far longer
_DECODE_LONG = json.JSONDecoder(
    strict=False, parse_int=lambda digits: (int if len(digits) <= _INTEGER else float)(digits)
).raw_decode


class TraceError(ValueError):
    """A file is no trace that can be read; the message says what is missing and how to record it right."""


def printable(text: str) -> str:
    """A text without halves of letters, which no terminal takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _decode(text: str, at: int = 0) -> tuple[Any, int]:
    try:
        return _DECODE(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError:  # a number has thousands of digits
        return _DECODE_LONG(text, at)


class RawTrace:
    """Iterates over a trace's events, many at once; ``header`` and ``flaws`` are whole afterwards.

    Attributes:
        name: the file's.
        header: what stands beside the events.
        flaws: what is wrong with the file, each a sentence.
        cut: whether it breaks off.
    """

    def __init__(self, source: str | Path | bytes) -> None:
        if not isinstance(source, str | os.PathLike | bytes | bytearray):
            kind = type(source).__name__
            raise TraceError(f"A trace is given as a file's path or its bytes, and this is of type {kind}.")
        self.name = "the file" if isinstance(source, bytes | bytearray) else printable(Path(source).name)
        self.header: dict[str, Any] = {}
        self.flaws: list[str] = []
        self.cut = False
        self._source = source
        self._pieces: Iterator[str] = iter(())
        self._held, self._at = "", 0  # of the text what is not yet forgotten, and how far in it reading is

    def __iter__(self) -> Iterator[list[Any]]:
        with self._open() as file:
            self._packed, self._size = file.read(2) == b"\x1f\x8b", file.seek(0, os.SEEK_END)
            with waiting(f"Reading {self.name}", self._size / _BYTES_A_SECOND[self._packed]) as self._advance:
                yield from self._events(file)

    def _events(self, file: BinaryIO) -> Iterator[list[Any]]:
        self._pieces = self._decoded(file)
        first = self._peek()
        if first and first in "[{":
            try:
                yield from self._list() if first == "[" else self._frame()
            except RecursionError:
                raise TraceError("A value of the file is nested too deeply for a trace.") from None
        elif self.flaws:
            raise TraceError(f"{self.name} is damaged, and no trace can be read from it: copy it again.")
        else:
            raise TraceError(f"{self.name} is {'not JSON, which a trace is' if first else 'empty'}. {HOW}.")

    def breaks_off(self) -> str:
        """What is wrong with a file without events that ends in the middle."""
        return f"{self.name} breaks off before its first event: copy it again, and export it before the program ends."

    def _open(self) -> BinaryIO:
        if isinstance(self._source, bytes | bytearray):
            return BytesIO(self._source)
        path = Path(self._source)
        try:
            file = path.open("rb")
        except IsADirectoryError:
            raise TraceError(f"{file_in(path, 'trace', ('.json', '.json.gz'))}.") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "that is no file's name"
            raise TraceError(f"{str(path)[:200]} cannot be read: {reason}.") from error
        return file if file.seekable() else BytesIO(file.read())

    def _frame(self) -> Iterator[list[Any]]:
        """The events, and around them the header."""
        found = False
        try:
            while self._next() == '"':
                key = self._value()
                if self._peek() != ":":
                    break
                if self._next() == "[" and key == "traceEvents":
                    found = True
                    yield from self._list()
                else:
                    self.header[str(key)] = self._value()
                if self._peek() != ",":
                    break
        except json.JSONDecodeError:
            pass
        whole = self._peek() == "}"
        if not found and "schemaVersion" in self.header and not whole:
            raise TraceError(self.breaks_off())
        if not found:
            looks = next((what for key, what in _LOOKS.items() if key in self.header), "")
            raise TraceError(f"{self.name} has no traceEvents, which a trace has.{looks} {HOW}.")
        if not whole:
            self._ends_early()

    def _list(self) -> Iterator[list[Any]]:
        """The events of a list: all at once that stand before the last boundary in what is held."""
        self._at += 1
        damaged = 0
        while True:
            whole = _WHOLE.match(self._held, self._at)
            if whole is None and self._more():
                continue
            stop, go_on = (whole.end(1), whole.end()) if whole else (len(self._held), len(self._held))
            found, rest, closed, bad = _values(self._held[self._at : stop])
            yield found
            self._held, self._at = rest + self._held[stop if rest or closed else go_on :], 0
            damaged += bad if whole else 0  # else it is the one in which the file ends
            if closed:
                break
            if not whole or (rest and not self._more()):
                self._ends_early()
                self.cut = True
                break
        if damaged:
            many = f"{damaged:,} events were left out: they are" if damaged > 1 else "One event was left out: it is"
            self.flaws.append(f"{many} damaged.")

    def _ends_early(self) -> None:
        if not self.flaws:
            self.flaws.append("The file ends in the middle: what stands before that was read. Copy or export it again.")

    def _peek(self) -> str:
        """The next letter that is no space; empty at the end."""
        while True:
            self._at = _SPACE.match(self._held, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._held) or not self._more():
                return self._held[self._at : self._at + 1]

    def _next(self) -> str:
        """The one behind that."""
        self._at += 1
        return self._peek()

    def _value(self) -> Any:
        """The value at which `_peek` has looked, however long."""
        while True:
            start = self._at
            try:
                value, end = _decode(self._held, start)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            if end + 2 < len(self._held):
                self._at = end
                return value
            if not self._more():  # a number may go on
                self._at = end - start
                return value

    def _more(self) -> bool:
        """Read on, as much again as is held; False at the end."""
        held = [self._held[self._at :]]
        wanted = max(len(held[0]), _PIECE) if len(held[0]) < _MOST_VALUE else 0
        while wanted > 0 and (piece := next(self._pieces, None)) is not None:
            held.append(piece)
            wanted -= len(piece)
        self._held, self._at = "".join(held), 0
        return len(self._held) > len(held[0])

    def _decoded(self, file: BinaryIO) -> Iterator[str]:
        pieces = filter(None, self._unpacked(file))
        first = next(pieces, b"")
        wide = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if not wide and not _LIKE_JSON.match(first):
            magic = next((what for magic, what in _FOREIGN if re.match(magic, first)), None)
            if what := _ENDINGS.get(Path(self.name).suffix, magic):
                raise TraceError(f"{self.name} is {what}, not a trace of torch.profiler. {HOW}.")
        decode = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")("replace").decode
        yield decode(first)
        yield from map(decode, pieces)

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        """The bytes of a file, unpacked if it is compressed; what can be unpacked of one that is damaged."""
        packed, size = self._packed, self._size
        file.seek(-min(size, 4), os.SEEK_END)
        claimed = int.from_bytes(file.read(4), "little") if packed else size  # true of a whole one below 4 GiB
        file.seek(0)
        unpack, done = zlib.decompressobj(31), 0
        while piece := file.read(_PACKED_PIECE if packed else _PIECE):
            self._advance(len(piece) / _BYTES_A_SECOND[packed])
            while piece:
                if unpack.eof:  # several parts, one after the other, are a file of gzip, too
                    unpack = zlib.decompressobj(31)
                try:
                    text = unpack.decompress(piece, _PIECE) if packed else piece
                except zlib.error:
                    self.flaws.append("The compressed file is damaged: what stands before the damage was read.")
                    return
                done += len(text)
                likely = size * done / file.tell() if done > _SURE or not packed else 0
                if max(done, min(claimed, 1.25 * likely), likely / 2) > _MOST_TEXT:
                    most = f"{_MOST_TEXT >> 20} MiB of text"
                    raise TraceError(f"{self.name} holds over {most}: record fewer steps, without with_stack.")
                yield text
                piece = (unpack.unconsumed_tail or unpack.unused_data.lstrip(b"\x00")) if packed else b""
        if packed and not unpack.eof:
            self.flaws.append(
                "The compressed file ends in the middle: what stands before that was read. Copy it again."
            )


def _values(text: str) -> tuple[list[Any], str, bool, int]:
    """The values of a list or of its beginning; what is behind them; whether the list ends; how many are damaged."""
    for mended in (False, True):
        text = _NO_JSON.sub(r"\1null", text) if mended else text
        try:
            values, end = _decode(f"[{text}]")
            return values, text[end - 1 :], end < len(text) + 2, 0
        except json.JSONDecodeError:
            continue
    values, damaged, at = [], 0, 0
    while (at := _BETWEEN.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        if text[at] == "]":
            return values, text[at + 1 :], True, damaged
        try:
            value, at = _decode(text, at)
            values.append(value)
        except json.JSONDecodeError as error:
            if error.pos == len(text) or error.msg.startswith(
                "Unterminated"
            ):  # a comma in an event was taken for its end
                return values, text[at:], False, damaged
            damaged += 1
            following = _NEXT.search(text, at + 1)
            at = following.end() if following else len(text)
    return values, "", False, damaged
