"""What `packing` says of CUDA: each kernel gives the padded batch's loss and gradients, and none leaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.lessons.packing import cases


def function_of(name: str) -> Callable[..., Any]:
    """A function that the lesson's notebook defines."""
    names: dict[str, Any] = {"torch": torch}
    cells = read_notebook(find_lesson("packing").path)["cells"]
    exec(next(cell["source"] for cell in cells if f"\ndef {name}(" in f"\n{cell['source']}"), names)
    return names[name]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Each way, over five documents."""
    monkeypatch.setattr(cases, "DOCUMENTS", (152, 17, 300, 128, 94))
    monkeypatch.setattr(cases, "TOKENS", 691)
    monkeypatch.setattr(cases, "SHORT", 400)
    return cases.steps(function_of("pack")) | cases.kernels(function_of("pack"))


def test_each_kernel_runs_and_gives_the_loss_and_the_gradients_of_the_padded_batch(few) -> None:
    assert few.keys() >= cases._ANYWHERE.keys() | cases._ON_CUDA.keys()
    torch.manual_seed(0)
    padded = few["padded"].build()()
    for name, way in few.items():
        torch.manual_seed(0)
        assert cases.same(padded, way.build()()), name


@pytest.mark.parametrize("name", [*cases._ANYWHERE, *cases._ON_CUDA])
def test_no_kernel_lets_the_second_document_see_the_first(name: str) -> None:
    sizes, first = torch.tensor([24, 40], device="cuda"), 24
    tokens, _, positions, mask = function_of("pack")([torch.randint(1, 256, (n,), device="cuda") for n in (24, 40)])
    attend = (cases._ANYWHERE | cases._ON_CUDA)[name](mask, sizes)
    model = cases.Decoder(128, 2, 2).cuda().bfloat16()
    assert function_of("leak")(lambda x: model(x, positions, attend), tokens, first) < 1e-5
    assert function_of("leak")(lambda x: model(x, positions, cases.causal), tokens, first) > 1e-3
