"""Read a trace of torch.profiler: where a step's time goes, and what to change first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from course_utils.show.advice import Advice
from course_utils.show.cards import Bar, Card, Row, Shown, Toned, amount_axis
from course_utils.show.formats import format_percent, format_seconds, listed, short_name
from course_utils.show.tables import Column as TableColumn
from course_utils.show.tables import Grid
from own_program.traces import cpu as on_cpu
from own_program.traces import shares as on_gpu
from own_program.traces.columns import Amount, Column, Reading, reading, total
from own_program.traces.events import HOW, PYTHON, TraceError, read_events
from own_program.traces.pair import TracePair
from own_program.traces.plan import COMPILE_ONCE, plan_of

__all__ = ["TraceError", "TraceReport", "read_trace"]

_SHOWN = 0.003  # of a step: a place with less has no line of its own
_MOST_ROWS, _MOST_COLUMNS = 10, 4
_NOTED, _LEAST_NOTED = 3, 0.05  # names in a note, and of the time that they take together
_SUSPECT = 0.10  # of a step from which no change of the program follows: more is worth words
_KNOWN = "Of what is known"
_LATER = "Record later steps, with schedule(wait=5, warmup=3, active=8, repeat=1)."


def read_trace(source: str | Path | bytes, other: str | Path | bytes | None = None) -> TraceReport | TracePair:
    """Read a trace of torch.profiler: where a step's time goes, on the device's clock, and what to change first.

    It may come from any version since 1.8 and from any GPU, or from none. Only the standard library is needed. What an
    entry of the plan saves is a bound, "at most": what was seen cannot cost more than it lasted.

    Args:
        source: a trace in Chrome's format (``.json`` or ``.json.gz``, from ``export_chrome_trace`` or
            ``tensorboard_trace_handler``), or its bytes.
        other: a second one, to compare with the first, step by step.

    Raises:
        TraceError: if a file is no such trace; the message says how to record one.

    Source: the format is https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp, as of torch 2.13.

    Example:
        >>> import json
        >>> def event(cat, name, ts, dur, **args):
        ...     return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}
        >>> step = event("user_annotation", "ProfilerStep#3", 0, 1000)
        >>> launch = event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1)
        >>> kernel = event("kernel", "gemm", 20, 980, correlation=1, device=0, stream=7)
        >>> print(read_trace(json.dumps({"traceEvents": [step, launch, kernel]}).encode()).card().words)
        Nothing stands out: the GPU computes for 98% of a step (1.00 ms).
    """
    try:
        first = reading(read_events(source))
        return TraceReport(first) if other is None else TracePair(first, reading(read_events(other)))
    except TraceError:
        raise
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:  # a last resort
        raise TraceError("The trace is damaged: values of its events make no sense. Export it again.") from error


class TraceReport(Shown):
    """What a trace shows.

    Attributes:
        plan: what to change, the most first; empty where nothing stands out.
        reading: the numbers behind it, in microseconds.
    """

    def __init__(self, found: Reading) -> None:
        self.reading = found
        self.plan: tuple[Advice, ...] = plan_of(found)

    def card(self) -> Card:
        """Where a step's time goes, and the plan."""
        found, single = self.reading, len(self.reading.columns) == 1
        rows = _rows(found.columns[0], _places(found)) if single else ()
        return Card(
            sentence=_sentence(found, self.plan),
            rows=rows,
            axis=amount_axis([row.bar.high or 0.0 for row in rows if row.bar], format_seconds) if rows else None,
            heads=(_each(found), "share") if single else ("", ""),
            table=None if single else _table(found),
            plan=self.plan,
            warning=_warning(found, self.plan),
            notes=tuple(_notes(found, self.plan)),
            provenance=_provenance(found),
        )


def _places(found: Reading) -> tuple[str, ...]:
    return on_cpu.CPU_PLACES if found.cpu else on_gpu.PLACES


def _each(found: Reading) -> str:
    return "a step" if found.parts[0].steps.marked else "in all"


def _amount(what: str) -> Amount:
    return lambda shares: shares.get(what)


def _share(found: Reading, what: str) -> float:
    return total(found.columns, _amount(what))


def _rows(column: Column, places: Sequence[str]) -> tuple[Row, ...]:
    rows = []
    hidden = column.mean(_amount(on_gpu.HIDDEN)) / 1e6
    for place in sorted(places, key=lambda place: -column.share(_amount(place)))[:_MOST_ROWS]:
        amount = _amount(place)
        if column.share(amount) >= _SHOWN:
            words = column.times(amount)
            words += f"; {format_seconds(hidden)} more is hidden" if place == on_gpu.SENDS and hidden else ""
            rows.append(
                Row(place, words, format_percent(column.share(amount)), bar=Bar(0.0, column.mean(amount) / 1e6))
            )
    return tuple(rows)


def _table(found: Reading) -> Grid:
    """A column for each kind of steps on each device."""
    columns = sorted(found.columns, key=lambda column: -column.lasts)[:_MOST_COLUMNS]
    columns.sort(key=found.columns.index)
    names = [place for place in _places(found) if any(c.share(_amount(place)) >= _SHOWN for c in columns)]
    names.sort(key=lambda place: -total(columns, _amount(place)))
    names += [on_gpu.HIDDEN] if any(column.mean(_amount(on_gpu.HIDDEN)) for column in columns) else []
    cells = [TableColumn("", (*names, "a step in all"), numeric=False)]
    for column in columns:
        values = [
            f"{format_percent(column.share(_amount(name)))}, {format_seconds(column.mean(_amount(name)) / 1e6)}"
            for name in names
        ]
        cells.append(TableColumn(column.name, (*values, column.times(lambda shares: shares.lasts))))
    return Grid("", tuple(cells))


def _sentence(found: Reading, plan: Sequence[Advice]) -> list[str | Toned]:
    said, largest, why = _largest_part(found), _largest(found), _why(found, plan)
    if largest in why:
        said += f". {why[largest]}"
        of = "Of the other steps" if largest in (on_gpu.START, on_gpu.COMPILING, on_cpu.COMPILING) else _KNOWN
        return [f"{said} {of}, change first: ", Toned(plan[0].change), "."] if plan else [said]
    most, product = _one_operators(found) if largest == on_gpu.COMPUTE else ("", True)
    said += most
    if plan:
        unknown = _unexplained(found, plan[0]) if product else ""
        first = ". To change first: " if unknown is None else f"{unknown}. {_KNOWN}, change first: "
        return [said + first, Toned(plan[0].change), "."]
    if found.cpu and found.cpu.for_gpu:
        return [f"{said}; what the GPU did is not in the file."]
    if found.trace.cut:
        return [f"{said}, as far as the file goes. What is missing may look like idle time, so there is no plan."]
    places = [place for place in _places(found) if place not in (on_gpu.COMPUTE, on_cpu.OPERATORS)]
    rest = max(places, key=lambda place: _share(found, place))
    if not product and _share(found, rest) < _SUSPECT:
        return [f"{said}; no change follows from that."]
    if _share(found, rest) < _SUSPECT:
        return [Toned("Nothing stands out"), f": {said[0].lower() if said.startswith('The') else said[0]}{said[1:]}."]
    if largest == on_cpu.PYTHON_CODE and (unknown := _unexplained(found)):
        return [f"{said}{unknown}."]
    most = f". Most of the rest is {rest} ({format_percent(_share(found, rest))})" if rest != largest else ""
    return [f"{said}{most}; no change follows from that."]


def _one_operators(found: Reading) -> tuple[str, bool]:
    """The kernel and the operator that most of the computing is of, if it is; and whether that is a matrix product."""
    computed: Counter[tuple[str, str, str]] = sum((device.computed for device in found.devices), Counter())
    operators: Counter[str] = Counter()
    for (operator, _, _), lasts in computed.items():
        operators[operator] += lasts  # type: ignore[assignment]
    operator, lasts = next(iter(operators.most_common(1)), ("", 0.0))
    if not operator or lasts <= computed.total() / 2:
        return "", True
    most, (_, node, kernel) = max((each, key) for key, each in computed.items() if key[0] == operator)
    of, name = f"{operator} ({node})" if node else operator, short_name(kernel)
    words = f"{of}, the largest part of it {name}"
    if most > computed.total() / 2:
        words, lasts = f"{name}, of {of}", most
    return f"; {format_percent(lasts / computed.total())} of the computing is {words}", on_gpu.is_matrix_product(kernel)


def _largest(found: Reading) -> str:
    return max(_places(found), key=lambda place: _share(found, place))


def _largest_part(found: Reading) -> str:
    """The largest part of the steps, and how much of them a GPU computes."""
    largest, computes = [], []
    for column in sorted(found.columns, key=lambda column: -column.lasts)[:3]:
        lasts = format_seconds(column.each / 1e6)
        of = f"{'a step' if len(found.columns) == 1 and not column.whole else column.name} ({lasts})"
        place = max(_places(found), key=lambda place: column.share(_amount(place)))
        largest.append((place, f"of {of} is {place} ({format_percent(column.share(_amount(place)))})"))
        computes.append((format_percent(column.share(_amount(on_gpu.COMPUTE))), of))
    words = f"The largest part {listed(part for _, part in largest)}"
    if found.cpu:
        return words
    who = "he GPU computes" if len(found.devices) == 1 else "he GPUs compute"
    if all(place == on_gpu.COMPUTE for place, _ in largest):
        return f"T{who} for {listed(f'{share} of {of}' for share, of in computes)}"
    return f"{words}; t{who} for {listed(share for share, _ in computes)}"


def _why(found: Reading, plan: Sequence[Advice]) -> dict[str, str]:
    """Sentences on places from which no change of the program follows, where they take much."""
    anew = on_cpu.COMPILING if found.cpu else on_gpu.COMPILING
    later = f" {_LATER}" if found.parts[0].steps.marked else " Record later steps."  # how is said anyway
    said = {
        on_gpu.QUEUED: "The next kernel had been launched by then: the GPU waited for another stream or another GPU, "
        "or kernels are missing from the file.",
        on_gpu.UNKNOWN: "No launches were recorded, so why the GPU was idle is unknown. Record ProfilerActivity.CPU, "
        "too.",
        on_gpu.PROFILER: "That is the profiler's own work: without it, a step is shorter.",
        on_gpu.START: f"Code is loaded when it first runs: later steps do without.{later}",
        anew: f"That is torch.compile's own work: steps that compile nothing do without.{later}",
    }
    slow = [event for device in found.devices for event in device.first_uses]
    if slow:
        longest = max(slow, key=lambda event: event.end - event.start)
        said[on_gpu.START] = (
            f"{longest.name} took {format_seconds((longest.end - longest.start) / 1e6)}, far longer than others of "
            f"its kind: a first use, as it seems, which loads code.{later}"
        )
    if found.trace.cut or any(advice.change == COMPILE_ONCE for advice in plan):
        del said[anew]
    parts = {place: _share(found, place) for place in said} | {on_gpu.QUEUED: _share(found, on_gpu.LONG_QUEUED)}
    return {} if found.trace.cut else {place: said[place] for place in said if parts[place] >= _SUSPECT}


def _unexplained(found: Reading, first: Advice | None = None) -> str | None:
    """What to add of Python's own time before the plan, if that is more than anything that the plan can save."""
    python = _share(found, on_cpu.PYTHON_CODE) if found.cpu else 0.0
    if python < _SUSPECT or found.cpu.unseen or found.anomaly.checks or (first and python <= first.saves):
        return None
    words = f", and {format_percent(python)} is {on_cpu.PYTHON_CODE}" if _largest(found) != on_cpu.PYTHON_CODE else ""
    if most := _most_of_python(found, python):
        return f"{words}, {most}"
    return words + ("" if found.trace.events[PYTHON] else ". Record with with_stack=True to see where")


def _most_of_python(found: Reading, python: float) -> str:
    """The function of the program that held most of Python's time; empty without stacks."""
    for name, lasts in found.cpu.functions.most_common(1):
        held = lasts / sum(column.lasts for column in found.columns)
        return f"{'most' if held > python / 2 else 'the largest part'} of it in {short_name(name)}"
    return ""


def _warning(found: Reading, plan: Sequence[Advice]) -> str:
    parts = list(found.trace.flaws)
    cut = found.trace.cut  # how to record is no advice then: what was recorded may stand in what is missing
    if cut and found.cpu:
        parts.append("No work of a GPU is in what was read: it may be in what is missing.")
    if found.cpu and found.cpu.for_gpu:
        parts.append(
            "There was a GPU, and no work of its is in the file: only the CPU's side is told, without a plan. "
            "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    if not found.parts[0].steps.marked:
        parts.append("No step is marked, so the program's start and its steps are told together.")
        parts += [] if cut else [f"{HOW}."]
    for place, why in _why(found, plan).items():
        if place != _largest(found):
            words = format_percent(_share(found, place))
            parts.append(f"{words} is {place}. {why}")
    return " ".join(parts)


def _most(found: Reading) -> list[str]:
    """What takes most of the largest part, where that has names."""
    if _largest(found) not in (on_gpu.COMPUTE, on_cpu.OPERATORS, on_cpu.ELSEWHERE):
        return []
    shares = [each for column in found.columns for each in column.shares]
    names = on_gpu.by_name(shares, on_cpu.OPERATORS if found.cpu else on_gpu.COMPUTE)
    together = sum(lasts for _, lasts in names.values())
    most = [
        f"{name} {format_percent(lasts / together)} ({_often(count)} {_each(found)})"
        for name, (count, lasts) in list(names.items())[:_NOTED]
        if lasts >= _LEAST_NOTED * together
    ]
    what = "operators" if found.cpu else "kernels that compute"
    kinds = ", all steps together" if len(found.columns) > 1 else ""
    return [f"Of the {what}{kinds}: {', '.join(most)}."] if most else []


def _often(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _notes(found: Reading, plan: Sequence[Advice]) -> list[str]:
    notes = _most(found)
    if len(plan) > 1:
        notes.append("The savings overlap, so they do not add up: mend one, record again, read again.")
    for part in found.parts:
        who = f"GPU {part.device}: " if isinstance(part, on_gpu.DeviceShares) and len(found.devices) > 1 else ""
        notes += [who + note for note in part.steps.notes]
    if found.parts[0].steps.marked and sum(len(column.shares) for column in found.columns) == len(found.parts):
        notes.append(
            "Only one step was read: whether others are like it, the file does not say. If more were recorded, a later "
            "cycle of the schedule wrote over them: repeat=1 forbids it."
        )
    python = _share(found, on_cpu.PYTHON_CODE) if found.cpu else 0.0
    if python >= _SUSPECT and not found.trace.cut:  # else more may have been recorded
        unseen = ", or a wait for a thread that is not in the file: no backward pass is" if found.cpu.unseen else ""
        more = _most_of_python(found, python) or "Record with with_stack=True to see which function of yours holds it"
        notes.append(
            f"In {format_percent(python)} of the time nothing was recorded: Python's own work{unseen}. "
            f"{more[0].upper()}{more[1:]}."
        )
    if found.trace.events[PYTHON]:
        notes.append(
            "It was recorded with stacks, which make Python slower: without them a step is shorter, and Python's part "
            "is at most what is told here."
        )
    return notes


def _provenance(found: Reading) -> str:
    trace = found.trace
    gpu = next((gpu.name for gpu in trace.gpus.values() if gpu.name), "")
    parts = [trace.name, trace.rank, gpu, f"{sum(map(len, trace.events.values())):,} events"]
    return ", ".join(filter(None, parts)) + ". " + found.parts[0].steps.basis + "."
