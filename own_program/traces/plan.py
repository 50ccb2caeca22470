"""What to change, by what a trace shows: each entry with its evidence, and with no more than it can save."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from course_utils.show.advice import Advice
from course_utils.show.formats import format_percent, format_seconds, listed, short_name
from own_program.traces import cpu as on_cpu
from own_program.traces import shares as on_gpu
from own_program.traces.columns import Amount, Column, Reading, total
from own_program.traces.events import MARK, PYTHON
from own_program.traces.intervals import length
from own_program.traces.steps import marked_steps

COMPILE_ONCE = "compile once, not in each step"
_LEAST = 0.025  # of a step: what saves less at most is no entry
_LEAST_OF_KERNELS = 0.05  # a kernel does something; a lesson only makes it faster
_LEAST_POINTWISE = 0.10  # and of what a CPU's many small operators take
_LEAST_SMALL = 200  # small operators in a step, from which on their number is what costs
_LEAST_UPDATES = 100
_LEAST_OF_ANOMALY = 0.001  # its checks are the smaller part of what it takes
_MOST_PER_LAUNCH_US = 100.0  # that the GPU waits for each
_LONG_WAIT_US = 1e5  # for one launch, once
_SMALL_BATCH = 0.25  # of a step that the GPU waits for launches: more work in each would cost little
_MOST_ENTRIES = 5
_ENOUGH_STEPS = 4  # to say that one of them is the exception
_TENSOR_CORES, _BFLOAT16 = (7, 0), (8, 0)  # compute capabilities that have them


@dataclass
class _Entry:
    """What would be an entry if what speaks for it, by default all that it can save, takes enough of a step."""

    saves: Amount
    change: str
    because: str
    lesson: str
    least: float = _LEAST
    speaks: Amount | None = None
    more: str = ""  # sentences that follow the evidence


def plan_of(reading: Reading) -> tuple[Advice, ...]:
    """The entries of a plan, the one that can save the most first; none where nothing stands out."""
    if reading.trace.cut or (reading.cpu and reading.cpu.for_gpu):  # what the device did is not in the file
        return ()
    entries = [*_compiles_anew(reading), *(_on_cpu(reading) if reading.cpu else _on_gpu(reading))]
    entries.sort(key=lambda entry: -total(reading.columns, entry.saves))
    found = filter(None, (_advice(reading, entry) for entry in entries))
    # Anomaly mode slows more than a trace shows, so that all other entries look different without it.
    return tuple([*_anomaly(reading), *found][:_MOST_ENTRIES])


def _advice(reading: Reading, entry: _Entry) -> Advice | None:
    """An entry with its numbers for each kind of steps, if it can save enough of one."""
    columns = reading.columns
    if max(column.share(entry.speaks or entry.saves) for column in columns) < entry.least:
        return None
    ranked = sorted(columns, key=lambda column: -column.share(entry.saves))
    named = [column for column in ranked if column.share(entry.saves) >= 0.001][:4]
    if not named:
        return None
    first = named[0]
    of = _of(first, len(columns) == 1)
    of += "".join(f", and at most {_percent(c.share(entry.saves))} of {_of(c, False)}" for c in named[1:])
    if len(named) < len(columns) <= 4:
        of += ", and next to nothing of the others"
    times = first.times(entry.saves)
    if not first.whole:
        times += " a step" if len(columns) == 1 else f" in {first.name}"
    amounts = [entry.saves(shares) for shares in first.shares]
    if len(amounts) >= _ENOUGH_STEPS and max(amounts) > sum(amounts) / 2:
        times += f", most of it in step {first.kind.steps[amounts.index(max(amounts))].number} alone"
    because = f"{entry.because[0].upper()}{entry.because[1:]}: {times}.{entry.more and ' '}{entry.more}"
    return Advice(entry.change, because, entry.lesson, min(1.0, first.share(entry.saves)), "at most", of)


def _of(column: Column, only: bool) -> str:
    return "a step" if only and not column.whole else column.name


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):.15g}%"


def _sum(*places: str) -> Amount:
    """The time of some places, without what anomaly mode has of them."""
    return lambda shares: sum(shares.get(place) - shares.anomaly.get(place, 0.0) for place in places)


def _rest(*places: str) -> Amount:
    """What is left of a step: nothing more can be hidden behind it."""
    return lambda shares: max(0.0, shares.lasts - sum(map(shares.get, places)))


def _least(some: Amount, other: Amount) -> Amount:
    return lambda shares: min(some(shares), other(shares))


def _anomaly(reading: Reading) -> list[Advice]:
    mode, marks = reading.anomaly, len(marked_steps(reading.trace.events[MARK]))
    if not mode.checks:
        return []
    because = (
        f"{mode.checks / max(1, marks):,.0f} NaN checks {'a step' if marks else 'in all'} ran in the backward pass"
    )
    because += ", and Python stacks were noted for its nodes" if mode.stacks else ""
    more = "torch.is_anomaly_enabled() tells where it is on."
    if not mode.stacks:
        more += (
            " It also notes a Python stack for each operator of the forward pass, which often takes longer: that is a "
            "part of these operators' own time, and shows in a trace with with_stack=True alone."
        )
    amount: Amount = lambda shares: shares.get(on_gpu.ANOMALY)  # noqa: E731
    entry = _Entry(amount, "switch anomaly mode off", because, "your_own_program", _LEAST_OF_ANOMALY, more=more)
    found = _advice(reading, entry)
    return [replace(found, of=f"{found.of}, its checks{' and stacks' if mode.stacks else ''} alone")] if found else []


def _compiles_anew(reading: Reading) -> list[_Entry]:
    place = on_cpu.COMPILING if reading.cpu else on_gpu.COMPILING
    steps = [shares for column in reading.columns for shares in column.shares]
    hit = sum(shares.get(place) > _LEAST * shares.lasts for shares in steps)
    if hit < 2 or 2 * hit < len(steps):  # else a longer warm-up does
        return []
    because, more = f"torch.compile worked in {hit} of {len(steps)} steps", "TORCH_LOGS=recompiles says why."
    return [_Entry(_sum(place), COMPILE_ONCE, because, "torch_compile", more=more)]


def _loads(reading: Reading, place: str, who: str) -> _Entry:
    loading = reading.loading
    change, does = "give the DataLoader more workers, or less work", ", whose workers' part is not in the file"
    if loading.alone:
        change, does = "load batches in worker processes (num_workers)", ", which loads in the main process"
    if loading.fetches:
        change = "index the tensors once a batch, not sample by sample"
        steps = max(1, len(marked_steps(reading.trace.events[MARK])))
        does = f", which called {loading.operator} {loading.fetches / steps:,.0f} times a step: it fetches samples one "
        does += "by one from tensors in memory"
    name, lasts = next(iter(loading.functions.most_common(1)), ("", 0.0))
    most = "most" if lasts > length(loading.spans) / 2 else "the largest part"
    does += f", {most} of that in {short_name(name)}" if name else ""
    return _Entry(_sum(place), change, f"{who} inside the DataLoader{does}", "data_loading")


def _communicates(reading: Reading, place: str, collectives: Counter[str], because: str) -> _Entry:
    sends = _sum(place)
    # Communication may run beside all else of a step but what waits for another GPU.
    waits: Amount = lambda shares: shares.get(on_gpu.QUEUED) - shares.get(on_gpu.SHORT)  # noqa: E731
    rest = _rest(place, on_gpu.HIDDEN)
    beside: Amount = lambda shares: max(0.0, rest(shares) - waits(shares))  # noqa: E731
    change, more = "overlap communication with computing", ""
    if total(reading.columns, sends) > total(reading.columns, beside):
        share = format_percent(total(reading.columns, sends))
        more = f"It takes {share}, more than there is to hide it behind: to save more, send less."
    sharded = sum(lasts for name, lasts in collectives.items() if name in ("all_gather", "reduce_scatter"))
    lesson = "fsdp" if sharded > 0.5 * collectives.total() else "ddp"
    return _Entry(_least(sends, beside), change, because, lesson, more=more)


def _double(because: str) -> _Entry:
    return _Entry(_sum(on_gpu.DOUBLE), "compute in float32 (or less)", because, "mixed_precision", _LEAST_OF_KERNELS)


def _names(collectives: Counter[str]) -> str:
    names = [name for name, lasts in collectives.most_common(3) if lasts > 0.05 * collectives.total()]
    return listed(names) if names else "of an unknown kind"


_FEWER = "call fewer operators outside the model: one for the whole batch"
_DOUBT = "Whether they are the model's, or your own code's around it, a recording with with_stack=True tells."


def _compiles(reading: Reading, *parts: tuple[Amount, float, str, str], more: str = "") -> list[_Entry]:
    """One entry for all that a compiler takes away; each part has the least that speaks for it, change and evidence."""
    speak = [part for part in parts if max(column.share(part[0]) for column in reading.columns) >= part[1]]
    if not speak:
        return []
    amount: Amount = lambda shares: sum(part[0](shares) for part in parts)  # noqa: E731
    return [_Entry(amount, speak[0][2], "; ".join(part[3] for part in speak), "torch_compile", 0.0, more=more)]


def _on_gpu(reading: Reading) -> list[_Entry]:
    collectives: Counter[str] = sum((device.collectives for device in reading.devices), Counter())
    hidden = total(reading.columns, lambda shares: shares.get(on_gpu.HIDDEN))
    beside = f"; {format_percent(hidden)} of the time more is hidden" if hidden >= 0.001 else "; none is hidden"
    sends = f"communication ({_names(collectives)}) ran with no computing beside it "
    sends += f"(waits for slower ranks are in it{beside})"
    entries = [
        _loads(reading, on_gpu.DATA, "the GPU was idle while the program was"),
        *_waits_for_the_host(reading),
        _Entry(
            _sum(on_gpu.ALLOC),
            "keep the allocator from asking the driver for memory in every step",
            "the GPU was idle while the program allocated or freed memory with the driver",
            "caching_allocator",
        ),
        _Entry(
            _sum(on_gpu.PAGEABLE),
            "copy from pinned memory, with non_blocking=True",
            "copies from pageable memory, or the CPU's preparing them, held the GPU up",
            "pinned_memory",
        ),
        _Entry(
            _least(_sum(on_gpu.PINNED), _rest(on_gpu.PINNED)),
            "copy the next batch while the GPU computes",
            "copies to the GPU ran with no computing beside them",
            "pinned_memory",
        ),
        _Entry(
            _sum(on_gpu.TO_HOST),
            "copy fewer results to the host",
            "copies to the host ran with no computing beside them",
            "host_device_syncs",
        ),
        _communicates(reading, on_gpu.SENDS, collectives, sends),
        _Entry(
            _sum(on_gpu.WITHIN),
            "copy less within the GPU's memory",
            f"copies within the GPU's memory ran with no computing beside them{_copied(reading)}",
            "profiler",
            _LEAST_OF_KERNELS,
        ),
        _Entry(
            _sum(on_gpu.ATTENTION),
            "call scaled_dot_product_attention",
            "a softmax between two matrix products, each a kernel of its own, is attention that writes its scores out "
            "(the products are counted, too, and remain in part)",
            "flash_attention",
            _LEAST_OF_KERNELS,
        ),
        _Entry(
            _sum(on_gpu.OPTIMIZER, on_gpu.OPTIMIZER_LAUNCH),
            "update all parameters in one kernel (fused=True, or a compiled optimizer)",
            "the optimizer's step ran as several kernels for each update",
            "torch_compile",
            _LEAST_OF_KERNELS,
            _sum(on_gpu.OPTIMIZER),
        ),
        _double("kernels ran in float64, as their names say"),
        _Entry(
            _sum(on_gpu.OWN_POINTWISE),
            "fuse elementwise kernels outside the model: compile the function that calls them",
            "elementwise kernels ran one after the other, each reading and writing all of its data",
            "torch_compile",
            _LEAST_POINTWISE,
        ),
    ]
    return [*entries, *_in_16_bits(reading)]


def _in_16_bits(reading: Reading) -> list[_Entry]:
    gpus = [reading.trace.gpus[device.device] for device in reading.devices]
    known = [gpu.capability for gpu in gpus if gpu.capability]
    if any(capability < _TENSOR_CORES for capability in known):
        return []
    how = "autocast"
    if len(known) == len(gpus):
        how = "autocast to bfloat16" if min(known) >= _BFLOAT16 else "autocast to float16, with a GradScaler"

    def halved(shares: on_gpu.StepShares) -> float:
        return shares.get(on_gpu.FP32) + shares.get(on_gpu.TF32) / 2

    tf32 = total(reading.columns, _sum(on_gpu.TF32))
    single = total(reading.columns, _sum(on_gpu.FP32)) >= tf32 / 2
    because = f"matrix products ran in {'fp32' if single else 'fp32 as TF32'}"
    halves = ["of those in TF32"] * bool(tf32) + ["of kernels between them"]
    others = total(reading.columns, _sum(on_gpu.OTHERS))
    if tf32 or others:
        because += f"; {' and '.join(halves[: 1 + bool(others)] if tf32 else halves)} half can go at most"
    amount: Amount = lambda shares: halved(shares) + shares.get(on_gpu.OTHERS) / 2  # noqa: E731
    return [_Entry(amount, f"compute in 16 bits ({how})", because, "mixed_precision", _LEAST_OF_KERNELS, halved)]


def _copied(reading: Reading) -> str:
    """Which operators copy within the GPU's memory, and where."""
    copied: Counter[tuple[str, str]] = sum((device.copied for device in reading.devices), Counter())
    most = [each for each in copied.most_common(3) if each[0][0] and each[1] > 0.05 * copied.total()]
    named = [
        f"{operator}{f' in {short_name(line)}' if line else ''} ({format_percent(lasts / copied.total())} of them)"
        for (operator, line), lasts in most
    ]
    return f", made by {listed(named)}" if named else "; which operator makes them, the file does not say"


def _waits_for_the_host(reading: Reading) -> list[_Entry]:
    """Where the host came late: since it had waited for the device, by its launches, or by other work of its own."""
    columns, devices = reading.columns, reading.devices
    steps = max(1, sum(len(column.shares) for column in columns))
    launches, graphs = (sum(each) / steps for each in zip(*((d.launches, d.graphs) for d in devices), strict=True))
    waits, late = _sum(on_gpu.SYNC), _sum(on_gpu.LAUNCH)
    # What the host does by itself for longer than the device works, no running ahead can hide.
    slow = total(columns, _sum(on_gpu.AFTER_SYNC)) > total(columns, _rest(*on_gpu.IDLE))
    if slow:
        waits, late = _less(waits, on_gpu.AFTER_SYNC), _sum(on_gpu.LAUNCH, on_gpu.AFTER_SYNC)
    because = f"the GPU ran dry while the program waited for it{_waits(reading)}, and idled until more was launched"
    entries = [_Entry(waits, "let the program run ahead of the GPU", because, "host_device_syncs")]
    fused = [
        (
            _sum(on_gpu.SHORT),
            _LEAST_OF_KERNELS,
            "run fewer kernels, each for longer: compile the model",
            "the GPU was idle for moments from one short kernel to the next, which had been launched",
        ),
        (
            _sum(on_gpu.POINTWISE),
            _LEAST_POINTWISE,
            "fuse elementwise kernels: compile the model",
            "elementwise kernels ran one after the other, each reading and writing all of its data",
        ),
    ]
    # A launch takes 10 us with its operator, and some 50 with much Python around it: more, outside operators, is other
    # work, of which a compiler knows nothing.
    waited = sum(late(shares) for column in columns for shares in column.shares) / steps
    inside = sum(device.in_operators for device in devices) / steps
    until, of = "the GPU had nothing to do until the CPU", f" made its next launch, of {launches:,.0f} a step"
    of += f" ({graphs:,.0f} of CUDA graphs)" if graphs >= 1 else ""
    longest = max(device.longest for device in devices)
    once = longest > max(_LONG_WAIT_US, waited * steps / 2)
    if once or graphs * 2 > launches or (waited > _MOST_PER_LAUNCH_US * launches and inside < waited / 2):
        because = until + _meanwhile(reading, slow, waited * steps) + of
        change = "find what the CPU does between its launches, and do less of it"
        more = "" if reading.trace.events[PYTHON] else "Record with with_stack=True to see in which function of yours."
        if once:
            change = f"find what the CPU did in one wait of {format_seconds(longest / 1e6)}, such as compiling"
            more = f"If it is a first use, later steps do without. {more}".strip()
        return [*entries, *_compiles(reading, *fused), _Entry(late, change, because, "profiler", more=more)]
    if reading.anomaly.checks:  # stacks that are noted within operators make launches late as well
        return [*entries, *_compiles(reading, *fused)]
    operators: Counter[str] = sum((device.own_launches for device in devices), Counter())
    if operators:
        because = f"{until} made its next launch: {operators.total() / steps:,.0f} of {launches:,.0f} a step come from "
        because += f"your own code outside the model{_outside(reading, operators, steps)}"
        saves, speaks = _sum(on_gpu.OWN_LAUNCH, on_gpu.OWN_KERNELS), _sum(on_gpu.OWN_LAUNCH)
        entries.append(_Entry(saves, _FEWER, because, "launch_bound", speaks=speaks))
        of = f" made its next launch, of {launches - operators.total() / steps:,.0f} a step"
    models = _less(late, on_gpu.OWN_LAUNCH)
    makers = {reading.trace.gpus[device.device].maker for device in devices}
    change = "launch less: compile the step"
    change += {"NVIDIA": ", with CUDA graphs (mode='reduce-overhead')", "AMD": " (mode='reduce-overhead')"}.get(
        makers.pop() if len(makers) == 1 else "", ""
    )
    more = []
    if total(columns, models) > _SMALL_BATCH:
        more.append("A larger batch, if memory is left, gives each launch more to do.")
    if not reading.origin.known and total(columns, models) >= _LEAST:
        more.append(_DOUBT)
    part = (models, _LEAST, change, until + of)
    return [*entries, *_compiles(reading, part, *fused, more=" ".join(more))]


def _less(amount: Amount, what: str) -> Amount:
    return lambda shares: amount(shares) - shares.get(what)


def _waits(reading: Reading) -> str:
    waits = [wait for device in reading.devices for wait in device.waits if wait.operator != on_gpu.CHECK]
    if not waits:
        return ""
    first = max(waits, key=lambda wait: wait.idle)
    words = f" in {first.operator or first.call}"
    words += f" ({first.call})" if first.operator else ""
    return words + (f", {first.line}" if first.line else "")


def _meanwhile(reading: Reading, slow: bool, waited: float) -> str:
    """In which of the program's functions the CPU was while the GPU waited for it, if mostly in one."""
    functions: Counter[str] = Counter()
    for device in reading.devices:
        for silent in (device.silent, device.silent_after if slow else {}):
            for tid, spans in silent.items():
                functions += on_cpu.own_functions(reading.trace, tid, spans)
    name, lasts = next(iter(functions.most_common(1)), ("", 0.0))
    return f", most of that time in {short_name(name)}," if lasts > waited / 2 else ""


def _on_cpu(reading: Reading) -> list[_Entry]:
    found, columns = reading.cpu, reading.columns
    assert found is not None
    steps = max(1, len(found.steps.all))
    collectives: Counter[str] = Counter()
    for name, lasts in found.collectives.items():
        short = next((each for each, pattern in on_gpu.COLLECTIVES.items() if pattern.search(name)), name)
        collectives[short] += lasts  # type: ignore[assignment]
    because = f"the program waited for communication ({_names(collectives)}) with no operator running beside it "
    because += "(waits for slower ranks are in it)"
    entries = [
        _loads(reading, on_cpu.LOADING, "the program was"),
        _communicates(reading, on_cpu.COMMUNICATION, collectives, because),
        _double("operators ran on tensors in float64"),
    ]
    if found.updates / steps >= _LEAST_UPDATES and not found.fused:
        because = f"the optimizer called {found.updates / steps:,.0f} operators a step"
        change = "update all parameters in one call (fused=True, or a compiled optimizer)"
        entries.append(_Entry(_sum(on_cpu.OPTIMIZING), change, because, "torch_compile", _LEAST_POINTWISE))
    small = max(column.share(_sum(on_cpu.SMALL)) for column in columns) >= _LEAST_POINTWISE
    if small and found.own_small.total() / steps >= _LEAST_SMALL:
        because = f"{reading.origin.calls.total() / steps:,.0f} calls of operators a step come from your own code "
        because += f"outside the model{_outside(reading, reading.origin.calls, steps)}, with Python between them"
        entries.append(_Entry(_sum(on_cpu.OF_OWN), _FEWER, because, "launch_bound", _LEAST_POINTWISE))
    parts = []
    if small and found.small / steps >= _LEAST_SMALL:
        because = f"{found.small / steps:,.0f} operators a step took under 20 µs of their own, with Python between them"
        parts.append((_sum(on_cpu.OF_MODEL), _LEAST_POINTWISE, "fuse small operators: compile the model", because))
    more = "" if reading.origin.known or not parts else _DOUBT
    if not reading.anomaly.checks:  # else how long operators take by themselves is unknown: stacks were noted in them
        because = "elementwise operators ran three and more in a row, each reading and writing all of its data"
        change = "fuse elementwise operators: compile the {}"
        parts.append((_sum(on_cpu.POINTWISE), _LEAST_POINTWISE, change.format("model"), because))
        change = change.format("function that calls them")
        entries.append(_Entry(_sum(on_cpu.OWN_POINTWISE), change, because, "torch_compile", _LEAST_POINTWISE))
    return [*entries, *_compiles(reading, *parts, more=more)]


def _outside(reading: Reading, operators: Counter[str], steps: int) -> str:
    """Which operators run outside the model, and where."""
    functions: Counter[str] = Counter()
    for tid, spans in reading.origin.own.items():
        functions += on_cpu.own_functions(reading.trace, tid, spans)
    name = next(iter(functions.most_common(1)), ("",))[0]
    most = [f"{operator or 'others'} ({count / steps:,.0f})" for operator, count in operators.most_common(2)]
    return f"{f' ({short_name(name)})' if name else ''}, mostly {listed(most)}"
