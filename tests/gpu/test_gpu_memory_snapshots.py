"""What `memory_snapshots` says about CUDA: the real out-of-memory message, and the sizes that it explains."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

import torch
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.memory.allocator import Allocate, Free, simulate_allocator
from course_utils.memory.trace import trace_memory

MIB = 2**20
REQUESTS = [
    Allocate("a", 40 * MIB),
    Free("a"),
    Allocate("b", 15 * MIB),
    Allocate("c", 50 * MIB),
    Allocate("d", 30 * MIB),
]
# The lesson's requests in a process of their own, where nothing else is held. Allocating 0 bytes starts CUDA.
_PROGRAM = """
import torch
torch.empty(0, device="cuda")
torch.cuda.set_per_process_memory_fraction(100 * 2**20 / torch.cuda.mem_get_info()[1])
def block(mib):
    return torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")
a = block(40)
del a
b, c = block(15), block(50)
try:
    block(30)
except torch.OutOfMemoryError as error:
    print(error)
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
"""


def _sizes(message: str) -> dict[str, str]:
    """The numbers of an out-of-memory message that the lesson's table explains."""
    patterns = {
        "tried": r"Tried to allocate ([\d.]+ \w+)\.",
        "capacity": r"has a total capacity of ([\d.]+ \w+)",
        "free": r"of which ([\d.]+ \w+) is free",
        "allowed": r"([\d.]+ \w+) allowed;",
        "allocated": r"([\d.]+ \w+) is allocated by PyTorch",
        "unallocated": r"([\d.]+ \w+) is reserved by PyTorch but unallocated",
    }
    matches = {name: re.search(pattern, message) for name, pattern in patterns.items()}
    assert all(matches.values()), (message, [name for name, match in matches.items() if match is None])
    return {name: match[1] for name, match in matches.items()}


def test_the_simulated_message_has_the_numbers_of_the_real_one() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    *message, totals = done.stdout.strip().splitlines()
    device_bytes = torch.cuda.mem_get_info()[1]
    run = simulate_allocator(REQUESTS, cap_bytes=100 * MIB, device_bytes=device_bytes)
    real, simulated = _sizes(" ".join(message)), _sizes(run.out_of_memory.message)
    for name in ("tried", "capacity", "allowed", "allocated", "unallocated"):
        assert real[name] == simulated[name], name
    assert [int(total) for total in totals.split()] == [65 * MIB, 90 * MIB]


def test_a_kept_loss_costs_one_block_after_backward_and_its_graph_without() -> None:
    model = GPT(vocabulary=128, width=256, layers=2).cuda()
    tokens = torch.randint(128, (8, 256), device="cuda")
    kept: list[torch.Tensor] = []

    def loop(backward: bool) -> None:
        for _ in range(4):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            if backward:
                loss.backward()
                for weight in model.parameters():
                    weight.grad = None
            kept.append(loss)

    left = {}
    loop(backward=True)  # workspaces of the matrix products, which stay
    kept.clear()
    for backward in (True, False):
        trace = trace_memory(partial(loop, backward), verify=False, overhead=False)
        left[backward] = trace.end_bytes - trace.start_bytes
        kept.clear()
    assert left[True] == 4 * 512
    assert left[False] > 4 * tokens.numel() * 256 * 4  # a single activation of each batch
