"""Live memory snapshots against the simulated allocator, each setting in a process of its own: it is read once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_utils.memory.allocator import AllocatorOptions
from own_program.snapshots.replay import DeviceSnapshot
from tests.replays import load_snapshot, same_end

MIB = 2**20
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
)
# Tensors of changing sizes, a training step, and memory given back: in every pool, with and without a limit.
_PROGRAM = """
import os, random, sys
import torch
cap, path = sys.argv[1:]
torch.cuda.init()
if cap != "none":
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(int(cap) / total)
torch.cuda.memory._record_memory_history(context=None, max_entries=200_000)
dice, held = random.Random(0), []
for step in range(400):
    if held and (len(held) > 12 or dice.random() < 0.5):
        del held[dice.randrange(len(held))]
    else:
        size = int(dice.choice((2 ** dice.uniform(5, 20), dice.uniform(1, 24) * 2**20)))
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            held.clear()
    if step % 100 == 99:
        held.clear()
        torch.cuda.empty_cache()
held.clear()
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in (64, 200, 96, 256):
    model(torch.randn(batch, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
torch.cuda.synchronize()
torch.cuda.memory._dump_snapshot(path)
print(torch.cuda.memory_reserved(), torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved())
"""
TIES = "oldest" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13) else "lowest"


def record(options: str, cap_bytes: int | None, path: Path) -> tuple[DeviceSnapshot, list[int]]:
    """A snapshot from a fresh process, and what PyTorch itself says of its memory."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    # The name of before 2.9 is understood by every version.
    environment["PYTORCH_CUDA_ALLOC_CONF"] = options
    cap = "none" if cap_bytes is None else str(cap_bytes)
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, cap, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return load_snapshot(path), [int(number) for number in ran.stdout.split()[-3:]]


@pytest.mark.parametrize("cap_bytes", [None, 160 * MIB], ids=["no limit", "limit"])
@pytest.mark.parametrize("options", SETTINGS)
def test_reserved_memory_is_simulated_to_the_byte(tmp_path: Path, options: str, cap_bytes: int | None) -> None:
    snapshot, (reserved, allocated, peak) = record(options, cap_bytes, tmp_path / "snapshot.pickle")
    if "expandable" in options and not snapshot.options.expandable_segments:
        pytest.skip("this platform has no expandable segments")
    assert snapshot.options == AllocatorOptions.parse(options)
    assert snapshot.end.reserved_bytes == reserved
    assert snapshot.end.allocated_bytes == allocated
    total = torch.cuda.get_device_properties(0).total_memory
    # The share that the program passes is rounded, and so is the limit that comes of it.
    cap = None if cap_bytes is None else int(cap_bytes / total * total)
    replay = snapshot.replay(cap_bytes=cap, ties=TIES)
    assert replay.agrees, (replay, replay.differences[0])
    assert replay.run.reserved_bytes[-1] == reserved
    assert replay.run.allocated_bytes[-1] == allocated
    if not snapshot.start.segments:
        assert replay.run.peak_reserved_bytes == peak
        assert same_end(replay)
        assert replay.moved == 0
