"""A step's requests at lengths where it was not traced, and whole trainings made of them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_utils.materials.memory_requests import Requests, trace_requests, training_events
from course_utils.materials.models import GPT
from course_utils.memory.allocator import Allocate, simulate_allocator
from course_utils.memory.trace import trace_memory


def passes(model: GPT, length: int) -> None:
    tokens, targets = torch.randint(256, (2, 2, length))
    functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()


@pytest.fixture(scope="module")
def model() -> GPT:
    return GPT(context=64, width=32, layers=1, heads=2)


@pytest.fixture(scope="module")
def kinds(model: GPT) -> dict[str, Requests]:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def warm_up(length: int) -> None:
        passes(model, length)
        model.zero_grad()

    def step(length: int, optimizer: torch.optim.Optimizer = optimizer) -> None:
        passes(model, length)
        optimizer.step()
        optimizer.zero_grad()

    def first_step(length: int) -> None:
        step(length, torch.optim.AdamW(model.parameters(), foreach=True))

    step(8)
    works = {"warm-up": warm_up, "first step": first_step, "step": step}
    return {name: trace_requests(work, model, lengths=(16, 48)) for name, work in works.items()}


def test_the_peak_is_that_of_the_trace(model: GPT, kinds: dict[str, Requests]):
    def work() -> None:
        passes(model, 37)
        model.zero_grad()

    trace = trace_memory(work, device="cpu", model=model)
    sizes, levels = {}, [0]
    for event in kinds["warm-up"].events(37, "w"):
        if isinstance(event, Allocate):
            sizes[event.id] = event.bytes
            levels.append(levels[-1] + event.bytes)
        else:
            levels.append(levels[-1] - sizes[event.id])
    assert max(levels) == trace.extra_peak_bytes
    assert levels[-1] == 0


def test_a_training_is_weights_then_steps(model: GPT, kinds: dict[str, Requests]):
    events, ends = training_events(kinds, [10, 30, 20], model)
    run = simulate_allocator(events)
    assert len(ends) == 3
    assert ends[-1] == len(events)
    assert run.allocated_bytes[ends[1] - 1] == run.allocated_bytes[ends[2] - 1]
    doubled, _ = training_events(kinds, [10], model, factor=2)
    single, _ = training_events(kinds, [10], model)
    assert [e.bytes for e in doubled if isinstance(e, Allocate)] == [
        2 * e.bytes for e in single if isinstance(e, Allocate)
    ]


def test_work_that_cannot_be_drawn_through_two_lengths_is_refused():
    identity = torch.nn.Identity()
    with pytest.raises(ValueError, match="same blocks"):
        trace_requests(lambda length: [torch.ones(4) for _ in range(length)], identity, lengths=(2, 4))
    with pytest.raises(ValueError, match="straight line"):
        trace_requests(lambda length: torch.ones(10 if length > 50 else 3), identity)
