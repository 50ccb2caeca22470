"""`activation_checkpointing`: what its wrapper does in people's variants, and that its counts and rules hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from course_utils.lessons.activation_checkpointing import cases
from tests.lessons.pasted import source


@pytest.mark.parametrize("way", cases.WAYS)
def test_all_ways_give_the_same_gradients_and_another_loss_does_not(way):
    def of(way: str, **more: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return cases.step(way, texts=2, optimizer=False, **more)()

    assert cases.same_gradients(of("keep everything"), of(way))
    assert not cases.same_gradients(of("keep everything"), [1.01 * each for each in of(way)])


def test_the_pasted_cell_counts_what_the_lesson_counts():
    theirs = r"torch\.nn\.TransformerEncoderLayer.*\n.*dropout = 0.*"
    cell, replaced = re.subn(theirs, "Block(256, 4)", source("activation_checkpointing", "paste"))
    assert replaced == 1
    exec(cell, scope := {"Block": cases.Block})
    assert scope["more"] / scope["x"].nbytes == pytest.approx(9, abs=0.1)
