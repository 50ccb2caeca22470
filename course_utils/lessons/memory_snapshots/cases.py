"""What the lesson records: steps of a small GPT, and their memory history in PyTorch's own form, GPU or not."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from course_utils.lessons.memory_snapshots import planted
from course_utils.materials.models import GPT
from course_utils.materials.text import library_text
from course_utils.measure.fresh import fresh
from course_utils.measure.machine import environment, scaled
from course_utils.memory.allocator import Allocate, Allocator, AllocatorOptions, Free, simulate_allocator
from course_utils.memory.live_storages import LiveStorages
from course_utils.memory.trace import trace_memory
from course_utils.records.kinds.memory_trace import MemoryBlock, MemoryTrace
from course_utils.records.store import keep

PAIRS = 128 * 128  # tokens, where each pair of characters is one
_DEVICE_BYTES = 80 * 2**30  # of the GPU that is not there
_HIDDEN = ("course_utils/memory/", "memory_snapshots/cases.py", "torch/utils/_python_dispatch.py")
_STATES = {"allocated": "active_allocated", "awaiting free": "active_pending_free", "free": "inactive"}

Frames = list[dict[str, Any]]
Loss = Callable[[GPT, torch.Tensor, torch.Tensor], torch.Tensor]


# The program


def sizes() -> tuple[int, int]:
    """Rows of a batch, and tokens in each."""
    return scaled(cpu=4, cuda=16), scaled(cpu=64, cuda=256)


def batches(device: str, count: int, rows: int, vocabulary: int = PAIRS) -> list[planted.Batch]:
    """The source code of Python's standard library, by characters or by pairs of them: tokens, and those after them."""
    text, length = library_text(2**20), sizes()[1]
    tokens = text[text < 128].long()
    if vocabulary == PAIRS:
        tokens = 128 * tokens[:-1:2] + tokens[1::2]
    pieces = tokens[: count * rows * (length + 1)].view(count, rows, length + 1).to(device)
    # Copies: a view would keep the whole text.
    return [(piece[:, :-1].clone(), piece[:, 1:].clone().flatten()) for piece in pieces]


def build(device: str, vocabulary: int = PAIRS) -> tuple[GPT, torch.optim.Optimizer]:
    """A model and AdamW, with the default that it has on CUDA."""
    torch.manual_seed(0)
    model = GPT(vocabulary, sizes()[1], width=scaled(cpu=128, cuda=512), layers=2).to(device)
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def step_call(
    step: Callable[..., None], device: str, rows: int, vocabulary: int = PAIRS, steps_before: int = 1
) -> Callable[[], None]:
    """One step of training as a call without arguments; some were taken before."""
    call = partial(step, *build(device, vocabulary), batches(device, 1, rows, vocabulary)[0])
    for _ in range(steps_before):
        call()
    return call


def step_with(loss_of: Loss) -> Callable[..., None]:
    """A training step with this loss."""

    def step(model: GPT, optimizer: torch.optim.Optimizer, batch: planted.Batch) -> None:
        loss_of(model, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def step_that_zeroes(place: str, set_to_none: bool) -> Callable[..., None]:
    """A training step that drops gradients before the forward (A) or backward pass (B), or at its end (C)."""

    def step(model: GPT, optimizer: torch.optim.Optimizer, batch: planted.Batch) -> None:
        if place == "A":
            optimizer.zero_grad(set_to_none)
        loss = no_name(model, *batch)
        if place == "B":
            optimizer.zero_grad(set_to_none)
        loss.backward()
        optimizer.step()
        if place == "C":
            optimizer.zero_grad(set_to_none)

    return step


# Losses


def no_name(model: GPT, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss, with no name for the logits."""
    return functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets)


def hidden(model: GPT, tokens: torch.Tensor) -> torch.Tensor:
    """What the output layer gets."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    x = model.token_embedding(tokens) + model.position_embedding(positions)
    return model.norm(nn.Sequential(*model.blocks)(x)).flatten(0, 1)


def piece(x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of some tokens, from the output layer on."""
    return functional.cross_entropy(functional.linear(x, weight).float(), targets, reduction="sum")


def in_pieces(model: GPT, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same loss; the logits of an eighth of the tokens at a time."""
    parts = zip(hidden(model, tokens).chunk(8), targets.chunk(8), strict=True)
    return sum(checkpoint(piece, x, model.head.weight, y, use_reentrant=False) for x, y in parts) / len(targets)


def built_in(model: GPT, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same loss by PyTorch's own function."""
    options = nn.LinearCrossEntropyOptions()
    return functional.linear_cross_entropy(hidden(model, tokens), model.head.weight, targets, options=options)


LOSSES: dict[str, Loss] = {"no name": no_name, "in pieces": in_pieces}
if hasattr(nn, "LinearCrossEntropyOptions"):
    LOSSES["built in"] = built_in


def head_error(loss_of: Loss, device: str) -> float:
    """The relative error of the output layer's gradient, against the loss with no name."""

    def gradient(of: Loss) -> torch.Tensor:
        model, _ = build(device)
        loss = of(model, *batches(device, 1, sizes()[0])[0])
        return torch.autograd.grad(loss, model.head.weight)[0].cpu()

    exact = gradient(no_name)
    return ((gradient(loss_of) - exact).norm() / exact.norm()).item()


def evaluation(
    device: str, keep: Callable[[torch.Tensor], Any], backward: bool = False, grad: bool = True
) -> Callable[[], None]:
    """Four batches of a loop that collects something of each loss."""
    (model, optimizer), data, kept = build(device), batches(device, 4, sizes()[0]), []

    def loop() -> None:
        for tokens, targets in data:
            with torch.set_grad_enabled(grad):
                loss = no_name(model, tokens, targets)
            if backward:
                loss.backward()
                optimizer.zero_grad()
            kept.append(keep(loss))

    return loop


def peak_bytes(
    step: Callable[..., None], device: str, rows: int, vocabulary: int = PAIRS, steps_before: int = 1
) -> int:
    """The peak of one step."""
    call = fresh(step_call, step, device, rows, vocabulary, steps_before)
    return trace_memory(call, verify=False, overhead=False).peak_bytes


def left_by_a_batch(device: str, **how: Any) -> int:
    """Bytes that each batch of a loop leaves behind."""
    trace = trace_memory(fresh(evaluation, device, **how), verify=False, overhead=False)
    return (trace.end_bytes - trace.start_bytes) // 4


def train_and_evaluate(device: str, dump: Callable[[str], Any] = lambda name: None) -> None:
    """Two steps, an evaluation in two halves, and two more steps; a dump after the first three of these."""
    model, optimizer = build(device)
    data, losses = batches(device, 8, sizes()[0]), []
    for batch in data[:2]:
        planted.train_step(model, optimizer, batch)
    dump("trained.pickle")
    for name, half in (("half_1.pickle", data[2:4]), ("half_2.pickle", data[4:6])):
        losses.append(planted.evaluate(model, half))
        dump(name)
    for batch in data[6:]:
        planted.train_step(model, optimizer, batch)


# Its memory history


class _Recorder(LiveStorages):
    """Notes each operation's stack as CUDA's history has it with ``stacks="python"``.

    The backward pass of a GPU runs in a thread of autograd, which has no Python frames.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.frames: dict[int, Frames] = {}
        self._known: dict[tuple[Any, int], dict[str, Any]] = {}  # shared, so that the file stays small

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note its stack if it may have allocated."""
        number, backward = len(self.ops), torch._C._current_graph_task_id() != -1
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            if len(self.ops) > number:
                alone = backward and not torch.is_grad_enabled()
                self.frames[number] = [] if alone else list(self._stack_of(sys._getframe(1)))

    def _stack_of(self, frame: FrameType | None) -> Iterator[dict[str, Any]]:
        while frame is not None:
            code = frame.f_code
            if not any(part in code.co_filename for part in _HIDDEN):
                here = {"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name}
                yield self._known.setdefault((code, frame.f_lineno), here)
            frame = frame.f_back

    def requests(self) -> list[tuple[int, Allocate | Free]]:
        """What the program asked of the allocator so far, each with its moment."""
        sized = [(number, block) for number, block in enumerate(self.blocks) if block.size_bytes]
        events: list[tuple[int, Allocate | Free]] = [(block.born, Allocate(n, block.size_bytes)) for n, block in sized]
        events += [(block.died, Free(n)) for n, block in sized if block.died is not None]
        return sorted(events, key=lambda event: event[0])

    def snapshot(self, cap_bytes: int | None = None) -> dict[str, Any]:
        """What happened so far, as the simulated allocator would have met it; up to the first request over the cap."""
        allocator, trace = Allocator(AllocatorOptions(), cap_bytes, _DEVICE_BYTES), []
        stacks = {number: self.frames.get(block.op, []) for number, block in enumerate(self.blocks)}
        for moment, event in self.requests():
            number, allocates = event.id, isinstance(event, Allocate)
            size = self.blocks[number].size_bytes
            start = (self.times_ns[moment] - self.times_ns[0]) // 1000
            common = {"stream": 0, "time_us": start, "frames": stacks[number] if allocates else []}
            address = 0 if allocates else allocator.live[number].address
            met = allocator.apply(event)
            if moment:  # what was there before is in no history
                trace += [_entry(call.action, call.address, call.bytes, common) for call in allocator.operations]
                if not met:
                    free = {"device_free": _DEVICE_BYTES - allocator.reserved}
                    trace.append({"action": "oom", "size": size} | common | free)
                    break
                if allocates:
                    trace.append(_entry("alloc", allocator.live[number].address, size, common))
                else:
                    trace += [_entry(f"free_{what}", address, size, common) for what in ("requested", "completed")]
        return {"segments": list(_segments(allocator, stacks)), "device_traces": [trace], "allocator_settings": {}}


def _entry(action: str, address: int, size: int, common: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size} | common


def _segments(allocator: Allocator, stacks: dict[int, Frames]) -> Iterator[dict[str, Any]]:
    for segment in allocator.state().segments:
        blocks = [
            {
                "address": block.address,
                "size": block.bytes,
                "requested_size": block.requested_bytes if block.state == "allocated" else 0,
                "state": _STATES[block.state],
                "frames": stacks.get(block.id, []) if block.state == "allocated" else [],
            }
            for block in segment.blocks
        ]
        used = sum(block["size"] for block in blocks if block["state"] != "inactive")
        yield {
            "device": 0,
            "address": segment.address,
            "total_size": segment.bytes,
            "allocated_size": used,
            "active_size": used,
            "requested_size": sum(block["requested_size"] for block in blocks),
            "stream": 0,
            "segment_type": segment.pool,
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


@contextmanager
def memory_history(device: str) -> Iterator[Callable[[str], Any]]:
    """Record the memory history, and give the function that dumps it.

    On CUDA these are PyTorch's own. On a CPU the program's storages are followed, and a dump is what PyTorch's
    allocator would have written for the same requests.
    """
    if device == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python", clear_history=True)
        try:
            yield torch.cuda.memory._dump_snapshot
        finally:
            torch.cuda.memory._record_memory_history(None)
        return
    with _Recorder(torch.device("cpu")) as recorder:

        def dump(path: str, cap_bytes: int | None = None) -> None:
            Path(path).write_bytes(pickle.dumps(recorder.snapshot(cap_bytes)))

        yield dump


_observed: list[str] = []  # where the observer writes; one observer does, as PyTorch has no call that detaches it


def _observer(*_: Any) -> None:
    if _observed:
        torch.cuda.memory._dump_snapshot(_observed[-1])


def dump_at_out_of_memory(program: Callable[[], Any], path: str, device: str, cap_bytes: int) -> None:
    """Run a program that may take so much memory more, and dump at the request that does not fit."""
    with memory_history(device) as dump:
        if device != "cuda":
            program()
            dump(path, cap_bytes)  # type: ignore[call-arg]
            return
        if not _observed:
            torch._C._cuda_attach_out_of_memory_observer(_observer)
        _observed.append(path)
        torch.cuda.empty_cache()
        allowed = torch.cuda.memory_reserved() + cap_bytes
        torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
        try:
            with suppress(torch.OutOfMemoryError):
                program()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


def requests(most_bytes: int) -> list[Allocate | Free]:
    """What :func:`train_and_evaluate` asks for on a CPU, up to the first request that does not fit."""
    with _Recorder(torch.device("cpu")) as recorder:
        train_and_evaluate("cpu")
        events = [event for _, event in recorder.requests()]
    return list(simulate_allocator(events, cap_bytes=most_bytes).events)


# What is found in it


def cap_bytes(trace: Sequence[dict[str, Any]]) -> int:
    """A cap under which a program that ran as in this history just fits, but for the next step."""
    sign = {"segment_alloc": 1, "segment_free": -1}
    reserved = accumulate(sign.get(entry["action"], 0) * entry["size"] for entry in trace)
    return max(reserved) + 4 * 2**20


def picture(
    history: Sequence[dict[str, Any]], device: str, where: Callable[[Frames], str], **fields: Any
) -> MemoryTrace:
    """A history in PyTorch's form as a trace that draws it: a band for each line, in place of the module."""
    fields |= {"environment": environment(), "device": device}
    blocks: list[MemoryBlock] = []
    times, there = [history[0]["time_us"]], {}
    for entry in history:
        address, moment = entry.get("addr"), len(times)
        if entry["action"] == "alloc":
            there[address] = len(blocks)
            blocks.append(MemoryBlock(entry["size"], moment, moment, "other", where(entry.get("frames", []))))
        elif entry["action"] == "free_completed" and address in there:  # not something that is older
            number = there.pop(address)
            blocks[number] = replace(blocks[number], died=moment)
        else:
            continue
        times.append(entry["time_us"])
    for number in there.values():
        blocks[number] = replace(blocks[number], died=len(times))
    times = [time - times[0] for time in accumulate(times, max)]
    return keep(MemoryTrace.from_blocks(times_us=times, blocks=blocks, most_moments=400, **fields))


def free_row(snapshot: dict[str, Any]) -> dict[str, Any]:
    """What is cached and free, and in how many pieces, as a row beside the lines."""
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    free = [block["size"] for block in blocks if block["state"] == "inactive"]
    return {"line": "free, in pieces", "blocks": len(free), "bytes": sum(free), "age": None}


def meters(timeline: MemoryTrace, blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The peak of a step by the snapshot, by the trace, and by PyTorch's own meter."""
    meter_bytes = timeline.start_bytes + (timeline.meter_bytes or 0)
    peaks = {"the snapshot": sum(block["size"] for block in blocks), "the trace": timeline.peak_bytes}
    peaks[timeline.meter] = meter_bytes
    return [
        {"meter": name, "peak": peak, "within 1%": abs(peak / meter_bytes - 1) < 0.01} for name, peak in peaks.items()
    ]


def planted_line(code: str) -> str:
    """Where a piece of code stands in ``planted.py``, as the lesson's ``where`` names it."""
    lines = Path(planted.__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if code in line)
    function = next(line for line in reversed(lines[:number]) if line.startswith("def ")).split("(")[0][4:]
    return f"memory_snapshots/planted.py:{number} {function}"


def found(
    largest: Sequence[str], grown: Sequence[dict[str, Any]], in_the_way: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What was planted, and whether the searches named it."""
    most = max(grown, key=lambda row: row["second dump"] - row["first dump"])["line"]
    rows = [
        ("a name for the logits", "logits = model", "lines with a tensor of that size", largest),
        ("kept losses", "losses.append", "the line that grew most", [most]),
        ("kept losses, at the error", "losses.append", "the line that held most", [in_the_way[0]["line"]]),
    ]
    return [
        {"planted": what, "at": planted_line(code), "searched for": search, "found": planted_line(code) in lines}
        for what, code, search, lines in rows
    ]
