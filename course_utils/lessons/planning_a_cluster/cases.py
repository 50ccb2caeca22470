"""What is simulated and worked out beside what was measured, and a node that is lost."""

from __future__ import annotations

import re
import runpy
import tempfile
from typing import Any

from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.cluster import settings_of, stored_check, stored_plans
from course_utils.ranks.nodes import Nodes
from course_utils.ranks.step_floor import Rates, step_floor, step_flops, traffic_bytes
from course_utils.records.kinds.cluster_plan import GPTShape

GIB = 2**30
LLAMA_7B = GPTShape(width=4096, layers=32, heads=32, vocabulary=32_000, context=2048, hidden=11_008)
LLAMA_70B = GPTShape(8192, 80, 64, vocabulary=128_256, context=8192, kv_heads=8, hidden=28_672)
# MPT, by the parameters that llm-foundry prints, has the shapes of the course's GPT.
MPT_7B = GPTShape(4096, 32, 32, vocabulary=50_368, context=2048)
MPT_13B = GPTShape(5120, 40, 40, vocabulary=50_368, context=2048)
# Data sheet of an H100: bf16, dense; NVLink's line rate in one direction; a card of 400 Gb/s for each GPU.
H100 = Rates(flops=989e12, inside=450e9, between=50e9)

# What others measured, in GiB: see the rows in lesson.yml, which a test holds against these.
MEASURED_GIB = {"7B, all recomputed": 0.2392 * 95.0396, "7B, nothing recomputed": 90.28}


def against_published() -> list[dict[str, Any]]:
    """Each measured peak beside the simulated one, in bytes, and why they differ."""
    ours = stored_check()
    worst = max(ours, key=lambda point: point.deviation)
    nothing, full = (plan["fsdp", 8].peak_bytes for plan in stored_plans("published"))
    # Their loop holds the logits until the step ends, in fp32; their root and last block stay gathered, in bf16.
    root = (2 * LLAMA_7B.vocabulary + 1) * LLAMA_7B.width
    block = (LLAMA_7B.parameters - root) // LLAMA_7B.layers
    kept = 4 * 8 * 2048 * LLAMA_7B.vocabulary + 2 * (root + block)
    measured_full, measured_nothing = (round(gib * GIB) for gib in MEASURED_GIB.values())
    return [
        _row("ours, up to 4 ranks, the worst", worst.measured["peak"], worst.simulated["peak"], "exact"),
        _row("7B, all recomputed", measured_full, full, "three things that their program keeps"),
        _row("the same, with these three added", measured_full, full + kept, "not known"),
        _row("7B, nothing recomputed", measured_nothing, nothing, "theirs is compiled, and reserved"),
    ]


def _row(label: str, measured: int, simulated: int, why: str) -> dict[str, Any]:
    off = simulated / measured - 1
    return {"peak": label, "off by": off, "why": why, "measured": measured, "simulated": simulated}


def refused() -> list[str]:
    """Plans that make no sense, and what is said of them."""
    said = []
    for plan in ({"ranks": 12, "strategies": "hsdp"}, {"ranks": 0}, {"batch": -1}):
        try:
            settings_of(LLAMA_7B, **{"ranks": 8, "strategies": "fsdp", **plan})
        except ValueError as error:
            said.append(f"{plan}: {error}")
    return said


# Published steps on H100s: model, ranks, tokens of a rank in a step, tokens a second and rank.
STEPS = {
    "MPT 7B, 8 GPUs": (MPT_7B, 8, 12_288, 10_643),
    "MPT 13B, 8 GPUs": (MPT_13B, 8, 4096, 4792),
    "MPT 13B, 64 GPUs": (MPT_13B, 64, 4096, 4800),
}


def floors(rates: Rates = H100) -> list[dict[str, Any]]:
    """Each published step beside the least that it can take, and its MFU."""
    rows = []
    for label, (model, ranks, tokens, rate) in STEPS.items():
        floor = step_floor(model, "fsdp", ranks, rates, tokens=tokens)
        published = tokens / rate
        rows.append(
            {
                "step": label,
                "published over least": published / floor.hidden_s,
                "over the sum": published / floor.exposed_s,
                "MFU": step_flops(model, tokens, model.context) / rates.flops / published,
                "least": floor.hidden_s,
                "sum": floor.exposed_s,
                "published": published,
            }
        )
    return rows


def by_tokens(rates: Rates = H100, ranks: int = 64) -> list[dict[str, Any]]:
    """How much longer than its computing a step takes at least, by the tokens of a rank and the strategy."""
    rows = []
    for tokens in (256, 1024, 4096, 16_384):
        row: dict[str, Any] = {"tokens a GPU": f"{tokens:,}"}
        for strategy in ("ddp", "fsdp", "hsdp"):
            floor = step_floor(LLAMA_7B, strategy, ranks, rates, tokens=tokens)
            row[strategy] = floor.hidden_s / floor.compute_s
        rows.append(row)
    return rows


_COLLECTIVES = {"all-gather": ("allgather", 1), "reduce-scatter": ("reduce_scatter", 1), "all-reduce": ("allreduce", 2)}


def traffic(ranks: int = 64, group: int = 8) -> list[dict[str, Any]]:
    """What a rank sends in a step of a small GPT, from the collectives that PyTorch asks for, beside the formula.

    The other ranks are pretended: the process group is a fake one, as in the simulation.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rows = []
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        for strategy in ("ddp", "fsdp_no_reshard", "fsdp", "hsdp"):
            shards = {"ddp": 1, "hsdp": group}.get(strategy, ranks)
            parameters, counted = _counted(strategy, ranks, shards)
            sent = 0.0
            for kind, (name, times) in _COLLECTIVES.items():
                members = ranks // shards if kind == "all-reduce" else shards
                sent += times * (members - 1) / members * counted.get(name, 0)
            formula = sum(traffic_bytes(parameters, strategy, ranks, group=group).values())
            rows.append({"strategy": strategy, "counted": sent, "formula": formula, "off by": abs(sent / formula - 1)})
    finally:
        dist.destroy_process_group()
    return rows


def _counted(strategy: str, ranks: int, shards: int) -> tuple[int, dict[str, int]]:
    """Parameters of a GPT, and bytes of its second step's collectives, by name: DDP makes its buckets in the first."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from course_utils.materials.models import GPT
    from course_utils.ranks.collectives import Collectives
    from course_utils.ranks.programs import loss_of

    def reduced(_, bucket):  # the fake all-reduce returns no tensor; without annotations, which DDP refuses
        dist.all_reduce(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model: Any = GPT(width=128, layers=4)
    parameters = sum(weight.numel() for weight in model.parameters())
    if strategy == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(None, reduced)
    else:
        mesh = dist.init_device_mesh("cpu", (ranks // shards, shards), mesh_dim_names=("replicate", "shard"))
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
        options = {"mp_policy": policy, "reshard_after_forward": strategy != "fsdp_no_reshard"}
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh if strategy == "hsdp" else mesh["shard"], **options)
    tokens = torch.zeros(2, 32, dtype=torch.int64)
    loss_of(model, tokens, tokens).backward()
    with Collectives() as collectives:
        loss_of(model, tokens, tokens).backward()
    return parameters, {kind: calls["bytes"] for kind, calls in collectives.traffic().items()}


def unbroken(steps: int) -> list[float]:
    """The loss of each step that ``elastic_train.py`` takes, in this process alone, without FSDP."""
    import torch

    program = runpy.run_path("scripts/fsdp_checkpoint.py")
    training = program["Training"](torch.device("cpu"), seed=0)
    batches = text_batches(library_text(2**16), program["BATCH"], program["LENGTH"], steps)
    return [training.step(*batch) for batch in batches]


def lost_node(steps: int = 6, killed_after: int = 2) -> tuple[list[dict[str, Any]], str]:
    """Train on two nodes, kill the second one, start it again: the loss of each step, and what the first node said."""
    with tempfile.TemporaryDirectory() as folder, Nodes(2) as nodes:
        program = ("scripts/elastic_train.py", "--folder", folder, "--steps", str(steps), "--pause", "0.1")
        for number in range(nodes.count):
            nodes.start(number, *program)
        nodes.until(lambda: f"step {killed_after}:" in nodes.log(0), 120, f"node 0 has done step {killed_after}")
        nodes.kill(1)
        nodes.start(1, *program)
        nodes.wait(120)
        log = nodes.log(0)
    said = "\n".join(line for line in log.splitlines() if re.match(r"\d+ ranks|step \d", line))
    restarted = said.find("restart 1")
    rows, expected_of = [], unbroken(steps)
    for match in re.finditer(r"step (\d+): loss ([\d.]+)", said):
        where = "before" if match.start() < restarted else "after the restart"
        loss, expected = float(match[2]), expected_of[int(match[1])]
        rows.append(
            {"step": f"{match[1]}, {where}", "loss": loss, "unbroken": expected, "off by": abs(loss / expected - 1)}
        )
    return rows, said


def on_this_gpu() -> dict[str, int]:
    """Bytes of one training step of a GPT on the GPU: worked out, and as PyTorch's allocator has them."""
    import torch

    from course_utils.materials.models import GPT
    from course_utils.materials.step_memory import worked_out

    def build(device: str = "cpu") -> tuple[Any, Any, Any]:
        with torch.device(device):
            model = GPT(vocabulary=8192, context=512, width=768, layers=6, heads=12)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.zeros(4, 512, dtype=torch.int64, device=device)

        def step() -> None:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()

        return model, optimizer, step

    predicted = worked_out(build).peak_bytes
    before = torch.cuda.memory_allocated()
    *alive, step = build("cuda")
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    free, total = torch.cuda.mem_get_info()
    del alive
    return {
        "worked out": predicted,
        "most allocated": torch.cuda.max_memory_allocated() - before,
        "most reserved": torch.cuda.max_memory_reserved(),
        "outside PyTorch: context, others": total - free - torch.cuda.memory_reserved(),
    }
