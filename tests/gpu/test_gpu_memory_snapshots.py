"""What lesson 12 says about CUDA: the real out-of-memory message, and the sizes that it explains, on a real GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional

from course_utils import fresh
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
    found = {name: re.search(pattern, message) for name, pattern in patterns.items()}
    assert all(found.values()), (message, [name for name, match in found.items() if match is None])
    return {name: match[1] for name, match in found.items()}


def test_the_simulated_message_has_the_numbers_of_the_real_one() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    *message, totals = done.stdout.strip().splitlines()
    device_bytes = torch.cuda.mem_get_info()[1]
    run = simulate_allocator(REQUESTS, cap_bytes=100 * MIB, device_bytes=device_bytes)
    real, simulated = _sizes(" ".join(message)), _sizes(run.out_of_memory.message)
    for name in ("tried", "capacity", "allowed", "allocated", "unallocated"):
        assert real[name] == simulated[name], name
    assert [int(total) for total in totals.split()] == [65 * MIB, 90 * MIB]


def _train(place: str, set_to_none: bool = True, rows: int = 32, steps_before: int = 1) -> Callable[[], None]:
    model = GPT(vocabulary=128, width=512, layers=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(128, (rows, 256), device="cuda")

    def step() -> None:
        if place == "A":
            optimizer.zero_grad(set_to_none)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        if place == "B":
            optimizer.zero_grad(set_to_none)
        loss.backward()
        optimizer.step()
        if place == "C":
            optimizer.zero_grad(set_to_none)

    for _ in range(steps_before):
        step()
    return step


def _peak_bytes(*args: object, **options: object) -> int:
    return trace_memory(fresh(_train, *args, **options), verify=False, overhead=False).peak_bytes


@pytest.fixture(autouse=True)
def _warm() -> None:
    _train("C")()  # workspaces of the matrix products, which stay
    torch.cuda.synchronize()


def _gradient_bytes() -> int:
    return sum(4 * weight.numel() for weight in GPT(vocabulary=128, width=512, layers=2).parameters())


def test_kept_gradients_raise_the_peak_of_a_medium_batch() -> None:
    """The same sizes on a CPU: 0.63 of the gradients at B, and all of them with zeros."""
    after, before_forward, before_backward = (_peak_bytes(place, rows=4) for place in "CAB")
    # A block may be up to 1 MiB larger than what was asked for, depending on which is free.
    assert abs(after - before_forward) < 0.15 * _gradient_bytes()
    assert before_backward - after > 0.2 * _gradient_bytes()
    assert _peak_bytes("C", set_to_none=False, rows=4) - after > 0.4 * _gradient_bytes()


def test_the_second_step_is_higher_by_adams_state() -> None:
    first, second = (_peak_bytes("C", steps_before=count) for count in (0, 1))
    assert second - first == pytest.approx(2 * _gradient_bytes(), rel=0.2)


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
    for backward in (True, False):
        trace = trace_memory(partial(loop, backward), verify=False, overhead=False)
        left[backward] = trace.end_bytes - trace.start_bytes
        kept.clear()
    assert left[True] == 4 * 512
    assert left[False] > 4 * tokens.numel() * 256 * 4  # a single activation of each batch
