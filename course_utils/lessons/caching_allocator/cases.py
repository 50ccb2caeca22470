"""Cases of the lesson: a training whose batches vary in length, on the simulated allocator and on a real GPU."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from course_utils.materials.lines import IGNORED, line_batches, pad_lines, padded_length
from course_utils.materials.memory_requests import Requests, summary, trace_requests, training_events
from course_utils.materials.models import GPT
from course_utils.memory.allocator import MIB, Allocate, AllocatorRun, EmptyCache, Event, Free, simulate_allocator

FACTOR = 64  # of all sizes: eight times the rows, and eight times the width or the vocabulary
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "expandable segments": {"options": "expandable_segments:True"},
    "buckets of 32": {"order": "buckets"},
    "warm-up with the longest": {"order": "warm-up"},
    "sizes rounded up": {"options": "roundup_power2_divisions:4"},
    "empty_cache() each step": {"empties": True},
    "garbage collection at 0.8": {"options": "garbage_collection_threshold:0.8"},
    "expandable + max_split": {"options": "expandable_segments:True,max_split_size_mb:64"},
}
"""Ways to run the training: allocator options, an order of the batches, or the cache emptied after each step."""


# What a table shows first.
WITHOUT_A_CAP = ("peak reserved", "unused", "taken")
UNDER_A_CAP = ("steps done", "retries", "peak reserved")


def hole(size_mib: int) -> list[Event]:
    """Three live tensors fill a segment; the middle one is freed, and a fifth more than it is asked for."""
    size = size_mib * MIB
    events: list[Event] = [Allocate("first", 3 * size), Free("first")]
    events += [Allocate(name, size) for name in "abc"]
    return [*events, Free("b"), Allocate("d", size * 6 // 5)]


def hole_row(case: str, size_mib: int, options: str = "", cap_mib: int = 320) -> dict[str, Any]:
    """What an allocator does with that hole."""
    run = simulate_allocator(hole(size_mib), options=options, cap_bytes=cap_mib * MIB)
    back = sum(-each.change_bytes for each in run.operations.get(len(run) - 1, ()) if each.change_bytes < 0)
    return {"case": case, "free in the hole": size_mib * MIB, "given back": back, "fits": run.out_of_memory is None}


def loss_of(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of a batch; padding does not count."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def traced(model: GPT) -> dict[str, Requests]:
    """What a warm-up, the first step and every other step ask for, traced at two lengths and tried at two more."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def forward_backward(length: int) -> None:
        loss_of(model, *torch.randint(256, (2, 8, length))).backward()

    def warm_up(length: int) -> None:
        forward_backward(length)
        model.zero_grad()

    def step(length: int, optimizer: torch.optim.Optimizer = optimizer) -> None:
        forward_backward(length)
        optimizer.step()
        optimizer.zero_grad()

    def first_step(length: int) -> None:
        step(length, torch.optim.AdamW(model.parameters(), foreach=True))

    step(8)
    work: dict[str, Callable[[int], None]] = {"warm-up": warm_up, "first step": first_step, "step": step}
    kinds = {kind: trace_requests(do, model, lengths=(32, 96)) for kind, do in work.items()}
    for kind, do in work.items():
        again = trace_requests(do, model, lengths=(6, 113))
        if any(again.sizes(length) != kinds[kind].sizes(length) for length in (6, 113)):
            raise AssertionError(f"{kind}: sizes at 6 and 113 tokens are not on the line through 32 and 96")
    return kinds


def simulated(
    model: GPT,
    kinds: Mapping[str, Requests],
    lengths: Sequence[int],
    *,
    options: str = "",
    order: str = "as they come",
    empties: bool = False,
    cap_bytes: int | None = None,
) -> tuple[AllocatorRun, list[int]]:
    """One training on the simulated allocator, and after how many events each step ends."""
    events, ends = training_events(kinds, lengths, model, order=order, factor=FACTOR)
    if empties:
        parts = [events[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        events = [event for part in parts for event in (*part, EmptyCache())]
        ends = [end + number for number, end in enumerate(ends, start=1)]
    return simulate_allocator(events, options=options, cap_bytes=cap_bytes), ends


def row(label: str, run: tuple[AllocatorRun, list[int]], first: Sequence[str] = WITHOUT_A_CAP) -> dict[str, Any]:
    """The numbers of one training, for a table whose first columns are named: a card shows no more."""
    numbers = summary(*run)
    return {"setting": label} | {key: numbers[key] for key in first} | numbers


def simulated_rows(
    model: GPT, kinds: Mapping[str, Requests], lengths: Sequence[int], cap_bytes: int | None = None
) -> list[dict[str, Any]]:
    """The numbers of every setting, for a table."""
    runs = {
        label: simulated(model, kinds, lengths, cap_bytes=cap_bytes, **setting) for label, setting in SETTINGS.items()
    }
    return [row(label, run, UNDER_A_CAP if cap_bytes else WITHOUT_A_CAP) for label, run in runs.items()]


def least_caps(model: GPT, kinds: Mapping[str, Requests], lengths: Sequence[int], demand: int) -> list[dict[str, Any]]:
    """For five settings, the least cap that the whole training gets through, in steps of a twentieth of the demand."""
    rows = []
    for label in (*tuple(SETTINGS)[:4], "empty_cache() each step"):
        done = None
        for twentieths in range(20, 41):
            cap = demand * twentieths // 20
            numbers = summary(*simulated(model, kinds, lengths, cap_bytes=cap, **SETTINGS[label]))
            if numbers["steps done"] == len(lengths):
                done = twentieths / 20
                break
        rows.append({"setting": label, "gets through at": done, "retries": numbers["retries"]})
    return rows


def least_cap(
    model: GPT, kinds: Mapping[str, Requests], lengths: Sequence[int], demand: int, *, options: str
) -> str | None:
    """With some options, the least cap that the whole training gets through, in twentieths of the demand."""
    for twentieths in range(20, 41):
        run = simulated(model, kinds, lengths, options=options, cap_bytes=demand * twentieths // 20)
        if run[0].out_of_memory is None:
            return f"{twentieths / 20:.0%}"
    return None


def at_the_peak(run: AllocatorRun) -> str:
    """What reserved memory consists of where it is first at its peak: tensors, what a retry would give back, the rest.

    The rest is stuck: free, in segments or pages that live tensors share.
    """
    after = run.reserved_bytes.index(max(run.reserved_bytes)) + 1
    emptied = simulate_allocator(
        [*run.events[:after], EmptyCache()], options=run.begin.options, cap_bytes=run.begin.cap
    )
    reserved, kept, tensors = (
        size / MIB
        for size in (run.reserved_bytes[after - 1], emptied.reserved_bytes[-1], run.allocated_bytes[after - 1])
    )
    return (
        f"{reserved:.0f} reserved = {tensors:.0f} in tensors + {reserved - kept:.0f} wholly free "
        f"+ {kept - tensors:.0f} stuck"
    )


def other_orders(model: GPT, kinds: Mapping[str, Requests], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """The least and the most that is left unused, over five random orders of these lengths."""
    orders = [random.Random(seed).sample(lengths, len(lengths)) for seed in range(5)]
    rows = []
    for label in ("default", "expandable segments"):
        runs = [simulated(model, kinds, order, **SETTINGS[label]) for order in orders]
        unused = [summary(*run)["unused"] for run in runs]
        rows.append({"setting": label, "unused at least": min(unused), "unused at most": max(unused)})
    return rows


def reserved_after_steps(run: AllocatorRun, ends: Sequence[int]) -> list[float]:
    """Reserved memory after each step that was done, in MiB."""
    return [run.reserved_bytes[end - 1] / MIB for end in ends if end <= len(run)]


# On a GPU

# What a running process can be set back to: expandable segments stay as they were unless they are named.
_DEFAULTS = "expandable_segments:False,roundup_power2_divisions:1"
ON_A_GPU = tuple(SETTINGS)[:6]
"""Settings that a running process can leave again: the others need a process of their own."""


def train(
    *,
    options: str = "",
    order: str = "as they come",
    empties: bool = False,
    cap_bytes: int | None = None,
    steps: int = 96,
    rows: int = 64,
    width: int = 512,
    vocabulary: int = 2048,
) -> dict[str, Any]:
    """The same training on the GPU, with allocator options of its own: times, reserved memory, and counts.

    The cache is emptied before, so that all memory of this training is taken with these options.
    """
    gc.collect()
    torch.cuda.empty_cache()
    torch._C._accelerator_setAllocatorSettings(f"{_DEFAULTS},{options}" if options else _DEFAULTS)
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total) if cap_bytes else 1.0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    report: dict[str, Any] = {"warm_up_s": 0.0, "step_s": [], "reserved_mib": []}
    try:
        _steps(report, order, empties, steps, rows, width, vocabulary)
        finished = True
    except torch.OutOfMemoryError:
        finished = False
    finally:
        torch._C._accelerator_setAllocatorSettings(_DEFAULTS)
        torch.cuda.set_per_process_memory_fraction(1.0)
    after = torch.cuda.memory_stats()
    allocated, reserved = (after[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved"))
    counts = {"taken": "num_device_alloc", "given back": "num_device_free", "retries": "num_alloc_retries"}
    report["summary"] = {
        "peak allocated": allocated,
        "peak reserved": reserved,
        "unused": 1 - allocated / reserved if finished else None,
        **{name: after[key] - before[key] for name, key in counts.items()},
        "steps done": len(report["step_s"]),
    }
    return report


def _steps(
    report: dict[str, Any], order: str, empties: bool, steps: int, rows: int, width: int, vocabulary: int
) -> None:
    batches = line_batches(steps, rows)
    longest = max(batches, key=padded_length)
    torch.manual_seed(0)
    model = GPT(vocabulary=vocabulary, context=128, width=width, layers=2, heads=width // 32).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def timed(lines: Sequence[Any], length: int, optimize: bool) -> float:
        tokens, targets = pad_lines(lines, length, device="cuda")
        torch.cuda.synchronize()
        started = time.perf_counter()
        loss_of(model, tokens, targets).backward()
        if optimize:
            optimizer.step()
        optimizer.zero_grad()
        if empties:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        return time.perf_counter() - started

    for number, lines in enumerate(batches):
        if order == "warm-up" and number == 0:
            report["warm_up_s"] = timed(longest, padded_length(longest), optimize=False)
        length = padded_length(lines)
        length = -(-length // 32) * 32 if order == "buckets" else length
        report["step_s"].append(timed(lines, length, optimize=True))
        report["reserved_mib"].append(torch.cuda.memory_reserved() / MIB)


def on_a_gpu(**sizes: int) -> tuple[list[dict[str, Any]], dict[str, list[float]], dict[str, list[float]]]:
    """Every setting under a cap of 1.2 times the demand: rows of a table, times of the steps, reserved memory.

    The demand is what the default allocates at its peak, found by a run without a cap, which pays for CUDA's start. A
    training so small that segments count for more gets a little on top.
    """
    demand = train(**sizes)["summary"]["peak allocated"]
    cap = max(int(1.2 * demand), demand + 64 * MIB)
    settings = {label: SETTINGS[label] for label in ON_A_GPU} | {"default again": {}}
    reports = {label: train(cap_bytes=cap, **setting, **sizes) for label, setting in settings.items()}
    base = reports["default"]["step_s"]
    rows = []
    for label, report in reports.items():
        step_s = report["step_s"]
        both = list(zip(step_s[1:], base[1:], strict=False))
        rows.append(
            {
                "setting": label,
                **report["summary"],
                "warm-up and step 1": report["warm_up_s"] + step_s[0] if step_s else None,
                "other steps": sum(own for own, _ in both) / sum(default for _, default in both) if both else None,
            }
        )
    done = {label: report for label, report in reports.items() if report["step_s"]}
    times, reserved = ({label: report[key] for label, report in done.items()} for key in ("step_s", "reserved_mib"))
    return rows, times, reserved
