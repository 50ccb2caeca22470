"""What the lesson's tables say: of ranks that ran, of Llama 3.1 8B worked out, and of one GPU."""

from __future__ import annotations

import runpy
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.testing._internal.distributed.fake_pg import FakeStore

from course_utils.lessons.activation_checkpointing.cases import recompute, selective
from course_utils.materials.models import Llama, LlamaBlock, rotary_turns
from course_utils.measure.machine import course_size, device_kind, scaled
from course_utils.memory.allocator import Allocate, Event, Free, simulate_allocator
from course_utils.ranks.memory import RankMemory
from course_utils.results.rank_results import RankResults
from course_utils.results.table import Table

KINDS = ("weights", "gradients", "optimizer state")
PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")
GPUS = ("shards", "gathered", "activations", "logits", "not used")
STRATEGIES = ("DDP", "ZeRO-1", "FSDP no reshard", "FSDP", "FSDP root only")
_UNITS = {"off by": "relative", "of the weights": "ratio", "they are": "percent", "calls": "count"}  # else bytes
Rows = list[dict[str, Any]]

_TESTED = course_size() == "test"
_WIDTH, _HEADS, _HIDDEN, _VOCABULARY, _BLOCKS = (64, 8, 224, 512, 3) if _TESTED else (4096, 32, 14336, 128256, 32)
_BATCH, _LENGTH = 2, 32 if _TESTED else 8192
_TIMES = _BLOCKS * _BATCH


def units(rows: Rows) -> dict[str, str]:
    return {key: _UNITS.get(key, "bytes") for key, value in rows[0].items() if isinstance(value, int | float)}


def arguments() -> list[str | int]:
    """Small for ranks on a CPU, large for a GPU each."""
    width, length = scaled(cpu=(128, 64), cuda=(768, 256)) if torch.cuda.device_count() > 1 else (128, 64)
    return ["--width", width, "--length", length]


def each_is_right(run: RankResults) -> bool:
    """Whether each strategy reaches the losses of one process with the whole batch, to one part in a thousand."""
    losses = {strategy: torch.tensor(given) for strategy, given in run[0]["losses"].items()}
    return all(torch.allclose(given, losses["one process"], rtol=1e-3, atol=0) for given in losses.values())


def kept(run: RankResults) -> Rows:
    """By strategy, on the rank that keeps most, beside what the formula says."""
    rows: Rows = []
    for strategy in STRATEGIES:
        most = max((of_rank["memory"][strategy] for of_rank in run), key=lambda kinds: sum(kinds.values()))
        total = sum(most[kind] for kind in KINDS)
        shared = {"DDP": 0, "ZeRO-1": 8}.get(strategy, 16)  # bytes of a parameter that ranks share out
        formula = round(run[0]["parameters"] * (16 - shared + shared / run.ranks))
        row = {"strategy": strategy, "in all": total, "formula": formula, "off by": total / formula - 1}
        rows.append(row | {kind: most[kind] for kind in KINDS})
    return rows


def peaks(run: RankResults) -> Rows:
    """By strategy, what is held when a rank holds most."""
    rows = []
    for strategy in STRATEGIES:
        step = max((of_rank["steps"][strategy] for of_rank in run), key=lambda step: step["peak_bytes"])
        row = {"strategy": strategy, "peak": step["peak_bytes"], "during": step["phase"]}
        rows.append(row | {part: step["at peak"][part] for part in PARTS})
    return rows


def traffic(run: RankResults) -> Rows:
    """By strategy and collective, the bytes of a step."""
    rows, weights = [], 4 * run[0]["parameters"]
    for strategy, collectives in run[0]["traffic"].items():
        for collective, found in collectives.items():
            row = {"strategy: collective": f"{strategy}: {collective}", "calls": found["calls"], "sent": found["bytes"]}
            row |= {"of the weights": found["bytes"] / weights}
            rows.append(row | {"they are": found["of them weights"] / found["bytes"]})
    return rows


class _Asked(RankMemory):
    """Keeps what is asked of the allocator, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.held = 0
        self._names: dict[Any, int] = {}

    def _set_size(self, storage: Any, size_bytes: int) -> None:
        if size_bytes != storage.size_bytes:
            self.held += size_bytes - storage.size_bytes
            if storage.size_bytes:
                self.events.append(Free(self._names[storage]))
            if size_bytes:
                self._names[storage] = len(self.events)
                self.events.append(Allocate(len(self.events), size_bytes))
        super()._set_size(storage, size_bytes)


_AGAIN: dict[str, dict[str, Any]] = {"nothing": {}, "selective": {"context_fn": selective}, "each block": {}}


def per_token() -> Rows:
    """What a block of Llama 3.1 8B keeps for its backward pass in bf16, by what is computed again."""
    rows = []
    for way in _AGAIN:
        kept = _kept_by_a_block(way)
        on_gpu = _kept_by_a_block(way, "cuda") / _LENGTH if device_kind() == "cuda" else None
        rows.append({"computed again": way, "a token": kept / _LENGTH, "on the GPU": on_gpu, "in all": kept * _TIMES})
    return rows


def _kept_by_a_block(way: str, device: str = "cpu") -> int:
    """Counted with fake tensors; on a GPU, with its allocator."""
    memory, fake = _Asked(), device == "cpu"
    held = (lambda: memory.held) if fake else torch.cuda.memory_allocated
    with torch.device(device), FakeTensorMode() if fake else nullcontext():
        torch.set_default_dtype(torch.bfloat16)  # fake parameters cannot be converted
        block = LlamaBlock(_WIDTH, _HEADS, _HEADS // 4, _HIDDEN)
        torch.set_default_dtype(torch.float32)
        recompute(() if way == "nothing" else [block], **_AGAIN[way])
        turns = rotary_turns(_LENGTH, _WIDTH // _HEADS)
        x = torch.randn(1, _LENGTH, _WIDTH, dtype=torch.bfloat16, requires_grad=True)
        with memory if fake else nullcontext(), memory.step(block):
            x, before = x + 0, held()  # the block's input is kept, too: its output, of the same size, stands for it
            y = block(x, turns)
            return held() - before if y.requires_grad else 0


def of_8_and_128() -> Rows:
    """What a GPU holds at once when Llama 3.1 8B trains as torchtitan does, and what the allocator reserves for it."""
    rows, activations = [], _TIMES * _kept_by_a_block("selective")
    for gpus, read in ((8, 82.4), (128, 67.0)):  # GiB: the published row torchtitan_llama3_fsdp
        memory = one_of(gpus)
        at_peak = memory.last_step.at_peak
        at_once, reserved = sum(at_peak.values()), simulate_allocator(memory.events).peak_reserved_bytes
        row = {"a GPU of": f"{gpus} GPUs", "at once": at_once, "reserved": reserved, "read": round(read * 2**30)}
        row |= {"shards": at_once - at_peak["activations"] - at_peak["gathered"], "gathered": at_peak["gathered"]}
        row["activations"] = activations
        rows.append(row | {"logits": at_peak["activations"] - activations, "not used": reserved - at_once})
    return rows


def one_of(gpus: int, way: str = "selective") -> _Asked:
    """Two steps of one rank, on fake tensors and without the others: torchtitan's options at commit 9dec370."""
    memory = _Asked()
    dist.init_process_group("fake", rank=0, world_size=gpus, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (gpus,))
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
        with FakeTensorMode():
            model = Llama(_VOCABULARY, _LENGTH, _WIDTH, _BLOCKS, _HEADS, _HEADS // 4, _HIDDEN)
            recompute(() if way == "nothing" else model.blocks, **_AGAIN[way])
            for block in model.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=block is not model.blocks[-1])
            fully_shard(model, mesh=mesh, mp_policy=policy)
            # Plain tensors: with DTensors the optimizer tries its operations in full size.
            weights = list(model.parameters())
            shards = [torch.nn.Parameter(weight.to_local().detach()) for weight in weights]
            optimizer = torch.optim.AdamW(shards, foreach=True)
            tokens = torch.zeros(_BATCH, _LENGTH, dtype=torch.int64)
            for _ in range(2):
                with memory, memory.step(model, optimizer):
                    model.zero_grad()
                    optimizer.zero_grad()
                    cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
                    for shard, weight in zip(shards, weights, strict=True):
                        shard.grad = weight.grad.to_local()
                    optimizer.step()
        return memory
    finally:
        dist.destroy_process_group()


def offload() -> Rows:
    """One GPU, shards there or in main memory: the GPU's peak, and the time of a step."""
    size = (64, 2, 32) if _TESTED else (2048, 16, 1024)
    return runpy.run_path("scripts/fsdp_offload.py")["both"](*size)


def peak_says(it: Table) -> str:
    return f"At its worst moment a rank under FSDP holds {it['FSDP']['peak'] / it['DDP']['peak']:.0%} of DDP's."


def llama_says(it: Table) -> str:
    return f"One of 8 GPUs reserves {it.text('8 GPUs', 'reserved')}, one of 128 {it.text('128 GPUs', 'reserved')}."
