"""`activation_checkpointing`: what its wrapper does in people's variants, and that its counts and rules hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.lessons.activation_checkpointing import cases

CELLS = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson("activation_checkpointing").path)["cells"]}


class Scaled(nn.Module):
    """A block with dropout that takes a keyword and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 16))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> tuple[torch.Tensor, dict[str, float]]:
        return self.layers(x) * scale, {"scale": scale}


def blocks() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Scaled() for _ in range(3))


def loss_of(model: nn.ModuleList) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.ones(4, 16)
    for block in model:
        x, _ = block(x, scale=2.0)
    return x.float().square().sum()


@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_the_same_to_the_bit(autocast):
    plain, wrapped = blocks(), blocks()
    cases.recompute(wrapped[:2])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        losses = loss_of(plain), loss_of(wrapped)
    for loss in losses:
        loss.backward()
    both = zip(plain.parameters(), wrapped.parameters(), strict=True)
    assert all(torch.equal(ours.grad, other.grad) for ours, other in both)
    assert list(wrapped.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("way", cases.WAYS)
def test_all_ways_give_the_same_gradients_and_another_loss_does_not(way):
    def of(way: str, **more: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return cases.step(way, texts=2, optimizer=False, **more)()

    assert cases.same_gradients(of("keep everything"), of(way))
    assert not cases.same_gradients(of("keep everything"), [1.01 * each for each in of(way)])


def test_the_pasted_cell_counts_what_the_lesson_counts():
    theirs = r"torch\.nn\.TransformerEncoderLayer.*\n.*dropout = 0.*"
    cell, replaced = re.subn(theirs, "Block(256, 4)", CELLS["paste"])
    assert replaced == 1
    exec(cell, scope := {"Block": cases.Block})
    assert scope["more"] / scope["x"].nbytes == pytest.approx(9, abs=0.1)
