"""PyTorch's caching allocator for CUDA, simulated event by event. Pure Python: neither torch nor a GPU is needed.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` in PyTorch 2.13.0; comments name the function that a rule
comes from, and the line where that function checks itself (the wheel's own messages hold these numbers). Constants and
options come from ``c10/core/AllocatorConfig.h`` and ``.cpp`` of the same version. The file on the web:
https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp

Not simulated: private pools (CUDA graphs, ``torch.cuda.MemPool``), several devices, and the back end
``cudaMallocAsync``.
"""

from __future__ import annotations

import math
import os
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIB = 2**20
# c10/core/AllocatorConfig.h:16-24
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer: small requests are packed into segments of this size
BLOCK_BYTES = 512  # kMinBlockSize: sizes are rounded up to a multiple of it
SMALL_REQUEST_BYTES = MIB  # kSmallSize: the largest request that goes to the small pool
LARGE_REQUEST_BYTES = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own size
LARGE_ROUNDING_BYTES = 2 * MIB  # kRoundLarge: ... rounded up to a multiple of it
DEFAULT_LARGE_SEGMENT_BYTES = 20 * MIB  # large_segment_size_, c10/core/AllocatorConfig.h:339

# More than any device has, and few enough to be counted in 64 bits.
_MOST_BYTES = 2**62
# NativeCachingAllocator::allocate: no request may be larger.
_LARGEST_REQUEST_BYTES = 2**60
_INTERVALS = 16  # kRoundUpPowerOfTwoIntervals: 1 MiB, 2 MiB ... 32 GiB and more

ENVIRONMENT_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Where PyTorch looks for options; the first that is set counts. The last is today's name, the others are older."""

# Known to PyTorch 2.13, and without effect on which memory is taken from the device.
_WITHOUT_EFFECT = (
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
)
_SIMULATED = (
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "per_process_memory_fraction",
)


def _tokens(text: str) -> list[str]:
    """Split as ConfigTokenizer does, c10/core/AllocatorConfig.h:34: blanks do not count."""
    found, word = [], ""
    for letter in text:
        if letter in ",:[]":
            found += [word] * bool(word) + [letter]
            word = ""
        elif not letter.isspace():
            word += letter
    return found + [word] * bool(word)


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A value for a message: short whatever it is, also where its text would be endless.

    Args:
        value: anything.

    Returns:
        Texts and numbers as they are, cut to 60 letters; of everything else the type.

    Example:
        >>> shown("x"), shown([1, 2]), shown(2**300)
        ("'x'", 'a list', 'a number of 301 bits')
    """
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:60] + "…")
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"a {type(value).__name__[:60]}"


@dataclass(frozen=True)
class AllocatorOptions:
    """What ``PYTORCH_ALLOC_CONF`` sets, as far as it decides which memory is taken from the device.

    Attributes:
        expandable_segments: one segment for each stream and pool, which grows page by page.
        max_split_size_bytes: blocks of this size or more are not split; None: all may be.
        max_non_split_rounding_bytes: how much larger than the request a block may be that is not split; None: by
            large_segment_bytes, as in PyTorch.
        roundup_power2_divisions: into how many steps a power of two is divided when sizes are rounded up; sixteen
            numbers, for requests from 1 MiB, 2 MiB, 4 MiB ... 32 GiB on. 0 or 1: no such rounding.
        garbage_collection_threshold: the share of the cap from which on old cached blocks are given back; 0: never.
        large_segment_bytes: segment for requests between 1 and 10 MiB, and page of a large expandable segment.
        per_process_memory_fraction: the cap, as a share of the device's memory.

    Raises:
        ValueError: if a value is out of its range. Sizes are whole MiB, as ``PYTORCH_ALLOC_CONF`` takes them.

    Source:
        c10/core/AllocatorConfig.h:336-353 and c10/cuda/CUDAAllocatorConfig.h in PyTorch 2.13.0. That large_segment_size
        sets max_non_split_rounding, too, unless that is given: seen on 2.13.0 and 2.11.0 without a GPU.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0
    large_segment_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    per_process_memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        divisions = self.roundup_power2_divisions
        if isinstance(divisions, int):
            divisions = (divisions,) * _INTERVALS
        if not isinstance(divisions, list | tuple) or len(divisions) != _INTERVALS:
            raise ValueError(f"roundup_power2_divisions must be a number or {_INTERVALS} of them")
        object.__setattr__(self, "roundup_power2_divisions", tuple(divisions))
        sizes = {
            "large_segment_size_mb": self.large_segment_bytes,
            "max_split_size_mb": self.max_split_size_bytes,
            "max_non_split_rounding_mb": self.max_non_split_rounding_bytes,
        }
        for name, value in sizes.items():
            if value is None and name != "large_segment_size_mb":
                continue
            if not _is_whole(value) or value % MIB or value >= _MOST_BYTES:
                raise ValueError(f"{name} must be whole MiB, got {shown(value)} bytes")
        least = self.large_segment_bytes
        if least <= LARGE_REQUEST_BYTES:
            raise ValueError(f"large_segment_size_mb must be over {LARGE_REQUEST_BYTES // MIB}, got {least // MIB}")
        if self.expandable_segments and least % SMALL_SEGMENT_BYTES:
            # It is the size of a page then, and the driver's pages are 2 MiB.
            raise ValueError(f"large_segment_size_mb must be even with expandable_segments, got {least // MIB}")
        for name, value in sizes.items():
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least // MIB}, got {value // MIB}")
        for value in divisions:
            if not _is_whole(value) or not (value == 0 or _power_of_two(value)):
                raise ValueError(
                    f"roundup_power2_divisions must be powers of two, or 0 for no rounding, got {shown(value)}"
                )
        for name in ("garbage_collection_threshold", "per_process_memory_fraction"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} must be a number such as 0.8, got {shown(value)}")
        if not 0 <= self.garbage_collection_threshold < 1:
            raise ValueError(
                "garbage_collection_threshold must lie between 0 and 1, "
                f"without the 1, got {shown(self.garbage_collection_threshold)}"
            )
        if not 0 <= self.per_process_memory_fraction <= 1:
            raise ValueError(
                f"per_process_memory_fraction must lie between 0 and 1, got {shown(self.per_process_memory_fraction)}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the value of ``PYTORCH_ALLOC_CONF``.

        Options that PyTorch knows and that do not change which memory is taken are accepted and left out. Where
        PyTorch reads the beginning of a value and drops the rest (``30MB`` and ``20.5`` as 30 and 20, ``[256:1,]``),
        this refuses it.

        Args:
            text: for example ``expandable_segments:True,max_split_size_mb:128``.

        Returns:
            The options.

        Raises:
            ValueError: if an option or a value is unknown; the message lists the known ones.

        Example:
            >>> AllocatorOptions.parse("max_split_size_mb:128").max_split_size_bytes == 128 * 2**20
            True
        """
        tokens, at, values = _tokens(text), 0, {}
        while at < len(tokens):
            key = tokens[at]
            if tokens[at + 1 : at + 2] != [":"] or at + 2 >= len(tokens) or tokens[at + 2] in ",:]":
                raise ValueError(f"{text!r} must be a list of option:value with commas between; look near {key!r}")
            at += 2
            value = [tokens[at]]
            if value == ["["]:
                if "]" not in tokens[at:]:
                    raise ValueError(f"{text!r} has a [ without its ]; look near {key!r}")
                end = tokens.index("]", at)
                value = tokens[at : end + 1]
                at = end
            values.update(_option(key, value))
            at += 1
            if at < len(tokens) and tokens[at] != ",":
                raise ValueError(f"{text!r} needs a comma after {''.join(value)!r}")
            at += 1
        return cls(**values)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the options from the environment, by whichever name they were set.

        Args:
            environment: the variables; by default those of this process.

        Returns:
            The options of the first of :data:`ENVIRONMENT_VARIABLES` that is set; the defaults if none is.

        Raises:
            ValueError: if an option or a value is unknown.

        Source:
            AcceleratorAllocatorConfig::instance in c10/core/AllocatorConfig.cpp, PyTorch 2.13.0.

        Example:
            >>> AllocatorOptions.from_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}).text
            'expandable_segments:True'
        """
        environment = os.environ if environment is None else environment
        return cls.parse(next((environment[name] for name in ENVIRONMENT_VARIABLES if name in environment), ""))

    @property
    def text(self) -> str:
        """The options that differ from the defaults, as ``PYTORCH_ALLOC_CONF`` takes them."""
        parts = []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        if self.large_segment_bytes != DEFAULT_LARGE_SEGMENT_BYTES:
            parts.append(f"large_segment_size_mb:{self.large_segment_bytes // MIB}")
        if self.max_split_size_bytes is not None:
            parts.append(f"max_split_size_mb:{self.max_split_size_bytes // MIB}")
        if self.max_non_split_rounding_bytes is not None:
            parts.append(f"max_non_split_rounding_mb:{self.max_non_split_rounding_bytes // MIB}")
        divisions = self.roundup_power2_divisions
        if len(set(divisions)) > 1:
            listed = ",".join(f"{2**n}:{value}" for n, value in enumerate(divisions))
            parts.append(f"roundup_power2_divisions:[{listed}]")
        elif divisions[0]:
            parts.append(f"roundup_power2_divisions:{divisions[0]}")
        if self.garbage_collection_threshold:
            parts.append(f"garbage_collection_threshold:{float(self.garbage_collection_threshold)!r}")
        if self.per_process_memory_fraction != 1:
            parts.append(f"per_process_memory_fraction:{float(self.per_process_memory_fraction)!r}")
        return ",".join(parts)


def _whole(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{key} must be a whole number, got {text!r}")
    return int(text)


def _mebibytes(key: str, text: str) -> int:
    """A size in MiB, as bytes. One beyond all memory is the largest, as in PyTorch: there it cannot overflow either."""
    return min(_whole(key, text) if len(text) < 20 else _MOST_BYTES, _MOST_BYTES // MIB - 2) * MIB


def _fraction(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{key} must be a number such as 0.8, got {text!r}")
    return value


def known_options(text: str) -> tuple[str, list[str]]:
    """Split the value of ``PYTORCH_ALLOC_CONF`` into what is known here and what a later PyTorch may have added.

    Args:
        text: the value.

    Returns:
        The known options as such a value, and the names of the others.

    Example:
        >>> known_options("max_split_size_mb:32,newest:[1,2]")
        ('max_split_size_mb:32', ['newest'])
    """
    known, unknown, part, depth = [], [], [], 0
    for token in [*_tokens(text), ","]:
        depth += (token == "[") - (token == "]")
        if token != "," or depth > 0:
            part.append(token)
            continue
        if part and part[0] not in (*_SIMULATED, *_WITHOUT_EFFECT, "backend", "throw_on_cudamalloc_oom"):
            unknown.append(part[0])
        else:
            known.append("".join(part))
        part = []
    return ",".join((*known, "".join(part)) if part else known), unknown


def _option(key: str, value: list[str]) -> dict[str, Any]:
    """One option as fields of AllocatorOptions."""
    word = "".join(value)
    if key == "roundup_power2_divisions":
        return {key: _divisions(value)}
    if len(value) > 1:
        raise ValueError(f"{key} takes one value, got {word!r}")
    if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        return {key.removesuffix("_mb") + "_bytes": _mebibytes(key, word)}
    if key == "large_segment_size_mb":
        return {"large_segment_bytes": _mebibytes(key, word)}
    if key == "expandable_segments":
        if word not in ("True", "False"):
            raise ValueError(f"expandable_segments must be True or False, got {word!r}")
        return {key: word == "True"}
    if key in ("garbage_collection_threshold", "per_process_memory_fraction"):
        number = _fraction(key, word)
        if key == "garbage_collection_threshold" and not 0 < number < 1:
            raise ValueError(f"{key} must lie between 0 and 1, without either, got {word!r}")
        return {key: number}
    if (key == "backend" and word == "native") or (key == "throw_on_cudamalloc_oom" and word == "False"):
        return {}
    if key in ("backend", "throw_on_cudamalloc_oom"):
        raise ValueError(f"{key}:{word} makes another allocator of it, which is not simulated; leave the option out")
    if key in _WITHOUT_EFFECT:
        return {}
    raise ValueError(
        f"there is no option {key!r}; simulated are {', '.join(_SIMULATED)}; accepted without an effect on the "
        f"device's memory are backend:native, throw_on_cudamalloc_oom:False, {', '.join(_WITHOUT_EFFECT)}"
    )


def _divisions(value: list[str]) -> tuple[int, ...]:
    """roundup_power2_divisions: one number, or ``[256:1,512:2,>:8]`` with boundaries in MiB.

    Source:
        parseRoundUpPower2Divisions in c10/core/AllocatorConfig.cpp. What ``>`` stands for begins after the last
        boundary, c10/core/AllocatorConfig.cpp of 2.13.0.
    """
    key = "roundup_power2_divisions"
    if value[0] != "[":
        if not _whole(key, value[0]):
            raise ValueError(f"{key} must be a power of two; PyTorch takes a 0 only in a list such as [256:0]")
        return (_whole(key, value[0]),) * _INTERVALS
    # PyTorch lets a > without a boundary before it begin at 2 MiB, too.
    result, last, first = [0] * _INTERVALS, 0, True
    entries = "".join(value[1:-1]).split(",")
    for entry in entries:
        boundary, colon, number = entry.partition(":")
        if not colon:
            raise ValueError(f"{key} must be a number or a list such as [256:1,512:2,>:8], got {''.join(value)!r}")
        divisions = _whole(key, number)
        if boundary == ">":
            result[last + 1 :] = [divisions] * (_INTERVALS - last - 1)
            continue
        size = _whole(key, boundary)
        if not _power_of_two(size):
            raise ValueError(f"{key}: a boundary must be a power of two in MiB, got {boundary!r}")
        last = min(size.bit_length() - 1, _INTERVALS - 1)
        if first:
            result[:last] = [divisions] * last
            first = False
        result[last] = divisions
    return tuple(result)


def round_size(size_bytes: int, options: AllocatorOptions | None = None) -> int:
    """The size of the block that a request needs at least.

    Args:
        size_bytes: what is asked for.
        options: by default PyTorch's defaults.

    Returns:
        Bytes: a multiple of 512, or the next of the divisions of a power of two.

    Source:
        round_size and roundup_power2_next_division in CUDACachingAllocator.cpp;
        roundup_power2_divisions in c10/core/AllocatorConfig.cpp.

    Example:
        >>> round_size(1000), round_size(5 * 2**20 + 1, AllocatorOptions.parse("roundup_power2_divisions:4")) / 2**20
        (1024, 6.0)
    """
    if size_bytes < BLOCK_BYTES:
        return BLOCK_BYTES
    if options is not None:
        interval = min(max(size_bytes.bit_length() - 21, 0), _INTERVALS - 1)
        divisions = options.roundup_power2_divisions[interval]
        if divisions > 1 and size_bytes > BLOCK_BYTES * divisions:
            step = (1 << (size_bytes.bit_length() - 1)) // divisions
            return -(-size_bytes // step) * step
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def segment_size(block_bytes: int, options: AllocatorOptions | None = None) -> int:
    """The size of the segment that is taken from the device for a block, unless segments are expandable.

    Args:
        block_bytes: size of the block, rounded by :func:`round_size`.
        options: by default PyTorch's defaults.

    Returns:
        Bytes: 2 MiB up to 1 MiB, 20 MiB below 10 MiB, and then the next multiple of 2 MiB.

    Source:
        get_allocation_size in CUDACachingAllocator.cpp.

    Example:
        >>> [segment_size(mib * 2**20) // 2**20 for mib in (1, 2, 10, 11)]
        [2, 20, 10, 12]
    """
    if block_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < LARGE_REQUEST_BYTES:
        return DEFAULT_LARGE_SEGMENT_BYTES if options is None else options.large_segment_bytes
    return -(-block_bytes // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES


# Events


class Allocate(NamedTuple):
    """A tensor's storage is asked for.

    Attributes:
        id: a name for it: a text or a number, free to be used again after it was freed.
        bytes: the size that is asked for, before any rounding.
        stream: the CUDA stream.
    """

    id: Hashable
    bytes: int
    stream: int = 0


class Free(NamedTuple):
    """A storage is given back.

    Attributes:
        id: its name.
        completes: False if another stream may still use it: then the block stays taken until :class:`FreeCompleted`,
            :class:`Synchronize`, or until the allocator must give memory back. After :class:`RecordStream` that is so
            in any case.
    """

    id: Hashable
    completes: bool = True


class RecordStream(NamedTuple):
    """``tensor.record_stream(stream)``: another stream uses it."""

    id: Hashable
    stream: int


class FreeCompleted(NamedTuple):
    """The other streams are done with a storage that was freed before.

    Nothing happens if the allocator has waited for them already, because it had to give memory back.
    """

    id: Hashable


class Synchronize(NamedTuple):
    """All streams are done, and the allocator notices: every pending free is completed."""


class EmptyCache(NamedTuple):
    """``torch.cuda.empty_cache()``: all cached memory that can be given back is given back."""


Event = Allocate | Free | RecordStream | FreeCompleted | Synchronize | EmptyCache

Action = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]


class Operation(NamedTuple):
    """One call that takes memory from the device or gives it back.

    Attributes:
        action: ``segment_alloc`` (cudaMalloc), ``segment_free`` (cudaFree), ``segment_map`` and ``segment_unmap``
            (pages of an expandable segment).
        address: where.
        bytes: how much.
    """

    action: Action
    address: int
    bytes: int

    @property
    def change_bytes(self) -> int:
        """By how much it changes the reserved memory."""
        return self.bytes if self.action in ("segment_alloc", "segment_map") else -self.bytes


# What can be drawn

State = Literal["allocated", "awaiting free", "free"]
Ties = Literal["oldest", "lowest"]


@dataclass(frozen=True)
class BlockState:
    """A part of a segment.

    Attributes:
        address: where it begins.
        bytes: its size.
        state: ``allocated``; ``awaiting free`` (freed, and another stream may still use it); ``free`` (cached).
        requested_bytes: what was asked for; 0 if it is free.
        id: the name of what is in it; None if it is free.
    """

    address: int
    bytes: int
    state: State
    requested_bytes: int = 0
    id: Hashable = None


@dataclass(frozen=True)
class SegmentState:
    """Memory that was taken from the device in one piece, or the contiguous pages of an expandable segment.

    Attributes:
        address: where it begins.
        bytes: its size.
        stream: the stream that it belongs to.
        pool: ``small`` or ``large``.
        expandable: whether it can grow.
        blocks: its parts, by address; they fill it.
        reserved_address: where the expandable segment begins that its pages belong to; its own address otherwise.
    """

    address: int
    bytes: int
    stream: int
    pool: Literal["small", "large"]
    expandable: bool
    blocks: tuple[BlockState, ...]
    reserved_address: int


@dataclass(frozen=True)
class AllocatorState:
    """All segments at one moment.

    Attributes:
        after: number of events that have happened.
        segments: by address.
    """

    after: int
    segments: tuple[SegmentState, ...]

    @property
    def reserved_bytes(self) -> int:
        """Memory taken from the device."""
        return sum(segment.bytes for segment in self.segments)

    def bytes_in(self, state: State) -> int:
        """Memory in blocks of a state: ``allocated``, ``awaiting free`` or ``free``."""
        return sum(block.bytes for segment in self.segments for block in segment.blocks if block.state == state)

    @property
    def allocated_bytes(self) -> int:
        """Memory in allocated blocks, as ``torch.cuda.memory_allocated()`` counts it."""
        return self.bytes_in("allocated")


@dataclass(frozen=True)
class OutOfMemory:
    """A request that could not be met.

    Attributes:
        event: the index of the event.
        requested_bytes: what was asked for.
        segment_bytes: what the device would have had to give.
        cap_bytes: how much the process may take; None if only the device's memory limits it.
        device_bytes: the device's memory; None if it was not given.
        reserved_bytes: taken from the device, after all that could be given back was.
        allocated_bytes: in use by tensors.
        largest_free_bytes: the largest cached block of the same pool and stream.
    """

    event: int
    requested_bytes: int
    segment_bytes: int
    cap_bytes: int | None
    device_bytes: int | None
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int

    @property
    def message(self) -> str:
        """What PyTorch says, as far as it can be known here, and the largest cached block, which it does not say."""
        total = ""
        if self.device_bytes is not None:
            free = self.device_bytes - self.reserved_bytes
            total = f"GPU 0 has a total capacity of {_size(self.device_bytes)} of which {_size(free)} is free. "
        allowed = "" if self.cap_bytes is None else f"{_size(self.cap_bytes)} allowed; "
        cached = self.reserved_bytes - self.allocated_bytes
        return (
            f"CUDA out of memory (simulated). Tried to allocate {_size(self.segment_bytes)}. {total}{allowed}"
            f"Of the allocated memory {_size(self.allocated_bytes)} is allocated by PyTorch, and {_size(cached)} is "
            f"reserved by PyTorch but unallocated. Event {self.event} asked for {_size(self.requested_bytes)}; the "
            f"largest cached block that it could have had is {_size(self.largest_free_bytes)}."
        )


def _size(count: int) -> str:
    """As format_size in c10/core/Allocator.h:431 writes it."""
    for unit, name in ((1, "bytes"), (2**10, "KiB"), (2**20, "MiB")):
        if count <= unit * 1024:
            return f"{count} bytes" if unit == 1 else f"{count / unit:.2f} {name}"
    return f"{count / 2**30:.2f} GiB"


# The machinery

_FREE, _ALLOCATED, _PENDING = range(3)
_STATES: tuple[State, ...] = ("free", "allocated", "awaiting free")
_POOLS = ("large", "small")


class _RequestError(Exception):
    """A request could not be met."""


class _Reservation:
    """The addresses of one expandable segment: far more than it ever maps. ExpandableSegment, assert in line 432."""

    __slots__ = ("address", "bytes", "page")

    def __init__(self, address: int, size: int, page: int) -> None:
        self.address, self.bytes, self.page = address, size, page


class _Block:
    """A piece of a segment. Blocks that follow one another know each other."""

    __slots__ = (
        "address",
        "age",
        "born",
        "id",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested",
        "reservation",
        "size",
        "state",
        "stream",
        "uses",
    )

    def __init__(self, address: int, size: int, stream: int, pool: _Pool, age: int) -> None:
        self.address, self.size, self.stream, self.pool = address, size, stream, pool
        self.age = age  # the number of its segment; 0 for all where the lowest address wins
        self.id: Hashable = None
        self.state, self.requested, self.born = _FREE, 0, 0
        self.mapped, self.uses = True, False
        self.prev: _Block | None = None
        self.next: _Block | None = None
        self.reservation: _Reservation | None = None


class _Pool:
    """Cached blocks, in the order in which best fit looks at them. BlockPool.

    They are ordered by stream, size, the age of their segment, address: BlockComparatorSizeCounterAddress in 2.13. In
    2.11 the age does not count. https://github.com/pytorch/pytorch/pull/183591, 2026.
    """

    __slots__ = ("by_address", "is_small", "keys", "searches", "unmapped", "unmapped_by_address")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.keys: dict[int, list[tuple[int, int, int]]] = {}
        self.by_address: dict[int, _Block] = {}
        self.unmapped: dict[int, list[int]] = {}
        self.unmapped_by_address: dict[int, _Block] = {}
        self.searches = 0

    def insert(self, block: _Block) -> None:
        """Keep a block for later. Its age is counted from now: insert_into_blocks, assert in line 276."""
        block.born = self.searches
        self.by_address[block.address] = block
        keys = self.keys.get(block.stream)
        if keys is None:
            keys = self.keys[block.stream] = []
        insort(keys, (block.size, block.age, block.address))

    def erase(self, block: _Block) -> None:
        """Take a block out, before its size or address changes."""
        del self.by_address[block.address]
        keys = self.keys[block.stream]
        del keys[bisect_left(keys, (block.size, block.age, block.address))]

    def insert_unmapped(self, block: _Block) -> None:
        """Keep addresses without memory behind them."""
        self.unmapped_by_address[block.address] = block
        insort(self.unmapped.setdefault(block.stream, []), block.address)

    def erase_unmapped(self, block: _Block) -> None:
        del self.unmapped_by_address[block.address]
        addresses = self.unmapped[block.stream]
        del addresses[bisect_left(addresses, block.address)]

    def in_order(self) -> list[_Block]:
        """All cached blocks in that order."""
        return [self.by_address[key[2]] for stream in sorted(self.keys) for key in self.keys[stream]]


# The first address that the simulated device hands out; any would do.
_FIRST_ADDRESS = 0x7F0000000000
# How one event was met; the words are made when somebody asks for them.
_NOTHING, _WHOLE, _SPLIT, _NEW_WHOLE, _NEW_SPLIT, _FAILED, _DEFERRED = range(7)


class _Allocator:
    """The state, and what each event does to it. DeviceCachingAllocator."""

    def __init__(
        self,
        options: AllocatorOptions,
        cap_bytes: int | None,
        device_bytes: int | None,
        place: Callable[[Action, int], int | None] | None = None,
        ties: Ties = "oldest",
    ) -> None:
        self.options, self.cap, self.device, self.ties = options, cap_bytes, device_bytes, ties
        self.segments = 0  # how many there have been
        self.pools = (_Pool(False), _Pool(True))
        self.live: dict[Hashable, _Block] = {}
        self.pending: dict[Hashable, _Block] = {}
        self.empty: set[Hashable] = set()  # ids of size 0, and of requests that failed: they hold nothing
        self.freed: set[Hashable] = set()
        self.waited: set[Hashable] = set()  # pending frees that were completed to give memory back
        self.again = False  # whether the events are known to make sense
        self.reserved = self.allocated = 0
        self.device_allocs = self.device_frees = self.retries = 0
        self.operations: list[Operation] = []
        self.how, self.found = _NOTHING, 0
        self._next_address = _FIRST_ADDRESS
        self._place = place
        self._most = _MOST_BYTES if device_bytes is None else min(device_bytes, _MOST_BYTES)
        self._split_limit = math.inf if options.max_split_size_bytes is None else options.max_split_size_bytes
        rounding = options.max_non_split_rounding_bytes
        self._rounding = options.large_segment_bytes if rounding is None else rounding
        # Ages are counted only then: get_free_block.
        self._collects = cap_bytes is not None and options.garbage_collection_threshold > 0
        self._rounds_up = any(value > 1 for value in options.roundup_power2_divisions)

    # Events

    def apply(self, event: Event) -> None:
        """Let one event happen.

        Raises:
            ValueError: if it makes no sense.
            _RequestError: if there is not enough memory.
        """
        self.operations = []
        self.how = _NOTHING
        kind = type(event)
        if kind is Allocate:
            self.allocate(event.id, event.bytes, event.stream)
        elif kind is Free:
            self.free(event.id, event.completes)
        elif kind is EmptyCache:
            self.release_cached_blocks()
        elif kind is Synchronize:
            self.synchronize()
        elif kind is FreeCompleted:
            block = self.pending.pop(event.id, None)
            if block is None and (self.again or event.id in self.waited):
                self.waited.discard(event.id)
                return
            if block is None:
                raise ValueError(f"no free of {event.id!r} is pending: FreeCompleted follows Free(id, completes=False)")
            self._free_block(block)
        elif kind is RecordStream:
            self.record_stream(event.id, event.stream)
        else:
            raise ValueError(
                f"{event!r} is no event; use Allocate, Free, RecordStream, FreeCompleted, Synchronize or EmptyCache"
            )

    def allocate(self, name: Hashable, requested: int, stream: int) -> None:
        """Find or make a block. malloc, assert in line 1799."""
        if type(requested) is not int or requested < 0:
            raise ValueError(f"the size of {name!r} must be a whole number of bytes, 0 or more, got {requested!r}")
        if type(stream) is not int:
            raise ValueError(f"the stream of {name!r} must be a whole number, got {stream!r}")
        if name in self.live or name in self.pending or name in self.empty:
            raise ValueError(f"{name!r} is allocated already: free it first, or use another id")
        if requested == 0:  # NativeCachingAllocator::allocate asks for nothing then
            self.empty.add(name)
            return
        if requested >= _LARGEST_REQUEST_BYTES:
            raise ValueError(f"{name!r} asks for {requested} bytes; PyTorch refuses any request over 1 EiB")
        if self._rounds_up or requested < BLOCK_BYTES:
            size = round_size(requested, self.options)
        else:
            size = -(-requested // BLOCK_BYTES) * BLOCK_BYTES
        pool = self.pools[size <= SMALL_REQUEST_BYTES]
        block = self._cached(pool, stream, size)
        new = block is None
        if block is None:
            block = self._new(pool, stream, size)
        self.found = block.size
        rest = block.size - size
        # should_split: expandable segments and the small pool leave any rest, the large pool one of over 1 MiB.
        if pool.is_small or self.options.expandable_segments:
            splits = rest >= BLOCK_BYTES
        else:
            splits = size < self._split_limit and rest > SMALL_REQUEST_BYTES
        if splits:
            block = self._split(block, size)
            self.how = _NEW_SPLIT if new else _SPLIT
        else:
            self.how = _NEW_WHOLE if new else _WHOLE
        block.state, block.id, block.requested = _ALLOCATED, name, requested
        self.live[name] = block
        self.allocated += block.size

    def free(self, name: Hashable, completes: bool) -> None:
        """Give a block back: free, followed by free_block unless another stream may still use it."""
        block = self.live.pop(name, None)
        if block is None:
            if name in self.empty:
                self.empty.remove(name)
                self.freed.add(name)
                return
            if name in self.freed:
                raise ValueError(f"{name!r} is freed twice; it was not allocated in between")
            raise ValueError(f"{name!r} is freed, but was never allocated")
        self.freed.add(name)
        self.allocated -= block.size
        if completes and not block.uses:
            self._free_block(block)
        else:
            block.state = _PENDING
            self.pending[name] = block
            self.how = _DEFERRED

    def record_stream(self, name: Hashable, stream: int) -> None:
        """Remember that another stream uses a block. recordStream: its own stream does not count."""
        block = self.live.get(name)
        if block is None:
            if name in self.empty:
                return
            raise ValueError(f"RecordStream of {name!r}, which is not allocated")
        if stream != block.stream:
            block.uses = True

    def synchronize(self) -> None:
        """Complete every pending free, oldest first. synchronize_and_free_events."""
        for name in list(self.pending):
            self._free_block(self.pending.pop(name))

    # Finding a block

    def _cached(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """The smallest cached block of the stream that is large enough. get_free_block."""
        if self._collects:
            pool.searches += 1
        keys = pool.keys.get(stream)
        if not keys:
            return None
        at = bisect_left(keys, (size,))
        if at == len(keys):
            return None
        block = pool.by_address[keys[at][2]]
        if block.reservation is not None:
            if self.options.expandable_segments:
                # The tail of a segment counts with all that it can grow to, so that it is used last.
                while block.reservation is not None and at + 1 < len(keys):
                    other = pool.by_address[keys[at + 1][2]]
                    if _growable(other) >= _growable(block):
                        break
                    block, at = other, at + 1
            else:
                while block.reservation is not None:
                    at += 1
                    if at == len(keys):
                        return None
                    block = pool.by_address[keys[at][2]]
        limit = self._split_limit
        if size < limit <= block.size:
            return None
        if size >= limit and block.size >= size + self._rounding:
            return None
        pool.erase(block)
        return block

    def _new(self, pool: _Pool, stream: int, size: int) -> _Block:
        """Memory from the device; if there is none, give cached memory back and try again. malloc."""
        if self._collects:
            self._collect_garbage()
        block = self._grow(pool, stream, size)
        if block is None and self._release_available(pool, stream, size):
            block = self._grow(pool, stream, size)
        if block is None:
            self.release_cached_blocks()
            self.retries += 1
            block = self._grow(pool, stream, size)
        if block is None:
            self.how = _FAILED
            raise _RequestError
        return block

    def _grow(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """One attempt to get memory from the device. alloc_block, assert in line 3985."""
        amount = segment_size(size, self.options)
        if self.cap is not None and self.reserved + amount > self.cap:
            return None
        if self.options.expandable_segments:
            return self._grow_expandable(pool, stream, size)
        if self.reserved + amount > self._most:
            return None
        block = _Block(self._address("segment_alloc", amount), amount, stream, pool, self._age())
        self.reserved += amount
        self.device_allocs += 1
        self.operations.append(Operation("segment_alloc", block.address, amount))
        return block

    def _split(self, block: _Block, size: int) -> _Block:
        """Cut the front off a block; the rest is cached. alloc_found_block, assert in line 2095."""
        front = _Block(block.address, size, block.stream, block.pool, block.age)
        front.reservation = block.reservation
        front.prev, front.next = block.prev, block
        if front.prev is not None:
            front.prev.next = front
        block.prev = front
        block.address += size
        block.size -= size
        block.pool.insert(block)
        return front

    def _free_block(self, block: _Block) -> None:
        """Merge a block with free neighbours, and cache it. free_block, assert in line 3508."""
        block.state, block.id, block.requested, block.uses = _FREE, None, 0, False
        _merge(block, block.prev)
        _merge(block, block.next)
        block.pool.insert(block)

    # Giving memory back

    def release_cached_blocks(self) -> None:
        """Give back all that is not in use: whole segments, and whole pages of expandable ones. Line 4090."""
        self.waited.update(self.pending)
        self.synchronize()
        for pool in self.pools:  # the large pool first
            pages = []
            for block in pool.in_order():
                if block.reservation is not None:
                    pages.append(block)
                elif block.prev is None and block.next is None:
                    self._release(block)
            for block in pages:
                self._unmap(block)
                if block.prev is None and block.next is None and not block.mapped:
                    pool.erase_unmapped(block)

    def _release(self, block: _Block) -> None:
        """CudaFree of one segment. release_block, assert in line 4124."""
        block.pool.erase(block)
        self.reserved -= block.size
        self.device_frees += 1
        self.operations.append(Operation("segment_free", block.address, block.size))

    def _release_available(self, pool: _Pool, stream: int, size: int) -> bool:
        """Give back one oversize block that is large enough, or several. release_available_cached_blocks."""
        limit = self.options.max_split_size_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        keys = pool.keys.get(stream, [])
        at = bisect_left(keys, (wanted,))
        if at < len(keys) and pool.by_address[keys[at][2]].reservation is None:
            self._release(pool.by_address[keys[at][2]])
            return True
        released = 0
        for *_, address in reversed(keys[:at]):
            block = pool.by_address[address]
            if released >= wanted or block.size < limit:
                break
            if block.reservation is None:
                released += block.size
                self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Above the threshold, give back cached segments of more than average age. garbage_collect_cached_blocks."""
        threshold = int(self.options.garbage_collection_threshold * self.cap)
        if self.reserved <= threshold:
            return
        target, reclaimed = self.reserved - threshold, 0
        pool = self.pools[False]
        whole = [block for block in pool.in_order() if block.prev is None and block.next is None]
        total_age, count = sum(pool.searches - block.born for block in whole), len(whole)
        whole = [block for block in whole if block.reservation is None]
        freed = True
        while reclaimed < target and freed and count:
            limit, freed, kept = total_age / count, False, []
            for block in whole:
                age = pool.searches - block.born
                # The average is that at the start of the round, and all above it go, past the target.
                if age >= limit:
                    freed = True
                    reclaimed += block.size
                    total_age -= age
                    count -= 1
                    self._release(block)
                else:
                    kept.append(block)
            whole = kept

    # Expandable segments

    def _grow_expandable(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """Map pages at the lowest address with room. try_allocate_expandable_block, assert in line 3487."""
        block = self._find_expandable(pool, stream, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # which has swallowed the block before it
        pool.erase(block)
        return block

    def _find_expandable(self, pool: _Pool, stream: int, size: int) -> _Block:
        """The first run of free and unmapped blocks that is long enough. find_expandable_block."""
        for address in pool.unmapped.get(stream, ()):
            block = pool.unmapped_by_address[address]
            if block.prev is not None and block.prev.state == _FREE:
                block = block.prev
            room, one = 0, block
            while room < size and one is not None and one.state == _FREE:
                room += one.size
                one = one.next
            if room >= size:
                return block
        # A new segment has addresses for 1 1/8 of the device's memory: the constructor of ExpandableSegment.
        page = SMALL_SEGMENT_BYTES if pool.is_small else self.options.large_segment_bytes
        device = 2**40 if self.device is None else self.device
        pages = max(-(-(device + device // 8) // page), 1)
        if self.device is None:
            pages = max(pages, -(-size // page))
        address = self._address("segment_map", pages * page)
        block = _Block(address, pages * page, stream, pool, self._age())
        block.mapped, block.reservation = False, _Reservation(address, pages * page, page)
        pool.insert_unmapped(block)
        return block

    def _map(self, block: _Block, size: int) -> bool:
        """Put memory behind the front of an unmapped block, in whole pages. map_block, assert in line 3410."""
        page = block.reservation.page
        amount = -(-size // page) * page
        if self.reserved + amount > self._most:
            return False
        pool, address = block.pool, block.address
        pool.erase_unmapped(block)
        block.mapped = True
        if amount < block.size:
            rest = _Block(address + amount, block.size - amount, block.stream, pool, block.age)
            rest.mapped, rest.reservation = False, block.reservation
            rest.prev, rest.next = block, block.next
            if block.next is not None:
                block.next.prev = rest
            block.next = rest
            pool.insert_unmapped(rest)
            block.size = amount
        _merge(block, block.prev)
        _merge(block, block.next)
        pool.insert(block)
        self.reserved += amount
        self.device_allocs += 1
        self.operations.append(Operation("segment_map", address, amount))
        return True

    def _unmap(self, block: _Block) -> None:
        """Take the memory of all pages away that lie wholly inside of a free block. unmap_block, line 4236."""
        reservation, pool = block.reservation, block.pool
        page, base = reservation.page, reservation.address
        first = -(-(block.address - base) // page) * page + base
        last = (block.address + block.size - base) // page * page + base
        if first >= last:
            return
        pool.erase(block)
        if first > block.address:
            before = _Block(block.address, first - block.address, block.stream, pool, block.age)
            before.reservation, before.prev, before.next = reservation, block.prev, block
            if block.prev is not None:
                block.prev.next = before
            block.prev = before
            pool.insert(before)
        if block.address + block.size > last:
            after = _Block(last, block.address + block.size - last, block.stream, pool, block.age)
            after.reservation, after.prev, after.next = reservation, block, block.next
            if block.next is not None:
                block.next.prev = after
            block.next = after
            pool.insert(after)
        block.address, block.size, block.mapped = first, last - first, False
        self.reserved -= last - first
        self.device_frees += 1
        self.operations.append(Operation("segment_unmap", first, last - first))
        _merge(block, block.prev)
        _merge(block, block.next)
        pool.insert_unmapped(block)

    def _age(self) -> int:
        """The number of a new segment, if that decides between cached blocks of the same size."""
        self.segments += 1
        return self.segments if self.ties == "oldest" else 0

    def _address(self, action: Action, size: int) -> int:
        """Where the device puts new memory: as recorded, or after all that was handed out so far."""
        placed = None if self._place is None else self._place(action, size)
        if placed is not None and self._taken(placed, size if action == "segment_alloc" else 1):
            placed = None  # only where the simulation has left the record already
        address = self._next_address if placed is None else placed
        self._next_address = max(
            self._next_address, -(-(address + size) // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES
        )
        return address

    def _taken(self, address: int, size: int) -> bool:
        """Whether there is memory of ours at an address already."""
        known = (*(pool.by_address for pool in self.pools), self.live, self.pending)
        return any(
            block.address < address + size and address < block.address + block.size
            for blocks in known
            for block in blocks.values()
        )

    # Keeping and drawing

    def heads(self) -> list[_Block]:
        """The first block of each segment, by address."""
        found: dict[int, _Block] = {}
        for pool in self.pools:
            for blocks in (pool.by_address, pool.unmapped_by_address):
                found.update((address, block) for address, block in blocks.items() if block.prev is None)
        for blocks in (self.live, self.pending):
            found.update((block.address, block) for block in blocks.values() if block.prev is None)
        return [found[address] for address in sorted(found)]

    def export(self) -> tuple[Any, ...]:
        """All that is needed to go on from here, in a form that nothing changes any more."""
        chains = []
        for head in self.heads():
            chain, block = [], head
            while block is not None:
                words = (block.state, block.mapped, block.id, block.requested, block.uses, block.born)
                chain.append((block.address, block.size, *words))
                block = block.next
            reservation = head.reservation
            if reservation is not None:
                reservation = (reservation.address, reservation.bytes, reservation.page)
            chains.append((head.stream, head.pool.is_small, reservation, chain, head.age))
        searches = tuple(pool.searches for pool in self.pools)
        return chains, searches, (self._next_address, self.segments), tuple(self.pending), tuple(self.empty)

    def restore(self, exported: tuple[Any, ...]) -> None:
        """Become what :meth:`export` saw."""
        chains, searches, (self._next_address, self.segments), pending, empty = exported
        self.empty = set(empty)
        awaiting = {}
        for stream, is_small, reservation, chain, age in chains:
            pool = self.pools[is_small]
            reservation = None if reservation is None else _Reservation(*reservation)
            before = None
            for address, size, state, mapped, name, requested, uses, born in chain:
                block = _Block(address, size, stream, pool, age if self.ties == "oldest" else 0)
                block.state, block.mapped, block.id, block.requested, block.uses = state, mapped, name, requested, uses
                block.reservation, block.prev = reservation, before
                if before is not None:
                    before.next = block
                before = block
                if not mapped:
                    pool.insert_unmapped(block)
                    continue
                self.reserved += size
                if state == _FREE:
                    pool.insert(block)
                    block.born = born
                elif state == _ALLOCATED:
                    self.live[name] = block
                    self.allocated += size
                else:
                    awaiting[name] = block
        self.pending = {name: awaiting[name] for name in pending}
        for pool, count in zip(self.pools, searches, strict=True):
            pool.searches = count

    def state(self, after: int) -> AllocatorState:
        """What can be drawn. snapshot: pages of an expandable segment that touch are one segment."""
        segments = []
        for head in self.heads():
            block: _Block | None = head
            while block is not None:
                if not block.mapped:
                    block = block.next
                    continue
                blocks = []
                first = block
                while block is not None and block.mapped:
                    blocks.append(
                        BlockState(block.address, block.size, _STATES[block.state], block.requested, block.id)
                    )
                    block = block.next
                segments.append(
                    SegmentState(
                        first.address,
                        sum(one.bytes for one in blocks),
                        first.stream,
                        _POOLS[first.pool.is_small],
                        first.reservation is not None,
                        tuple(blocks),
                        first.address if first.reservation is None else first.reservation.address,
                    )
                )
        return AllocatorState(after, tuple(segments))


def _growable(block: _Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _merge(block: _Block, other: _Block | None) -> None:
    """Swallow a free neighbour. try_merge_blocks, assert in line 3589."""
    if other is None or other.state != _FREE or other.mapped != block.mapped:
        return
    if other.mapped:
        other.pool.erase(other)
    else:
        other.pool.erase_unmapped(other)
    if block.prev is other:
        block.address = other.address
        block.prev = other.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = other.next
        if block.next is not None:
            block.next.prev = block
    block.size += other.size


# A run

# A checkpoint is taken after this many events, or after as many as there are blocks, whichever is more: then all
# checkpoints together take no more memory than the events do.
_CHECKPOINT_EVENTS = 256


@dataclass(frozen=True, eq=False)
class AllocatorRun:
    """What :func:`simulate_allocator` returns: the curves, the counts, and the state after any event.

    Attributes:
        events: what happened; if memory ran out, the last one is the request that failed.
        options: the allocator's options.
        cap_bytes: how much the process may take from the device; None: no limit but the device.
        device_bytes: the device's memory; None: no limit.
        ties: which of several cached blocks of the same size is used first.
        reserved_bytes: memory taken from the device after each event.
        allocated_bytes: memory in use by tensors after each event.
        device_allocs: calls that take memory from the device (cudaMalloc, or pages mapped), counted up to each event.
        device_frees: calls that give memory back, likewise.
        retries: how often all cached memory was given back to try again (``num_alloc_retries``), likewise.
        operations: the calls that take or give back memory, by the index of the event that caused them.
        out_of_memory: the request that failed; None if none did. After several, the first.
        start: the state before the first event; empty unless one was given.
        peak_reserved_bytes: the most reserved at any moment, those within an event included.
    """

    events: tuple[Event, ...]
    options: AllocatorOptions
    cap_bytes: int | None
    device_bytes: int | None
    ties: Ties
    reserved_bytes: Sequence[int]
    allocated_bytes: Sequence[int]
    device_allocs: Sequence[int]
    device_frees: Sequence[int]
    retries: Sequence[int]
    operations: Mapping[int, tuple[Operation, ...]]
    out_of_memory: OutOfMemory | None
    start: AllocatorState
    peak_reserved_bytes: int
    _outcomes: Sequence[tuple[int, int]] = field(repr=False)
    _checkpoints: Sequence[tuple[int, Any]] = field(repr=False)
    _place: Callable[[int], Callable[[Action, int], int | None]] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that tensors held at once."""
        return max(self.allocated_bytes, default=self.start.allocated_bytes)

    @property
    def unused_at_peak(self) -> float:
        """The share of the reserved memory that no tensor used when most was reserved: fragmentation and cache."""
        if not self.reserved_bytes or not max(self.reserved_bytes):
            return 0.0
        at = max(range(len(self)), key=self.reserved_bytes.__getitem__)
        return 1 - self.allocated_bytes[at] / self.reserved_bytes[at]

    def state(self, after: int) -> AllocatorState:
        """All segments after some of the events. Replays from the nearest checkpoint before.

        Args:
            after: number of events; 0 is the state before the first.

        Returns:
            The segments and what is in them.

        Raises:
            ValueError: if there were not so many events.

        Example:
            >>> run = simulate_allocator([Allocate("a", 3 * 2**20), Free("a")])
            >>> [block.state for block in run.state(after=1).segments[0].blocks]
            ['allocated', 'free']
        """
        if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after <= len(self):
            raise ValueError(f"after must be a number of events from 0 to {len(self)}, got {after!r}")
        begin, exported = self._checkpoints[self._checkpoint_before(after)]
        current = [begin]

        def place(action: Action, size: int) -> int | None:
            return None if self._place is None else self._place(current[0])(action, size)

        allocator = _Allocator(self.options, self.cap_bytes, self.device_bytes, place, self.ties)
        allocator.restore(exported)
        allocator.again = True
        for index in range(begin, after):
            current[0] = index
            apply_or_fail(allocator, self.events[index])
        return allocator.state(after)

    def _checkpoint_before(self, after: int) -> int:
        return bisect_left(self._checkpoints, after + 1, key=lambda checkpoint: checkpoint[0]) - 1

    def words(self, index: int) -> str:
        """What one event did, in a sentence.

        Args:
            index: the event, from 0.

        Returns:
            The sentence.

        Example:
            >>> simulate_allocator([Allocate("a", 3 * 2**20)]).words(0)
            'a asks for 3 MiB: nothing cached fits. Take a segment of 20 MiB; use 3 MiB of it and cache the rest.'
        """
        return _words(self, index)

    def __repr__(self) -> str:
        last = len(self) - 1
        lines = [
            f"{len(self)} events, options: {self.options.text or 'defaults'}"
            + ("" if self.cap_bytes is None else f", cap {_short(self.cap_bytes)}"),
            f"reserved   peak {_short(self.peak_reserved_bytes)}, at the end "
            f"{_short(self.reserved_bytes[last] if len(self) else self.start.reserved_bytes)}",
            f"allocated  peak {_short(self.peak_allocated_bytes)}, at the end "
            f"{_short(self.allocated_bytes[last] if len(self) else self.start.allocated_bytes)}",
        ]
        if len(self):
            lines.append(
                f"taken from the device {self.device_allocs[last]} times, given back {self.device_frees[last]} times, "
                f"{self.retries[last]} retries"
            )
        if self.out_of_memory is not None:
            lines.append(self.out_of_memory.message)
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Figure:
        """Draw reserved and allocated memory over the events.

        Args:
            ax: a matplotlib axes to draw into; by default a new figure.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        from course_utils.memory.allocator_figures import memory_figure

        return memory_figure(self, ax=ax)


def apply_or_fail(allocator: _Allocator, event: Event) -> bool:
    """Let an event happen; a request that fails leaves a name behind that holds nothing."""
    try:
        allocator.apply(event)
    except _RequestError:
        allocator.empty.add(event.id)
        return False
    return True


def simulate_allocator(
    events: Iterable[Event],
    *,
    options: AllocatorOptions | str | None = None,
    cap_bytes: int | None = None,
    device_bytes: int | None = None,
    after_out_of_memory: Literal["stop", "continue"] = "stop",
    ties: Ties = "oldest",
) -> AllocatorRun:
    """Let events happen to PyTorch's caching allocator, without a GPU.

    Args:
        events: :class:`Allocate`, :class:`Free`, :class:`RecordStream`, :class:`FreeCompleted`, :class:`Synchronize`
            and :class:`EmptyCache`, in order.
        options: the allocator's options, or the text that ``PYTORCH_ALLOC_CONF`` takes. By default its defaults.
        cap_bytes: how much the process may take from the device, as ``torch.cuda.set_per_process_memory_fraction``
            sets it.
        device_bytes: the device's memory. Over it, cudaMalloc fails; it also sets how many addresses an expandable
            segment has. By default there is no limit.
        after_out_of_memory: ``stop`` ends the run at a request that cannot be met; ``continue`` goes on as a program
            does that catches the error: the name holds nothing, and freeing it does nothing.
        ties: which of several cached blocks of the same size is used: ``oldest``, that in the oldest segment, as in
            PyTorch 2.13; ``lowest``, that with the lowest address, as in 2.11. It only matters where the device gives
            out addresses again; a simulated device does not, so this is for replays of recorded memory.

    Returns:
        The run: curves, counts, and the state after any event.

    Raises:
        ValueError: if an option is unknown, a limit makes no sense, or an event does: a free of something that was
            never allocated or is freed already, a negative size, a name that is in use. The message names the event.

    Source:
        c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.13.0. With a cap, a segment may still go over it by less than one
        page if it is expandable: the cap is compared with the segment that a request would get without that option.

    Example:
        >>> run = simulate_allocator([Allocate("a", 30 * 2**20), Free("a"), Allocate("b", 31 * 2**20)])
        >>> [size // 2**20 for size in run.reserved_bytes], [size // 2**20 for size in run.allocated_bytes]
        ([30, 30, 62], [30, 0, 32])
    """
    options, cap_bytes = _settings(options, cap_bytes, device_bytes)
    if after_out_of_memory not in ("stop", "continue"):
        raise ValueError(f"after_out_of_memory must be 'stop' or 'continue', got {after_out_of_memory!r}")
    _check_ties(ties)
    allocator = _Allocator(options, cap_bytes, device_bytes, ties=ties)
    return run_events(allocator, events, stops=after_out_of_memory == "stop")


def _check_ties(ties: str) -> None:
    if ties not in ("oldest", "lowest"):
        raise ValueError(f"ties must be 'oldest' (PyTorch 2.13) or 'lowest' (2.11), got {ties!r}")


def options_of(options: AllocatorOptions | str | None) -> AllocatorOptions:
    """Options, however they were given; None: PyTorch's defaults."""
    if isinstance(options, AllocatorOptions):
        return options
    if options is not None and not isinstance(options, str):
        raise ValueError(
            f"options must be AllocatorOptions, a text as PYTORCH_ALLOC_CONF takes it, or None, got {shown(options)}"
        )
    return AllocatorOptions.parse(options or "")


def _settings(
    options: AllocatorOptions | str | None, cap_bytes: int | None, device_bytes: int | None
) -> tuple[AllocatorOptions, int | None]:
    """The options, and the cap that they and the caller set together."""
    options = options_of(options)
    for name, value in (("cap_bytes", cap_bytes), ("device_bytes", device_bytes)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{name} must be a whole number of bytes, 0 or more, got {value!r}")
    fraction = options.per_process_memory_fraction
    if fraction < 1 and cap_bytes is None:
        if device_bytes is None:
            raise ValueError("per_process_memory_fraction is a share of the device's memory: give device_bytes, too")
        cap_bytes = int(fraction * device_bytes)
    return options, cap_bytes


def run_events(
    allocator: _Allocator,
    events: Iterable[Event],
    stops: bool = True,
    place: Callable[[int], Callable[[Action, int], int | None]] | None = None,
    before: Callable[[int], None] | None = None,
) -> AllocatorRun:
    """Let events happen and write everything down. ``before`` is told the index of each event before it happens."""
    done: list[Event] = []
    curves = [array("q") for _ in range(5)]
    reserved, allocated, device_allocs, device_frees, retries = curves
    operations: dict[int, tuple[Operation, ...]] = {}
    outcomes: list[tuple[int, int]] = []
    failure: OutOfMemory | None = None
    start = allocator.state(0)
    peak = allocator.reserved
    checkpoints = [(0, allocator.export())]
    due = _CHECKPOINT_EVENTS
    for index, event in enumerate(events):
        if index == due:
            exported = allocator.export()
            checkpoints.append((index, exported))
            due = index + max(_CHECKPOINT_EVENTS, sum(len(chain[3]) for chain in exported[0]))
        if before is not None:
            before(index)
        try:
            met = apply_or_fail(allocator, event)
        except ValueError as error:
            raise ValueError(f"event {index}: {error}") from None
        except TypeError:
            if not _hashes(getattr(event, "id", None)):
                raise ValueError(f"event {index}: an id must be a text or a number, got {shown(event.id)}") from None
            raise
        done.append(event)
        reserved.append(allocator.reserved)
        allocated.append(allocator.allocated)
        device_allocs.append(allocator.device_allocs)
        device_frees.append(allocator.device_frees)
        retries.append(allocator.retries)
        outcomes.append((allocator.how, allocator.found))
        if allocator.operations:
            operations[index] = tuple(allocator.operations)
            level = allocator.reserved - sum(one.change_bytes for one in allocator.operations)
            for one in allocator.operations:
                level += one.change_bytes
                peak = max(peak, level)
        if not met:
            failure = failure or _out_of_memory(allocator, index, event)
            if stops:
                break
    return AllocatorRun(
        tuple(done),
        allocator.options,
        allocator.cap,
        allocator.device,
        allocator.ties,
        *curves,
        operations,
        failure,
        start,
        peak,
        outcomes,
        checkpoints,
        place,
    )


def _hashes(name: object) -> bool:
    try:
        hash(name)
    except TypeError:
        return False
    return True


def _out_of_memory(allocator: _Allocator, index: int, event: Allocate) -> OutOfMemory:
    size = round_size(event.bytes, allocator.options)
    keys = allocator.pools[size <= SMALL_REQUEST_BYTES].keys.get(event.stream, [])
    return OutOfMemory(
        index,
        event.bytes,
        segment_size(size, allocator.options),
        allocator.cap,
        allocator.device,
        allocator.reserved,
        allocator.allocated,
        max((key[0] for key in keys), default=0),
    )


# Words


def _short(count: int) -> str:
    """Bytes for a sentence: exact where that is short."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


def _words(run: AllocatorRun, index: int) -> str:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(run):
        raise ValueError(f"index must be an event from 0 to {len(run) - 1}, got {index!r}")
    event, (how, found) = run.events[index], run._outcomes[index]
    operations = run.operations.get(index, ())
    if isinstance(event, Allocate):
        return _allocate_words(run, event, how, found, operations)
    given_back = sum(one.bytes for one in operations)
    if isinstance(event, EmptyCache):
        return (
            f"empty_cache() gives {_short(given_back)} back to the device."
            if given_back
            else ("empty_cache() finds nothing that it could give back.")
        )
    if isinstance(event, Synchronize):
        return "All streams are done: pending frees are completed."
    if isinstance(event, RecordStream):
        return f"Stream {event.stream} uses {event.id} as well: a free will have to wait for it."
    if isinstance(event, FreeCompleted):
        return f"The other streams are done with {event.id}: its block is cached."
    if how == _DEFERRED:
        return f"{event.id} is freed, but another stream may still use it: its block stays taken."
    return f"{event.id} is freed: its block is cached, and merged with free neighbours. The device gets nothing back."


def _allocate_words(run: AllocatorRun, event: Allocate, how: int, found: int, operations: Sequence[Operation]) -> str:
    if how == _NOTHING:
        return f"{event.id} asks for nothing and gets nothing."
    size = round_size(event.bytes, run.options)
    asked = f"{event.id} asks for {_short(event.bytes)}"
    if size != event.bytes:
        asked += f", rounded up to {_short(size)}"
    if how in (_WHOLE, _SPLIT):
        rest = "and cache the rest" if how == _SPLIT else "whole, as the rest is too small to split off"
        if found == size:
            return f"{asked}: a cached block of that size is used."
        return f"{asked}: the smallest cached block that fits has {_short(found)}. Use it {rest}."
    given_back = sum(one.bytes for one in operations if one.change_bytes < 0)
    taken = sum(one.bytes for one in operations if one.change_bytes > 0)
    parts = [f"{asked}: nothing cached fits."]
    if given_back:
        parts.append(f"The limit is reached, so {_short(given_back)} of cached memory go back to the device.")
    if how == _FAILED:
        parts.append("It still does not fit: out of memory.")
    elif run.options.expandable_segments:
        parts.append(f"Map {_short(taken)} of new pages into the segment, and use {_short(size)}.")
    elif how == _NEW_SPLIT:
        parts.append(f"Take a segment of {_short(taken)}; use {_short(size)} of it and cache the rest.")
    else:
        parts.append(f"Take a segment of {_short(taken)}, and use all of it.")
    return " ".join(parts)
