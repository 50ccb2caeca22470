"""What real ranks hold in memory during one training step, measured twice: by RankMemory, and by PyTorch's tracker.

    torchrun --nproc-per-node 2 tests/rank_programs/step_memory.py POINTS STEPS

POINTS is a list of points as JSON; what was measured is reported. An ordinary program on gloo: it knows nothing of the
simulation, and wraps, trains and measures as a learner would. Of so many steps the one with the lowest peak counts:
when the machine is busy, gloo's threads now and then hold a buffer for a little longer than they need it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.ranks.memory import RankMemory
from course_utils.ranks.programs import report

POINTS, STEPS = json.loads(sys.argv[1]), int(sys.argv[2])
# The tracker's words for what lasts from step to step, and ours.
PARTS = {"Sharded Param": "weights", "Optstate": "optimizer", "OptState": "optimizer"}


def build(point: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = GPT(**{key: point[key] for key in ("width", "layers", "heads", "vocabulary", "context")})
    if point["checkpointing"]:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mp_policy=policy, reshard_after_forward=point["strategy"] != "fsdp_no_reshard")
    return model, torch.optim.AdamW(model.parameters(), **{point["optimizer"]: True})


def train(point: dict[str, Any], model: torch.nn.Module, optimizer: Any) -> None:
    tokens = torch.randint(point["vocabulary"], (point["batch"], point["length"]))
    optimizer.zero_grad()
    functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
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
    model, optimizer = build(point)
    tracker, peaks = FSDPMemTracker(model, optimizer), []
    for _ in range(1 + STEPS):
        with tracker:
            train(point, model, optimizer)
        peaks.append(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
        tracker.reset_mod_stats()
    lasting = {"peak": min(peaks[1:])}
    for key, size in tracker.get_tracker_snapshot("current")[torch.device("cpu")].items():
        if key != "Total" and key.value in PARTS:
            lasting[PARTS[key.value]] = lasting.get(PARTS[key.value], 0) + size
    return lasting


dist.init_process_group("gloo")
report(measured=[by_rank_memory(point) | {"by torch": by_torch(point)} for point in POINTS])
dist.destroy_process_group()
