"""Cases of the lesson: trainings whose batches vary in length, on the simulated allocator and on a real GPU."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from course_utils.materials.memory_requests import Requests, trace_requests, training_events
from course_utils.materials.models import GPT
from course_utils.measure.machine import course_size
from course_utils.memory import allocator as sim
from course_utils.memory.allocator import MIB, Allocate, Event, Free

DRAWS: list[list[int]] = json.loads(Path(__file__).with_name("draws.json").read_text("utf-8"))
# Fifteen trainings of 96 batches, by their lengths: of 64 lines of Python's standard library, drawn at random. Lines of
# similar length share a batch, and the batches are shuffled. A batch is as long as its longest line.
CAPS = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4)  # of the most that tensors hold
FACTOR = 64  # of all sizes: eight times the rows, and eight times the width or the vocabulary
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "empty_cache() each step": {"empties": True},
    "expandable segments": {"options": "expandable_segments:True"},
}
GAP_UNITS = dict.fromkeys(("peak reserved", "in tensors", "wholly free", "stuck", "most in tensors", "tried"), "bytes")
ON_A_GPU = SETTINGS | {
    "warm-up with the longest": {"warms": True},
    "buckets of 32": {"bucket": 32},
    "default again": {},
}
GPU_UNITS = {"gets through from": "percent", "other steps": "ratio"}
GPU_UNITS |= dict.fromkeys(("peak reserved", "peak allocated"), "bytes")


def step(*sizes_mib: int) -> list[Event]:
    """A step that makes tensors of these sizes, and frees them."""
    made = [Allocate(f"{size} MiB", size * MIB) for size in sizes_mib]
    return [*made, *(Free(event.id) for event in made)]


VARYING = [event for sizes in [(22, 11), (26, 13), (30, 15), (24, 12), (34, 17)] for event in step(*sizes)]
HOLE: list[Event] = [*step(300), *(Allocate(name, 100 * MIB) for name in "abc"), Free("b"), Allocate("d", 120 * MIB)]
SHORT = (("a hole", HOLE, 320), ("lengths vary", VARYING, 80))  # and the cap in MiB


def draws() -> list[list[int]]:
    """All of them; in the course's own tests the beginning of three."""
    return [lengths[:12] for lengths in DRAWS[:3]] if course_size() == "test" else DRAWS


# Simulated


def traced(model: GPT) -> dict[str, Requests]:
    """What a first step asks for, at any length: traced on the CPU at two. Others make no optimizer state."""

    def step(length: int) -> torch.optim.Optimizer:
        tokens, targets = torch.randint(256, (2, 8, length))
        functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return optimizer

    first = trace_requests(step)
    pairs = zip(first.blocks, first.bytes_per_token, strict=True)
    blocks, growths = zip(*(pair for pair in pairs if pair[0].died is not None), strict=True)
    return {"first step": first, "step": replace(first, blocks=blocks, bytes_per_token=growths)}


def requests(kinds: Mapping[str, Requests], lengths: Sequence[int], model: GPT) -> dict[str, list[Event]]:
    """What a training asks for in each setting: the cache is emptied after each step, or not."""
    events, ends = training_events(kinds, lengths, model, factor=FACTOR)
    parts = [events[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    emptied = [event for part in parts for event in (*part, sim.EmptyCache())]
    return {label: emptied if setting.get("empties") else events for label, setting in SETTINGS.items()}


def least_cap(events: Sequence[Event], most: int, options: str = "") -> float:
    """The least of the caps, of the most that tensors hold, that a whole training gets through."""
    for cap in CAPS:
        allocator = sim.Allocator(sim.AllocatorOptions.parse(options), int(cap * most))
        if all(map(allocator.apply, events)):
            return cap
    return math.inf


def least_caps(model: GPT, kinds: Mapping[str, Requests], draws: Sequence[Sequence[int]]) -> list[dict[str, float]]:
    """For each training, the least cap that each setting gets through, of the most that tensors hold by default."""
    rows = []
    for lengths in draws:
        asked = requests(kinds, lengths, model)
        most = sim.simulate_allocator(asked["default"]).peak_allocated_bytes
        rows.append({label: least_cap(asked[label], most, way.get("options", "")) for label, way in SETTINGS.items()})
    return rows


def get_through(rows: Sequence[Mapping[str, float]]) -> dict[str, tuple[list[int], list[int]]]:
    """For each setting, at each cap, how many of the trainings get through: lines for `curves`."""
    percent = [round(100 * cap) for cap in CAPS]
    return {label: (percent, [sum(row[label] <= cap for row in rows) for cap in CAPS]) for label in SETTINGS}


def gap(label: str, events: Sequence[Event], options: str = "", cap: int | None = None) -> dict[str, Any]:
    """What reserved memory is made of where it is first at its peak, or where memory ran out.

    A retry gives back what is ``wholly free``. The rest is ``stuck``: free, in segments or pages that tensors share.
    """
    run = sim.simulate_allocator(events, options=options, cap_bytes=cap)
    failed = run.out_of_memory
    at = run.reserved_bytes.index(max(run.reserved_bytes)) if failed is None else failed.event
    until = [*run.events[: at + (failed is None)], sim.EmptyCache()]
    kept = sim.simulate_allocator(until, options=options, cap_bytes=cap).reserved_bytes[-1]
    reserved, tensors = run.reserved_bytes[at], run.allocated_bytes[at]
    row = {"setting": label, "in tensors": tensors, "wholly free": reserved - kept, "stuck": kept - tensors}
    row |= {"peak reserved": reserved, "tried": None if failed is None else failed.segment_bytes}
    counts = {"given back": run.device_frees[-1], "retries": run.retries[-1]}
    return row | {"most in tensors": run.peak_allocated_bytes} | counts


def gaps(events: Sequence[Event]) -> list[dict[str, Any]]:
    """With memory to spare, by default and with expandable segments; and where the default fails."""
    free = gap("default", events)
    expandable = gap("expandable segments", events, **SETTINGS["expandable segments"])
    return [free, expandable, gap("default, fails", events, cap=int(CAPS[1] * free["most in tensors"]))]


# On a GPU


def train(
    rows: int,
    width: int,
    lengths: Sequence[int],
    cap: int = 0,
    options: str = "",
    empties: bool = False,
    warms: bool = False,
    bucket: int = 1,
) -> dict[str, Any]:
    """Such a training on the GPU, all of whose memory is taken with these options: seconds of each step, and counts."""
    off = "expandable_segments:False"  # which stay as they were unless they are named
    gc.collect()
    torch.cuda.empty_cache()
    torch._C._accelerator_setAllocatorSettings(options or off)
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap / torch.cuda.mem_get_info()[1]) if cap else 1.0)
    torch.cuda.reset_peak_memory_stats()
    before, step_s = torch.cuda.memory_stats(), []
    try:
        torch.manual_seed(0)
        model = GPT(vocabulary=4 * width, context=128, width=width, layers=2, heads=width // 32).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for length in [max(lengths)] * warms + [-(-length // bucket) * bucket for length in lengths]:
            tokens, targets = torch.randint(4 * width, (2, rows, length), device="cuda")
            torch.cuda.synchronize()
            started = time.perf_counter()
            functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
            if not warms:
                optimizer.step()
            optimizer.zero_grad()
            if empties:
                torch.cuda.empty_cache()
            torch.cuda.synchronize()
            step_s += [] if warms else [time.perf_counter() - started]
            warms = False
    except torch.OutOfMemoryError:
        pass
    finally:
        torch._C._accelerator_setAllocatorSettings(off)
        torch.cuda.set_per_process_memory_fraction(1.0)
    stats = torch.cuda.memory_stats()
    report: dict[str, Any] = {"step_s": step_s, "steps done": len(step_s)}
    for name, key in (("taken", "device_alloc"), ("given back", "device_free"), ("retries", "alloc_retries")):
        report[name] = stats.get(f"num_{key}", 0) - before.get(f"num_{key}", 0)
    return report | {f"peak {kind}": stats.get(f"{kind}_bytes.all.peak", 0) for kind in ("reserved", "allocated")}


def on_a_gpu(
    rows: int, width: int, lengths: Sequence[int], ways: Sequence[str], caps: Sequence[float]
) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Each way with memory to spare, which gives the times of its steps, then under caps until it gets through.

    The caps are of the most that the default's tensors held. In its first step CUDA starts; that time is left out.
    """
    free = {way: train(rows, width, lengths, **ON_A_GPU[way]) for way in ways}
    most, table = free["default"]["peak allocated"], []
    for way in ways:
        for cap in caps:
            run = train(rows, width, lengths, int(cap * most), **ON_A_GPU[way])
            if done := run["steps done"] == len(lengths):
                break
        own, base = (sum(free[each]["step_s"][1:]) for each in (way, "default"))
        row = {"setting": way, "gets through from": cap if done else None, "other steps": own / base}
        table.append(row | {name: value for name, value in run.items() if name != "step_s"})
    return table, {way: report["step_s"] for way, report in free.items()}


def rows_that_fit(most: int = 2560) -> int:
    """Rows of a batch: as many as make tensors of over 20 GiB, and fewer on a GPU of less than 40 GiB."""
    return min(most, most * torch.cuda.mem_get_info()[0] // (40 * 2**30))
