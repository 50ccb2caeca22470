"""What to change, by what a trace shows: each entry with its evidence, and with no more than it can save."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from course_utils.show.advice import Advice
from course_utils.show.formats import format_percent, listed, short_name
from own_program.traces import cpu_time as on_cpu
from own_program.traces import gpu_time as on_gpu
from own_program.traces.intervals import length
from own_program.traces.trace_time import Amount, TraceTime, total

COMPILE_ONCE = "compile once, not in each step"
_CALL_FEWER = "call fewer operators outside the model, each on more data"
_LEAST = 0.025  # of a step: what saves less at most is no entry
_LEAST_OF_KERNELS = 0.05  # a kernel does something; a lesson only makes it faster
_LEAST_MANY = 0.10  # and of many small operators or kernels
_LEAST_SMALL = 200  # small operators in a step, from which on their number is what costs
_MOST_PER_LAUNCH_US = 100.0  # that the GPU waits for each
_SMALL_BATCH = 0.25  # of a step that the GPU waits for launches: more work in each would cost little
_MOST_ENTRIES = 5
_TENSOR_CORES, _BFLOAT16 = (7, 0), (8, 0)  # compute capabilities that have them


@dataclass
class _Entry:
    """What is an entry if what speaks for it takes enough of a step: by default, all that it can save."""

    change: str
    lesson: str
    saves: Amount
    because: str
    least: float = _LEAST
    speaks: Amount | None = None
    more: str = ""  # sentences that follow the evidence


def what_to_change(found: TraceTime) -> tuple[Advice, ...]:
    """The entries of a plan, the one that can save the most first; none where nothing stands out."""
    if found.cpu and found.cpu.for_gpu:  # what the device did is not in the file
        return ()
    if found.anomaly.checks:  # it slows more than a trace shows, so that all else looks different without it
        advice = _advice(found, _anomaly(found))
        return (replace(advice, of=f"{advice.of}, its checks alone"),)
    entries = _compiles_anew(found)
    if found.largest not in (on_gpu.START, on_gpu.COMPILING, on_cpu.COMPILING):  # what mostly warms up says no more
        entries += _on_cpu(found) if found.cpu else _on_gpu(found)
    entries.sort(key=lambda entry: -total(found.groups, entry.saves))
    return tuple(filter(None, (_advice(found, entry) for entry in entries)))[:_MOST_ENTRIES]


def _advice(found: TraceTime, entry: _Entry) -> Advice | None:
    """An entry with its numbers for each kind of steps, if it can save enough of one."""
    groups = sorted(found.groups, key=lambda group: -group.share(entry.saves))
    named = [group for group in groups if group.share(entry.saves) >= 0.001][:4] or groups[:1]
    evidence = entry.speaks or entry.saves
    if min(max(g.share(amount) for g in groups) for amount in (evidence, entry.saves)) < entry.least:
        return None
    first, only = named[0], sum(len(part.steps.kinds) for part in found.parts) == 1
    of = "a step" if only and not first.whole else first.name
    of += "".join(f", and at most {format_percent(group.share(entry.saves))} of {group.name}" for group in named[1:])
    of += ", and next to nothing of the others" if len(named) < len(groups) <= 4 else ""
    times = first.times(evidence)
    times += "" if first.whole else " a step" if only else f" in {first.name}"
    because = f"{entry.because[0].upper()}{entry.because[1:]}: {times}.{entry.more and ' '}{entry.more}"
    return Advice(entry.change, because, entry.lesson, min(1.0, first.share(entry.saves)), "at most", of)


def _sum(*places: str) -> Amount:
    return lambda step: sum(map(step.get, places))


def _rest(*places: str) -> Amount:
    """What is left of a step: nothing more can be hidden behind it."""
    return lambda step: max(0.0, step.lasts - sum(map(step.get, places)))


def _less(amount: Amount, what: str) -> Amount:
    return lambda step: max(0.0, amount(step) - step.get(what))


def _least(some: Amount, other: Amount) -> Amount:
    return lambda step: min(some(step), other(step))


def _steps(found: TraceTime) -> tuple[int, str]:
    """How many steps were read, and what a number for each of them is called."""
    return sum(len(part.steps.all) for part in found.parts), "a step" if found.marked else "in all"


def _anomaly(found: TraceTime) -> _Entry:
    checks = f"{found.anomaly.checks / max(1, found.marks):,.0f} NaN checks"
    because = f"{checks} {'a step' if found.marks else 'in all'} ran in the backward pass"
    more = (
        "torch.is_anomaly_enabled() tells where it is on. Record again without it: the rest looks different then. It "
        "also notes a Python stack for each operator of the forward pass, which often takes longer: that is a part of "
        "these operators' own time, and shows in a trace with with_stack=True alone."
    )
    amount = _sum(on_gpu.ANOMALY)
    return _Entry("switch anomaly mode off", "your_own_program", amount, because, 0.0, more=more)


def _compiles_anew(found: TraceTime) -> list[_Entry]:
    place = on_cpu.COMPILING if found.cpu else on_gpu.COMPILING
    steps = [step for group in found.groups for step in group.steps]
    hit = sum(step.get(place) > _LEAST * step.lasts for step in steps)
    if hit < 2 or 2 * hit < len(steps):  # else a longer warm-up does
        return []
    because, more = f"torch.compile worked in {hit} of {len(steps)} steps", "TORCH_LOGS=recompiles says why."
    return [_Entry(COMPILE_ONCE, "torch_compile", _sum(place), because, more=more)]


def _loads(found: TraceTime, place: str, who: str) -> _Entry:
    loader = found.loader
    change, does = "give the DataLoader more workers, or less work", ", whose workers' part is not in the file"
    if loader.alone:
        change, does = "load batches in worker processes (num_workers)", ", which loads in the main process"
    if loader.fetches:
        change = "index the tensors once a batch, not sample by sample"
        count = f"{loader.fetches / max(1, found.marks):,.0f} times {_steps(found)[1]}"
        does = f", which called {loader.operator} {count}: it fetches samples one by one from tensors in memory"
    for name, lasts in loader.functions.most_common(1):
        most = "most" if lasts > length(loader.spans) / 2 else "the largest part"
        does += f", {most} of that in {short_name(name)}"
    return _Entry(change, "data_loading", _sum(place), f"{who} inside the DataLoader{does}")


def _communicates(found: TraceTime, place: str, collectives: Counter[str], because: str) -> _Entry:
    names = [name for name, lasts in collectives.most_common(3) if lasts > 0.05 * collectives.total()]
    because = because.format(listed(names) if names else "of an unknown kind")
    computing = _rest(place) if found.cpu else _sum(on_gpu.COMPUTE, on_gpu.WITHIN)
    beside = _less(computing, on_gpu.HIDDEN)  # what hides none yet
    change, saves, more = "overlap communication with computing", _least(_sum(place), beside), ""
    share, most = found.share(place), total(found.groups, beside)
    if most < _LEAST:
        change, saves = "send less, or less often: next to nothing runs that could hide communication", _sum(place)
    elif share > most:
        more = f"It takes {format_percent(share)}, more than there is to hide it behind: to save more, send less."
    sharded = sum(lasts for name, lasts in collectives.items() if name in ("all_gather", "reduce_scatter"))
    lesson = "fsdp" if sharded > 0.5 * collectives.total() else "ddp"
    return _Entry(change, lesson, saves, because, speaks=_sum(place), more=more)


def _on_gpu(found: TraceTime) -> list[_Entry]:
    collectives: Counter[str] = sum((gpu.collectives for gpu in found.gpus), Counter())
    hidden = found.share(on_gpu.HIDDEN)
    sends = "communication ({}) ran with no computing beside it (waits for slower ranks are in it; "
    sends += f"{format_percent(hidden)} of the time more is hidden)" if hidden >= 0.001 else "none is hidden)"
    return [
        _loads(found, on_gpu.DATA, "the GPU was idle while the program was"),
        *_waits_for_the_host(found),
        _communicates(found, on_gpu.SENDS, collectives, sends),
        _Entry(
            "keep the allocator from asking the driver for memory in every step",
            "caching_allocator",
            _sum(on_gpu.ALLOC),
            "the GPU was idle while the program allocated or freed memory with the driver",
        ),
        _Entry(
            "copy from pinned memory, with non_blocking=True",
            "pinned_memory",
            _sum(on_gpu.PAGEABLE),
            "copies from pageable memory, or the CPU's preparing them, held the GPU up",
        ),
        _Entry(
            "compute in float32 (or less)",
            "mixed_precision",
            _sum(on_gpu.DOUBLE),
            "kernels ran in float64, as their names say",
            _LEAST_OF_KERNELS,
        ),
        *_in_16_bits(found),
    ]


def _in_16_bits(found: TraceTime) -> list[_Entry]:
    gpus = [found.trace.gpus[gpu.device] for gpu in found.gpus]
    known = [gpu.capability for gpu in gpus if gpu.capability]
    if any(capability < _TENSOR_CORES for capability in known):
        return []
    how = "autocast"
    if len(known) == len(gpus):
        how = "autocast to bfloat16" if min(known) >= _BFLOAT16 else "autocast to float16, with a GradScaler"
    # Products in TF32 run at half the rate of those in 16 bits, and a kernel that moves data moves half of it.
    half = {on_gpu.TF32: "products in TF32", on_gpu.OTHERS: "elementwise kernels"}
    halved = [name for what, name in half.items() if found.share(what)]
    because = f"matrix products ran in {'fp32' if found.share(on_gpu.FP32) else 'fp32 as TF32'}"
    because += f"; of {listed(halved)} half can go at most" if halved else ""
    speaks: Amount = lambda step: step.get(on_gpu.FP32) + step.get(on_gpu.TF32) / 2  # noqa: E731
    saves: Amount = lambda step: speaks(step) + step.get(on_gpu.OTHERS) / 2  # noqa: E731
    return [_Entry(f"compute in 16 bits ({how})", "mixed_precision", saves, because, _LEAST_OF_KERNELS, speaks)]


def _waits_for_the_host(found: TraceTime) -> list[_Entry]:
    """Where the host came late: since it had waited for the device, by its launches, or by other work of its own."""
    groups, gpus, (steps, each) = found.groups, found.gpus, _steps(found)
    launches = sum(gpu.launches for gpu in gpus) / steps
    waits, late = _sum(on_gpu.SYNC), _sum(on_gpu.LAUNCH)
    who: Counter[str] = sum((gpu.waits for gpu in gpus), Counter())
    where = "".join(f" in {name}" for name, _ in who.most_common(1))
    because = f"the GPU ran dry while the program waited for it{where}, and idled until more was launched"
    saves = _least(waits, _rest(*on_gpu.IDLE))
    entries = [_Entry("let the program run ahead of the GPU", "host_device_syncs", saves, because, speaks=waits)]
    # A launch takes 10 us with its operator, and some 50 with much Python around it: more, outside operators, is other
    # work, of which a compiler knows nothing.
    waited, inside = sum(late(step) for group in groups for step in group.steps), sum(gpu.in_operators for gpu in gpus)
    because = f"the GPU had nothing to do until the CPU made its next launch, of {launches:,.0f} {each}"
    if waited > _MOST_PER_LAUNCH_US * launches * steps and inside < waited / 2:
        change = "find what the CPU does between its launches, and do less of it"
        more = "With with_stack=True a trace shows in which function of yours."
        return [*entries, _Entry(change, "profiler", late, because, more=more)]
    change = "launch less: compile the step"
    change += ", with CUDA graphs (mode='reduce-overhead')" if found.trace.nvidia else ""
    more = ""
    if total(groups, late) > _SMALL_BATCH:
        more = "A larger batch, if memory is left, gives each launch more to do."
    return [*entries, _Entry(change, "torch_compile", late, because, more=more)]


def _outside(found: TraceTime, operators: Counter[str], steps: int) -> str:
    """Which operators run outside the model, and where."""
    functions: Counter[str] = Counter()
    for tid, spans in found.origin.own.items():
        functions += on_cpu.own_functions(found.trace, tid, spans)
    where = "".join(f" ({short_name(name)})" for name, _ in functions.most_common(1))
    most = [f"{name or 'others'} ({count / steps:,.0f})" for name, count in operators.most_common(2)]
    return f"{where}, mostly {listed(most)}"


def _on_cpu(found: TraceTime) -> list[_Entry]:
    cpu, (steps, each), marks = found.cpu, _steps(found), max(1, found.marks)
    assert cpu is not None
    because = "the program waited for communication ({}) with no operator running beside it (waits for slower ranks "
    entries = [
        _loads(found, on_cpu.LOADING, "the program was"),
        _communicates(found, on_cpu.COMMUNICATION, cpu.collectives, f"{because}are in it)"),
    ]
    if max(group.share(_sum(on_cpu.SMALL)) for group in found.groups) < _LEAST_MANY:
        return entries
    if cpu.own_small / steps >= _LEAST_SMALL:
        calls = found.origin.calls
        because = f"{calls.total() / marks:,.0f} calls of operators {each} come from your own code outside the model"
        because += f"{_outside(found, calls, marks)}, with Python around them"
        entries.append(_Entry(_CALL_FEWER, "launch_bound", _sum(on_cpu.OF_OWN), because, _LEAST_MANY))
    if cpu.small / steps >= _LEAST_SMALL:
        because = f"{cpu.small / steps:,.0f} operators {each} took under 20 µs of their own, with Python between them"
        change, saves = "fuse small operators: compile the model", _sum(on_cpu.OF_MODEL)
        more = "" if found.origin.known else "The trace does not tell whether they are the model's, or your own code's."
        entries.append(_Entry(change, "torch_compile", saves, because, _LEAST_MANY, more=more))
    return entries
