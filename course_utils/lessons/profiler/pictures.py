"""The lesson's lanes: its own loop before and after, gaps that others published, and the exercise's made-up step."""

from __future__ import annotations

from collections import defaultdict

from course_utils.results.table import Table
from course_utils.show.formats import format_seconds
from course_utils.show.timeline import Span, Timeline, timeline

_COLOURS = {"line": "blue", "operator": "grey", "launch": "purple", "kernel": "green", "NCCL": "orange", "gap": ""}
_COLOURS["NCCL-next"] = "ochre"  # kernels of NCCL that follow each other have two colours by turns
# A window of the published trace (`modded_nanogpt_trace` in lesson.yml), in µs: kind, begin, end, words.
_H100 = {
    "Python": "line 0 5808 the next step (launches of these kernels: far to the left)",
    "stream 7": (
        "kernel 0 774; gap 774 1782 waits; kernel 1782 1929; gap 1929 2248; kernel 2248 2577; gap 2577 2750; "
        "kernel 2750 4638 computes; gap 4638 4853; kernel 4853 5808"
    ),
    "stream 23": (
        "NCCL 435 1780 NCCL; NCCL-next 1783 2247; NCCL 2248 2748; NCCL-next 2765 3250; NCCL 3252 3303; "
        "NCCL-next 3306 3325; NCCL 3599 4082; NCCL-next 4354 4851"
    ),
}
# The exercise's step, made up, in ms.
_MADE_UP = {
    "Python": (
        "line 0 3 __next__; line 3 4.2 forward; line 4.2 8 loss.item(); line 8 10.8 backward; line 10.8 14 optimizer; "
        "line 14 20 write log; line 20 21 forward; launch 3 3.2; launch 8.8 9; launch 13 13.2; launch 20 20.2"
    ),
    "stream 7": (
        "kernel 0 1; gap 1 3.2 1; kernel 3.2 8 forward; gap 8 9 2; kernel 9 13.6 backward; gap 13.6 16 3; "
        "kernel 16 17.4; gap 17.4 20.2 4; kernel 20.2 22"
    ),
    "stream 23": "NCCL 12.4 16 NCCL",
}


def slowest(lines: Table) -> str:
    """The point of a table of lines: its first row. Python's time, also where a GPU computes."""
    line = lines.labels[0]
    return f"Python spends {lines.text(line, 'a step')} of a step in `{line}`: {lines.text(line, 'of it')}."


def before_and_after(spans: Table) -> Timeline:
    """One step of each loop, as the profiler saw it, on one axis."""
    panels: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for row in spans:
        span = Span(row["begins"], row["ends"], row["kind"], row["text"])
        panels[f"{row['loop']}, one step"][row["lane"]].append(span)
    took = {(row["loop"], row["text"]): format_seconds(row["ends"] - row["begins"]) for row in spans}
    loader, calls = took["DataLoader", "for x, y in loader"], took["slices", "2 × index"]
    says = f"The loader takes {loader}; two calls of index, grey at the left, take {calls}."
    alt = "In the upper step, the loader's line is the longest, with 128 calls of select. The lower has two of index."
    return timeline(says, panels, _COLOURS, alt, legend=True, **spans.stamp("to scale"))


def another_stream() -> Timeline:
    """What a stream of an H100 waited for, from a published trace."""
    says = "Stream 7 stands still four times, each time until a kernel of NCCL ends on stream 23."
    alt = "Python is in optimizer.step() of the next step. Stream 23: NCCL's kernels, in two colours by turns."
    stamp = {"head": "Published: modded-nanogpt, 8 × H100, rank 0", "provenance": "stream 7 without gaps under 100 µs"}
    return timeline(says, {"": _lanes(_H100, 1e-6)}, _COLOURS, alt, **stamp)


def four_gaps() -> Timeline:
    """The exercise's step."""
    says = "What does each gap of stream 7 wait for?"
    alt = "; ".join(f"{lane}, kind, begin and end in ms: {spans}" for lane, spans in _MADE_UP.items())
    return timeline(says, {"": _lanes(_MADE_UP, 1e-3)}, _COLOURS, alt, legend=True, head="Made up")


def _lanes(lanes: dict[str, str], unit_s: float) -> dict[str, list[Span]]:
    def span(text: str) -> Span:
        what, begin, end, *words = text.split(maxsplit=3)
        return Span(unit_s * float(begin), unit_s * float(end), what, *words)

    return {lane: [span(text) for text in spans.split("; ")] for lane, spans in lanes.items()}
