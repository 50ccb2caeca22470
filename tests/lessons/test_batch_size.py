"""`batch_size`: its search for the largest batch, as the reference page has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from authoring.reference_pages import code_blocks, reference_pages


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    [page] = [page for page in reference_pages() if page.stem == "batch_size"]
    exec("\n".join(code_blocks(page)), scope := {})
    return scope


def memory_of(capacity: int):
    """A trial that runs out of memory above a capacity."""

    def trial(batch: int) -> None:
        if batch > capacity:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    return trial


@pytest.mark.parametrize("capacity", [1, 33, 100])
def test_the_search_finds_what_fits_to_one_part_in_32(page, capacity):
    found = page["largest_batch"](memory_of(capacity), most=200, spare=0)
    assert capacity - max(1, capacity // 32) < found <= capacity
    assert page["largest_batch"](memory_of(capacity), most=capacity) == capacity


def test_the_search_says_that_nothing_fits_and_raises_other_errors(page):
    def wrong_shape(batch: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(MemoryError, match="not even a batch of 1 fits"):
        page["largest_batch"](memory_of(0), most=64)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        page["largest_batch"](wrong_shape, most=64)


def test_a_search_leaves_no_trace(page):
    def trained(search: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        rule = torch.optim.AdamW(model.parameters(), lr=0.1)

        def step(batch: int) -> None:
            rule.zero_grad()
            model(torch.randn(batch + 1, 6)).square().mean().backward()
            rule.step()

        step(8)
        model(torch.randn(4, 6)).sum().backward()  # half of an accumulation
        if search:
            with page["put_back"](model, rule):
                page["largest_batch"](lambda batch: (step(batch), step(batch)), most=8)
        gradients = [weight.grad.clone() for weight in model.parameters()]
        rule.step()
        return [*gradients, *model.parameters(), *model.buffers(), torch.rand(3)]

    assert all(map(torch.equal, trained(search=False), trained(search=True)))
