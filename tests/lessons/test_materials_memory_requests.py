"""A step's requests at lengths where it was not traced, and whole trainings made of them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_utils.materials.memory_requests import trace_requests, training_events
from course_utils.materials.models import GPT
from course_utils.memory.allocator import Allocate, simulate_allocator
from course_utils.memory.live_storages import LiveStorages


def test_peaks_between_the_traced_lengths_are_exact_and_a_training_is_weights_then_steps():
    model = GPT(context=64, width=32, layers=1, heads=2)

    def work(length: int) -> None:
        tokens, targets = torch.randint(256, (2, 2, length))
        functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        model.zero_grad()

    requests = trace_requests(work, lengths=(16, 48))
    run = simulate_allocator(requests.events(37, "w"))
    sizes, levels = {}, [0]
    for event in run.events:
        if isinstance(event, Allocate):
            sizes[event.id] = event.bytes
            levels.append(levels[-1] + event.bytes)
        else:
            levels.append(levels[-1] - sizes[event.id])
    with LiveStorages() as storages:
        work(37)
    assert max(levels) == max(storages.totals_bytes) - storages.totals_bytes[0]
    assert levels[-1] == 0
    events, ends = training_events(dict.fromkeys(("warm-up", "first step", "step"), requests), [10, 30, 20], model)
    allocated = simulate_allocator(events).allocated_bytes
    assert len(ends) == 3
    assert ends[-1] == len(events)
    assert allocated[ends[1] - 1] == allocated[ends[2] - 1] > 0


def test_work_that_cannot_be_drawn_through_two_lengths_is_refused():
    with pytest.raises(ValueError, match="same blocks"):
        trace_requests(lambda length: [torch.ones(4) for _ in range(length)], lengths=(2, 4))
