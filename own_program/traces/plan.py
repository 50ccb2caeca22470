"""What to change, by what a trace shows: each entry with its evidence, and with no more than it can save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from course_utils.show.advice import Advice
from course_utils.show.formats import format_percent, listed, short_name
from own_program.traces import cpu as on_cpu
from own_program.traces import shares as on_gpu
from own_program.traces.columns import Amount, Column, Reading, total
from own_program.traces.events import MARK, PYTHON
from own_program.traces.steps import marked_steps

_LEAST = 0.025  # of a step: what saves less at most is no entry
_LEAST_OF_KERNELS = 0.05  # a kernel does something; a lesson only makes it faster
_LEAST_POINTWISE = 0.10  # and of what a CPU's many small operators take
_LEAST_SMALL = 200  # small operators in a step, from which on their number is what costs
_LEAST_UPDATES = 100
_LEAST_OF_ANOMALY = 0.001  # its checks are the smaller part of what it takes
_MOST_PER_LAUNCH_US = 100.0  # that the GPU waits for each
_MOST_ENTRIES = 5
_ENOUGH_STEPS = 4  # to say that one of them is the exception


def plan_of(reading: Reading) -> tuple[Advice, ...]:
    """The entries of a plan, the one that can save the most first; none where nothing stands out."""
    if reading.trace.cut:
        return ()
    entries = _on_cpu(reading) if reading.cpu else _on_gpu(reading)
    found = [(total(reading.columns, amount), advice) for amount, advice in entries if advice is not None]
    ranked = [advice for _, advice in sorted(found, key=lambda each: -each[0])]
    # It slows more than a trace shows, so that all other entries look different without it.
    return tuple([*_anomaly(reading), *ranked][:_MOST_ENTRIES])


def _anomaly(reading: Reading) -> list[Advice]:
    mode, marks = reading.anomaly, len(marked_steps(reading.trace.events[MARK]))
    if not mode.checks or (reading.cpu and reading.cpu.for_gpu):
        return []
    because = (
        f"{mode.checks / max(1, marks):,.0f} NaN checks {'a step' if marks else 'in all'} ran in the backward pass"
    )
    because += ", and Python stacks were noted for its nodes" if mode.stacks else ""
    change, lesson = "switch anomaly mode off", "your_own_program"
    found = _advice(reading.columns, _amount(on_gpu.ANOMALY), _LEAST_OF_ANOMALY, change, because, lesson)
    if found is None:
        return []
    because = f"{found.because} torch.is_anomaly_enabled() tells where it is on."
    if not mode.stacks:
        because += (
            " It also notes a Python stack for each operator of the forward pass, which often takes longer: that "
        )
        because += "is a part of these operators' own time, and shows in a trace with with_stack=True alone."
    return [replace(found, because=because, of=f"{found.of}, its checks{' and stacks' if mode.stacks else ''} alone")]


def _amount(what: str) -> Amount:
    return lambda shares: shares.get(what)


def _without_anomaly(what: str) -> Amount:
    return lambda shares: shares.get(what) - shares.anomaly.get(what, 0.0)


def _on_gpu(reading: Reading) -> list[tuple[Amount, Advice | None]]:
    columns = reading.columns

    def entry(what: str, least: float, change: str, because: str, lesson: str) -> tuple[Amount, Advice | None]:
        amount = _without_anomaly(what)
        return amount, _advice(columns, amount, least, change, because, lesson)

    entries = [
        entry(
            on_gpu.DATA,
            _LEAST,
            "load the next batch while the GPU computes",
            "the GPU was idle while the program waited in the DataLoader",
            "data_loading",
        ),
        *_waits_for_the_host(reading),
        entry(
            on_gpu.SHORT,
            _LEAST_OF_KERNELS,
            "run fewer kernels, each for longer: compile the model",
            "the GPU was idle for moments from one short kernel to the next, which had been launched",
            "torch_compile",
        ),
        entry(
            on_gpu.ALLOC,
            _LEAST,
            "keep the allocator from asking the driver for memory in every step",
            "the GPU was idle while the program allocated or freed memory with the driver",
            "caching_allocator",
        ),
        entry(
            on_gpu.PAGEABLE,
            _LEAST,
            "copy from pinned memory, with non_blocking=True",
            "copies from pageable memory, or the CPU's preparing them, held the GPU up",
            "pinned_memory",
        ),
        entry(
            on_gpu.PINNED,
            _LEAST,
            "copy the next batch while the GPU computes",
            "copies to the GPU ran with no computing beside them",
            "pinned_memory",
        ),
        entry(
            on_gpu.TO_HOST,
            _LEAST,
            "copy fewer results to the host",
            "copies to the host ran with no computing beside them",
            "host_device_syncs",
        ),
        _communication(reading),
        entry(
            on_gpu.ATTENTION,
            _LEAST_OF_KERNELS,
            "call scaled_dot_product_attention",
            "a softmax between two matrix products, each a kernel of its own, is attention that writes its scores out "
            "(the products are counted, too, and remain in part)",
            "flash_attention",
        ),
        entry(
            on_gpu.OPTIMIZER,
            _LEAST_OF_KERNELS,
            "update all parameters in one kernel (fused=True, or a compiled optimizer)",
            "the optimizer's step ran as several kernels for each update",
            "torch_compile",
        ),
        entry(
            on_gpu.POINTWISE,
            _LEAST_POINTWISE,
            "fuse elementwise kernels: compile the model",
            "elementwise kernels ran one after the other, each reading and writing all of its data",
            "torch_compile",
        ),
    ]

    entries.append(_double(columns, "kernels ran in float64, as their names say"))

    def halved(shares: on_gpu.StepShares) -> float:
        # TF32's matrix products run at half the rate of those in 16 bits; of fp32's, nothing that general is known.
        return shares.get(on_gpu.FP32) + shares.get(on_gpu.TF32) / 2

    precise = max((c.share(halved) for c in columns), default=0.0)
    single = total(columns, lambda shares: shares.get(on_gpu.FP32))
    what = "fp32, off the tensor cores" if single * 2 > precise else "fp32 as TF32"
    because = f"matrix products ran in {what}"
    if total(columns, lambda shares: shares.get(on_gpu.TF32)):
        because += "; of those in TF32 half can go at most"
    entries.append(
        (halved, _advice(columns, halved, _LEAST_OF_KERNELS, "compute in 16 bits (autocast to bfloat16)", because,
                         "mixed_precision"))
    )  # fmt: skip
    return entries


def _waits_for_the_host(reading: Reading) -> list[tuple[Amount, Advice | None]]:
    """Where the host came late: since it had waited for the device, by its launches, or by other work of its own."""
    columns, devices = reading.columns, reading.devices
    steps = max(1, sum(len(column.shares) for column in columns))
    launches, graphs = (sum(each) / steps for each in zip(*((d.launches, d.graphs) for d in devices), strict=True))
    waits, late = _without_anomaly(on_gpu.SYNC), _without_anomaly(on_gpu.LAUNCH)
    # What the host does by itself for longer than the device works, no running ahead can hide.
    slow = total(columns, _amount(on_gpu.AFTER_SYNC)) > total(columns, _busy)
    if slow:
        waits, late = _sum(waits, on_gpu.AFTER_SYNC, -1), _sum(late, on_gpu.AFTER_SYNC, 1)
    # A launch takes 10 us with its operator, and some 50 with much Python around it: more, outside operators, is other
    # work, of which a compiler knows nothing.
    waited = sum(late(shares) for column in columns for shares in column.shares) / steps
    inside = sum(device.in_operators for device in devices) / steps
    busy_host = graphs * 2 > launches or (waited > _MOST_PER_LAUNCH_US * launches and inside < waited / 2)
    change = "let the program run ahead of the GPU"
    because = f"the GPU ran dry while the program waited for it{_waits(reading)}, and idled until more was launched"
    entries = [(waits, _advice(columns, waits, _LEAST, change, because, "host_device_syncs"))]
    if not busy_host and reading.anomaly.checks:  # stacks that are noted within operators make launches late as well
        return entries
    change, lesson = "launch less: compile the step, with CUDA graphs (mode='reduce-overhead')", "torch_compile"
    if busy_host:
        change, lesson = "find what the CPU does between its launches, and do less of it", "profiler"
    meanwhile = _meanwhile(reading, slow, waited * steps) if busy_host else ""
    because = f"the GPU had nothing to do until the CPU{meanwhile} made its next launch, of {launches:,.0f} a step"
    because += f" ({graphs:,.0f} of CUDA graphs)" if graphs >= 1 else ""
    found = _advice(columns, late, _LEAST, change, because, lesson)
    if found and busy_host and not reading.trace.events[PYTHON]:
        found = replace(
            found, because=f"{found.because} Record with with_stack=True to see in which function of yours."
        )
    return [*entries, (late, found)]


def _busy(shares: on_gpu.StepShares) -> float:
    return shares.lasts - sum(map(shares.get, on_gpu.IDLE))


def _sum(amount: Amount, what: str, times: int) -> Amount:
    return lambda shares: amount(shares) + times * shares.get(what)


def _double(columns: Sequence[Column], because: str) -> tuple[Amount, Advice | None]:
    def amount(shares: on_gpu.StepShares) -> float:
        return shares.get(on_gpu.DOUBLE)

    change = "compute in float32 (or less)"
    return amount, _advice(columns, amount, _LEAST_OF_KERNELS, change, because, "mixed_precision")


def _communication(reading: Reading) -> tuple[Amount, Advice | None]:
    def amount(shares: on_gpu.StepShares) -> float:
        return shares.get(on_gpu.SENDS)

    collectives: Counter[str] = sum((device.collectives for device in reading.devices), Counter())
    hidden = total(reading.columns, lambda shares: shares.get(on_gpu.HIDDEN))
    beside = f"; {format_percent(hidden)} of the time more is hidden" if hidden >= 0.001 else "; none is hidden"
    because = f"communication ({_names(collectives)}) ran with no computing beside it "
    because += f"(waits for slower ranks are in it{beside})"
    change = "overlap communication with computing"
    return amount, _advice(reading.columns, amount, _LEAST, change, because, _lesson(collectives))


def _lesson(collectives: Counter[str]) -> str:
    sharded = sum(lasts for name, lasts in collectives.items() if name in ("all_gather", "reduce_scatter"))
    return "fsdp" if sharded > 0.5 * collectives.total() else "ddp"


def _names(collectives: Counter[str]) -> str:
    names = [name for name, lasts in collectives.most_common(3) if lasts > 0.05 * collectives.total()]
    return listed(names) if names else "of an unknown kind"


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


def _on_cpu(reading: Reading) -> list[tuple[Amount, Advice | None]]:
    found, columns = reading.cpu, reading.columns
    if found is None or found.for_gpu:  # what the device did meanwhile is not in the file
        return []
    steps = max(1, len(found.steps.all))

    def of(*places: str) -> Amount:
        return lambda shares: sum(map(shares.get, places))

    entries: list[tuple[Amount, Advice | None]] = []
    data = of(on_cpu.LOADING)
    alone = "_SingleProcess" in found.loader
    change = (
        "load batches in worker processes (num_workers)" if alone else "give the DataLoader more workers, or less work"
    )
    because = f"the program was inside the DataLoader{', which loads in the main process' if alone else ''}"
    entries.append((data, _advice(columns, data, _LEAST, change, because, "data_loading")))
    sends = of(on_cpu.COMMUNICATION)
    collectives: Counter[str] = Counter()
    for name, lasts in found.collectives.items():
        short = next((each for each, pattern in on_gpu.COLLECTIVES.items() if pattern.search(name)), name)
        collectives[short] += lasts  # type: ignore[assignment]
    because = f"the program waited for communication ({_names(collectives)}) with no operator running beside it "
    because += "(waits for slower ranks are in it)"
    change = "overlap communication with computing, or send less"
    entries.append((sends, _advice(columns, sends, _LEAST, change, because, _lesson(collectives))))
    entries.append(_double(columns, "operators ran on tensors in float64"))
    if found.updates / steps >= _LEAST_UPDATES and not found.fused:
        update = of(on_cpu.OPTIMIZING)
        because = f"the optimizer called {found.updates / steps:,.0f} operators a step"
        change = "update all parameters in one call (fused=True, or a compiled optimizer)"
        entries.append((update, _advice(columns, update, _LEAST_POINTWISE, change, because, "torch_compile")))
    if found.small / steps >= _LEAST_SMALL and max(c.share(of(on_cpu.SMALL)) for c in columns) >= _LEAST_POINTWISE:
        small = of(on_cpu.SMALL, on_cpu.PYTHON_CODE)
        because = f"{found.small / steps:,.0f} operators a step took under 20 µs of their own, with Python between them"
        change = "fuse small operators: compile the model"
        entries.append((small, _advice(columns, small, _LEAST_POINTWISE, change, because, "torch_compile")))
    if reading.anomaly.checks:  # how long these operators take by themselves is unknown: stacks were noted in them
        return entries
    runs = of(on_cpu.POINTWISE)
    change = "fuse elementwise operators: compile the model"
    because = "elementwise operators ran three and more in a row, each reading and writing all of its data"
    entries.append((runs, _advice(columns, runs, _LEAST_POINTWISE, change, because, "torch_compile")))
    return entries


def _advice(
    columns: Sequence[Column], amount: Amount, least: float, change: str, because: str, lesson: str
) -> Advice | None:
    """An entry with its numbers for each kind of steps, if it can save enough of one."""
    ranked = sorted(columns, key=lambda column: -column.share(amount))
    shares = [column.share(amount) for column in ranked]
    if not shares or shares[0] < least:
        return None
    named = [column for column, share in zip(ranked, shares, strict=True) if share >= 0.001][:4]
    of = _of(named[0], len(columns) == 1)
    of += "".join(f", and at most {_percent(column.share(amount))} of {_of(column, False)}" for column in named[1:])
    if len(named) < len(columns) <= 4:
        of += ", and next to nothing of the others"
    first = named[0]
    times = first.times(amount)
    if not first.whole:
        times += " a step" if len(columns) == 1 else f" in {first.name}"
    amounts = [amount(shares) for shares in first.shares]
    if len(amounts) >= _ENOUGH_STEPS and max(amounts) > sum(amounts) / 2:
        times += f", most of it in step {first.kind.steps[amounts.index(max(amounts))].number} alone"
    because = f"{because[0].upper()}{because[1:]}: {times}."
    return Advice(change, because, lesson, shares[0], "at most", of)


def _of(column: Column, only: bool) -> str:
    return "a step" if only and not column.whole else column.name


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):.15g}%"
