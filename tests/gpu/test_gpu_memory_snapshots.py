"""What `memory_snapshots` says about CUDA: the real out-of-memory message, and the sizes that it explains."""

from __future__ import annotations

import re
import subprocess
import sys

import torch

from course_utils.memory.allocator import Allocate, Free, simulate_allocator

MIB = 2**20
REQUESTS = [
    Allocate("a", 40 * MIB),
    Free("a"),
    Allocate("b", 15 * MIB),
    Allocate("c", 50 * MIB),
    Allocate("d", 30 * MIB),
]
# Requests in a process of their own, where nothing else is held. Allocating 0 bytes starts CUDA.
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
    """The numbers of an out-of-memory message that the reference page's table explains."""
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
