"""Memory followed on a CPU: every byte against arithmetic and the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode

from course_utils.materials.models import GPT
from course_utils.measure.devices import profiled_peak
from course_utils.memory.live_storages import LiveStorages

KIB = 1024


def _levels(fn: Callable[[], Any]) -> list[int]:
    """Bytes on top of what was there before, at each event of a call."""
    with LiveStorages() as storages:
        fn()
    totals = storages.totals_bytes
    return [total - totals[0] for total in totals]


def test_bytes_over_time_are_those_of_the_storages() -> None:
    def code() -> torch.Tensor:
        a, b = (torch.empty(count * KIB, dtype=torch.uint8) for count in (10, 20))
        del a
        c = torch.empty(4 * KIB, dtype=torch.uint8)
        del b
        return c

    assert [level // KIB for level in _levels(code)] == [0, 10, 30, 20, 24, 4, 0, 0]


def test_views_in_place_operations_and_shared_storages_add_nothing() -> None:
    def code() -> None:
        a = torch.zeros(KIB)
        views = [a.view(32, 32), a[:10], a.view(32, 32).t(), a.expand(3, KIB), a.detach(), *a.split(100)]
        a.add_(1).mul_(2)
        views[0].relu_()
        torch.add(a, 1, out=a)
        a.data.zero_()
        torch._foreach_add_([a], 1.0)
        b = torch.empty(0)
        b.set_(a.untyped_storage(), 0, (KIB,))

    assert max(_levels(code)) == 4 * KIB


def test_what_was_there_before_is_seen_to_go() -> None:
    used, dropped = torch.zeros(KIB), [torch.zeros(2 * KIB)]

    def code() -> torch.Tensor:
        dropped.clear()
        return used + 1

    assert _levels(code) == [0, -8 * KIB, -4 * KIB, -8 * KIB, -8 * KIB]


def _training() -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    model, x = GPT(context=32, width=32, layers=2, heads=2), torch.randint(256, (4, 32))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, -2), x.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_peak_of_a_training_step_equals_the_profilers() -> None:
    step = _training()
    profiled_peak(step)  # what this call leaves behind, the profiler knows when the next call releases it
    peaks: list[int] = []
    levels = _levels(lambda: peaks.append(profiled_peak(step)))
    # Kernels of foreach make small tensors of their scalars for themselves.
    assert 0 <= peaks[0] - max(levels) <= 64
    assert max(levels) > 64 * KIB


def test_following_changes_no_result_and_ends_with_an_error() -> None:
    plain, followed = _training(), _training()
    losses, seen = [plain().item() for _ in range(3)], []
    for _ in range(3):
        _levels(lambda: seen.append(followed().item()))
    assert losses == seen
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        _levels(lambda: torch.ones(2) @ torch.ones(3))
    assert _get_current_dispatch_mode() is None
