"""`mixed_precision`: its steps, its pictures, its code to paste; what it states of torch are facts in lesson.yml."""

from __future__ import annotations

import re

import pytest
import torch

from course_utils import recorded
from course_utils.lessons.mixed_precision import cases, pictures
from course_utils.materials.models import MLP
from tests.lessons.pasted import source


def test_the_share_of_a_step_changes_nothing_in_fp32() -> None:
    batch = torch.randn(16, 8), torch.arange(16) % 4
    trained = []
    for share in (1.0, 2.0**-13):
        torch.manual_seed(0)
        model = MLP((8, 16, 4))
        step = cases.trainer("fp32", model, share)
        for _ in range(5):
            step(*batch)
        trained.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*trained)


def test_the_ladders_draw_no_more_work_than_a_step_takes() -> None:
    shown = pictures.ladders(recorded("mixed_precision/baseline", machine="nvidia-h200"))
    for lanes in shown.panels.values():
        for spans in lanes.values():
            assert [span.start_s for span in spans] == [0.0, *(span.end_s for span in spans[:-1])]
    waits = {panel: sum(len(spans) == 2 for spans in lanes.values()) for panel, lanes in shown.panels.items()}
    assert waits == {"Wide step": 1, "Narrow step": 3}


# Code to paste, on other people's programs

TAGGER = """
class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = torch.nn.Embedding(1000, 32), torch.nn.LSTM(32, 32, batch_first=True)
        self.drop, self.out = torch.nn.Dropout(0.5), torch.nn.Linear(32, 1000)
        self.embed.weight.requires_grad_(False)

    def forward(self, x):
        return self.out(self.drop(self.lstm(self.embed(x))[0]))

model, x = Tagger().to(device), torch.randint(1000, (8, 64), device=device)
"""


def test_the_dtypes_of_products_are_told_of_a_frozen_embedding_dropout_and_an_lstm(capsys) -> None:
    before, _, rest = source("mixed_precision", "own-step").partition("model = ")
    optimizer = rest[rest.index("optimizer = ") :]
    try:
        exec(before + TAGGER + optimizer + "\n" + source("mixed_precision", "own-dtypes"), {})
    except RuntimeError as error:
        if "could not create a primitive descriptor for the LSTM" not in str(error):
            raise
        pytest.skip("this CPU has no LSTM in bfloat16")
    told = capsys.readouterr().out
    assert re.search(r"(?s)(rnn_layer|addmm)\S* \[torch.bfloat16.*mm\S* \[torch.bfloat16", told), told
