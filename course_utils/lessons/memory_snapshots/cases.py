"""What the lesson records: a small GPT that runs out of memory, what kept losses leave, and the peak of a loss."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from course_utils.lessons.memory_snapshots import planted, stand_in
from course_utils.materials.models import GPT
from course_utils.materials.text import library_text
from course_utils.measure.machine import device_kind, environment, scaled
from course_utils.memory.cuda_history import read_history
from course_utils.memory.live_storages import Levels, levels_of
from course_utils.results.memory_trace import MemoryBlock, MemoryTrace
from course_utils.results.store import keep

PAIRS = 128 * 128  # tokens, where each pair of characters is one
DEVICE = device_kind()


def batches(count: int) -> list[planted.Batch]:
    """The source code of Python's standard library, by pairs of characters: tokens, and those after them."""
    text, rows, length = library_text(2**20), scaled(cpu=4, cuda=16), scaled(cpu=64, cuda=256)
    tokens = text[text < 128].long()
    tokens = 128 * tokens[:-1:2] + tokens[1::2]
    pieces = tokens[: count * rows * (length + 1)].view(count, rows, length + 1).to(DEVICE)
    # Copies: a view would keep the whole text.
    return [(piece[:, :-1].clone(), piece[:, 1:].clone().flatten()) for piece in pieces]


def build() -> tuple[GPT, torch.optim.Optimizer]:
    """A model and AdamW, with the default that it has on CUDA."""
    torch.manual_seed(0)
    model = GPT(PAIRS, scaled(cpu=64, cuda=256), width=scaled(cpu=128, cuda=512), layers=2).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def train_and_evaluate(dump: Callable[[str], Any] = lambda name: None) -> None:
    """Two steps, an evaluation in two halves with a dump after each, and two more steps."""
    model, optimizer = build()
    data, losses = batches(8), []
    for batch in data[:2]:
        planted.train_step(model, optimizer, batch)
    for name, half in (("half_1", data[2:4]), ("half_2", data[4:6])):
        losses.append(planted.evaluate(model, half))
        dump(name)
    for batch in data[6:]:
        planted.train_step(model, optimizer, batch)


def dumps(folder: Path) -> dict[str, Path]:
    """Snapshots in the middle of the evaluation, after it, and at the error: simulated on a CPU, by a cap on a GPU."""
    files = {name: folder / f"{name}.pickle" for name in ("half_1", "half_2", "out_of_memory")}
    if DEVICE != "cuda":
        with stand_in.memory_history() as dump:
            train_and_evaluate(lambda name: dump(files[name]))
            dump(files["out_of_memory"], _cap(files["half_2"]))
        return files
    memory, observed = torch.cuda.memory, [files["out_of_memory"]]  # no call detaches an observer: this one writes once
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: observed and memory._dump_snapshot(str(observed.pop())))
    memory._record_memory_history(max_entries=100_000, stacks="python", clear_history=True)
    try:
        train_and_evaluate(lambda name: memory._dump_snapshot(str(files[name])))
        memory._record_memory_history(max_entries=100_000, stacks="python", clear_history=True)
        torch.cuda.empty_cache()
        allowed = torch.cuda.memory_reserved() + _cap(files["half_2"])
        torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
        with suppress(torch.OutOfMemoryError):
            train_and_evaluate()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        memory._record_memory_history(None)
    return files


def _cap(file: Path) -> int:
    sign = {"segment_alloc": 1, "segment_free": -1}
    trace = pickle.loads(file.read_bytes())["device_traces"][0]
    return max(accumulate(sign.get(entry["action"], 0) * entry["size"] for entry in trace)) + 4 * 2**20


def picture(file: Path, where: Callable[[Any], str], name: str) -> MemoryTrace:
    """A history as a trace that draws it: a band for each line."""
    snapshot = pickle.loads(file.read_bytes())  # of our own making; it begins with the program
    history = read_history(snapshot | {"segments": []}, snapshot["device_traces"][0])
    end = len(history.times_us)
    blocks = [
        MemoryBlock(each.size_bytes, each.born, end if each.died is None else each.died, where(each.frames))
        for each in history.allocations
    ]
    fields = {"environment": environment(), "device": DEVICE, "label": "the program", "name": name}
    fields |= {"worked_by": "gpu" if DEVICE == "cuda" else "simulation"}
    return keep(MemoryTrace.from_blocks(times_us=history.times_us, blocks=blocks, **fields))


def loss_inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    """Activations, the output layer's weight, and targets; numbers that bfloat16 holds exactly."""
    tokens, words, width = scaled(cpu=512, cuda=8192), scaled(cpu=2048, cuda=PAIRS), scaled(cpu=16, cuda=64)
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(tokens, width, generator=generator), torch.randn(words, width, generator=generator) / 4
    rounded = [each.bfloat16().to(DEVICE, dtype).requires_grad_() for each in (x, weight)]
    return [*rounded, torch.randint(words, (tokens,), generator=generator).to(DEVICE)]


def traced(make: Callable[..., Callable[[], None]], **how: Any) -> Levels:
    return levels_of(make(**how))
