"""The caching allocator step by step: with a field for every option in JupyterLab, and stored runs in the book."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from course_utils.memory.allocator import AllocatorRun, Event, simulate_allocator
from course_utils.show.formats import format_bytes
from course_utils.show.viewer import StoredView, Viewer, field, stored_view

if TYPE_CHECKING:
    from course_utils.memory.allocator import AllocatorState, SegmentState

MIB = 2**20


def _sizes(*values: int) -> dict[str, Any]:
    return {"options": [(str(value) if value else "none", value) for value in values]}


# The options' defaults, and what their fields offer.
_OPTIONS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "expandable_segments": (False, {}),
    "max_split_size_mb": (0, _sizes(0, 20, 32, 64, 128)),
    "roundup_power2_divisions": (0, _sizes(0, 2, 4, 8, 16)),
    "large_segment_size_mb": (20, _sizes(12, 20, 32, 64)),
}
# More frames than this, over all runs together, make a page slow.
MOST_FRAMES = 240
_POOLS = ("small", "large")
_KINDS = {"allocated": 0, "awaiting free": 1, "free": 2}
_PICTURE = (
    "Above, reserved and allocated memory over the events. Below, a row for each segment with its blocks: blue is "
    "allocated, orange waits for another stream, a dashed edge is cached."
)


def _state(run: AllocatorRun, moments: Iterable[int]) -> dict[str, Any]:
    reserved = [run.begin.reserved, *run.reserved_bytes]
    allocated = [run.begin.allocated, *run.allocated_bytes]
    limit = min((each for each in (run.begin.cap, run.begin.device) if each is not None), default=None)
    most = max(run.peak_reserved_bytes, *reserved, *allocated, 1)
    return {
        "words": _PICTURE,
        "events": len(run),
        "reserved": reserved,
        "allocated": allocated,
        "limit": limit,
        "most": max(most, limit) if limit is not None and limit <= 2 * most else most,
        "pools": _pools(run),
        "frames": {str(after): _frame(run, after) for after in moments},
        "end": "" if run.out_of_memory is None else run.out_of_memory.message,
    }


def _pools(run: AllocatorRun) -> list[dict[str, Any]]:
    """The most that each pool holds, so that a drawing does not jump: of all moments of a short run, some of a long."""
    largest = dict.fromkeys(_POOLS, 1)
    rows = dict.fromkeys(_POOLS, 0)
    for state in run.states(range(0, len(run) + 1, max(1, len(run) // 300))):
        for pool in _POOLS:
            segments = [each for _, segments in rows_of(state, pool) for each in segments]
            largest[pool] = max(largest[pool], *(int(offset) + segment.bytes for offset, segment in segments), 0)
            rows[pool] = max(rows[pool], len(rows_of(state, pool)))
    used = [pool for pool in _POOLS if rows[pool]] or ["large"]
    return [{"name": pool, "bytes": largest[pool], "rows": rows[pool]} for pool in used]


def rows_of(state: AllocatorState, pool: str) -> list[tuple[str, list[tuple[float, SegmentState]]]]:
    """The rows of a pool, each with a label, and its segments with the distance from where the row begins.

    Pages of one expandable segment share a row, at their places.
    """
    by_row: dict[tuple[int, int], list[tuple[float, SegmentState]]] = {}
    for segment in state.segments:
        if segment.pool == pool:
            key = (segment.reserved_address, segment.stream)
            by_row.setdefault(key, []).append((segment.address - segment.reserved_address, segment))
    rows = []
    for (_, stream), segments in by_row.items():
        size = format_bytes(sum(segment.bytes for _, segment in segments))
        where = f"stream {stream}" if stream else ""
        words = ("expandable", where or size) if segments[0][1].expandable else (size, where)
        rows.append((", ".join(filter(None, words)), segments))
    return rows


def _frame(run: AllocatorRun, after: int) -> dict[str, Any]:
    state = run.state(after)
    touched = getattr(run.events[after - 1], "id", None) if after else None
    return {
        "words": _words(run, after),
        "numbers": _numbers(run, after),
        "touched": None if touched is None else str(touched),
        "rows": {pool: [(label, _blocks(row)) for label, row in rows_of(state, pool)] for pool in _POOLS},
    }


def _blocks(segments: Iterable[tuple[float, SegmentState]]) -> list[tuple[Any, ...]]:
    return [
        (
            offset + block.address - segment.address,
            block.bytes,
            _KINDS[block.state],
            None if block.id is None else str(block.id),
            block.requested_bytes,
        )
        for offset, segment in segments
        for block in segment.blocks
    ]


def _words(run: AllocatorRun, after: int) -> str:
    if after == 0:
        return "Before the first event."
    ends = run.out_of_memory is not None and after == len(run)
    return f"Event {after}{', where the run ends' if ends else f' of {len(run)}'}: {run.words(after - 1)}"


def _numbers(run: AllocatorRun, after: int) -> str:
    index = after - 1
    reserved = run.reserved_bytes[index] if after else run.begin.reserved
    allocated = run.allocated_bytes[index] if after else run.begin.allocated
    calls = (run.device_allocs[index], run.device_frees[index], run.retries[index]) if after else (0, 0, 0)
    return (
        f"reserved {format_bytes(reserved)}, allocated {format_bytes(allocated)}, cached or waiting "
        f"{format_bytes(reserved - allocated)}; calls that take memory from the device: {calls[0]}, that give it back: "
        f"{calls[1]}, retries: {calls[2]}"
    )


def allocator_frames(runs: Mapping[str, AllocatorRun]) -> StoredView:
    """Show runs event by event in a page without a kernel, such as the book. All that it needs is in the page.

    Where scripts are not allowed, such as on GitHub, the numbers of the runs remain.

    Raises:
        ValueError: if there are more events than a page can hold.

    Example:
        >>> from course_utils.memory.allocator import Allocate, simulate_allocator
        >>> allocator_frames({"default options": simulate_allocator([Allocate("a", 3 * 2**20)])})
        default options
        1 events, options: defaults
        reserved   peak 20 MiB, at the end 20 MiB
        allocated  peak 3 MiB, at the end 3 MiB
        taken from the device 1 times, given back 0 times, 0 retries
    """
    frames = sum(len(run) + 1 for run in runs.values())
    if frames > MOST_FRAMES:
        raise ValueError(
            f"{frames} frames are too many for a page: show at most {MOST_FRAMES} events, all runs together"
        )
    states = [{"when": {"run": label}, **_state(run, range(len(run) + 1))} for label, run in runs.items()]
    first, shown = next(iter(runs.items()))
    text = "\n\n".join(f"{label}\n{run!r}" for label, run in runs.items())
    fallback = f"<p>{html.escape(_words(shown, len(shown)))}</p>\n<pre>{html.escape(text)}</pre>"
    return StoredView(text, stored_view("allocator", states, fallback, [field("run", "Allocator", runs)], run=first))


def allocator_explorer(events: Iterable[Event], *, cap_bytes: int | None = None) -> Viewer:
    """A form for JupyterLab: step through events, play, scrub, and change the allocator's options and its limit.

    ``events`` are those of :func:`course_utils.memory.allocator.simulate_allocator`. ``cap_bytes`` is the first limit;
    its field counts in MiB and rounds up.
    """
    events = tuple(events)
    chosen = {name: default for name, (default, _) in _OPTIONS.items()}
    chosen |= {"cap": 0 if cap_bytes is None else max(1, -(-cap_bytes // MIB)), "at": 0}
    form = [field(name, name, **more) for name, (_, more) in _OPTIONS.items()]
    form.append(field("cap", "limit in MiB (0: none)", min=0, max=max(2**20, chosen["cap"]), step=10))
    viewer = Viewer(view="allocator", form=form, chosen=chosen)
    run = simulate_allocator(events, cap_bytes=cap_bytes)

    def simulate(_: Any = None) -> None:
        nonlocal run
        try:
            cap = viewer.chosen["cap"] * MIB or None
            changed = [name for name, (default, _) in _OPTIONS.items() if viewer.chosen[name] != default]
            options = ",".join(f"{name}:{viewer.chosen[name]}" for name in changed)
            run = simulate_allocator(events, options=options, cap_bytes=cap)
        except ValueError as error:
            viewer.message = f"{error}. Still shown: {run.begin.options.text or '(defaults)'}."
            return
        # Of a long run there is one frame at a time.
        moments = range(len(run) + 1) if len(run) <= MOST_FRAMES else [min(viewer.chosen["at"], len(run))]
        viewer.message = f"PYTORCH_ALLOC_CONF={run.begin.options.text or '(defaults)'}"
        viewer.state = _state(run, moments)

    viewer.observe(simulate, "chosen")
    simulate()
    return viewer
