"""`activation_checkpointing`: what its wrapper does in people's variants, and that its counts and rules hold."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import torch
from torch import nn

from authoring.reference_pages import code_blocks, reference_pages
from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.lessons.activation_checkpointing import cases
from course_utils.materials.models import GPT
from course_utils.materials.step_memory import worked_out
from course_utils.results import store

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


def gradients(model: nn.ModuleList, around: Any = contextlib.nullcontext) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    x = torch.ones(4, 16)
    with around():
        for block in model:
            x, _ = block(x, scale=2.0)
    x.float().square().sum().backward()
    return [weight.grad for weight in model.parameters()]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("count", [0, 2, None])
def test_gradients_are_the_same_to_the_bit(count, training, autocast):
    def around() -> Any:
        return torch.autocast("cpu", torch.bfloat16, enabled=autocast)

    plain, wrapped = blocks().train(training), blocks().train(training)
    cases.recompute(wrapped[:count])
    assert all(map(torch.equal, gradients(plain, around), gradients(wrapped, around)))
    assert list(wrapped.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("way", cases.WAYS)
def test_all_ways_give_the_same_gradients_and_another_loss_does_not(way):
    def of(way: str, **more: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return cases.step(way, texts=2, optimizer=False, **more)()

    assert cases.same_gradients(of("keep everything"), of(way))
    assert not cases.same_gradients(of("keep everything"), [1.01 * each for each in of(way)])


def test_the_first_blocks_spare_the_same_each_down_to_the_gradients():
    """Why the line ends at 11 of 12 in the H200's record: worked out without a GPU, it does so, too."""

    def peak(count: int) -> int:
        def build() -> Any:
            model = GPT(256, 1024, 1024, 12, 16)
            cases.recompute(model.blocks[:count])
            tokens = torch.zeros(4, 1024, dtype=torch.int64)

            def step() -> None:
                model.zero_grad()
                nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

            return model, None, step

        memory = worked_out(build, steps=1)
        return memory.peak_bytes - memory.at_peak["weights"]

    none, one, six, ten, every = map(peak, (0, 1, 6, 10, 12))
    assert ten == every
    assert six == none - 6 * (none - one)
    recorded = store.recorded("activation_checkpointing/count", machine="nvidia-h200")
    assert recorded["11 of 12"]["the first"] == recorded["12 of 12"]["the first"] == pytest.approx(every, rel=0.02)


def test_the_pasted_cell_counts_what_the_lesson_counts():
    theirs = r"torch\.nn\.TransformerEncoderLayer.*\n.*dropout = 0.*"
    cell, replaced = re.subn(theirs, "Block(256, 4)", CELLS["paste"])
    assert replaced == 1
    exec(cell, scope := {"Block": cases.Block})
    assert scope["more"] / scope["x"].nbytes == pytest.approx(9, abs=0.1)


def test_pasted_gradients_compare_a_model_before_and_after_and_leave_none_behind():
    page = next(page for page in reference_pages() if page.stem == "activation_checkpointing")
    exec(next(code for code in code_blocks(page) if "def gradients" in code), scope := {})
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))

    def compute_loss() -> torch.Tensor:
        return model(torch.ones(2, 4)).square().sum()

    before = scope["gradients"](model, compute_loss)
    assert all(weight.grad is None for weight in model.parameters())
    cases.recompute(model[:2])
    torch.testing.assert_close(scope["gradients"](model, compute_loss), before, rtol=0, atol=0)
