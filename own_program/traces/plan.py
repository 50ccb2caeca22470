"""What to change, by what a trace shows: each entry with its evidence, and with no more than it can save."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from course_utils.show.advice import Advice
from course_utils.show.formats import format_percent, format_seconds, listed, short_name
from own_program.traces import cpu as on_cpu
from own_program.traces import shares as on_gpu
from own_program.traces.columns import Amount, Reading, total
from own_program.traces.events import PYTHON
from own_program.traces.intervals import length

COMPILE_ONCE = "compile once, not in each step"
_CALL_FEWER = "call fewer operators outside the model, each on more data"
_LEAST = 0.025  # of a step: what saves less at most is no entry
_LEAST_OF_KERNELS = 0.05  # a kernel does something; a lesson only makes it faster
_LEAST_MANY = 0.10  # and of many small operators or kernels
_LEAST_SMALL = 200  # small operators in a step, from which on their number is what costs
_LEAST_UPDATES = 100
_LEAST_OWN = 100  # launches outside the model
_LEAST_OF_ANOMALY = 0.001  # its checks are the smaller part of what it takes
_MOST_PER_LAUNCH_US = 100.0  # that the GPU waits for each
_LONG_WAIT_US = 5e5  # for one launch, once
_SMALL_BATCH = 0.25  # of a step that the GPU waits for launches: more work in each would cost little
_MOST_ENTRIES = 5
_CALLERS = 3
_ENOUGH_STEPS = 4  # to say that one of them is the exception
_TENSOR_CORES, _BFLOAT16 = (7, 0), (8, 0)  # compute capabilities that have them


_ALONE = "ran with no computing beside them"
_ON_GPU = (
    (
        on_gpu.ALLOC,
        "caching_allocator",
        "keep the allocator from asking the driver for memory in every step",
        "the GPU was idle while the program allocated or freed memory with the driver",
    ),
    (
        on_gpu.PAGEABLE,
        "pinned_memory",
        "copy from pinned memory, with non_blocking=True",
        "copies from pageable memory, or the CPU's preparing them, held the GPU up",
    ),
    (on_gpu.PINNED, "pinned_memory", "copy the next batch while the GPU computes", f"copies to the GPU {_ALONE}"),
    (on_gpu.TO_HOST, "host_device_syncs", "copy fewer results to the host", f"copies to the host {_ALONE}"),
    (on_gpu.WITHIN, "profiler", "copy less within the GPU's memory", f"copies within the GPU's memory {_ALONE}"),
    (
        on_gpu.ATTENTION,
        "flash_attention",
        "call scaled_dot_product_attention",
        "a softmax between two matrix products, each a kernel of its own, is attention that writes its scores out (the "
        "products are counted, too, and remain in part)",
    ),
    (
        on_gpu.OPTIMIZER,
        "torch_compile",
        "update all parameters in one kernel (fused=True, or a compiled optimizer)",
        "the optimizer's step ran as several kernels for each update",
    ),
)


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


def plan_of(reading: Reading) -> tuple[Advice, ...]:
    """The entries of a plan, the one that can save the most first; none where nothing stands out."""
    if reading.trace.cut or (reading.cpu and reading.cpu.for_gpu):  # what the device did is not in the file
        return ()
    if reading.anomaly.checks:  # it slows more than a trace shows, so that all else looks different without it
        found = _advice(reading, _anomaly(reading))
        return (replace(found, of=f"{found.of}, {_of_anomaly(reading)} alone"),) if found else ()
    entries, steady = [(reading, entry) for entry in _compiles_anew(reading)], reading.without_warm_up()
    if steady.columns:
        entries += [(steady, entry) for entry in (_on_cpu(steady) if reading.cpu else _on_gpu(steady))]
    entries.sort(key=lambda each: -total(each[0].columns, each[1].saves))
    return tuple(filter(None, (_advice(*each) for each in entries)))[:_MOST_ENTRIES]


def _advice(reading: Reading, entry: _Entry) -> Advice | None:
    """An entry with its numbers for each kind of steps, if it can save enough of one."""
    columns = sorted(reading.columns, key=lambda column: -column.share(entry.saves))
    named = [column for column in columns if column.share(entry.saves) >= 0.001][:4]
    evidence = entry.speaks or entry.saves
    if not named or min(max(c.share(amount) for c in columns) for amount in (evidence, entry.saves)) < entry.least:
        return None
    first, only = named[0], reading.one_kind
    of = "a step" if only and not first.whole else first.name
    of += "".join(f", and at most {_percent(column.share(entry.saves))} of {column.name}" for column in named[1:])
    of += ", and next to nothing of the others" if len(named) < len(columns) <= 4 else ""
    times = first.times(evidence)
    times += "" if first.whole else " a step" if only else f" in {first.name}"
    amounts = [entry.saves(shares) for shares in first.shares]
    if len(amounts) >= _ENOUGH_STEPS and max(amounts) > sum(amounts) / 2:
        times += f", most of it in step {first.kind.steps[amounts.index(max(amounts))].number} alone"
    because = f"{entry.because[0].upper()}{entry.because[1:]}: {times}.{entry.more and ' '}{entry.more}"
    return Advice(entry.change, because, entry.lesson, min(1.0, first.share(entry.saves)), "at most", of)


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):.15g}%"


def _sum(*places: str) -> Amount:
    return lambda shares: sum(map(shares.get, places))


def _rest(*places: str) -> Amount:
    """What is left of a step: nothing more can be hidden behind it."""
    return lambda shares: max(0.0, shares.lasts - sum(map(shares.get, places)))


def _less(amount: Amount, what: str) -> Amount:
    return lambda shares: max(0.0, amount(shares) - shares.get(what))


def _least(some: Amount, other: Amount) -> Amount:
    return lambda shares: min(some(shares), other(shares))


def _steps(reading: Reading) -> tuple[int, str]:
    """How many steps were read, and what a number for each of them is called."""
    whole = any(column.whole for column in reading.columns)
    return sum(len(part.of) for part in reading.parts), "in all" if whole else "a step"


def _of_anomaly(reading: Reading) -> str:
    return f"its checks{' and stacks' if reading.anomaly.stacks else ''}"


def _anomaly(reading: Reading) -> _Entry:
    mode, marks = reading.anomaly, reading.marks
    because = f"{mode.checks / max(1, marks):,.0f} NaN checks {'a step' if marks else 'in all'} ran in the backward "
    because += f"pass{', and Python stacks were noted for its nodes' if mode.stacks else ''}"
    more = "torch.is_anomaly_enabled() tells where it is on. Record again without it: the rest looks different then."
    if not mode.stacks:
        more += (
            " It also notes a Python stack for each operator of the forward pass, which often takes longer: that is a "
            "part of these operators' own time, and shows in a trace with with_stack=True alone."
        )
    amount = _sum(on_gpu.ANOMALY)
    return _Entry("switch anomaly mode off", "your_own_program", amount, because, _LEAST_OF_ANOMALY, more=more)


def _compiles_anew(reading: Reading) -> list[_Entry]:
    place = on_cpu.COMPILING if reading.cpu else on_gpu.COMPILING
    steps = [shares for column in reading.columns for shares in column.shares]
    hit = sum(shares.get(place) > _LEAST * shares.lasts for shares in steps)
    if hit < 2 or 2 * hit < len(steps):  # else a longer warm-up does
        return []
    because, more = f"torch.compile worked in {hit} of {len(steps)} steps", "TORCH_LOGS=recompiles says why."
    return [_Entry(COMPILE_ONCE, "torch_compile", _sum(place), because, more=more)]


def _loads(reading: Reading, place: str, who: str) -> _Entry:
    loading = reading.loading
    change, does = "give the DataLoader more workers, or less work", ", whose workers' part is not in the file"
    if loading.alone:
        change, does = "load batches in worker processes (num_workers)", ", which loads in the main process"
    if loading.fetches:
        change = "index the tensors once a batch, not sample by sample"
        count = f"{loading.fetches / max(1, reading.marks):,.0f} times {_steps(reading)[1]}"
        does = f", which called {loading.operator} {count}: it "
        does += "fetches samples one by one from tensors in memory"
    for name, lasts in loading.functions.most_common(1):
        most = "most" if lasts > length(loading.spans) / 2 else "the largest part"
        does += f", {most} of that in {short_name(name)}"
    return _Entry(change, "data_loading", _sum(place), f"{who} inside the DataLoader{does}")


def _communicates(reading: Reading, place: str, collectives: Counter[str], because: str) -> _Entry:
    names = [name for name, lasts in collectives.most_common(3) if lasts > 0.05 * collectives.total()]
    because = because.format(listed(names) if names else "of an unknown kind")
    computing = _rest(place) if reading.cpu else _sum(on_gpu.COMPUTE, on_gpu.WITHIN)
    beside = _less(computing, on_gpu.HIDDEN)  # what hides none yet
    change, saves, more = "overlap communication with computing", _least(_sum(place), beside), ""
    share, most = total(reading.columns, _sum(place)), total(reading.columns, beside)
    if most < _LEAST:
        change, saves = "send less, or less often: next to nothing runs that could hide communication", _sum(place)
    elif share > most:
        more = f"It takes {format_percent(share)}, more than there is to hide it behind: to save more, send less."
    sharded = sum(lasts for name, lasts in collectives.items() if name in ("all_gather", "reduce_scatter"))
    lesson = "fsdp" if sharded > 0.5 * collectives.total() else "ddp"
    return _Entry(change, lesson, saves, because, speaks=_sum(place), more=more)


def _compiles(reading: Reading, *parts: tuple[Amount, float, str, str], more: str = "") -> list[_Entry]:
    """One entry for all that a compiler takes away; each part has the least that speaks for it, change and evidence."""
    more = f"{more} {_whose(reading)}".strip()
    speak = [part for part in parts if max(column.share(part[0]) for column in reading.columns) >= part[1]]
    if not speak:
        return []
    saves: Amount = lambda shares: sum(part[0](shares) for part in parts)  # noqa: E731
    speaks: Amount = lambda shares: sum(part[0](shares) for part in speak)  # noqa: E731
    return [_Entry(speak[0][2], "torch_compile", saves, "; ".join(part[3] for part in speak), 0.0, speaks, more)]


def _on_gpu(reading: Reading) -> list[_Entry]:
    collectives: Counter[str] = sum((device.collectives for device in reading.devices), Counter())
    hidden = total(reading.columns, _sum(on_gpu.HIDDEN))
    sends = "communication ({}) ran with no computing beside it (waits for slower ranks are in it; "
    sends += f"{format_percent(hidden)} of the time more is hidden)" if hidden >= 0.001 else "none is hidden)"
    found = {place: _Entry(change, lesson, _sum(place), because) for place, lesson, change, because in _ON_GPU}
    for place in (on_gpu.WITHIN, on_gpu.ATTENTION, on_gpu.OPTIMIZER):
        found[place].least = _LEAST_OF_KERNELS
    found[on_gpu.PINNED].speaks = _sum(on_gpu.PINNED)
    found[on_gpu.PINNED].saves = _least(_sum(on_gpu.PINNED), _rest(on_gpu.PINNED))
    found[on_gpu.WITHIN].because += _copied(reading)
    found[on_gpu.OPTIMIZER].speaks = _sum(on_gpu.OPTIMIZER)
    found[on_gpu.OPTIMIZER].saves = _sum(on_gpu.OPTIMIZER, on_gpu.OPTIMIZER_LAUNCH)
    return [
        _loads(reading, on_gpu.DATA, "the GPU was idle while the program was"),
        *_waits_for_the_host(reading),
        _communicates(reading, on_gpu.SENDS, collectives, sends),
        *found.values(),
        _double("kernels ran in float64, as their names say"),
        *_in_16_bits(reading),
    ]


def _double(because: str) -> _Entry:
    return _Entry("compute in float32 (or less)", "mixed_precision", _sum(on_gpu.DOUBLE), because, _LEAST_OF_KERNELS)


def _in_16_bits(reading: Reading) -> list[_Entry]:
    gpus = [reading.trace.gpus[device.device] for device in reading.devices]
    known = [gpu.capability for gpu in gpus if gpu.capability]
    if any(capability < _TENSOR_CORES for capability in known):
        return []
    how = "autocast"
    if len(known) == len(gpus):
        how = "autocast to bfloat16" if min(known) >= _BFLOAT16 else "autocast to float16, with a GradScaler"
    # Products in TF32 run at half the rate of those in 16 bits, and a kernel that moves data moves half of it.
    half = {on_gpu.TF32: "products in TF32", on_gpu.OTHERS: "elementwise kernels"}
    halved = [name for what, name in half.items() if total(reading.columns, _sum(what))]
    because = f"matrix products ran in {'fp32' if total(reading.columns, _sum(on_gpu.FP32)) else 'fp32 as TF32'}"
    because += f"; of {listed(halved)} half can go at most" if halved else ""
    speaks: Amount = lambda shares: shares.get(on_gpu.FP32) + shares.get(on_gpu.TF32) / 2  # noqa: E731
    saves: Amount = lambda shares: speaks(shares) + shares.get(on_gpu.OTHERS) / 2  # noqa: E731
    return [_Entry(f"compute in 16 bits ({how})", "mixed_precision", saves, because, _LEAST_OF_KERNELS, speaks)]


def _copied(reading: Reading) -> str:
    """Which operators copy within the GPU's memory, and where."""
    copied: Counter[tuple[str, str]] = sum((device.copied for device in reading.devices), Counter())
    named = [
        f"{operator}{f' in {short_name(line)}' if line else ''} ({format_percent(lasts / copied.total())} of them)"
        for (operator, line), lasts in copied.most_common(3)
        if operator and lasts > 0.05 * copied.total()
    ]
    return f", made by {listed(named)}" if named else "; which operator makes them, the file does not say"


def _waits_for_the_host(reading: Reading) -> list[_Entry]:
    """Where the host came late: since it had waited for the device, by its launches, or by other work of its own."""
    columns, devices, (steps, each) = reading.columns, reading.devices, _steps(reading)
    launches, graphs = (sum(device.launches for device in devices) / steps, sum(d.graphs for d in devices) / steps)
    waits, late = _sum(on_gpu.SYNC), _sum(on_gpu.LAUNCH)
    # What the host does by itself for longer than the device works, no running ahead can hide.
    slow = total(columns, _sum(on_gpu.AFTER_SYNC)) > total(columns, _rest(*on_gpu.IDLE))
    if slow:
        waits, late = _less(waits, on_gpu.AFTER_SYNC), _sum(on_gpu.LAUNCH, on_gpu.AFTER_SYNC)
    because = f"the GPU ran dry while the program waited for it{_waits(reading)}, and idled until more was launched"
    saves = _least(waits, _rest(*on_gpu.IDLE))
    entries = [_Entry("let the program run ahead of the GPU", "host_device_syncs", saves, because, speaks=waits)]
    parts = [
        (
            _sum(on_gpu.SHORT),
            _LEAST_OF_KERNELS,
            "run fewer kernels, each for longer: compile the model",
            "the GPU was idle for moments from one short kernel to the next, which had been launched",
        ),
        (
            _sum(on_gpu.POINTWISE),
            _LEAST_MANY,
            "fuse elementwise kernels: compile the model",
            "elementwise kernels ran one after the other, each reading and writing all of its data",
        ),
    ]
    # A launch takes 10 us with its operator, and some 50 with much Python around it: more, outside operators, is other
    # work, of which a compiler knows nothing.
    waited = sum(late(shares) for column in columns for shares in column.shares)
    inside, longest = sum(device.in_operators for device in devices), max(device.longest for device in devices)
    until, of = "the GPU had nothing to do until the CPU", f" made its next launch, of {launches:,.0f} {each}"
    of += f" ({graphs:,.0f} of graphs)" if graphs >= 1 else ""
    once = longest > max(_LONG_WAIT_US, waited / 2)
    if once or graphs * 2 > launches or (waited > _MOST_PER_LAUNCH_US * launches * steps and inside < waited / 2):
        change = "find what the CPU does between its launches, and do less of it"
        more = "" if reading.trace.events[PYTHON] else "Record with with_stack=True to see in which function of yours."
        if once:
            change = f"find what the CPU did in one wait of {format_seconds(longest / 1e6)}, such as compiling"
            more = f"If it is a first use, later steps do without. {more}".strip()
        because = until + _meanwhile(reading, slow, waited) + of
        return [*entries, *_compiles(reading, *parts), _Entry(change, "profiler", late, because, more=more)]
    operators: Counter[str] = sum((device.own_launches for device in devices), Counter())
    own, models = operators.total() / steps, late
    if own >= _LEAST_OWN:
        because = f"{until} made its next launch: {own:,.0f} of {launches:,.0f} {each} come from "
        because += f"your own code outside the model{_outside(reading, operators, steps)}"
        saves, speaks = _sum(on_gpu.OWN_LAUNCH, on_gpu.OWN_KERNELS), _sum(on_gpu.OWN_LAUNCH)
        entries.append(_Entry(_CALL_FEWER, "launch_bound", saves, because, speaks=speaks))
        of, models = (
            f" made its next launch, of {launches - own:,.0f} {each} for the model",
            _less(late, on_gpu.OWN_LAUNCH),
        )
    makers = {reading.trace.gpus[device.device].maker for device in devices}
    change = "launch less: compile the step"
    if makers <= {"NVIDIA", "AMD"}:
        change += ", with CUDA graphs (mode='reduce-overhead')" if "AMD" not in makers else " (mode='reduce-overhead')"
    share = total(columns, models)
    more = "A larger batch, if memory is left, gives each launch more to do." if share > _SMALL_BATCH else ""
    parts.insert(0, (models, _LEAST, change, until + of))
    return [*entries, *_compiles(reading, *parts, more=more)]


def _waits(reading: Reading) -> str:
    waits: Counter[tuple[str, str, str, str]] = sum((device.waits for device in reading.devices), Counter())
    most, by = Counter[tuple[str, str, str]](), defaultdict[tuple[str, str, str], list[str]](list)
    for (call, operator, caller, line), lasts in waits.most_common():
        most[call, operator, line] += lasts
        by[call, operator, line] += [caller] if caller != operator else []
    for where, _ in most.most_common(1):
        call, operator, line = where
        callers = f", called by {listed(by[where][:_CALLERS])}" if by[where] else ""
        return f" in {f'{operator} ({call})' if operator else call}{callers}{f', {line}' if line else ''}"
    return ""


def _meanwhile(reading: Reading, slow: bool, waited: float) -> str:
    """In which of the program's functions the CPU was while the GPU waited for it, if mostly in one."""
    functions: Counter[str] = Counter()
    for device in reading.devices:
        for (tid, had_waited), spans in device.silent.items():
            if slow or not had_waited:
                functions += on_cpu.own_functions(reading.trace, tid, spans)
    name, lasts = next(iter(functions.most_common(1)), ("", 0.0))
    return f", most of that time in {short_name(name)}," if lasts > waited / 2 else ""


def _whose(reading: Reading) -> str:
    """What is unknown of operators that a compiler may take, where the trace does not tell the model's."""
    if reading.origin.known:
        return ""
    if reading.trace.events[PYTHON]:
        return "No nn.Module called them: compile the function that does."
    return "Whether they are the model's, or your own code's around it, a recording with with_stack=True tells."


def _outside(reading: Reading, operators: Counter[str], steps: int) -> str:
    """Which operators run outside the model, and where."""
    functions: Counter[str] = Counter()
    for tid, spans in reading.origin.own.items():
        functions += on_cpu.own_functions(reading.trace, tid, spans)
    where = "".join(f" ({short_name(name)})" for name, _ in functions.most_common(1))
    most = [f"{name or 'others'} ({count / steps:,.0f})" for name, count in operators.most_common(2)]
    return f"{where}, mostly {listed(most)}"


def _on_cpu(reading: Reading) -> list[_Entry]:
    found, columns, (steps, each) = reading.cpu, reading.columns, _steps(reading)
    assert found is not None
    collectives: Counter[str] = Counter()
    for name, lasts in found.collectives.items():
        short = next((each for each, pattern in on_gpu.COLLECTIVES.items() if pattern.search(name)), name)
        collectives[short] += lasts  # type: ignore[assignment]
    because = "the program waited for communication ({}) with no operator running beside it (waits for slower ranks "
    entries = [
        _loads(reading, on_cpu.LOADING, "the program was"),
        _communicates(reading, on_cpu.COMMUNICATION, collectives, f"{because}are in it)"),
        _double("operators ran on tensors in float64"),
    ]
    if found.updates / steps >= _LEAST_UPDATES and not found.fused:
        because = f"the optimizer called {found.updates / steps:,.0f} operators {each}"
        change = "update all parameters in one call (fused=True, or a compiled optimizer)"
        entries.append(_Entry(change, "torch_compile", _sum(on_cpu.OPTIMIZING), because, _LEAST_MANY))
    small = max(column.share(_sum(on_cpu.SMALL)) for column in columns) >= _LEAST_MANY
    if small and found.own_small / steps >= _LEAST_SMALL:
        calls = reading.origin.calls
        because = f"{calls.total() / max(1, reading.marks):,.0f} calls of operators {each} come from your own code "
        because += "outside the model"
        because += f"{_outside(reading, calls, max(1, reading.marks))}, with Python around them"
        entries.append(_Entry(_CALL_FEWER, "launch_bound", _sum(on_cpu.OF_OWN), because, _LEAST_MANY))
    if small and found.small / steps >= _LEAST_SMALL:
        because = f"{found.small / steps:,.0f} operators {each} took under 20 µs of their own, with Python between them"
        change, more = "fuse small operators: compile the model", _whose(reading)
        saves = _sum(on_cpu.OF_MODEL)
        entries.append(_Entry(change, "torch_compile", saves, because, _LEAST_MANY, more=more))
    return entries
