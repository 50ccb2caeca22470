"""What is simulated, held against what was measured, and worked out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from course_utils.materials.models import Llama
from course_utils.materials.step_memory import worked_out
from course_utils.measure.devices import device_under_test
from course_utils.measure.machine import course_size
from course_utils.ranks.cluster import ClusterMemory, ClusterStep, LlamaShape, simulate_steps, stored_check
from course_utils.results.table import Table

GIB = 2**30
LLAMA_7B = LlamaShape(width=4096, layers=32, heads=32, vocabulary=32_000, context=2048, hidden=11_008)
LLAMA_70B = LlamaShape(8192, 80, 64, vocabulary=128_256, context=8192, kv_heads=8, hidden=28_672)
_OF_7B, _OF_70B = (8, 64, 1024), (16, 24)
if course_size() == "test":  # each takes seconds
    _OF_7B, _OF_70B = (8,), (16,)
    LLAMA_7B, LLAMA_70B = replace(LLAMA_7B, layers=4), replace(LLAMA_70B, layers=4)
PARTS = ("temporary", "gathered", "activations", "weights", "gradients", "state")
BYTES = dict.fromkeys(("peak", *PARTS), "bytes")
MEASURED = {"off by": "percent"} | dict.fromkeys(("measured", "simulated"), "bytes")
RAN_ON = "gpu" if torch.cuda.is_available() else "cpu"
ALLOCATED = {"off by": "percent"} | dict.fromkeys(("worked out", "allocated", "reserved"), "bytes")


def _row(label: str, point: ClusterMemory) -> dict[str, Any]:
    """What a rank holds at its peak. In the optimizer's step no activation is left: what else is there is AdamW's."""
    parts = {"state" if part == "optimizer" else part: size for part, size in point.at_peak.items()}
    temporary = parts["activations"] if point.peak_phase == "optimizer step" else 0
    parts |= {"activations": parts["activations"] - temporary, "temporary": temporary}
    return {"GPUs": label, "peak": point.peak_bytes, "peak in": point.peak_phase} | {
        part: parts[part] for part in PARTS
    }


def by_ranks() -> list[dict[str, Any]]:
    """The 7B's peak on 8, 64 and 1,024 GPUs, with nothing and with each block recomputed; and with more sequences."""
    asked = {f"{ranks:,}": ClusterStep(LLAMA_7B, ranks) for ranks in _OF_7B}
    asked |= {f"{ranks:,}, recomputed": ClusterStep(LLAMA_7B, ranks, checkpointing=True) for ranks in _OF_7B}
    asked[f"{_OF_7B[-1]:,}, 8 sequences"] = ClusterStep(LLAMA_7B, _OF_7B[-1], batch=8)
    return [_row(*row) for row in zip(asked, simulate_steps([*asked.values()]), strict=True)]


def bars(plan: Table) -> Any:
    """Draw what a GPU holds at its peak, by part; more sequences would squeeze the other bars."""
    drawn = tuple(row for row in plan.rows if "sequences" not in row[0])
    figure = replace(plan, rows=drawn).plot(PARTS, stacked=True)
    title = "Llama 7B: what each GPU holds at its peak, by the number of GPUs"
    figure.texts[0].set_text(title)
    figure.alt = f"{title}. {figure.alt}"
    return figure


def least() -> list[dict[str, Any]]:
    """The 70B's peak on 16 and 24 GPUs, by the kind of AdamW; each block is recomputed."""
    asked = {
        f"{ranks}, {kind}": ClusterStep(LLAMA_70B, ranks, length=2048, checkpointing=True, optimizer=kind)
        for kind in ("foreach", "fused")
        for ranks in _OF_70B
    }
    return [_row(*row) for row in zip(asked, simulate_steps([*asked.values()]), strict=True)]


# What others measured, in GiB: see the rows in lesson.yml, which a test holds against these.
MEASURED_GIB = {"all recomputed": 0.2392 * 95.0396, "nothing recomputed": 90.28}


def trust() -> list[dict[str, Any]]:
    """Each measured size beside the simulated one, and why they differ."""
    pairs = [
        (size, point["simulated"][part], part == "peak")
        for point in stored_check()
        for part, size in point["measured"].items()
    ]
    asked = [ClusterStep(LLAMA_7B, ranks=8, batch=8, checkpointing=again) for again in (True, False)]
    full, nothing = (point.peak_bytes for point in simulate_steps(asked))
    # Their loop holds the logits until the step ends, in fp32; their root and last block stay gathered, in bf16.
    root = (2 * LLAMA_7B.vocabulary + 1) * LLAMA_7B.width
    block = (LLAMA_7B.parameters - root) // LLAMA_7B.layers
    kept = 4 * 8 * 2048 * LLAMA_7B.vocabulary + 2 * (root + block)
    measured_full, measured_nothing = (round(gib * GIB) for gib in MEASURED_GIB.values())
    rows = [
        ("our ranks, worst peak", *_worst([pair for pair in pairs if pair[2]]), "exact"),
        ("our ranks, worst part", *_worst([pair for pair in pairs if not pair[2]]), "20 bytes a rank"),
        ("7B on 8 H100s, recomputed", measured_full, full, "their program keeps three things"),
        ("the same, these three added", measured_full, full + kept, "not known"),
        ("7B on 8 H100s, not recomputed", measured_nothing, nothing, "theirs: compiled, reserved"),
    ]
    return [
        {"what": what, "off by": simulated / measured - 1, "why": why, "measured": measured, "simulated": simulated}
        for what, measured, simulated, why in rows
    ]


def _worst(pairs: list[tuple[int, int, bool]]) -> tuple[int, int]:
    measured, simulated, _ = max(pairs, key=lambda pair: abs(pair[1] / pair[0] - 1) if pair[0] else 0)
    return measured, simulated


def two_blocks() -> LlamaShape:
    """Two blocks in the 70B's shapes, where a GPU has room for a step of them; else in a sixteenth of its width."""
    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > 44 * GIB and course_size() != "test":
        return LlamaShape(8192, 2, 64, vocabulary=8192, context=2048, kv_heads=8, hidden=28_672)
    return LlamaShape(512, 2, 8, vocabulary=512, context=128, kv_heads=1, hidden=1792)


def on_this_gpu() -> list[dict[str, Any]]:
    """A step's peak in fp32, by AdamW's kind: worked out with fake tensors, and as the device's allocator has it."""
    device, rows = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu"), []
    for kind in ("foreach", "fused"):
        predicted = worked_out(lambda kind=kind: _training(kind, "cpu"))
        model, optimizer, step = _training(kind, device.type)
        step()  # AdamW makes its state
        state = [value for values in optimizer.state.values() for value in values.values()]
        before = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *state))
        before += 8 * two_blocks().context  # the tokens
        extra, reserved = device_under_test().peak_memory(step)
        del model, optimizer, step, state
        rows.append(
            {
                "AdamW": kind,
                "worked out": predicted.peak_bytes,
                "allocated": before + extra,
                "off by": predicted.peak_bytes / (before + extra) - 1,
                "reserved": None if reserved is None else before + reserved,
            }
        )
    return rows


def _training(kind: str, device: str) -> tuple[Llama, torch.optim.AdamW, Callable[[], None]]:
    shape = two_blocks()
    with torch.device(device):
        model, tokens = Llama(**asdict(shape)), torch.zeros(1, shape.context, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), **{kind: True})

    def step() -> None:
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step
