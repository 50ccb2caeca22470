"""A memory trace as a picture to zoom into."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from course_utils.show.viewer import StoredView, stored_view

if TYPE_CHECKING:
    from course_utils.records.kinds.memory_trace import MemoryTrace


def memory_explorer(trace: MemoryTrace, colours: Mapping[str, str], words: str) -> StoredView:
    """A trace to zoom into, and its table; for `MemoryTrace.explore`."""
    page = stored_view("trace", [_state(trace, colours, words)], f"<p>{html.escape(words)}</p>")
    return StoredView(repr(trace), f"{page}\n{trace._repr_html_()}")


def _state(trace: MemoryTrace, colours: Mapping[str, str], words: str) -> dict[str, Any]:
    kinds = list(trace.by_kind())
    # From the bottom to the top of the picture: by kind, and what has been there longer lies below.
    blocks = sorted(
        trace.blocks, key=lambda b: (kinds.index(b.kind), b.born, -b.died, b.module, b.line, b.op, b.size_bytes)
    )
    texts = list(dict.fromkeys(part for b in blocks for part in (b.module, b.line, b.op)))
    number = {part: i for i, part in enumerate(texts)}
    return {
        "words": words,
        "caption": trace.environment.caption,
        "counted": "moments that were kept" if trace.condensed else "allocations and releases",
        "times_us": trace.times_us,
        "kinds": [[kind, colours[kind]] for kind in kinds],
        "texts": texts,
        "blocks": [
            [
                b.size_bytes,
                b.born,
                b.died,
                kinds.index(b.kind),
                *(number[t] for t in (b.module, b.line, b.op)),
                b.count,
            ]
            for b in blocks
        ],
        "reserved_bytes": trace.reserved_bytes,
        "phases": [[phase.name, phase.first, phase.last] for phase in trace.phases],
        "peak": trace.peak_moment,
    }
