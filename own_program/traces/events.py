"""The events of a trace, read piece by piece: a huge file, one that is cut short and a damaged one are read as well.

HolisticTraceAnalysis and Perfetto's processor answer some of the same questions. They need pandas or a native program,
so neither runs inside a page, and the former refuses some traces that lack a field it counts on.
"""

from __future__ import annotations

import codecs
import functools
import gc
import io
import json
import re
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from course_utils.show.suggestions import file_in, typed
from own_program.traces.gpus import Gpu, gpus_of

HOW = (
    "Record with torch.profiler: profile(activities=[CPU, CUDA], "
    "schedule=schedule(wait=5, warmup=3, active=8, repeat=1)), step() after each training step, "
    "export_chrome_trace(...) at the end"
)
_PIECE = 1 << 18  # bytes that are read at once
_PACKED_PIECE = 1 << 12  # of a compressed file: a damaged piece is lost as a whole
_MOST_TEXT = 1_500 << 20  # bytes of JSON: beyond, a file is a mistake or an attack
_MOST_EVENTS = 3_000_000  # that are kept, at about 300 bytes each
_MOST_VALUE = 1 << 26  # letters of a single value
_LATEST_US = 1e18  # no clock counts that far: 30,000 years
_QUIET_S = 2.0

# What an event is to us, by the category that a version of torch gave it.
KERNEL, COPY, SET, OP, MARK, GPU_MARK, PYTHON, CALL, OVERHEAD = range(9)
DEVICE = (KERNEL, COPY, SET)
_KINDS = {
    "kernel": KERNEL, "concurrent_kernel": KERNEL, "mtia_ccp_events": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY,
    "gpu_memset": SET, "memset": SET, "cpu_op": OP, "operator": OP, "user_annotation": MARK,
    "gpu_user_annotation": GPU_MARK, "python_function": PYTHON, "runtime": CALL, "overhead": OVERHEAD,
}  # fmt: skip
_MARKS = re.compile(
    r"ProfilerStep|Optimizer\.|enumerate\(DataLoader|(nccl|gloo|mpi|ucc|xccl|hccl):|c10d::|DistributedDataParallel"
)
_STARTS = re.compile(r"launch|memcpy|memset|invoke|enqueue", re.IGNORECASE)
_COLLECTIVE_OF_GPUS = re.compile(
    r"(nccl|xccl|hccl):_?(all|reduce|broadcast|gather|scatter|send|recv|coalesced)[a-z_]*$"
)
_FOREIGN = {
    b"\x80": f"a pickle, such as a memory snapshot ({typed('snapshot')} reads those)",
    b"PK": "a zip archive (unpack it first, if a trace is in it) or a torch checkpoint",
    b"SQLite": "a database, such as an export of Nsight Systems",
    b"\x89PNG": "an image",
    b"<": "a page or XML",
    b"\x28\xb5\x2f\xfd": "compressed with zstd (unpack it first)",
}


_LOOKS = {
    "device_traces": " It looks like a memory snapshot.",
    "nodes": " It looks like an execution trace, which tells no durations.",
}


class TraceError(ValueError):
    """A file is no trace that can be read; the message says what is missing and how to record it right."""


@dataclass(slots=True)
class Event:
    """Something with a beginning and an end, in microseconds since the trace's first event."""

    kind: int
    name: str
    start: float
    end: float
    tid: Any
    correlation: Any = None  # ties a call on the CPU to what it started on the device
    operator: Any = None  # ties what ran to the operator that called for it: the "External id"
    device: int = 0
    stream: Any = None
    collective: str = ""
    double: bool = False  # an operator that was given a tensor in float64; only known with record_shapes
    shapes: tuple[Any, ...] | None = None  # of an operator: for each input its sizes; () for what is no tensor
    sequence: int | None = None  # ties an operator to the node of the backward pass that it left behind

    @property
    def span(self) -> tuple[float, float]:
        """Its beginning and its end."""
        return self.start, self.end


@dataclass
class Trace:
    """What a trace holds.

    Attributes:
        name: the file's.
        events: those that were understood, by their kind.
        header: what stands beside the events, such as ``distributedInfo``.
        flaws: what is wrong with the file, each a sentence.
        cut: whether it breaks off. Events do not stand in the order of their time, so what is missing may be of any.
    """

    name: str
    events: dict[int, list[Event]]
    header: dict[str, Any]
    flaws: list[str] = field(default_factory=list)
    cut: bool = False

    @property
    def rank(self) -> str:
        """Which rank of how many it is, in words; empty where the trace does not say."""
        info = self.header.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank, world = info.get("rank"), info.get("world_size")
        if not isinstance(world, int) or world < 2 or not isinstance(rank, int):
            return ""
        return f"rank {rank} of {world}"

    @functools.cached_property
    def gpus(self) -> dict[int, Gpu]:
        """The devices that the file lists, and those that worked, by their number."""
        working = {event.device for kind in DEVICE for event in self.events[kind]}
        return gpus_of(self.header, working, {call.name for call in self.events[CALL]})

    @functools.cached_property
    def has_gpu_side(self) -> bool:
        """Whether a device worked, or calls to one were made, or the machine has one and nobody looked what it did.

        A machine's device is listed whatever was recorded. Where calls were recorded, and none starts anything, the
        program left it alone. Names of operators and labels say nothing: CPU code asks ``aten::cudnn_is_acceptable``.
        """
        if any(self.events[kind] for kind in (*DEVICE, GPU_MARK)):
            return True
        if any(_COLLECTIVE_OF_GPUS.match(mark.name) for kind in (MARK, OP) for mark in self.events[kind]):
            return True
        calls = self.events[CALL]
        return any(_STARTS.search(call.name) for call in calls) if calls else bool(self.gpus)


def read_events(source: str | Path | bytes) -> Trace:
    """Read a trace in Chrome's format, as torch.profiler exports it, compressed with gzip or not.

    Memory stays at a few hundred bytes for each event that says where time goes. A file that breaks off in the middle
    is read up to there, and ``flaws`` says so.

    Raises:
        TraceError: if it is none, or too large.

    Example:
        >>> step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 5, "tid": 1}
        >>> len(read_events(json.dumps({"traceEvents": [step]}).encode()).events[MARK])
        1
    """
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of events that stay: looking for garbage among them takes longer than reading
    try:
        return _read(RawTrace(source))
    finally:
        if collecting:
            gc.enable()


def _read(raw: RawTrace) -> Trace:
    kept: dict[int, list[Event]] = {kind: [] for kind in range(9)}
    seen = held = timeless = 0
    programs: set[Any] = set()
    torch_like = False
    for event in raw:
        if event.get("ph") != "X" or not isinstance(event.get("name"), str):
            continue
        seen += 1
        kind = _kind(event)
        if kind is None:
            continue
        understood = _understood(event, kind)
        if understood is None:
            timeless += 1
            continue
        torch_like = torch_like or kind != OVERHEAD
        if kind == MARK and understood.name.startswith("ProfilerStep"):
            programs.add(_plain(event.get("pid")))
        kept[kind].append(understood)
        held += 1
        if held > _MOST_EVENTS:
            raise TraceError(f"{raw.name} holds over {_MOST_EVENTS:,} events: record fewer steps, without with_stack.")
    if not torch_like:
        raise TraceError(_nothing(raw, seen, timeless))
    if len(programs) > 1:  # the ids that tie a call to its kernel are each program's own
        raise TraceError(f"{raw.name} holds the steps of {len(programs)} programs, merged: read one rank's own file.")
    if timeless:
        raw.flaws.append(f"{timeless:,} events were left out: their time is missing, negative or no number.")
    _tie(kept)
    zero = min(event.start for events in kept.values() for event in events)
    for events in kept.values():
        for event in events:
            event.start, event.end = event.start - zero, event.end - zero
        events.sort(key=lambda event: (event.start, -event.end))
    return Trace(raw.name, kept, raw.header, raw.flaws, raw.cut)


def _tie(kept: dict[int, list[Event]]) -> None:
    """Tie calls to what they started by their "External id", where no "correlation" is: so ROCm's traces write it."""
    tied = [event for kind in (*DEVICE, CALL) for event in kept[kind]]
    if not any(event.correlation is not None for event in tied):
        for event in tied:
            event.correlation, event.operator = event.operator, None


def _nothing(raw: RawTrace, seen: int, timeless: int) -> str:
    if timeless:
        return f"No event of {raw.name} has a time that can be read. {HOW}."
    if seen and "schemaVersion" not in raw.header:  # which Kineto writes
        return f"{raw.name} is a trace, but not one of torch.profiler: no event has a category of its. {HOW}."
    if raw.flaws:
        return _breaks_off(raw)
    return f"{raw.name} is a trace without events. {HOW}."


def _breaks_off(raw: RawTrace) -> str:
    return f"{raw.name} breaks off before its first event: copy it again, and export it before the program ends."


def _kind(event: dict[str, Any]) -> int | None:
    category = event.get("cat")
    if not isinstance(category, str):
        return None
    category = category.lower()
    kind = _KINDS.get(category)
    if kind is None and category.endswith(("_runtime", "_driver")):
        return CALL
    if kind == OP and _MARKS.match(event["name"]):  # how versions before 1.11 wrote them
        return MARK
    return kind


def _understood(event: dict[str, Any], kind: int) -> Event | None:
    start, lasts = event.get("ts"), event.get("dur", 0)
    try:  # some writers put numbers into quotes
        start, lasts = float(start), float(lasts)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not (abs(start) < _LATEST_US and 0 <= lasts < _LATEST_US):  # nor are these true of a NaN
        return None
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    operator = args.get("External id", args.get("external id"))
    found = Event(kind, sys.intern(event["name"]), start, start + lasts, _plain(event.get("tid")))
    found.correlation, found.operator = _plain(args.get("correlation")), _plain(operator)
    if kind == OP:
        found.double, found.shapes = _has_double(args), _shapes(args)
        sequence = args.get("Sequence number")
        found.sequence = sequence if isinstance(sequence, int) else None
    if kind in (KERNEL, COPY, SET, GPU_MARK):
        device = args.get("device", event.get("pid"))
        found.device = device if isinstance(device, int) and not isinstance(device, bool) else 0
        found.stream = _plain(args.get("stream", event.get("tid")))
        found.collective = sys.intern(str(args.get("Collective name") or ""))
    return found


def _has_double(args: dict[str, Any]) -> bool:
    types, sizes = args.get("Input type"), args.get("Input Dims", args.get("Input dims"))
    if not isinstance(types, list) or not isinstance(sizes, list):
        return False
    # Python's numbers are doubles without a size, whatever the tensor beside them is.
    return any(what == "double" and size for what, size in zip(types, sizes, strict=False))


def _shapes(args: dict[str, Any]) -> tuple[Any, ...] | None:
    sizes = args.get("Input Dims", args.get("Input dims"))
    if not isinstance(sizes, list):
        return None
    return _one_of_a_kind(tuple(map(_frozen, sizes)))


@functools.lru_cache(1 << 14)
def _one_of_a_kind(value: tuple[Any, ...]) -> tuple[Any, ...]:
    return value  # steps repeat themselves: what is equal is kept once


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value if isinstance(value, int) else ()


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else None


class RawTrace:
    """Iterates over a trace's events as they stand in the file; ``header`` and ``flaws`` are whole afterwards.

    Attributes:
        name: the file's.
        header: what stands beside the events.
        flaws: what is wrong with the file, each a sentence.
    """

    def __init__(self, source: str | Path | bytes) -> None:
        self.header: dict[str, Any] = {}
        self.flaws: list[str] = []
        self.cut = False
        self.name = "the file" if isinstance(source, bytes) else Path(source).name
        self._source = source

    def __iter__(self) -> Iterator[dict[str, Any]]:
        size = len(self._source) if isinstance(self._source, bytes) else 0
        if isinstance(self._source, bytes):
            file: BinaryIO = io.BytesIO(self._source)
        else:
            path = Path(self._source)
            if path.is_dir():
                raise TraceError(f"{file_in(path, 'trace', ('.json', '.json.gz'))}.")
            try:
                file, size = path.open("rb"), path.stat().st_size
            except OSError as error:
                raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error
        with file:
            start = file.read(16)
            file.seek(0)
            if not start.strip(b"\x00 \t\r\n"):
                raise TraceError(f"{self.name} is empty. {HOW}.")
            for magic, what in _FOREIGN.items():
                if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(magic):
                    raise TraceError(f"{self.name} is {what}, not a trace. {HOW}.")
            yield from self._events(_Text(file, self.flaws, _Bar(self.name, size)))

    def _events(self, text: _Text) -> Iterator[dict[str, Any]]:
        first = text.peek()
        if first == "[":
            yield from self._list(text)
        elif first == "{":
            found = False
            text.skip()
            while text.peek() == '"':
                key = text.value()
                if text.peek() != ":":
                    break
                text.skip()
                if key == "traceEvents" and text.peek() == "[":
                    found = True
                    yield from self._list(text)
                else:
                    text.peek()
                    value = text.value()
                    if value is _BROKEN:
                        break
                    self.header[str(key)] = value
                if text.peek() == ",":
                    text.skip()
            if not found and "schemaVersion" in self.header and text.peek() != "}":
                raise TraceError(_breaks_off(self))
            if not found:
                looks = next((what for key, what in _LOOKS.items() if key in self.header), "")
                raise TraceError(f"{self.name} has no traceEvents, which a trace has.{looks} {HOW}.")
            if text.peek() != "}" and not self.flaws:
                self._cut()
        elif self.flaws:
            raise TraceError(f"{self.name} is damaged, and no trace can be read from it: copy it again.")
        else:
            raise TraceError(f"{self.name} is not JSON, which a trace is. {HOW}.")

    def _list(self, text: _Text) -> Iterator[dict[str, Any]]:
        text.skip()
        damaged = 0
        while (letter := text.peek(_BETWEEN)) != "]":
            event = text.value() if letter else _BROKEN
            if isinstance(event, dict):
                yield event
            elif event is not _BROKEN:
                continue
            elif letter and text.next_event():
                damaged += 1
            else:
                self._cut()
                self.cut = True
                break
        else:
            text.skip()
        if damaged:
            self.flaws.append(f"{damaged:,} events were left out: they are damaged.")

    def _cut(self) -> None:
        if not self.flaws:
            self.flaws.append("The file ends in the middle: what stands before that was read. Copy or export it again.")


_BROKEN: Any = object()
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_NEXT = re.compile(r"\}\s*,\s*(?=\{)")
_END = re.compile(r"\}\s*(?:,\s*\{|\])")
_NO_JSON = re.compile(r"(:\s*)[+-]?(?:inf|nan)(?:inity)?(?=\s*[,}])", re.IGNORECASE)  # as versions of Kineto wrote them
_DECODER = json.JSONDecoder(strict=False)


class _Text:
    """A text that is longer than what is held of it: what has been read is forgotten."""

    def __init__(self, file: BinaryIO, flaws: list[str], bar: _Bar) -> None:
        self._pieces = _pieces(file, flaws, bar)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._held, self._at, self._read = "", 0, 0

    def peek(self, passing: re.Pattern[str] = _SPACE) -> str:
        """The next letter that is no space; empty at the end."""
        while True:
            self._at = passing.match(self._held, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._more(_PIECE):
                return ""

    def skip(self) -> None:
        self._at += 1

    def value(self) -> Any:
        """The value at which `peek` has looked, however long; `_BROKEN` where none can be read."""
        wanted = _PIECE
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._at)
                if end < len(self._held) or not self._more(_PIECE):  # a number may go on
                    self._at = end
                    return value
            except RecursionError:
                raise TraceError("A value of the file is nested too deeply for a trace.") from None
            except ValueError as error:
                if _inside(error, self._held):
                    return self._mended()
                if wanted > _MOST_VALUE or not self._more(wanted):
                    return self._mended()
                wanted *= 2

    def _mended(self) -> Any:
        """The next event, read with what some versions write though JSON has no such numbers."""
        found = _END.search(self._held, self._at)
        end = found.start() + 1 if found else len(self._held)
        try:
            value = json.loads(_NO_JSON.sub(r"\1null", self._held[self._at : end]), strict=False)
        except ValueError:
            return _BROKEN
        self._at = end
        return value

    def next_event(self) -> bool:
        """Go to the beginning of the next event, passing over what cannot be read; False if there is none."""
        while not (found := _NEXT.search(self._held, self._at + 1)):
            self._at = max(self._at, len(self._held) - 64)
            if not self._more(_PIECE):
                return False
        self._at = found.end()
        return True

    def _more(self, letters: int) -> bool:
        held, pieces = len(self._held) - self._at, []
        while letters > 0 and (piece := next(self._pieces, None)) is not None:
            self._read += len(piece)
            if self._read > _MOST_TEXT:
                raise TraceError(f"The trace is over {_MOST_TEXT >> 20} MiB of text: record fewer steps.")
            pieces.append(self._decode(piece))
            letters -= len(pieces[-1])
        self._held, self._at = self._held[self._at :] + "".join(pieces), 0
        return len(self._held) > held


def _pieces(file: BinaryIO, flaws: list[str], bar: _Bar) -> Iterator[bytes]:
    """The bytes of a file, unpacked if it is compressed; what can be unpacked of one that is damaged."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    unpack = zlib.decompressobj(31)
    while piece := file.read(_PACKED_PIECE if packed else _PIECE):
        bar.advance(len(piece))
        if not packed:
            yield piece
            continue
        while piece:
            if unpack.eof:  # several parts, one after the other, are a file of gzip, too
                unpack = zlib.decompressobj(31)
            try:
                yield unpack.decompress(piece, _PIECE)
            except zlib.error:
                flaws.append("The compressed file is damaged: what stands before the damage was read.")
                return
            piece = unpack.unconsumed_tail or unpack.unused_data.lstrip(b"\x00")
    bar.close()
    if packed and not unpack.eof:
        flaws.append("The compressed file ends in the middle: what stands before that was read. Copy it again.")


def _inside(error: ValueError, text: str) -> bool:
    """Whether what is wrong lies inside a text, so that more of it would not help."""
    unended = getattr(error, "msg", "").startswith("Unterminated")
    return not unended and getattr(error, "pos", 0) < len(text) - 32


class _Bar:
    """How far reading is, in a terminal, once it has taken a while."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size, self._read = name, size, 0
        self._began = time.monotonic()
        self._bar: Any = None
        self._quiet = not (sys.stderr and sys.stderr.isatty())

    def advance(self, count: int) -> None:
        self._read += count
        if self._bar is None and not self._quiet and time.monotonic() - self._began > _QUIET_S:
            try:
                from tqdm import tqdm
            except ImportError:
                self._quiet = True
                return
            self._bar = tqdm(total=self._size, initial=self._read, unit="B", unit_scale=True, leave=False)
            self._bar.set_description(f"reading {self._name}")
        elif self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
