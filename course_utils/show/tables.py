"""Results as tables: text for terminals, plain HTML for notebooks.

Both are made from one description (:class:`_Sheet`), so they say the same. The HTML has no style, class or id: the
notebook, the book and GitHub each dress it, and its bytes are the same in every process.
"""

from __future__ import annotations

import html as html_module
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils.records.kinds.ceilings import Ceiling, Ceilings
from course_utils.records.kinds.cluster_check import ClusterCheck
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan
from course_utils.records.kinds.comparison import Case, Comparison
from course_utils.records.kinds.curves import Curves
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import WORK_UNITS, Measurement
from course_utils.records.kinds.memory_trace import MEMORY_KINDS, MemoryRow, MemoryTrace
from course_utils.records.kinds.rank_results import RankResults
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.kinds.table import Table
from course_utils.records.paired import Verdict
from course_utils.show.quantities import (
    format_bytes,
    format_count,
    format_interval,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
)
from course_utils.show.verdicts import noise_floor, sweep_summary, verdict_sentence, verdict_words

MAX_WIDTH = 110
# From roomy to tight: the width at which row names wrap, and whether headers wrap too.
_LAYOUTS = ((40, False), (28, False), (28, True), (22, True))
_TEXT_WIDTH = 44
_NARROWEST = 12
_GAP = "  "
_UNIT_SPACE = re.compile(r"(?<=\d) (?!to )")  # a number and its unit stay on one line
CONTROL_LABEL = "baseline again (A/A control)"


@dataclass(frozen=True)
class _Column:
    """One column: its header, a cell for each row, and whether the cells are numbers (right-aligned)."""

    header: str
    cells: tuple[str, ...]
    numeric: bool = True

    @property
    def empty(self) -> bool:
        return not any(self.cells)


@dataclass(frozen=True)
class _Table:
    """A table whose first column names the rows."""

    caption: str
    columns: tuple[_Column, ...]


@dataclass(frozen=True)
class _Sheet:
    """Everything that is shown for a result: tables, what a reader must know, and how it was measured."""

    tables: tuple[_Table, ...]
    lines: tuple[str, ...] = ()
    fine_print: tuple[str, ...] = ()


def _facts(caption: str, facts: Sequence[tuple[str, str | None]]) -> _Table:
    """A table of names and values; names without a value are left out."""
    kept = [(name, value) for name, value in facts if value]
    names, values = zip(*kept, strict=True)
    return _Table(caption, (_Column("", names, numeric=False), _Column("", values, numeric=False)))


def _wrap(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width) or [""]


def _widths(columns: Sequence[_Column], label_width: int, wrap_headers: bool) -> list[int]:
    widths = []
    for i, column in enumerate(columns):
        limit = _TEXT_WIDTH if i else label_width
        cells = [line for cell in column.cells for line in _wrap(cell, limit)]
        headers = [part for word in column.header.split() for part in _wrap(word, limit)]
        widths.append(max(map(len, (*cells, *(headers if wrap_headers else [column.header]), ""))))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fitting_widths(columns: Sequence[_Column]) -> list[int] | None:
    """The widths of the roomiest layout that fits; None if none does."""
    layouts = (_widths(columns, *layout) for layout in _LAYOUTS)
    return next((widths for widths in layouts if _total(widths) <= MAX_WIDTH), None)


def _table_text(table: _Table) -> list[str]:
    columns = table.columns
    widths = _fitting_widths(columns) or _widths(columns, *_LAYOUTS[-1])
    if len(columns) == 2 and not columns[1].header:  # names and values: the value takes what room there is
        widths[1] = MAX_WIDTH
    while (over := _total(widths) - MAX_WIDTH) > 0 and max(widths) > _NARROWEST:
        widest = widths.index(max(widths))
        widths[widest] = max(_NARROWEST, widths[widest] - over)

    def row(cells: Sequence[str], bottom: bool = False) -> list[str]:
        wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, wrapped))
        if bottom:
            wrapped = [[""] * (height - len(parts)) + parts for parts in wrapped]
        lines = []
        for i in range(height):
            parts = []
            for column, width, cell in zip(columns, widths, wrapped, strict=True):
                part = cell[i] if i < len(cell) else ""
                parts.append(part.rjust(width) if column.numeric else part.ljust(width))
            lines.append(_GAP.join(parts).rstrip())
        return lines

    lines = textwrap.wrap(table.caption, MAX_WIDTH)
    if any(column.header for column in columns):
        lines += row([column.header for column in columns], bottom=True)
        lines.append(_GAP.join("-" * width for width in widths))
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines += row(cells)
    return lines


def _cell_html(cell: str, numeric: bool) -> str:
    escaped = html_module.escape(cell)
    return _UNIT_SPACE.sub("\u00a0", escaped) if numeric else escaped


def _table_html(table: _Table) -> list[str]:
    escape = html_module.escape
    lines = ["<table>", *([f"<caption>{escape(table.caption)}</caption>"] if table.caption else [])]
    if any(column.header for column in table.columns):
        head = "".join(f'<th scope="col">{escape(column.header)}</th>' for column in table.columns)
        lines.append(f"<thead><tr>{head}</tr></thead>")
    lines.append("<tbody>")
    for i, (name, *_) in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        cells = (_cell_html(column.cells[i], column.numeric) for column in table.columns[1:])
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{row}</tr>')
    return [*lines, "</tbody>", "</table>"]


def _split(caption: str, more: str, key: _Column, core: Sequence[_Column], extra: Sequence[_Column]) -> list[_Table]:
    """One table if everything fits a terminal's width, otherwise one with what matters and others with the rest."""
    core = [column for column in core if not column.empty]
    extra = [column for column in extra if not column.empty]
    if _fitting_widths([key, *core, *extra]):
        return [_Table(caption, (key, *core, *extra))]
    tables = [_Table(caption, (key, *core))]
    rows = [i for i in range(len(key.cells)) if any(column.cells[i] for column in extra)]

    def pick(column: _Column) -> _Column:
        return _Column(column.header, tuple(column.cells[i] for i in rows), column.numeric)

    group: list[_Column] = []
    for column in (*map(pick, extra), None):
        if group and (column is None or not _fitting_widths([pick(key), *group, column])):
            tables.append(_Table(more, (pick(key), *group)))
            group = []
        if column is not None:
            group.append(column)
    return tables


def rounds_and_calls(measurements: Sequence[Measurement]) -> str:
    """How often something was timed, for example ``24 rounds x 8 calls``."""
    rounds = measurements[0].rounds
    low, high = min(m.calls for m in measurements), max(m.calls for m in measurements)
    calls = f"{low} call{'s' if low > 1 else ''}" if low == high else f"{low} to {high} calls"
    return f"{rounds} round{'s' if rounds != 1 else ''} x {calls}"


def _bytes_or_nothing(count: int | None) -> str:
    return "" if count is None else format_bytes(count)


def _seconds_or_nothing(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def _rate_or_nothing(measurement: Measurement, of: str) -> str:
    rate = measurement.rate(of)
    return "" if rate is None else format_rate(rate, WORK_UNITS[of])


def ceiling_work(ceiling: Ceiling | None) -> str | None:
    """Which kind of work (``bytes`` or ``flops``) a ceiling limits; None for a latency or for no ceiling."""
    if ceiling is None:
        return None
    return next((of for of, unit in WORK_UNITS.items() if unit == ceiling.unit), None)


def _share_or_nothing(measurement: Measurement, ceiling: Ceiling | None) -> str:
    of = ceiling_work(ceiling)
    rate = measurement.rate(of) if of else None
    return "" if rate is None else format_percent(rate / ceiling.value)


def _costs(measurements: Sequence[Measurement], ceiling: Ceiling | None) -> list[_Column]:
    """What a call costs beside its time; columns that hold nothing are dropped by the caller."""

    def column(header: str, cell: Callable[[Measurement], str]) -> _Column:
        return _Column(header, tuple(cell(m) for m in measurements))

    share = f"share of {ceiling.name}" if ceiling is not None else ""
    return [
        column("first call", lambda m: _seconds_or_nothing(m.first_call_s)),
        column("extra peak memory", lambda m: _bytes_or_nothing(m.peak_allocated_bytes)),
        column("peak reserved", lambda m: _bytes_or_nothing(m.peak_reserved_bytes)),
        column("host time (enqueue)", lambda m: _seconds_or_nothing(m.enqueue_median_s)),
        column("device time", lambda m: _seconds_or_nothing(m.device_median_s)),
        column("bandwidth", lambda m: _rate_or_nothing(m, "bytes")),
        column("compute", lambda m: _rate_or_nothing(m, "flops")),
        column("throughput", lambda m: _rate_or_nothing(m, "items")),
        column(share, lambda m: _share_or_nothing(m, ceiling)),
    ]


def _where(environment: Environment) -> str:
    return f"{environment.caption} · {environment.size} sizes"


def _launch_bound_line(measurements: Sequence[Measurement]) -> list[str]:
    bound = [m.label for m in measurements if m.launch_bound]
    if not bound:
        return []
    verb = "is" if len(bound) == 1 else "are"
    return [f"{', '.join(bound)} {verb} launch-bound: the device waits for Python to hand it work."]


def _environment(environment: Environment) -> _Sheet:
    e = environment
    on_gpu = e.device_kind != "cpu"
    gpu = None
    if on_gpu:
        parts = [e.device_name]
        parts += [format_bytes(e.gpu_memory_bytes)] if e.gpu_memory_bytes else []
        parts += [f"compute capability {e.compute_capability}"] if e.compute_capability else []
        parts += [f"{e.gpu_count} visible"] if e.gpu_count > 1 else []
        gpu = ", ".join(parts)
    clocks = [f"limit {e.power_limit_w:g} W"] if e.power_limit_w else []
    clocks += [f"{e.sm_clock_mhz} MHz when read"] if e.sm_clock_mhz else []
    cores = f"{e.cpu_model}, {e.cpu_cores} core{'s' if e.cpu_cores > 1 else ''}"
    software = [f"torch {e.torch}", f"Python {e.python}"]
    software += [f"CUDA {e.cuda}"] if e.cuda else []
    software += [f"driver {e.driver}"] if e.driver else []
    live = {
        "cuda": "everything that one GPU can run; what needs more comes from recorded runs",
        "mps": "on this Mac's GPU; what needs CUDA comes from recorded runs",
        "cpu": "what a CPU can show; what needs a GPU comes from recorded runs",
    }[e.device_kind]
    facts = [
        ("runs live", live),
        ("GPU", gpu or "none"),
        ("GPU power and clock", ", ".join(clocks)),
        ("CPU", cores),
        ("CPU features", ", ".join(e.cpu_flags)),
        ("memory", format_bytes(e.memory_bytes)),
        ("software", ", ".join(software)),
        ("system", e.os),
        ("threads for one operation", str(e.torch_threads)),
        ("problem sizes", e.size),
        ("date", e.date),
        ("commit", e.commit),
    ]
    return _Sheet((_facts(f"This machine: {e.machine}", facts),))


def _measurement(measurement: Measurement) -> _Sheet:
    m = measurement
    interval = m.interval_s
    median = format_seconds(m.median_s)
    if interval.bounded:
        median += f" (95% interval {format_seconds(interval.low)} to {format_seconds(interval.high)})"
    rates = [_rate_or_nothing(m, of) for of in ("bytes", "flops", "items")]
    facts = [
        ("median time per call", median),
        ("fastest and slowest", f"{format_seconds(min(m.elapsed_s))} and {format_seconds(max(m.elapsed_s))}"),
        ("first call", _seconds_or_nothing(m.first_call_s)),
        ("host time (enqueue)", _seconds_or_nothing(m.enqueue_median_s)),
        ("device time", _seconds_or_nothing(m.device_median_s)),
        ("rate", ", ".join(filter(None, rates))),
        ("extra peak memory", _bytes_or_nothing(m.peak_allocated_bytes)),
        ("peak reserved", _bytes_or_nothing(m.peak_reserved_bytes)),
    ]
    rounds = rounds_and_calls([m])
    warm = f", after {len(m.warmup_s)} warm-up calls" if m.warmup_s else ""
    where = [_where(m.environment)] if m.environment else []
    table = _facts(f"{m.name}: {m.label}" if m.name else m.label, facts)
    return _Sheet((table,), (*_launch_bound_line([m]), *m.notes), (rounds + warm, *where))


def comparison_how(comparison: Comparison) -> str:
    """How a comparison was measured, in one line: rounds, calls, cache, clock, agreement."""
    c = comparison
    checked = c.agreement if c.agreement.startswith(("not ", "checked")) else f"checked: {c.agreement}"
    return " · ".join([rounds_and_calls(c.cases), f"{c.cache} cache", c.clock, checked])


def _comparison_lines(c: Comparison, cases: Sequence[Case]) -> tuple[str, ...]:
    """What a reader of a comparison must know."""
    lines = [f"{case.label}: {verdict_sentence(case)}." for case in cases if case.verdict is Verdict.UNCLEAR]
    if c.interrupted:
        lines.append(f"Interrupted after {c.rounds} of {c.planned_rounds} rounds.")
    return (*lines, *_launch_bound_line(c.cases), *c.notes)


def _comparison_fine_print(c: Comparison, cases: Sequence[Case]) -> tuple[str, ...]:
    """How a comparison was decided and measured."""
    lines = []
    if c.noise.bounded:
        decided = [f"{case.label} {format_interval(case.decision_interval)}" for case in cases]
        decided.append(f"A/A control {format_interval(c.noise)}")
        lines.append(f"Verdicts rest on 99% intervals: {', '.join(decided)}.")
    blocked = max(case.block_rounds for case in c)
    if blocked > 1:
        lines.append(f"Neighbouring rounds were alike, so up to {blocked} were merged into one.")
    return (*lines, comparison_how(c), _where(c.environment))


def _comparison(comparison: Comparison) -> _Sheet:
    c = comparison
    cases = list(c)
    others = [case for case in cases if not case.is_baseline]
    control = cases[0]  # the baseline's own ratios are those of the A/A control
    floor = f"noise floor: ±{format_percent(noise_floor(c) - 1)}" if c.noise.bounded else "noise floor: unknown"
    rows = [*c.cases, c.control]
    key = _Column("case", (*c.labels, CONTROL_LABEL), numeric=False)
    core = [
        _Column("verdict", (*(verdict_words(case) for case in cases), floor), numeric=False),
        _Column("time per call", tuple(format_seconds(m.median_s) for m in rows)),
        _Column("relative time", ("1", *(format_ratio(k.ratio) for k in others), format_ratio(control.ratio))),
        _Column(
            "95% interval", ("", *(format_interval(k.interval) for k in others), format_interval(control.interval))
        ),
    ]
    extra = _costs(c.cases, c.ceiling)
    break_even = tuple(f"{k.break_even_calls} calls" if k.break_even_calls else "" for k in cases)
    extra.insert(1, _Column("pays off after", break_even))
    extra = [_Column(column.header, (*column.cells, ""), column.numeric) for column in extra]
    title = f"{c.name}: " if c.name else ""
    caption = f"{title}median time per call, relative to {c.baseline}"
    tables = tuple(_split(caption, "What else a call costs", key, core, extra))
    return _Sheet(tables, _comparison_lines(c, others), _comparison_fine_print(c, others))


def _sweep(sweep: Sweep) -> _Sheet:
    title = f"{sweep.name}: " if sweep.name else ""
    if not sweep.points:
        nothing = _facts(f"{title}sweep over {sweep.over}", [("points", "none was measured")])
        return _Sheet((nothing,), sweep.notes, (_where(sweep.environment),))
    labels = sweep.points[0].comparison.labels
    two = len(labels) == 2
    lines = [f"{sweep_summary(sweep, label)}." for label in labels[1:]]
    rows: list[tuple[str, ...]] = []
    for point in sweep.points:
        comparison = point.comparison
        floor = f"±{format_percent(noise_floor(comparison) - 1)}" if comparison.noise.bounded else ""
        for case in comparison:
            if case.verdict is Verdict.UNCLEAR:
                lines.append(f"{sweep.over} {point.value}, {case.label}: {verdict_sentence(case)}.")
            if two and case.is_baseline:
                continue
            # Of two cases there is one row, which tells the baseline's rate as well.
            told = comparison.cases if two else (case.measurement,)
            rows.append(
                (
                    str(point.value),
                    "" if two else case.label,
                    verdict_words(case),
                    format_seconds(comparison.cases[0].median_s) if two else "",
                    format_seconds(case.median_s),
                    "1" if case.is_baseline else format_ratio(case.ratio),
                    "" if case.is_baseline else format_interval(case.interval),
                    floor if two or case.is_baseline else "",
                    *(_rate_or_nothing(m, "bytes") or _rate_or_nothing(m, "flops") for m in told),
                    *(_share_or_nothing(m, comparison.ceiling) for m in told),
                )
            )
    headers = (
        sweep.over,
        "case",
        "verdict",
        labels[0],
        labels[1] if two else "time per call",
        "relative time",
        "95% interval",
        "noise (A/A)",
        *((f"rate, {label}" for label in labels) if two else ("rate",)),
        *((f"share of ceiling, {label}" for label in labels) if two else ("share of ceiling",)),
    )
    rates = 4 if two else 2
    columns = [
        _Column(header, cells, numeric=header not in ("case", "verdict"))
        for header, cells in zip(headers, zip(*rows, strict=True), strict=True)
    ]
    what = f"{labels[1]} relative to {labels[0]}" if two else f"relative to {labels[0]}"
    caption = f"{title}median time per call over {sweep.over}, {what}"
    if sweep.interrupted:
        lines.append(f"Interrupted after {sweep.over} {sweep.values[-1]}.")
    lines += sweep.notes
    lines += dict.fromkeys(note for point in sweep.points for note in point.comparison.notes)
    fine_print = (comparison_how(sweep.points[0].comparison), _where(sweep.environment))
    tables = _split(caption, "Rates", columns[0], columns[1:-rates], columns[-rates:])
    return _Sheet(tuple(tables), tuple(lines), fine_print)


def ceiling_text(entry: Ceiling, value: float | None = None) -> str:
    """A ceiling's value with its unit, or another value in that unit."""
    value = entry.value if value is None else value
    return format_seconds(value) if entry.unit == "s" else format_rate(value, entry.unit)


def ceiling_samples(entry: Ceiling) -> list[float]:
    """Every sample of a ceiling in the unit of its value: seconds, or work per second."""
    return list(entry.samples_s) if entry.unit == "s" else [entry.work / sample for sample in entry.samples_s]


def _ceilings(ceilings: Ceilings) -> _Sheet:
    entries = ceilings.entries
    spread = []
    for entry in entries:
        samples = ceiling_samples(entry)
        spread.append(f"{ceiling_text(entry, min(samples))} to {ceiling_text(entry, max(samples))}")
    table = _Table(
        f"{ceilings.name + ': ' if ceilings.name else ''}limits of {ceilings.environment.device_name}",
        (
            _Column("limit", tuple(entry.name for entry in entries), numeric=False),
            _Column("value", tuple(ceiling_text(entry) for entry in entries)),
            _Column("samples from", tuple(spread)),
            _Column("samples", tuple(str(len(entry.samples_s)) for entry in entries)),
        ),
    )
    how = "Rates are the best that was seen, latencies the median."
    return _Sheet((table,), ceilings.notes, (how, _where(ceilings.environment)))


_VALUE_TEXTS: dict[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "s": format_seconds,
    "B/s": lambda value: format_rate(value, "B/s"),
    "FLOP/s": lambda value: format_rate(value, "FLOP/s"),
    "relative": lambda value: "0" if value == 0 else f"{value:.1e}",
    "ratio": format_ratio,
    "percent": format_percent,
    "count": lambda value: f"{value:,.0f}".replace(",", " "),
}


def value_text(value: Any, unit: str | None) -> str:
    """A value of a Table as text: with its unit if it is a number."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit is not None:
        return _VALUE_TEXTS[unit](value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def is_number(value: Any) -> bool:
    """Whether a value of a Table is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tabulated(table: Table) -> _Sheet:
    columns = []
    for column, values in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        unit = table.units.get(column)
        numeric = any(map(is_number, values)) and not any(isinstance(value, str | bool) for value in values)
        texts = tuple(value_text(value, unit) for value in values)
        columns.append(_Column(column, texts, numeric and bool(columns)))
    tables = _split(table.name or "", f"{table.name or ''}, more", columns[0], columns[1:2], columns[2:])
    return _Sheet(tuple(tables), table.notes, (_where(table.environment),))


def _curves(curves: Curves) -> _Sheet:
    def number(value: float | None) -> str:
        return "not finite" if value is None else f"{value:.4g}"

    lowest = [min((v for v in curve.y if v is not None), default=None) for curve in curves]
    last_x = sorted({curve.x[-1] for curve in curves})
    table = _Table(
        f"{curves.name + ': ' if curves.name else ''}{curves.y_label} by {curves.x_label}",
        (
            _Column("", curves.labels, numeric=False),
            _Column("points", tuple(str(len(curve.x)) for curve in curves)),
            _Column("first", tuple(number(curve.y[0]) for curve in curves)),
            _Column("lowest", tuple(map(number, lowest))),
            _Column(
                f"last, at {curves.x_label} {last_x[0]:g}" if len(last_x) == 1 else "last",
                tuple(number(curve.final) for curve in curves),
            ),
        ),
    )
    gaps = [curve.label for curve in curves if None in curve.y]
    lines = [f"Some values of {', '.join(gaps)} are not finite: the line has gaps there."] if gaps else []
    return _Sheet((table,), (*lines, *curves.notes), (_where(curves.environment),))


# Rows of the table that names what was there at the peak.
_MOST_ROWS = 12


def memory_row_name(row: MemoryRow) -> str:
    """What some blocks are, in words: their module and operation, or where they come from."""
    named = " ".join(filter(None, (row.module, row.op)))
    if named:
        return named
    return "there before the call" if not row.line else "outside of modules"


def _memory_trace(trace: MemoryTrace) -> _Sheet:
    t = trace
    at_start, at_end = t.at(0), t.at(t.moments - 1)
    kinds = []
    for kind in MEMORY_KINDS:
        sums = [sum(row.size_bytes for row in rows if row.kind == kind) for rows in (at_start, t.at_peak, at_end)]
        if any(sums):
            kinds.append((kind, *map(format_bytes, sums), format_percent(sums[1] / t.peak_bytes)))
    kinds.append(("in all", *map(format_bytes, (t.start_bytes, t.peak_bytes, t.end_bytes)), ""))
    headers = ("", "before the call", "at the peak", "after it", "share of the peak")
    by_kind = _Table(
        f"{t.name + ': ' if t.name else ''}memory of {t.label} on {t.device}",
        tuple(
            _Column(header, cells, numeric=bool(i))
            for i, (header, cells) in enumerate(zip(headers, zip(*kinds, strict=True), strict=True))
        ),
    )
    tables = [by_kind]
    rows = t.at_peak[:_MOST_ROWS]
    if rows:
        tables.append(
            _Table(
                "The largest at the peak",
                (
                    _Column("what", tuple(map(memory_row_name, rows)), numeric=False),
                    _Column("kind", tuple(row.kind for row in rows), numeric=False),
                    _Column("blocks", tuple(str(row.count) for row in rows)),
                    _Column("size", tuple(format_bytes(row.size_bytes) for row in rows)),
                    _Column("allocated by", tuple(row.line for row in rows), numeric=False),
                ),
            )
        )
    left = t.at_peak[_MOST_ROWS:]
    lines = []
    if left:
        blocks = sum(row.count for row in left)
        lines.append(f"And {blocks} smaller blocks of {format_bytes(sum(row.size_bytes for row in left))} in all.")
    when = [phase.name for phase in t.phases if phase.first <= t.peak_moment <= phase.last]
    where = f" ({when[-1]})" if when else ""
    lines.append(f"The peak comes {format_seconds(t.times_us[t.peak_moment] / 1e6)} into the call{where}.")
    if t.reserved_bytes:
        counts = [f"the allocator held up to {format_bytes(t.peak_reserved_bytes)} of the device"]
        if t.device_allocs is not None:
            counts.append(f"asked it for memory {t.device_allocs} times")
        if t.alloc_retries is not None:
            counts.append(f"and had to give cached memory back first {t.alloc_retries} times")
        lines.append(f"Reserved: {', '.join(counts)}.")
    lines += t.notes
    return _Sheet(tuple(tables), tuple(lines), (_memory_checks(t), _where(t.environment)))


def _memory_checks(t: MemoryTrace) -> str:
    """How far a trace can be trusted, and what it cost."""
    said = [f"{t.allocations} allocations"]
    if t.condensed:
        said.append("condensed: sums at the moments that are kept are exact, the peak among them")
    if t.scratch_bytes is None:
        said.append("the peak was not held against another meter")
    else:
        seen = f"by {t.meter} the peak lies {format_bytes(t.meter_bytes)} above the start"
        if t.scratch_bytes == 0:
            said.append(f"{seen}, the same as by the trace")
        elif t.scratch_bytes > 0:
            more = f"{format_bytes(t.scratch_bytes)} more than by the trace"
            said.append(f"{seen}, {more}: scratch memory, which no operation returns")
        else:
            said.append(f"{seen}, {format_bytes(-t.scratch_bytes)} less than by the trace")
    if t.overhead is None:
        said.append("the trace's cost was not measured")
    else:
        said.append(f"a traced call takes {format_ratio(t.overhead)} times as long")
    return " · ".join(said)


def _rank_results(run: RankResults) -> _Sheet:
    shown = _tabulated(run.table)
    ranks = f"{run.ranks} rank{'s' if run.ranks > 1 else ''} on {run.backend}"
    threads = f"{run.threads_per_rank} thread{'s' if run.threads_per_rank > 1 else ''} each"
    how = f"{ranks} · {threads} · {format_seconds(run.seconds)} from start to end · {run.command}"
    timed = [f"Timed side by side: {', '.join(run.rounds)}; see .comparison({run.rounds[0]!r})."] if run.rounds else []
    return _Sheet(shown.tables, (*timed, *shown.lines), (how, *shown.fine_print))


def _cluster_plan(plan: ClusterPlan) -> _Sheet:
    points = plan.points
    caption = f"{plan.name or 'memory per rank'}: GPT of {format_count(plan.shape.parameters)} parameters"
    columns = [_Column(part, tuple(format_bytes(point[part]) for point in points)) for part in (*CLUSTER_PARTS, "peak")]
    columns.append(_Column("at its peak", tuple(point.peak_phase for point in points), numeric=False))
    key = _Column("", tuple(point.label for point in points), numeric=False)
    trust = _Column("the prediction is", tuple(map(plan.trust, points)), numeric=False)
    settings = ", ".join(f"{name} {value}" for name, value in plan.parameters.items())
    lines = [
        f"{e.strategy}: {e.words}, on up to {e.ranks} ranks and with up to {e.parameters:,} parameters."
        for e in plan.errors
        if e.strategy in plan.strategies
    ]
    lines += plan.notes
    return _Sheet(
        (_Table(caption, (key, *columns)), _Table("against real ranks", (key, trust))),
        tuple(lines),
        (settings, _where(plan.environment)),
    )


def _cluster_check(check: ClusterCheck) -> _Sheet:
    def sizes(part: str) -> _Column:
        cells = [
            f"{format_bytes(point.measured[part])} | {format_bytes(point.simulated[part])}"
            if part in point.measured
            else ""
            for point in check.points
        ]
        return _Column(part, tuple(cells))

    labels = [f"{p.strategy}, {p.ranks} rank{'s' if p.ranks > 1 else ''}, {p.setting}" for p in check.points]
    deviations = tuple(f"{point.deviation:.2%}" for point in check.points)
    tables = _split(
        f"{check.name or 'real ranks'}: measured | simulated",
        "its parts: measured | simulated",
        _Column("", tuple(labels), numeric=False),
        (_Column("largest deviation", deviations), sizes("peak")),
        tuple(map(sizes, CLUSTER_PARTS)),
    )
    lines = [f"{error.strategy}: {error.words}, up to {error.ranks} ranks." for error in check.errors]
    return _Sheet(tuple(tables), (*lines, *check.notes), (_where(check.environment),))


def _sheet(result: Any) -> _Sheet:
    for kind, make in (
        (Environment, _environment),
        (Measurement, _measurement),
        (Comparison, _comparison),
        (Sweep, _sweep),
        (Ceilings, _ceilings),
        (Table, _tabulated),
        (Curves, _curves),
        (MemoryTrace, _memory_trace),
        (RankResults, _rank_results),
        (ClusterPlan, _cluster_plan),
        (ClusterCheck, _cluster_check),
    ):
        if isinstance(result, kind):
            return make(result)
    raise TypeError(f"cannot show {type(result).__name__!r} as a table; it is not a result of this course")


def text(result: Any) -> str:
    """A result as a text table of at most 110 columns.

    Args:
        result: any result of this course.

    Returns:
        The table and the lines under it, without a final line break.

    Raises:
        TypeError: if it is not a result.
    """
    sheet = _sheet(result)
    blocks = ["\n".join(_table_text(table)) for table in sheet.tables]
    lines = [textwrap.fill(line, MAX_WIDTH, subsequent_indent="  ") for line in (*sheet.lines, *sheet.fine_print)]
    return "\n\n".join([*blocks, *(["\n".join(lines)] if lines else [])])


def html(result: Any) -> str:
    """A result as plain HTML: tables with captions, and paragraphs under them.

    Args:
        result: any result of this course.

    Returns:
        HTML without style, class or id; the same result always gives the same bytes.

    Raises:
        TypeError: if it is not a result.
    """
    sheet = _sheet(result)
    lines = [line for table in sheet.tables for line in _table_html(table)]
    lines += [f"<p>{html_module.escape(line)}</p>" for line in sheet.lines]
    if sheet.fine_print:
        lines.append(f"<p>{'<br>'.join(map(html_module.escape, sheet.fine_print))}</p>")
    return "\n".join(lines)
