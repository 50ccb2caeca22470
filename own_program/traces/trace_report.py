"""Read a trace of torch.profiler: where a step's time goes, and what to change first."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from course_utils.show.advice import Advice
from course_utils.show.cards import Bar, Card, Row, Shown, Toned, amount_axis
from course_utils.show.formats import format_percent, format_seconds, listed, short_name
from course_utils.show.tables import Column as TableColumn
from course_utils.show.tables import Grid
from own_program.traces import cpu_time as on_cpu
from own_program.traces import gpu_time as on_gpu
from own_program.traces.events import HOW, PYTHON, TraceFileError, read_events
from own_program.traces.trace_pair import TracePair
from own_program.traces.trace_time import Amount, TraceTime, total, trace_time
from own_program.traces.what_to_change import COMPILE_ONCE, what_to_change

__all__ = ["TraceFileError", "TraceReport", "read_trace"]

_SHOWN = 0.003  # of a step: a place with less has no line of its own
_MOST_ROWS, _MOST_GROUPS = 10, 4
_NOTED, _LEAST_NOTED = 3, 0.05  # names in a note, and of the time that they take together
_SUSPECT = 0.10  # of a step from which no change of the program follows: more is worth words
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
        TraceFileError: if a file is no such trace; the message says how to record one.

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
    collecting = gc.isenabled()
    gc.disable()  # among hundreds of thousands of events that stay, that takes longer than reading them
    try:
        first = trace_time(read_events(source))
        return TraceReport(first) if other is None else TracePair(first, trace_time(read_events(other)))
    except TraceFileError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # a last resort
        raise TraceFileError("The trace is damaged: values of its events make no sense. Export it again.") from error
    finally:
        if collecting:
            gc.enable()


class TraceReport(Shown):
    """What a trace shows.

    Attributes:
        plan: what to change, the most first; empty where nothing stands out.
        found: the numbers behind it, in microseconds.
    """

    def __init__(self, found: TraceTime) -> None:
        self.found = found
        self.plan: tuple[Advice, ...] = what_to_change(found)

    def card(self) -> Card:
        """Where a step's time goes, and the plan."""
        found, single = self.found, len(self.found.groups) == 1
        rows = _rows(found) if single else ()
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


def _each(found: TraceTime) -> str:
    return "a step" if found.marked else "in all"


def _amount(what: str) -> Amount:
    return lambda step: step.get(what)


def _rows(found: TraceTime) -> tuple[Row, ...]:
    (group,) = found.groups
    rows = []
    hidden = group.mean(_amount(on_gpu.HIDDEN)) / 1e6
    for place in sorted(found.places, key=lambda place: -found.share(place))[:_MOST_ROWS]:
        amount = _amount(place)
        if group.share(amount) >= _SHOWN:
            words = group.times(amount)
            words += f"; {format_seconds(hidden)} more is hidden" if place == on_gpu.SENDS and hidden else ""
            rows.append(Row(place, words, format_percent(group.share(amount)), bar=Bar(0.0, group.mean(amount) / 1e6)))
    return tuple(rows)


def _table(found: TraceTime) -> Grid:
    """A column for each kind of steps on each device."""
    groups = sorted(found.groups, key=lambda group: -group.lasts)[:_MOST_GROUPS]
    groups.sort(key=found.groups.index)
    names = [place for place in found.places if any(group.share(_amount(place)) >= _SHOWN for group in groups)]
    names.sort(key=lambda place: -total(groups, _amount(place)))
    names += [on_gpu.HIDDEN] if any(group.mean(_amount(on_gpu.HIDDEN)) for group in groups) else []
    cells = [TableColumn("", (*names, "a step in all"), numeric=False)]
    for group in groups:
        values = [
            f"{format_percent(group.share(_amount(name)))}, {format_seconds(group.mean(_amount(name)) / 1e6)}"
            for name in names
        ]
        cells.append(TableColumn(group.name, (*values, group.times(lambda step: step.lasts))))
    return Grid("", tuple(cells))


def _sentence(found: TraceTime, plan: Sequence[Advice]) -> list[str | Toned]:
    said, largest, why = _largest_part(found), found.largest, _why(found, plan)
    first = Toned(plan[0].change) if plan else ""
    if largest in why:
        said += f". {why[largest]}"
        return [f"{said} Of what is known, change first: ", first, "."] if plan else [said]
    if plan:
        unknown = _unexplained(found, plan[0].saves)
        then = ". To change first: " if unknown is None else f"{unknown}. Of what is known, change first: "
        return [said + then, first, "."]
    if found.cpu and found.cpu.for_gpu:
        return [f"{said}; what the GPU did is not in the file."]
    places = [place for place in found.places if place not in (on_gpu.COMPUTE, on_cpu.OPERATORS)]
    rest = max(places, key=lambda place: found.share(place))
    if found.share(rest) < _SUSPECT:
        return [Toned("Nothing stands out"), f": {said[0].lower()}{said[1:]}."]
    if largest == on_cpu.PYTHON_CODE and (unknown := _unexplained(found, 0.0)):
        return [f"{said}{unknown}."]
    if rest != largest and found.share(rest) >= _SUSPECT:
        said += f". Most of the rest is {rest} ({format_percent(found.share(rest))})"
    return [f"{said}; no change follows from that."]


def _largest_part(found: TraceTime) -> str:
    """The largest part of the steps, and how much of them a GPU computes."""
    largest, computes = [], []
    for group in sorted(found.groups, key=lambda group: -group.lasts)[:3]:
        lasts = format_seconds(group.mean(lambda step: step.lasts) / 1e6)
        of = f"{'a step' if len(found.groups) == 1 and not group.whole else group.name} ({lasts})"
        place = max(found.places, key=lambda place: group.share(_amount(place)))
        largest.append((place, f"of {of} is {place} ({format_percent(group.share(_amount(place)))})"))
        computes.append((format_percent(group.share(_amount(on_gpu.COMPUTE))), of))
    words = f"The largest part {listed(part for _, part in largest)}"
    if found.cpu:
        return words
    who = "he GPU computes" if len(found.gpus) == 1 else "he GPUs compute"
    if all(place == on_gpu.COMPUTE for place, _ in largest):
        return f"T{who} for {listed(f'{share} of {of}' for share, of in computes)}"
    return f"{words}; t{who} for {listed(share for share, _ in computes)}"


def _why(found: TraceTime, plan: Sequence[Advice]) -> dict[str, str]:
    """Sentences on places from which no change of the program follows, where they take much."""
    anew = on_cpu.COMPILING if found.cpu else on_gpu.COMPILING
    later = f" {_LATER}" if found.marked else " Record later steps."  # how is said anyway
    said = {
        on_gpu.QUEUED: "The next kernel had been launched by then: the GPU went from one short kernel to the next, "
        "waited for another stream or another GPU, or kernels are missing from the file.",
        on_gpu.UNKNOWN: "No launches were recorded, so why the GPU was idle is unknown. Record ProfilerActivity.CPU, "
        "too.",
        on_gpu.PROFILER: "That is the profiler's own work: without it, a step is shorter.",
        on_gpu.START: f"Code is loaded when it first runs: later steps do without.{later}",
        anew: f"That is torch.compile's own work: steps that compile nothing do without.{later}",
    }
    slow = [event for gpu in found.gpus for event in gpu.first_uses]
    if slow:
        longest = max(slow, key=lambda event: event.end - event.start)
        said[on_gpu.START] = (
            f"{longest.name} took {format_seconds((longest.end - longest.start) / 1e6)}, far longer than others of "
            f"its kind: a first use, as it seems, which loads code.{later}"
        )
    if any(advice.change == COMPILE_ONCE for advice in plan):
        del said[anew]
    return {place: why for place, why in said.items() if found.share(place) >= _SUSPECT}


def _unexplained(found: TraceTime, saves: float) -> str | None:
    """What to add of Python's own time before the plan, if that is more than anything that the plan can save."""
    python = found.share(on_cpu.PYTHON_CODE)
    if python < _SUSPECT or found.anomaly.checks or python <= saves:
        return None
    words = f", and {format_percent(python)} is {on_cpu.PYTHON_CODE}" if found.largest != on_cpu.PYTHON_CODE else ""
    for name, lasts in found.cpu.functions.most_common(1):
        held = lasts / sum(group.lasts for group in found.groups)
        return f"{words}, {'most' if held > python / 2 else 'the largest part'} of it in {short_name(name)}"
    return words + ("" if found.trace.events[PYTHON] else ". Record with with_stack=True to see where")


def _warning(found: TraceTime, plan: Sequence[Advice]) -> str:
    parts = []
    if found.cpu and found.cpu.for_gpu:
        parts.append(
            "There was a GPU, and no work of its is in the file: only the CPU's side is told, without a plan. "
            "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    if not found.marked:
        parts.append(f"No step is marked, so the program's start and its steps are told together. {HOW}.")
    for place, why in _why(found, plan).items():
        if place != found.largest:
            parts.append(f"{format_percent(found.share(place))} is {place}. {why}")
    return " ".join(parts)


def _most(found: TraceTime) -> list[str]:
    """What takes most of the largest part, where that has names."""
    if found.largest not in (on_gpu.COMPUTE, on_cpu.OPERATORS, on_cpu.ELSEWHERE):
        return []
    steps = [step for group in found.groups for step in group.steps]
    counts, lasts = Counter(), Counter()
    for step in steps:
        for (place, name), (count, us) in step.ran.items():
            if place == (on_cpu.OPERATORS if found.cpu else on_gpu.COMPUTE):
                counts[short_name(name)] += count / len(steps)
                lasts[short_name(name)] += us
    most = [
        f"{name} {format_percent(us / lasts.total())} "
        f"({f'{counts[name]:,.0f}' if counts[name] >= 100 else f'{counts[name]:.3g}'} {_each(found)})"
        for name, us in lasts.most_common(_NOTED)
        if us >= _LEAST_NOTED * lasts.total()
    ]
    what = "operators" if found.cpu else "kernels that compute"
    kinds = ", all steps together" if len(found.groups) > 1 else ""
    return [f"Of the {what}{kinds}: {', '.join(most)}."] if most else []


def _notes(found: TraceTime, plan: Sequence[Advice]) -> list[str]:
    notes = _most(found)
    if len(plan) > 1:
        notes.append("The savings overlap, so they do not add up: mend one, record again, read again.")
    for part in found.parts:
        who = f"GPU {part.device}: " if isinstance(part, on_gpu.GpuTime) and len(found.gpus) > 1 else ""
        notes += [who + note for note in part.steps.notes]
    if found.marked and sum(len(group.steps) for group in found.groups) == len(found.parts):
        notes.append(
            "Only one step was read: whether others are like it, the file does not say. If more were recorded, a later "
            "cycle of the schedule wrote over them: repeat=1 forbids it."
        )
    if found.trace.events[PYTHON]:
        notes.append(
            "It was recorded with stacks, which make Python slower: without them a step is shorter, and Python's part "
            "is at most what is told here."
        )
    return notes


def _provenance(found: TraceTime) -> str:
    trace = found.trace
    gpu = next((gpu.name for gpu in trace.gpus.values() if gpu.name), "")
    parts = [trace.name, trace.rank, gpu, f"{sum(map(len, trace.events.values())):,} events"]
    return ", ".join(filter(None, parts)) + ". " + found.parts[0].steps.basis + "."
