"""Lesson 16: what its wrapper does in the variants that people have, and that its arithmetic is what a step takes."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn

from authoring.lesson_files import load_lessons
from course_utils.lessons.activation_checkpointing import cases, real_sizes
from course_utils.materials.step_memory import worked_out
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

CELLS = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson("16").path)["cells"]}
SCOPE: dict[str, Any] = {}
exec(CELLS["recompute"], SCOPE)
recompute = SCOPE["recompute"]


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
    recompute(wrapped, count)
    assert cases.same_gradients(gradients(plain, around), gradients(wrapped, around))
    assert list(wrapped.state_dict()) == list(plain.state_dict())


def test_a_copy_of_a_wrapped_model_is_a_model_of_its_own():
    wrapped = blocks()
    recompute(wrapped)
    other = copy.deepcopy(wrapped)
    with torch.no_grad():
        other[0].layers[0].weight.zero_()
    assert cases.same_gradients(gradients(blocks()), gradients(wrapped))
    assert not cases.same_gradients(gradients(wrapped), gradients(other))


def test_the_whole_model_compiles_in_one_graph():
    wrapped = blocks().eval()
    recompute(wrapped)

    def run(x: torch.Tensor) -> torch.Tensor:
        for block in wrapped:
            x, _ = block(x)
        return x

    torch.compile(run, fullgraph=True, backend="aot_eager")(torch.ones(4, 16)).sum().backward()
    assert wrapped[0].layers[0].weight.grad is not None


def test_the_line_of_the_first_blocks_holds_and_the_last_ones_peak_higher():
    rows = {row["recomputed"]: row for row in cases.peaks_by_count(recompute, (0, 1, 6, 11))}
    for label in ("6 of 12", "11 of 12"):
        row = rows[label]
        assert row["the first"] == pytest.approx(row["by the line"], rel=1e-3)
        assert row["the last"] > row["the first"]


@pytest.mark.parametrize("each", [False, True])
def test_two_small_depths_give_the_peak_of_all_of_gpt2(each):
    def build(layers: int) -> Any:
        return real_sizes._gpt2_step(768, layers, 12, False, each)

    assert real_sizes._extended(build, 12) == worked_out(lambda: build(12)).peak_bytes


def test_published_peaks_are_those_of_the_row():
    (row,) = (row for lesson in load_lessons() for row in lesson.published if row.id == "enzo_a800_segments")
    assert set(real_sizes.PUBLISHED_GIB.values()) < set(row.values.values())
    assert all(abs(each["off by"]) < 0.01 for each in real_sizes.against_published()[:1])
