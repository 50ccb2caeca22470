"""What `launch_bound` says of CUDA graphs: a captured step trains as the eager one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lesson_notebooks import find_lesson, read_notebook


def names_of(start: str) -> dict[str, Any]:
    """What the lesson's cell that begins with these words defines."""
    names: dict[str, Any] = {"torch": torch}
    cells = read_notebook(find_lesson("launch_bound").path)["cells"]
    exec(next(cell["source"] for cell in cells if cell["source"].startswith(start)), names)
    return names


@pytest.fixture
def captured() -> Callable[..., Any]:
    """The lesson's function."""
    return names_of("def captured")["captured"]


def training(**options: Any) -> tuple[Callable[..., torch.Tensor], nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.0), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


@pytest.mark.parametrize("form", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_a_captured_step_trains_on_each_new_batch_as_the_eager_one_does(form, captured) -> None:
    eager, its = training(capturable=True, **form)
    replayed, own = training(capturable=True, **form)
    batches = [torch.randn(16, 32, device="cuda") for _ in range(5)]
    for _ in range(3):
        eager(batches[0])
    graph, held, loss = captured(replayed, batches[0])
    for batch in batches:
        held[0].copy_(batch)
        graph.replay()
        torch.testing.assert_close(loss, eager(batch))
    torch.testing.assert_close([*own.parameters()], [*its.parameters()])


def test_the_step_of_the_cell_to_paste_can_be_captured(captured) -> None:
    own = names_of("import torch\n\ngpu =")
    graph, held, loss = captured(own["step"], own["x"])
    held[0].copy_(torch.randn_like(own["x"]))
    graph.replay()
    first = loss.item()
    graph.replay()
    assert loss.item() < first
