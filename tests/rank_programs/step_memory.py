"""What real ranks hold in memory during a training step, by RankMemory, and the first by PyTorch's tracker, too.

    torchrun --nproc-per-node 2 tests/rank_programs/step_memory.py ASKED STEPS

ASKED is a list of ``ClusterStep`` as JSON; what was measured is reported. An ordinary program on gloo: it knows nothing
of the simulation, and wraps, trains and measures as a learner would. Of so many steps the one with the lowest peak
counts: when the machine is busy, gloo's threads now and then hold a buffer for a little longer than they need it.
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

from course_utils.materials.models import Llama
from course_utils.ranks.memory import RankMemory
from course_utils.ranks.programs import report

ASKED, STEPS = json.loads(sys.argv[1]), int(sys.argv[2])
# The tracker's words for what lasts from step to step, and ours.
PARTS = {"Sharded Param": "weights", "Optstate": "optimizer", "OptState": "optimizer"}


def build(asked: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = Llama(**asked["model"])
    if asked["checkpointing"]:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mp_policy=policy, reshard_after_forward=True)
    return model, torch.optim.AdamW(model.parameters(), **{asked["optimizer"]: True})


def train(asked: dict[str, Any], model: torch.nn.Module, optimizer: Any) -> None:
    tokens = torch.randint(asked["model"]["vocabulary"], (asked["batch"], asked["model"]["context"]))
    optimizer.zero_grad()
    functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
    optimizer.step()


def by_rank_memory(asked: dict[str, Any]) -> dict[str, Any]:
    with RankMemory() as memory:
        model, optimizer = build(asked)
        train(asked, model, optimizer)
        steps = []
        for _ in range(STEPS):
            with memory.step(model, optimizer):
                train(asked, model, optimizer)
            steps.append({**memory.last_step.largest, "peak": memory.last_step.peak_bytes})
    return min(steps, key=lambda step: step["peak"])


def by_torch(asked: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = build(asked)
    tracker, peaks = FSDPMemTracker(model, optimizer), []
    for _ in range(1 + STEPS):
        with tracker:
            train(asked, model, optimizer)
        peaks.append(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
        tracker.reset_mod_stats()
    lasting = {"peak": min(peaks[1:])}
    for key, size in tracker.get_tracker_snapshot("current")[torch.device("cpu")].items():
        if key != "Total" and key.value in PARTS:
            lasting[PARTS[key.value]] = lasting.get(PARTS[key.value], 0) + size
    return lasting


dist.init_process_group("gloo")
report(measured=[by_rank_memory(asked) for asked in ASKED], **{"by torch": by_torch(ASKED[0])})
dist.destroy_process_group()
