"""PyTorch's caching allocator for CUDA, simulated event by event. Pure Python: neither torch nor a GPU is needed.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` in PyTorch 2.13.0; docstrings name the function that a rule
comes from. Constants and options come from ``c10/core/AllocatorConfig.h`` and ``.cpp`` of the same version:
https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp

Not simulated: options that are not in `AllocatorOptions`, private pools (CUDA graphs, ``torch.cuda.MemPool``), memory
that another stream still uses when it is freed, several devices, and the back end ``cudaMallocAsync``.
"""

from __future__ import annotations

import math
import pickle
import re
from array import array
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby, islice, takewhile
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Self

MIB = 2**20
# c10/core/AllocatorConfig.h:16-24
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer: small requests are packed into segments of this size
BLOCK_BYTES = 512  # kMinBlockSize: sizes are rounded up to a multiple of it
SMALL_REQUEST_BYTES = MIB  # kSmallSize: the largest request that goes to the small pool
LARGE_REQUEST_BYTES = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own size
LARGE_ROUNDING_BYTES = 2 * MIB  # kRoundLarge: ... rounded up to a multiple of it
DEFAULT_LARGE_SEGMENT_BYTES = 20 * MIB  # large_segment_size_, c10/core/AllocatorConfig.h:339

_MOST_BYTES = 2**62  # more than any device has, and few enough to be counted in 64 bits
_FIRST_ADDRESS = 0x7F0000000000  # that the simulated device hands out; any would do

# Options


def option_pairs(text: str) -> list[tuple[str, str]]:
    """Names and values in a value of ``PYTORCH_ALLOC_CONF``: blanks do not count, nor do commas within brackets."""
    parts = re.split(r",(?![^\[]*\])", "".join(text.split()))
    return [part.partition(":")[::2] for part in parts if part]


# The options that are simulated, and their attributes.
_ATTRIBUTES: Mapping[str, str] = {
    "expandable_segments": "expandable_segments",
    "large_segment_size_mb": "large_segment_bytes",
    "max_split_size_mb": "max_split_size_bytes",
    "roundup_power2_divisions": "roundup_power2_divisions",
}
SIMULATED_OPTIONS = tuple(_ATTRIBUTES)


@dataclass(frozen=True)
class AllocatorOptions:
    """What ``PYTORCH_ALLOC_CONF`` sets, as far as it is simulated."""

    expandable_segments: bool = False  # one segment for each stream and pool, which grows page by page
    # Segment for requests between 1 and 10 MiB, and page of a large expandable segment.
    large_segment_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    max_split_size_bytes: int | None = None  # blocks of this size or more are not split; None: all may be
    roundup_power2_divisions: int = 0  # steps of a power of two to which sizes are rounded up; 0 or 1: none

    def __post_init__(self) -> None:
        least = self.large_segment_bytes
        if least <= LARGE_REQUEST_BYTES:
            raise ValueError(f"large_segment_size_mb must be over {LARGE_REQUEST_BYTES // MIB}, got {least // MIB}")
        if self.expandable_segments and least % SMALL_SEGMENT_BYTES:
            # It is the size of a page then, and the driver's pages are 2 MiB.
            raise ValueError(f"large_segment_size_mb must be even with expandable_segments, got {least // MIB}")
        if self.max_split_size_bytes is not None and self.max_split_size_bytes < least:
            split_mib = self.max_split_size_bytes // MIB
            raise ValueError(f"max_split_size_mb must be at least {least // MIB}, got {split_mib}")
        if self.roundup_power2_divisions.bit_count() > 1:
            raise ValueError(f"roundup_power2_divisions must be a power of two, got {self.roundup_power2_divisions}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the value of ``PYTORCH_ALLOC_CONF``.

        Raises:
            ValueError: if an option is not simulated, or a value makes no sense.

        Example:
            >>> AllocatorOptions.parse("max_split_size_mb:128").max_split_size_bytes == 128 * 2**20
            True
        """
        values: dict[str, int] = {}
        for name, word in option_pairs(text):
            if name not in SIMULATED_OPTIONS:
                raise ValueError(f"option {name!r} is not simulated; those that are: {', '.join(SIMULATED_OPTIONS)}")
            is_switch = name == "expandable_segments"
            if not (word in ("True", "False") if is_switch else word.isdecimal()):
                wanted = "True or False" if is_switch else "a whole number"
                raise ValueError(f"{name} must be {wanted}, got {word!r}")
            number = word == "True" if is_switch else int(word)
            values[_ATTRIBUTES[name]] = number * MIB if name.endswith("_mb") else number
        return cls(**values)

    @property
    def text(self) -> str:
        """The options that differ from the defaults, as ``PYTORCH_ALLOC_CONF`` takes them."""
        parts = []
        for name, attribute in _ATTRIBUTES.items():
            value = getattr(self, attribute)
            if value != getattr(AllocatorOptions, attribute):
                parts.append(f"{name}:{value // MIB if name.endswith('_mb') else value}")
        return ",".join(parts)


def round_size(size_bytes: int, options: AllocatorOptions | None = None) -> int:
    """The size of the block that a request needs at least. round_size, roundup_power2_next_division.

    Example:
        >>> round_size(1000), round_size(5 * 2**20 + 1, AllocatorOptions.parse("roundup_power2_divisions:4")) / 2**20
        (1024, 6.0)
    """
    divisions = 0 if options is None else options.roundup_power2_divisions
    if divisions > 1 and size_bytes > BLOCK_BYTES * divisions:
        return _up(size_bytes, (1 << (size_bytes.bit_length() - 1)) // divisions)
    return max(BLOCK_BYTES, _up(size_bytes, BLOCK_BYTES))


def segment_size(block_bytes: int, options: AllocatorOptions | None = None) -> int:
    """The size of the segment that is taken from the device for a block, unless segments are expandable.

    It is 2 MiB for blocks up to 1 MiB, 20 MiB below 10 MiB, and then the next multiple of 2 MiB: get_allocation_size.

    Example:
        >>> [segment_size(mib * 2**20) // 2**20 for mib in (1, 2, 10, 11)]
        [2, 20, 10, 12]
    """
    if block_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < LARGE_REQUEST_BYTES:
        return DEFAULT_LARGE_SEGMENT_BYTES if options is None else options.large_segment_bytes
    return _up(block_bytes, LARGE_ROUNDING_BYTES)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


# Events


class Allocate(NamedTuple):
    """A tensor's storage is asked for. Its id, a text or a number, may be used again after it was freed."""

    id: Hashable
    bytes: int
    stream: int = 0


class Free(NamedTuple):
    """A storage is given back, and no stream uses it any more."""

    id: Hashable


class EmptyCache(NamedTuple):
    """``torch.cuda.empty_cache()``: all cached memory that can be given back is given back."""


Event = Allocate | Free | EmptyCache

Action = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
GIVES_BACK = ("segment_free", "segment_unmap")


class Operation(NamedTuple):
    """One call that takes memory from the device or gives it back: cudaMalloc, cudaFree, pages mapped and unmapped."""

    action: Action
    address: int
    bytes: int

    @property
    def change_bytes(self) -> int:
        """By how much it changes the reserved memory."""
        return -self.bytes if self.action in GIVES_BACK else self.bytes


# What can be drawn

State = Literal["allocated", "awaiting free", "free"]
Ties = Literal["oldest", "lowest"]


@dataclass(frozen=True)
class BlockState:
    """A part of a segment; free ones are cached.

    Only recorded ones await a free: another stream may still use them.
    """

    address: int
    bytes: int
    state: State
    requested_bytes: int = 0  # what was asked for
    id: Hashable = None  # the name of what is in it


@dataclass(frozen=True)
class SegmentState:
    """Memory that was taken from the device in one piece, or the contiguous pages of an expandable segment."""

    address: int
    bytes: int
    stream: int
    pool: Literal["small", "large"]
    expandable: bool
    blocks: tuple[BlockState, ...]  # by address; they fill it
    reserved_address: int  # where the expandable segment begins that its pages belong to; its own address otherwise


@dataclass(frozen=True)
class AllocatorState:
    """All segments, by address."""

    segments: tuple[SegmentState, ...]

    @property
    def reserved_bytes(self) -> int:
        """Memory taken from the device."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def allocated_bytes(self) -> int:
        """Memory in allocated blocks, as ``torch.cuda.memory_allocated()`` counts it."""
        return sum(block.bytes for segment in self.segments for block in segment.blocks if block.state == "allocated")


@dataclass(frozen=True)
class OutOfMemory:
    """A request that could not be met."""

    event: int  # its index
    segment_bytes: int  # what the device would have had to give
    allocated_bytes: int
    message: str  # what PyTorch says, as far as it can be known here, and the largest cached block


# The machinery


@dataclass(slots=True, eq=False, repr=False)
class _Block:
    address: int
    size: int
    segment: _Segment
    mapped: bool = True  # whether there is memory behind the addresses
    state: State = "free"
    id: Hashable = None
    requested: int = 0

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def growable(self) -> int:
        """Its size, with the addresses without memory that follow it."""
        at = self.segment.index(self) + 1
        return self.size + sum(block.size for block in self.segment.blocks[at : at + 1] if not block.mapped)


_address_of = attrgetter("address")


@dataclass(slots=True, eq=False, repr=False)
class _Segment:
    """Memory in one piece, or the addresses of an expandable segment: far more than it ever maps. ExpandableSegment."""

    address: int
    stream: int
    pool: _Pool
    age: int  # its number; 0 for all where the lowest address wins
    page: int | None = None  # of an expandable one
    blocks: list[_Block] = field(default_factory=list)  # by address, without gaps

    def index(self, block: _Block) -> int:
        return bisect_left(self.blocks, block.address, key=_address_of)

    def add(self, address: int, size: int, mapped: bool) -> _Block:
        """A free block at the end, that can be found."""
        block = _Block(address, size, self, mapped)
        self.blocks.append(block)
        self.pool.insert(block)
        return block

    def cut(self, block: _Block, size: int) -> _Block:
        """Shorten a block to a size; returns the block behind it, free as well."""
        behind = _Block(block.address + size, block.size - size, self, block.mapped)
        block.size = size
        self.blocks.insert(self.index(block) + 1, behind)
        return behind

    def cache(self, block: _Block) -> None:
        """Merge a free block with free neighbours, and keep it for later. free_block, try_merge_blocks."""
        blocks, at = self.blocks, self.index(block)
        for beside in (at + 1, at - 1):
            if 0 <= beside < len(blocks):
                other = blocks[beside]
                if other.state == "free" and other.mapped == block.mapped:
                    self.pool.erase(other)
                    del blocks[beside]
                    block.address = min(block.address, other.address)
                    block.size += other.size
        self.pool.insert(block)

    def state(self) -> Iterator[SegmentState]:
        """What can be drawn. snapshot: pages of an expandable segment that touch are one segment."""
        for mapped, group in groupby(self.blocks, key=attrgetter("mapped")):
            if mapped:
                blocks = tuple(BlockState(b.address, b.size, b.state, b.requested, b.id) for b in group)
                size, expandable = sum(block.bytes for block in blocks), self.page is not None
                pool = "small" if self.pool.is_small else "large"
                yield SegmentState(blocks[0].address, size, self.stream, pool, expandable, blocks, self.address)


class _Pool:
    """Free blocks, by stream, in the order in which best fit looks at them. BlockPool.

    They are ordered by size, the age of their segment, address: BlockComparatorSizeCounterAddress in 2.13. In
    2.11 the age does not count. https://github.com/pytorch/pytorch/pull/183591, 2026.
    """

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.cached: dict[int, list[tuple[int, int, int, _Block]]] = defaultdict(list)  # size, age, address
        self.unmapped: dict[int, list[tuple[int, _Block]]] = defaultdict(list)  # address

    def _place(self, block: _Block) -> tuple[list[Any], tuple[int, ...]]:
        segment = block.segment
        if block.mapped:
            return self.cached[segment.stream], (block.size, segment.age, block.address)
        return self.unmapped[segment.stream], (block.address,)

    def insert(self, block: _Block) -> None:
        """Keep a block for later."""
        row, key = self._place(block)
        insort(row, (*key, block))

    def erase(self, block: _Block) -> None:
        """Take a block out, before its size or address changes."""
        row, key = self._place(block)
        del row[bisect_left(row, key)]


class Allocator:
    """The state, and what each event does to it. DeviceCachingAllocator.

    ``ties`` says which of several cached blocks of the same size is used: that in the ``oldest`` segment, as in PyTorch
    2.13, or that with the ``lowest`` address, as in 2.11. It only matters where a device gives out addresses again.
    """

    made = 0  # in this process: by which a result knows that it was simulated

    def __init__(
        self,
        options: AllocatorOptions,
        cap_bytes: int | None = None,
        device_bytes: int | None = None,
        ties: Ties = "oldest",
    ) -> None:
        Allocator.made += 1
        self.options, self.cap, self.device, self.ties = options, cap_bytes, device_bytes, ties
        self.segments: list[_Segment] = []
        self.pools = (_Pool(False), _Pool(True))
        self.live: dict[Hashable, _Block] = {}
        self.empty: set[Hashable] = set()  # ids of size 0, and of requests that failed: they hold nothing
        self.reserved = self.allocated = 0
        self.device_allocs = self.device_frees = self.retries = 0
        # Of the last event: its calls to the device, how it was met, and the size of the block that was used.
        self.operations: list[Operation] = []
        self.how, self.used_bytes = "", 0
        self._segment_count = 0  # how many there have been
        self._next_address = _FIRST_ADDRESS
        self._recorded: list[Operation] = []  # where the device put the memory that the event takes, if that is known
        self._most = _MOST_BYTES if device_bytes is None else device_bytes
        self._split_limit = math.inf if options.max_split_size_bytes is None else options.max_split_size_bytes

    # Beginning, copying and drawing

    def begin(self, state: AllocatorState, next_address: int) -> None:
        """Take over the segments of a state, in which no block awaits a free; new ones come behind an address.

        The older ones lie lower.
        """
        self._next_address = next_address
        by_address: dict[int, _Segment] = {}
        for piece in state.segments:
            segment = by_address.get(piece.reserved_address)
            if segment is None:
                pool = self.pools[piece.pool == "small"]
                page = self._page(pool) if piece.expandable else None
                segment = self._new_segment(piece.reserved_address, piece.stream, pool, page)
                by_address[segment.address] = segment
            else:  # between pages of an expandable segment lie addresses without memory
                end = segment.blocks[-1].end
                segment.add(end, piece.address - end, mapped=False)
            for block in piece.blocks:
                self._take_over(segment, block)
        for segment in self.segments:
            if segment.page is not None:
                end = segment.blocks[-1].end
                mapped = end - segment.address
                segment.add(end, _up(mapped + 2**40, segment.page) - mapped, mapped=False)

    def _take_over(self, segment: _Segment, state: BlockState) -> None:
        block = _Block(state.address, state.bytes, segment, True, state.state, state.id, state.requested_bytes)
        segment.blocks.append(block)
        self.reserved += block.size
        if block.state == "free":
            segment.pool.insert(block)
        else:
            self.live[block.id] = block
            self.allocated += block.size

    def copy(self) -> Allocator:
        """Another one in the same state."""
        return pickle.loads(pickle.dumps(self))  # many times as fast as copy.deepcopy

    def state(self) -> AllocatorState:
        """What can be drawn."""
        by_address = sorted(self.segments, key=_address_of)
        return AllocatorState(tuple(chain.from_iterable(segment.state() for segment in by_address)))

    # Events

    def apply(self, event: Event, recorded: Iterable[Operation] = ()) -> bool:
        """Let one event happen. False if there is not enough memory: the name holds nothing then.

        Args:
            event: what happens.
            recorded: calls to the device that were recorded along with it: they tell the addresses of new memory.

        Raises:
            ValueError: if it makes no sense.
        """
        self.operations, self.how, self._recorded = [], "", list(recorded)
        match event:
            case Allocate():
                return self._allocate(*event)
            case Free():
                self._free(event.id)
            case EmptyCache():
                self._release_cached_blocks()
        return True

    def _allocate(self, name: Hashable, requested: int, stream: int) -> bool:
        """Find or make a block. malloc."""
        if not isinstance(requested, int) or requested < 0:
            raise ValueError(f"the size of {name!r} must be a whole number of bytes, 0 or more, got {requested!r}")
        if name in self.live or name in self.empty:
            raise ValueError(f"{name!r} is allocated already: free it first, or use another id")
        if requested == 0:  # NativeCachingAllocator::allocate asks for nothing then
            self.empty.add(name)
            return True
        size = round_size(requested, self.options)
        pool = self.pools[size <= SMALL_REQUEST_BYTES]
        block, self.how = self._cached(pool, stream, size), "cached"
        if block is None:
            block, self.how = self._new(pool, stream, size), "new"
        if block is None:
            self.how = "failed"
            self.empty.add(name)
            return False
        self.used_bytes = block.size
        if self._splits(pool, block.size, size):
            pool.insert(block.segment.cut(block, size))
            self.how += ", split"
        block.state, block.id, block.requested = "allocated", name, requested
        self.live[name] = block
        self.allocated += block.size
        return True

    def _splits(self, pool: _Pool, available: int, size: int) -> bool:
        """Whether the rest is cut off: alloc_found_block; should_split."""
        # Expandable segments and the small pool leave any rest, the large pool one of over 1 MiB.
        if pool.is_small or self.options.expandable_segments:
            return available - size >= BLOCK_BYTES
        return size < self._split_limit and available - size > SMALL_REQUEST_BYTES

    def _free(self, name: Hashable) -> None:
        """Give a block back: free, followed by free_block."""
        if name in self.empty:
            self.empty.remove(name)
            return
        if name not in self.live:
            raise ValueError(f"{name!r} is freed, but is not allocated")
        block = self.live.pop(name)
        self.allocated -= block.size
        block.state, block.id, block.requested = "free", None, 0
        block.segment.cache(block)

    # Finding a block

    def _cached(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """The smallest cached block of the stream that is large enough. get_free_block."""
        row = pool.cached[stream]
        at = bisect_left(row, (size,))
        if not self.options.expandable_segments:  # which were switched off since the history began
            while at < len(row) and row[at][-1].segment.page is not None:
                at += 1
        if at == len(row):
            return None
        block = row[at][-1]
        # The tail of an expandable segment counts with all that it can grow to, so that it is used last.
        while block.segment.page is not None and at + 1 < len(row) and row[at + 1][-1].growable < block.growable:
            at += 1
            block = row[at][-1]
        limit = self._split_limit
        # An oversize block goes to an oversize request that leaves little of it: max_non_split_rounding_size.
        if size < limit <= block.size or (size >= limit and block.size >= size + self.options.large_segment_bytes):
            return None
        pool.erase(block)
        return block

    def _new(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """Memory from the device; if there is none, give cached memory back and try again. malloc."""
        block = self._grow(pool, stream, size)
        if block is None and self._release_oversize(pool, stream, size):
            block = self._grow(pool, stream, size)
        if block is None:
            self._release_cached_blocks()
            self.retries += 1
            block = self._grow(pool, stream, size)
        return block

    def _grow(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """One attempt to get memory from the device. alloc_block."""
        amount = segment_size(size, self.options)
        if self.cap is not None and self.reserved + amount > self.cap:
            return None
        if self.options.expandable_segments:
            return self._grow_expandable(pool, stream, size)
        if self.reserved + amount > self._most:
            return None
        segment = self._new_segment(self._address("segment_alloc", amount), stream, pool)
        segment.blocks.append(_Block(segment.address, amount, segment))
        self._call("segment_alloc", segment.address, amount)
        return segment.blocks[0]

    def _new_segment(self, address: int, stream: int, pool: _Pool, page: int | None = None) -> _Segment:
        self._segment_count += 1
        age = self._segment_count if self.ties == "oldest" else 0
        segment = _Segment(address, stream, pool, age, page)
        self.segments.append(segment)
        return segment

    def _call(self, action: Action, address: int, size: int) -> None:
        operation = Operation(action, address, size)
        self.operations.append(operation)
        self.reserved += operation.change_bytes
        if action in GIVES_BACK:
            self.device_frees += 1
        else:
            self.device_allocs += 1

    def _address(self, action: Action, size: int) -> int:
        """Where the device puts new memory: as recorded, or after all that was handed out so far."""
        address = self._next_address
        for call in self._recorded:
            if call.action == action and (action == "segment_map" or call.bytes == size):
                self._recorded.remove(call)
                # Taken already: only where the simulation has left the record.
                if not self._taken(call.address, size if action == "segment_alloc" else 1):
                    address = call.address
                break
        self._next_address = max(self._next_address, _up(address + size, LARGE_ROUNDING_BYTES))
        return address

    def _taken(self, address: int, size: int) -> bool:
        return any(
            block.mapped and block.address < address + size and address < block.end
            for segment in self.segments
            if segment.address < address + size and address < segment.blocks[-1].end
            for block in segment.blocks
        )

    # Giving memory back

    def _release_cached_blocks(self) -> None:
        """Give back all that is not in use: whole segments, and whole pages of expandable ones."""
        for pool in self.pools:  # the large pool first
            cached = [entry[-1] for stream in sorted(pool.cached) for entry in pool.cached[stream]]
            for block in cached:
                if block.segment.page is None and len(block.segment.blocks) == 1:
                    self._release(block)
            for block in cached:
                if block.segment.page is not None:
                    self._unmap(block)

    def _release(self, block: _Block) -> None:
        """CudaFree of one segment. release_block."""
        block.segment.pool.erase(block)
        self.segments.remove(block.segment)
        self._call("segment_free", block.address, block.size)

    def _release_oversize(self, pool: _Pool, stream: int, size: int) -> bool:
        """Give back one oversize block that is large enough, or several. release_available_cached_blocks."""
        limit = self.options.max_split_size_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        row = pool.cached[stream]
        at = bisect_left(row, (wanted,))
        if at < len(row) and row[at][-1].segment.page is None:
            self._release(row[at][-1])
            return True
        released = 0
        for *_, block in reversed(row[:at]):
            if released >= wanted or block.size < limit:
                break
            if block.segment.page is None:
                released += block.size
                self._release(block)
        return released >= wanted

    # Expandable segments

    def _page(self, pool: _Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.is_small else self.options.large_segment_bytes

    def _grow_expandable(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """Map pages at the lowest address with room. try_allocate_expandable_block."""
        block = self._find_expandable(pool, stream, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.segment.blocks[block.segment.index(block) + 1]
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # which has swallowed the block before it
        pool.erase(block)
        return block

    def _find_expandable(self, pool: _Pool, stream: int, size: int) -> _Block:
        """The first run of free and unmapped blocks that is long enough. find_expandable_block."""
        for _, block in pool.unmapped[stream]:
            blocks = block.segment.blocks
            at = block.segment.index(block)
            if at and blocks[at - 1].state == "free":
                at -= 1
            free = takewhile(lambda part: part.state == "free", islice(blocks, at, None))
            if sum(part.size for part in free) >= size:
                return blocks[at]
        # A new segment has addresses for 1 1/8 of the device's memory: the constructor of ExpandableSegment.
        page = self._page(pool)
        device = max(2**40, size) if self.device is None else self.device
        addresses = max(_up(device + device // 8, page), page)
        segment = self._new_segment(self._address("segment_map", addresses), stream, pool, page)
        return segment.add(segment.address, addresses, mapped=False)

    def _map(self, block: _Block, size: int) -> bool:
        """Put memory behind the front of an unmapped block, in whole pages. map_block."""
        segment = block.segment
        amount = _up(size, segment.page)
        if self.reserved + amount > self._most:
            return False
        segment.pool.erase(block)
        if amount < block.size:
            segment.pool.insert(segment.cut(block, amount))
        block.mapped = True
        self._call("segment_map", block.address, amount)
        segment.cache(block)
        return True

    def _unmap(self, block: _Block) -> None:
        """Take the memory of all pages away that lie wholly inside of a free block. unmap_block."""
        segment = block.segment
        base, page = segment.address, segment.page
        first = _up(block.address - base, page) + base
        last = (block.end - base) // page * page + base
        if first >= last:
            return
        segment.pool.erase(block)
        if block.end > last:
            segment.pool.insert(segment.cut(block, last - block.address))
        if first > block.address:
            before, block = block, segment.cut(block, first - block.address)
            segment.pool.insert(before)
        block.mapped = False
        self._call("segment_unmap", first, last - first)
        segment.cache(block)
        if len(segment.blocks) == 1:
            segment.pool.erase(block)
            self.segments.remove(segment)


# A run


@dataclass(frozen=True, eq=False)
class AllocatorRun:
    """What :func:`simulate_allocator` returns: the curves, the counts, and the state after any event.

    The sequences have a number for each event, the counts those up to it.
    """

    events: tuple[Event, ...]  # if memory ran out, the last one is the request that failed
    reserved_bytes: Sequence[int]  # taken from the device
    allocated_bytes: Sequence[int]  # in use by tensors
    device_allocs: Sequence[int]  # calls that take memory from the device (cudaMalloc, or pages mapped)
    device_frees: Sequence[int]  # calls that give memory back
    retries: Sequence[int]  # how often all cached memory was given back to try again (``num_alloc_retries``)
    out_of_memory: OutOfMemory | None  # the first request that failed
    peak_reserved_bytes: int  # at any moment, those within an event included
    begin: Allocator  # with its options and limits, before the first event
    _recorded: Sequence[Sequence[Operation]]  # of each event, the calls to the device that tell where memory is

    def __len__(self) -> int:
        return len(self.events)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that tensors held at once."""
        return max(self.allocated_bytes, default=self.begin.allocated)

    def state(self, after: int) -> AllocatorState:
        """All segments after some number of events; 0 is before the first.

        Example:
            >>> run = simulate_allocator([Allocate("a", 3 * 2**20), Free("a")])
            >>> [block.state for block in run.state(after=1).segments[0].blocks]
            ['allocated', 'free']
        """
        return next(self.states([after]))

    def states(self, moments: Iterable[int]) -> Iterator[AllocatorState]:
        """All segments after each of some numbers of events, which must ascend."""
        return (allocator.state() for allocator in self._replayed(moments))

    def _replayed(self, moments: Iterable[int]) -> Iterator[Allocator]:
        """The allocator after each of these numbers of events; all events happen once more."""
        allocator, done = self.begin.copy(), 0
        for after in moments:
            for index in range(done, after):
                allocator.apply(self.events[index], self._recorded[index])
            done = after
            yield allocator

    def words(self, index: int) -> str:
        """What one event did, in a sentence.

        Example:
            >>> simulate_allocator([Allocate("a", 3 * 2**20)]).words(0)
            'a asks for 3 MiB: nothing cached fits. Take a segment of 20 MiB; use 3 MiB of it and cache the rest.'
        """
        return _words(next(self._replayed([index + 1])), self.events[index])

    def __repr__(self) -> str:
        options, cap = self.begin.options.text or "defaults", self.begin.cap
        reserved = self.reserved_bytes[-1] if self.events else self.begin.reserved
        allocated = self.allocated_bytes[-1] if self.events else self.begin.allocated
        lines = [
            f"{len(self)} events, options: {options}{'' if cap is None else f', cap {_short(cap)}'}",
            f"reserved   peak {_short(self.peak_reserved_bytes)}, at the end {_short(reserved)}",
            f"allocated  peak {_short(self.peak_allocated_bytes)}, at the end {_short(allocated)}",
        ]
        if self.events:
            lines.append(
                f"taken from the device {self.device_allocs[-1]} times, given back {self.device_frees[-1]} times, "
                f"{self.retries[-1]} retries"
            )
        if self.out_of_memory is not None:
            lines.append(self.out_of_memory.message)
        return "\n".join(lines)


def simulate_allocator(
    events: Iterable[Event],
    *,
    options: str = "",
    cap_bytes: int | None = None,
    device_bytes: int | None = None,
) -> AllocatorRun:
    """Let events happen to PyTorch's caching allocator, without a GPU, until a request cannot be met.

    Args:
        events: :class:`Allocate`, :class:`Free` and :class:`EmptyCache`, in order.
        options: what ``PYTORCH_ALLOC_CONF`` is set to.
        cap_bytes: how much the process may take from the device, as ``torch.cuda.set_per_process_memory_fraction``
            sets it. An expandable segment may still go over it by less than one page, as in PyTorch.
        device_bytes: the device's memory. Over it, cudaMalloc fails; it also sets how many addresses an expandable
            segment has. By default there is no limit.

    Example:
        >>> run = simulate_allocator([Allocate("a", 30 * 2**20), Free("a"), Allocate("b", 31 * 2**20)])
        >>> [size // 2**20 for size in run.reserved_bytes], [size // 2**20 for size in run.allocated_bytes]
        ([30, 30, 62], [30, 0, 32])
    """
    allocator = Allocator(AllocatorOptions.parse(options), cap_bytes, device_bytes)
    return run_events(allocator, ((event, ()) for event in events))


def run_events(
    allocator: Allocator, steps: Iterable[tuple[Event, Sequence[Operation]]], stops: bool = True
) -> AllocatorRun:
    """Let events happen, each with the calls to the device that were recorded, and write everything down.

    ``stops=False`` goes on after a request that cannot be met, as a program does that catches the error: the name
    holds nothing, and freeing it does nothing.
    """
    events: list[Event] = []
    recorded: list[Sequence[Operation]] = []
    curves = [array("q") for _ in range(5)]
    failure: OutOfMemory | None = None
    begin, peak = allocator.copy(), allocator.reserved
    for index, (event, calls) in enumerate(steps):
        level = allocator.reserved
        try:
            met = allocator.apply(event, calls)
        except ValueError as error:
            raise ValueError(f"event {index}: {error}") from None
        events.append(event)
        recorded.append(calls)
        now = (allocator.reserved, allocator.allocated)
        counts = (allocator.device_allocs, allocator.device_frees, allocator.retries)
        for curve, value in zip(curves, (*now, *counts), strict=True):
            curve.append(value)
        if allocator.operations:
            peak = max(peak, *accumulate((call.change_bytes for call in allocator.operations), initial=level))
        if not met:
            failure = failure or _out_of_memory(allocator, index, event)
            if stops:
                break
    return AllocatorRun(tuple(events), *curves, failure, peak, begin, recorded)


def _out_of_memory(allocator: Allocator, index: int, event: Allocate) -> OutOfMemory:
    size = round_size(event.bytes, allocator.options)
    segment_bytes = segment_size(size, allocator.options)
    cached = allocator.pools[size <= SMALL_REQUEST_BYTES].cached[event.stream]
    total = ""
    if allocator.device is not None:
        free = allocator.device - allocator.reserved
        total = f"GPU 0 has a total capacity of {_size(allocator.device)} of which {_size(free)} is free. "
    allowed = "" if allocator.cap is None else f"{_size(allocator.cap)} allowed; "
    message = (
        f"CUDA out of memory (simulated). Tried to allocate {_size(segment_bytes)}. {total}{allowed}Of the allocated "
        f"memory {_size(allocator.allocated)} is allocated by PyTorch, and "
        f"{_size(allocator.reserved - allocator.allocated)} is reserved by PyTorch but unallocated. "
        f"The request was for {_size(event.bytes)}; the largest cached block that it could have had is "
        f"{_size(cached[-1][0] if cached else 0)}."
    )
    return OutOfMemory(index, segment_bytes, allocator.allocated, message)


# Words


def _size(count: int) -> str:
    """As format_size in c10/core/Allocator.h:431 writes it."""
    if count <= 2**10:
        return f"{count} bytes"
    for unit, name in ((2**10, "KiB"), (2**20, "MiB")):
        if count <= unit * 1024:
            return f"{count / unit:.2f} {name}"
    return f"{count / 2**30:.2f} GiB"


def _short(count: int) -> str:
    """Bytes for a sentence: exact where that is short."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


def _words(allocator: Allocator, event: Event) -> str:
    match event:
        case Allocate():
            return _allocate_words(allocator, event)
        case EmptyCache():
            given_back = sum(operation.bytes for operation in allocator.operations)
            if not given_back:
                return "empty_cache() finds nothing that it could give back."
            return f"empty_cache() gives {_short(given_back)} back to the device."
    return f"{event.id} is freed: its block is cached, and merged with free neighbours. The device gets nothing back."


def _allocate_words(allocator: Allocator, event: Allocate) -> str:
    if event.bytes == 0:
        return f"{event.id} asks for nothing and gets nothing."
    how, used = allocator.how, allocator.used_bytes
    size = round_size(event.bytes, allocator.options)
    asked = f"{event.id} asks for {_short(event.bytes)}"
    if size != event.bytes:
        asked += f", rounded up to {_short(size)}"
    if how.startswith("cached"):
        if used == size:
            return f"{asked}: a cached block of that size is used."
        rest = "and cache the rest" if how == "cached, split" else "whole, as the rest is too small to split off"
        return f"{asked}: the smallest cached block that fits has {_short(used)}. Use it {rest}."
    given_back = -sum(min(operation.change_bytes, 0) for operation in allocator.operations)
    taken = _short(sum(max(operation.change_bytes, 0) for operation in allocator.operations))
    words = f"{asked}: nothing cached fits."
    if given_back:
        words += f" The limit is reached, so {_short(given_back)} of cached memory go back to the device."
    if how == "failed":
        return f"{words} It still does not fit: out of memory."
    if allocator.options.expandable_segments:
        return f"{words} Map {taken} of new pages into the segment, and use {_short(size)}."
    if how == "new, split":
        return f"{words} Take a segment of {taken}; use {_short(size)} of it and cache the rest."
    return f"{words} Take a segment of {taken}, and use all of it."
