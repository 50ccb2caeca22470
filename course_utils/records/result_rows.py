"""What a result says, row by row, in values that can be counted and set against another run's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from course_utils.records.kinds.ceilings import Ceilings
from course_utils.records.kinds.cluster_check import ClusterCheck
from course_utils.records.kinds.cluster_plan import ClusterPlan
from course_utils.records.kinds.comparison import Case, Comparison
from course_utils.records.kinds.curves import Curve, Curves
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.memory_trace import MemoryTrace
from course_utils.records.kinds.rank_results import RankResults
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.kinds.table import Table


@dataclass(frozen=True)
class Row:
    """One thing that a result says.

    Attributes:
        label: what it is about; no two rows of a result share it.
        value: a Case against its baseline, a Measurement, a Curve, or a plain number, text, truth value or None.
        unit: of a number: a key of :data:`course_utils.records.kinds.table.TABLE_UNITS`.
    """

    label: str
    value: Case | Measurement | Curve | float | str | bool | None
    unit: str | None = None


def rows_of(result: Any) -> Iterator[Row]:
    """Take a result apart.

    Args:
        result: one of the result types. An Environment says nothing that was measured.

    Yields:
        Its rows, in the order in which it shows them. Baselines are left out: every case is seen against its own.

    Example:
        >>> from course_utils import recorded
        >>> [row.label for row in rows_of(recorded("measuring/known_answers"))][0]
        'the same product, against product'
    """
    if isinstance(result, Comparison):
        for case in result:
            if not case.is_baseline:
                yield Row(f"{case.label}, against {result.baseline}", case)
    elif isinstance(result, Sweep):
        for point in result.points:
            for row in rows_of(point.comparison):
                yield Row(f"{result.over} {point.value}: {row.label}", row.value)
    elif isinstance(result, Measurement):
        yield Row(result.label, result)
    elif isinstance(result, Ceilings):
        for entry in result:
            yield Row(entry.name, entry.value, entry.unit)
    elif isinstance(result, Table):
        for cells in result.rows:
            for column, value in zip(result.columns[1:], cells[1:], strict=True):
                yield Row(f"{cells[0]}: {column}", value, result.units.get(column))
    elif isinstance(result, RankResults):
        for row in rows_of(result.table):
            yield Row(f"rank {row.label}", row.value, row.unit)
        for key in result.rounds:
            for row in rows_of(result.comparison(key)):
                yield Row(f"{key}: {row.label}", row.value)
    elif isinstance(result, Curves):
        for curve in result:
            yield Row(curve.label, curve)
    elif isinstance(result, MemoryTrace):
        yield Row("peak", result.peak_bytes, "bytes")
        for kind, values in result.by_kind().items():
            yield Row(f"{kind} at the peak", values[result.peak_moment], "bytes")
    elif isinstance(result, ClusterPlan):
        for point in result:
            yield Row(point.label, point.peak_bytes, "bytes")
    elif isinstance(result, ClusterCheck):
        for error in result.errors:
            yield Row(f"{error.strategy}: off by", error.deviation, "relative")
