"""The kinds of results: one module each. A new kind is a module beside this one, a name here, and its test."""

from __future__ import annotations

from collections.abc import Mapping

from course_utils.results.ceilings import Ceilings
from course_utils.results.comparison import Comparison
from course_utils.results.curves import Curves
from course_utils.results.measurement import Measurement
from course_utils.results.memory_trace import MemoryTrace
from course_utils.results.rank_results import RankResults
from course_utils.results.reading import Reading
from course_utils.results.result import Result
from course_utils.results.sweep import Sweep
from course_utils.results.table import Table

_TYPES = (Ceilings, Comparison, Curves, Measurement, MemoryTrace, RankResults, Reading, Sweep, Table)
RESULT_TYPES: Mapping[str, type[Result]] = {kind.kind: kind for kind in _TYPES}
