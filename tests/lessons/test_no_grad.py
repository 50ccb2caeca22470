"""`no_grad`: its cases, its code to paste and its exercise; facts about torch are in its lesson.yml."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from course_utils.lessons.no_grad import cases
from tests.lessons.pasted import pasted

evaluate = pasted("no_grad", "def evaluate(")["evaluate"]


class _Merging(nn.Linear):
    def train(self, mode: bool = True) -> nn.Module:
        self.merged = not mode  # as loralib's layers merge LoRA into their weight
        return super().train(mode)


def test_frozen_layers_keep_nothing_only_before_what_is_trained():
    inputs = torch.randn(8, 256)
    rows = {row["trained"]: row for row in cases.frozen(inputs)}
    kept = {trained: row["kept"] // inputs.nbytes for trained, row in rows.items()}
    assert kept["all"] == kept["LoRA of rank 8 on each Linear"] == 31
    assert (kept["LoRA on the first four"], kept["LoRA on the last four"]) == (3 + 16, 4 + 4)
    assert (kept["biases"], kept["no_grad"]) == (16, 0)
    in_gpt = {trained: row["share in a GPT"] for trained, row in rows.items()}
    assert in_gpt["LoRA on the last four"] < 0.3 < 0.7 < in_gpt["LoRA on the first four"]


def test_what_is_worked_out_for_gpt2_is_what_is_measured_of_the_small_gpt():
    measured = {row["evaluation"]: row["peak"] for row in cases.evaluations()}
    worked_out = {row["evaluation"]: row["fp32"] for row in cases.worked_out_for_gpt2(cases._SMALL)}
    assert worked_out == {way: measured[way] for way in worked_out}
    assert measured["accuracy, 4 parts"] < 0.8 * measured["accuracy, 4 parts, logits still named"]


def test_evaluate_puts_modes_back_also_after_an_error():
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Sequential(_Merging(4, 4), shared), nn.Dropout(), nn.Sequential(shared, _Merging(4, 3)))
    model.train()[0].eval()
    batches = [(torch.randn(5, 4), torch.randint(3, (5,))), (torch.randn(2, 4), torch.randint(3, (2,)))]
    modes = [(module.training, getattr(module, "merged", None)) for module in model.modules()]
    result = evaluate(model, batches)
    with pytest.raises(RuntimeError):
        evaluate(model, [(torch.randn(5, 3), batches[0][1])])
    assert [(module.training, getattr(module, "merged", None)) for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert result == pytest.approx(functional.cross_entropy(model.eval()(inputs), targets).item(), rel=1e-5)


def test_evaluate_takes_a_language_models_logits_and_leaves_padding_out():
    # As many words as tokens, so that a wrong dimension raises nothing.
    logits, targets = torch.randn(3, 2, 16, 16), torch.randint(16, (3, 2, 16))
    targets[:, 0, 10:] = 3
    kept = targets != 3
    by_hand = -logits.log_softmax(-1)[kept].gather(-1, targets[kept][:, None]).mean()
    assert evaluate(nn.Identity(), zip(logits, targets, strict=True), 3) == pytest.approx(by_hand.item())
