"""A memory trace as a picture to zoom into."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_utils.show.viewer import stored_view

if TYPE_CHECKING:
    from course_utils.records.kinds.memory_trace import MemoryTrace


@dataclass(frozen=True)
class MemoryExplorer:
    """A trace to zoom into. Shows itself; made by `MemoryTrace.explore`.

    Attributes:
        trace: the trace.
        colours: of the kinds of memory.
        words: the picture in words.
    """

    trace: MemoryTrace
    colours: Mapping[str, str]
    words: str

    def __repr__(self) -> str:
        return repr(self.trace)

    def _repr_html_(self) -> str:
        fallback = f"<p>{html.escape(self.words)}</p>"
        return f"{stored_view('trace', [self._state()], fallback)}\n{self.trace._repr_html_()}"

    def _state(self) -> dict[str, Any]:
        trace, kinds = self.trace, list(self.trace.by_kind())
        # From the bottom to the top of the picture: by kind, and what has been there longer lies below.
        blocks = sorted(
            trace.blocks, key=lambda b: (kinds.index(b.kind), b.born, -b.died, b.module, b.line, b.op, b.size_bytes)
        )
        texts = list(dict.fromkeys(part for b in blocks for part in (b.module, b.line, b.op)))
        number = {part: i for i, part in enumerate(texts)}
        return {
            "words": self.words,
            "caption": trace.environment.caption,
            "counted": "moments that were kept" if trace.condensed else "allocations and releases",
            "times_us": trace.times_us,
            "kinds": [[kind, self.colours[kind]] for kind in kinds],
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
