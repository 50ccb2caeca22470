"""Train a GPT on one GPU with FSDP, its shards there or in main memory: the GPU's peak, and the time of a step.

By hand: python scripts/fsdp_offload.py --layers 16    (800 million parameters; more layers, until one of both is full)
"""

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.functional import cross_entropy

from course_utils.materials.models import GPT

PLACES = {"on the GPU": OffloadPolicy(), "in main memory": CPUOffloadPolicy()}


def trained(place: str, width: int, layers: int, length: int, texts: int = 4) -> dict[str, Any]:
    """Five steps of one rank, of which the last three are timed. There is a process group for both kinds of memory."""
    mesh = init_device_mesh("cuda", (1,))
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16), "offload_policy": PLACES[place]}
    tokens = torch.randint(256, (texts, length), device="cuda")
    with torch.device("cuda"):
        model = GPT(256, length, width, layers, width // 64)
    for module in (*model.blocks, model):
        fully_shard(module, **options)
    optimizer, times = torch.optim.AdamW(model.parameters(), fused=True), []
    for _ in range(5):
        torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_allocated()
    return {"shards": place, "peak": peak, "a step": statistics.median(times[2:])}


def both(width: int, layers: int, length: int) -> list[dict[str, Any]]:
    """A row for each place."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())  # alone: nothing is sent
    try:
        return [trained(place, width, layers, length) for place in PLACES]
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    for row in both(2048, parser.parse_args().layers, 1024):
        print(f"{row['shards']:15} {row['peak'] / 2**30:6.1f} GiB on the GPU, {row['a step']:6.3f} s a step")
