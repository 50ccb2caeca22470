"""What real ranks hold in memory during one training step, measured twice: by PyTorch's trackers, and by RankMemory.

    torchrun --nproc-per-node 2 tests/rank_programs/step_memory.py POINTS [STEPS]

POINTS is a list of points as JSON; what was measured is reported. An ordinary program on gloo: it knows nothing of the
simulation, and wraps, trains and measures as a learner would.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.models import GPT, Llama
from course_utils.ranks.memory import RankMemory
from course_utils.ranks.programs import report

# Of so many steps the one with the lowest peak counts: when the machine is busy, gloo's threads now and then hold a
# buffer for a little longer than they need it.
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
# The trackers' words for what lasts from step to step, and ours.
PARTS = {
    "Parameter": "weights",
    "Sharded Param": "weights",
    "Gradient": "gradients",
    "Sharded Grad": "gradients",
    "Optstate": "optimizer",
    "OptState": "optimizer",
}


def build(point: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    sizes = {key: point[key] for key in ("width", "layers", "heads", "vocabulary", "context")}
    llama = {key: point[key] for key in ("kv_heads", "hidden") if key in point}
    model = Llama(**sizes, **llama) if llama else GPT(**sizes)
    if point["checkpointing"]:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block)
    adamw = {"foreach": point["optimizer"] == "foreach", "fused": point["optimizer"] == "fused"}
    if point["strategy"] == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, torch.optim.AdamW(model.parameters(), **adamw)
    policy = MixedPrecisionPolicy()
    if point["precision"] == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mp_policy": policy, "reshard_after_forward": point["strategy"] != "fsdp_no_reshard"}
    for module in (*model.blocks, model):
        fully_shard(module, **options)
    return model, torch.optim.AdamW(model.parameters(), **adamw)


def train(point: dict[str, Any], model: torch.nn.Module, optimizer: Any) -> None:
    tokens = torch.randint(point["vocabulary"], (point["batch"], point["length"]))
    optimizer.zero_grad()
    wrapped = point["strategy"] == "ddp" and point["precision"] == "bf16"
    with torch.autocast("cpu", torch.bfloat16) if wrapped else contextlib.nullcontext():
        loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    optimizer.step()


def by_rank_memory(point: dict[str, Any]) -> dict[str, Any]:
    with RankMemory() as memory:
        model, optimizer = build(point)
        train(point, model, optimizer)
        steps = []
        for _ in range(STEPS):
            with memory.step(model, optimizer):
                train(point, model, optimizer)
            steps.append({**memory.last_step.largest, "peak": memory.last_step.peak_bytes})
    return min(steps, key=lambda step: step["peak"])


def by_torch(point: dict[str, Any]) -> dict[str, Any]:
    if point["strategy"] == "ddp":
        tracker: Any = MemTracker()
        with tracker:  # DDP's buckets are made here
            model, optimizer = build(point)
    else:
        model, optimizer = build(point)
        tracker = FSDPMemTracker(model, optimizer)
    peaks = []
    for _ in range(1 + STEPS):
        with tracker:
            train(point, model, optimizer)
        peaks.append(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
        tracker.reset_mod_stats()
    lasting = {"weights": 0, "gradients": 0, "optimizer": 0}
    for key, size in tracker.get_tracker_snapshot("current")[torch.device("cpu")].items():
        if key != "Total" and PARTS.get(key.value) in lasting:
            lasting[PARTS[key.value]] += size
    return {"peak": min(peaks[1:]), **lasting}


def main() -> None:
    dist.init_process_group("gloo")
    points = json.loads(sys.argv[1])
    report(measured=[{"rank_memory": by_rank_memory(point), "torch": by_torch(point)} for point in points])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
