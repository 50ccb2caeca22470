"""Arithmetic of intervals: when something ran, when two things ran at once, when nothing did."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

Span = tuple[float, float]
Spans = list[Span]  # sorted, and no two touch


def union(spans: Iterable[Span]) -> Spans:
    """Everything that lies in at least one of them.

    Example:
        >>> union([(4, 5), (0, 2), (1, 3)])
        [(0, 3), (4, 5)]
    """
    united: Spans = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            if end > united[-1][1]:
                united[-1] = (united[-1][0], end)
        elif end > start:
            united.append((start, end))
    return united


def common(some: Spans, others: Spans) -> Spans:
    """What lies in both.

    Example:
        >>> common([(0, 3), (4, 6)], [(2, 5)])
        [(2, 3), (4, 5)]
    """
    found: Spans = []
    i = j = 0
    while i < len(some) and j < len(others):
        start, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start < end:
            found.append((start, end))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def clip(spans: Spans, window: Span) -> Spans:
    """What of them lies in a window: a search, where going through all would take long."""
    start, end = window
    near = spans[max(0, bisect_left(spans, (start,)) - 1) : bisect_left(spans, (end,))]
    return [(max(a, start), min(b, end)) for a, b in near if b > start] if start < end else []


def without(some: Spans, others: Spans) -> Spans:
    """What lies in the first and not in the second.

    Example:
        >>> without([(0, 10)], [(2, 3), (9, 12)])
        [(0, 2), (3, 9)]
    """
    edges = [-inf, *(edge for span in others for edge in span), inf]
    return common(some, [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end])


def length(spans: Iterable[Span]) -> float:
    """How long they last in all."""
    return sum(end - start for start, end in spans)


def gaps(spans: Spans, window: Span) -> Spans:
    """What of a window lies in none of them."""
    return without([window], clip(spans, window))


def covers(spans: Spans, moment: float) -> bool:
    """Whether a moment lies in one of them."""
    place = bisect_right(spans, (moment, inf)) - 1
    return place >= 0 and moment < spans[place][1]
