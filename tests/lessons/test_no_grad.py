"""`no_grad`: its cases, its code to paste and its exercises; facts about torch are in its lesson.yml."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from course_utils.lessons.no_grad import cases, checks
from course_utils.materials.models import GPT
from course_utils.materials.step_memory import kept_bytes
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

X = torch.ones(2, 4)


def pasted(name: str) -> Callable[..., Any]:
    """A function of the notebook's cells to paste."""
    for cell in read_notebook(find_lesson("no_grad").path)["cells"]:
        if "standalone" in cell["metadata"].get("tags", []) and f"def {name}(" in cell["source"]:
            scope: dict[str, Any] = {}
            exec(cell["source"], scope)
            return scope[name]
    raise LookupError(name)


# What a graph holds


@pytest.mark.parametrize("autocast", [False, True])
def test_kept_by_counts_what_autograd_keeps(autocast: bool):
    model, tokens = GPT(width=32, layers=2, heads=2, context=16), torch.randint(256, (4, 16))

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    loss = forward()
    nodes, size = pasted("kept_by")(loss, loss.detach(), besides=model.parameters())
    # The tokens are kept as well, and count in both.
    assert size == kept_bytes(forward, model.parameters())
    loss.backward()
    assert pasted("kept_by")(loss) == (nodes, 0)


def test_kept_by_leaves_frozen_weights_out_and_raises_where_a_saved_tensor_was_changed():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 8)), torch.randn(4, 8)
    model[1:].requires_grad_(False)
    held = [*model.parameters(), *model.buffers(), x]
    # With frozen weights, the normalization keeps its input, and the last layer nothing.
    kept = pasted("kept_by")(model(x), besides=held)[1]
    assert kept == kept_bytes(lambda: model(x), held)
    assert x.nbytes <= kept < 2 * x.nbytes
    before = model[0](x).exp()
    after = before.sin()
    before.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pasted("kept_by")(after)


def test_kept_losses_and_what_they_leave():
    left = {row["kept of each step"]: row for row in cases.leaks(pasted("kept_by"), "cpu", steps=2)}
    assert left["loss, no backward()"]["saved tensors"] > 2**20
    assert left["loss, backward(retain_graph=True)"]["saved tensors"] == left["loss, no backward()"]["saved tensors"]
    for name in ("loss, backward()", "total += loss, backward()"):
        assert left[name]["saved tensors"] == 0
        assert left[name]["graph nodes"] > 50
    assert left["loss.detach(), backward()"]["graph nodes"] == 0


def test_frozen_layers_keep_nothing_only_before_what_is_trained():
    inputs = torch.randn(8, 16)
    kept = {row["trained"]: row["kept"] // inputs.nbytes for row in cases.frozen(inputs, blocks=4)}
    assert kept["all"] == 7
    assert kept["the last block"] == kept["the last block, the others under no_grad"] == 2
    assert kept["the first block"] == kept["biases"] == 4
    assert kept["LoRA of rank 8 on each Linear"] >= 7


def test_peaks_do_not_grow_without_a_graph():
    def network(blocks: int) -> nn.Module:
        return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout()) for _ in range(blocks)])

    rows = {row["forward pass"]: row for row in cases.peaks(network, torch.randn(256, 64), (2, 8))}
    for name in ("no_grad", "inference_mode", "requires_grad_(False)"):
        assert rows[f"eval(), {name}"]["2 blocks"] == rows[f"eval(), {name}"]["8 blocks"]
        assert rows[f"eval(), {name}"]["answer of eval()"]
    flat = [layer for block in network(8) for layer in block]
    held = {row["forward pass"]: row for row in cases.peaks(lambda _: nn.Sequential(*flat), torch.randn(256, 64), (8,))}
    # No caller's variable holds the input of a block.
    assert held["eval(), no_grad"]["8 blocks"] < rows["eval(), no_grad"]["8 blocks"]
    for name in ("gradients on", "result detached"):
        assert rows[f"eval(), {name}"]["8 blocks"] > 3 * rows[f"eval(), {name}"]["2 blocks"]
    assert not rows["train(), no_grad"]["answer of eval()"]


# Inference tensors


def test_inference_tensors_are_found_in_attributes_gradients_and_optimizers():
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(X).sum().backward()
    optimizer.step()
    assert list(pasted("inference_tensors")(model, optimizer)) == []
    with torch.inference_mode():
        model[0].cache = torch.ones(2)
        model.caches = {(1, 2): [torch.ones(2)]}
        model[1].running_mean = torch.ones(2)
        model[0].weight.grad = torch.ones(2, 4)
        optimizer.state[model[1].bias]["exp_avg"] = torch.ones(2)
    expected = ["caches", "0.cache", "1.running_mean", "gradients.0.weight", "optimizer.3"]
    assert list(pasted("inference_tensors")(model, optimizer)) == expected


# Code to paste


def test_evaluate_puts_modes_back_also_after_an_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
    model[1].eval()
    batches = [(torch.randn(5, 4), torch.randint(3, (5,))), (torch.randn(2, 4), torch.randint(3, (2,)))]
    modes = [module.training for module in model.modules()]
    result = pasted("evaluate")(model, batches)
    model.eval()
    both = [torch.cat(parts) for parts in zip(*batches, strict=True)]
    assert result == pytest.approx(functional.cross_entropy(model(both[0]), both[1]).item(), rel=1e-5)
    model.train()
    model[1].eval()
    with pytest.raises(RuntimeError):
        pasted("evaluate")(model, [(torch.randn(5, 3), batches[0][1])])
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_evaluate_takes_low_precision_and_no_batches():
    evaluate, model = pasted("evaluate"), nn.Identity()
    assert math.isnan(evaluate(model, []))
    for dtype in (torch.bfloat16, torch.float16):
        # So many that their sum is too large for float16, and too long for bfloat16.
        logits, targets = torch.randn(16384, 1000).to(dtype), torch.randint(1000, (16384,))
        expected = functional.cross_entropy(logits.float(), targets).item()
        assert evaluate(model, zip(logits.split(1024), targets.split(1024), strict=True)) == pytest.approx(expected)


@pytest.mark.parametrize("vocabulary", [50, 16])  # 16: as many as tokens, so that a wrong dimension raises nothing
def test_evaluate_takes_a_language_models_logits_and_leaves_padding_out(vocabulary: int):
    logits, targets = torch.randn(3, 2, 16, vocabulary), torch.randint(vocabulary, (3, 2, 16))
    targets[:, 0, 10:] = -100
    kept = targets != -100
    by_hand = -logits.log_softmax(-1)[kept].gather(-1, targets[kept][:, None]).mean()
    assert pasted("evaluate")(nn.Identity(), zip(logits, targets, strict=True)) == pytest.approx(by_hand.item())


# The exercises


def copied(backbone: nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
    backbone = copy.deepcopy(backbone).eval()
    with torch.no_grad():
        return torch.cat([backbone(inputs) for inputs in batches])


class Prepared(nn.Module):
    """A table of fixed length."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(64.0).cos()[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table[: x.shape[1]]


class Cloned(nn.Module):
    """An inference tensor, of which each call takes a copy."""

    table = torch.empty(0, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.table) < x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=torch.float32).cos()[:, None]
        return x * self.table[: x.shape[1]].clone()


def test_checks_take_right_answers_of_another_form_and_no_table_of_fixed_length():
    assert checks.check_features(copied).outcome == "right"
    assert checks.check_positions(Cloned).outcome == "right"
    assert checks.check_positions(Prepared).hint == "too_short"
