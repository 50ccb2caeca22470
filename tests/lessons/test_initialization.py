"""`initialization`: the start and the check to paste, and what the steps to a target come to."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lessons.initialization import cases
from tests.lessons.pasted import pasted

ENDS = ("projection.weight", "mlp.2.weight")


@pytest.fixture(scope="module")
def lesson() -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):
        return pasted("initialization", "technique", "signal", "init-06", math=math, cases=cases)


def test_the_start_to_paste_scales_what_writes_into_the_stream_as_the_lessons_own_does(lesson):
    pasted = cases.new_gpt(lambda model: lesson["init_like_gpt2"](model, 768, ENDS))
    for model in (pasted, cases.new_gpt(lesson["gpt2s"])):
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                assert weight.std().item() == pytest.approx(0.01 if name.endswith(ENDS) else 0.02, rel=0.1), name


def test_the_defaults_of_a_tied_head_are_those_of_the_embedding():
    for tied, size in ((True, 1), (False, (3 * 32) ** -0.5)):
        model = cases.new_gpt(cases.pytorch_defaults, tied)
        assert model.head.weight.std().item() == pytest.approx(size, rel=0.1)


def test_the_check_to_paste_sees_that_positions_of_size_one_drown_the_tokens(lesson):
    def blind(model: nn.Module) -> None:
        lesson["size_1"](model, ["position"])

    share = lesson["input_share"](cases.new_gpt(blind), torch.randint(256, (8, 32)))
    assert share["token_embedding"] > 0.5 > 0.05 > share["blocks.0"]


def test_the_check_to_paste_sees_inside_a_transformer_with_dropout_and_leaves_it_as_it_was(lesson):
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    seen = [lesson["input_share"](model, torch.ones(4, 5, 16)) for _ in range(2)]
    assert {"layers.0", "layers.1", "layers.1.linear2", "output"} <= set(seen[0])
    assert lesson["input_share"](nn.Identity(), torch.zeros(4, 5)) == {"output": 0}  # a head at zero
    assert max(seen[0].values()) < 1e-3  # dropout would have made the four differ
    assert all(part.training and not part._forward_hooks for part in model.modules())


def test_runs_that_do_not_reach_the_target_count_as_longer_than_all_others():
    start = [[5.0, 3.0, 2.7]] * 4
    runs = {"start": start, "other": [[5.0, 3.0, 2.9, 2.6], [5.0, 2.7], [5.0, 3.0], [5.0, 3.0]]}
    assert cases.steps_to_target(runs["other"]) == [15, 5, math.inf, math.inf]
    assert [row["reached 2.8"] for row in cases.race(runs)] == ["4 of 4", "2 of 4"]
    assert [row["times the steps"] for row in cases.times_the_first(runs)] == [1, math.inf]
