"""`mixed_precision`: its own steps, and its code to paste; what it states of torch are facts in its lesson.yml."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F

from course_utils.lessons.mixed_precision.recipes import gpt, gradients, lost, memory_parts, trainer
from course_utils.materials.models import MLP
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

CPU = torch.device("cpu")
LESSON = find_lesson("mixed_precision")


def test_the_share_of_a_step_changes_nothing_in_fp32() -> None:
    batch = torch.randn(16, 8), torch.arange(16) % 4
    trained = []
    for share in (1.0, 2.0**-13):
        model, _, step = trainer("fp32", lambda: MLP((8, 16, 4)), CPU, share)
        for _ in range(5):
            step(*batch)
        trained.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*trained)


def test_gradients_are_those_of_the_loss_times_the_factor() -> None:
    model, batch = MLP((8, 16, 4)), (torch.randn(16, 8), torch.arange(16) % 4)
    once, at_output = gradients(model, batch, None)
    scaled_up, _ = gradients(model, batch, None, 1024.0)
    assert torch.equal(1024 * once, scaled_up)
    logits = model(batch[0])
    expected = (logits.softmax(-1) - F.one_hot(batch[1], 4)) / 16
    torch.testing.assert_close(at_output, expected)


def test_fp16_loses_a_large_vocabulary_at_4096_tokens_and_a_scale_brings_it_back() -> None:
    torch.manual_seed(0)
    batch = torch.randint(256, (2, 16)), torch.randint(256, (2, 16))
    few, many = (lost(gpt(32, 1, 16, vocabulary)(), batch, 2**12) for vocabulary in (256, 50_257))
    assert few["zeros, fp16"] < 0.5 < 0.99 < many["zeros, fp16"]
    assert all(each["error, fp16, scaled"] < each["error, bf16"] for each in (few, many))


def test_parts_of_the_memory_are_what_the_dtypes_say() -> None:
    rows = {
        row["recipe"]: row for name in ("fp32", "bf16", "bf16 weights") for row in memory_parts(name, [1], 32, 1, 16)
    }
    fp32, bf16, all_bf16 = (rows[f"{name}, batch 1"] for name in ("fp32", "bf16", "bf16 weights"))
    for part in ("weights", "gradients"):
        assert fp32[part] == bf16[part] == 2 * all_bf16[part]
    assert fp32["casts"] == all_bf16["casts"] == 0
    # The matrices of attention, MLP and output layer. A bias's cast is not kept for the backward pass.
    assert bf16["casts"] == 2 * (12 * 32 * 32 + 256 * 32)


# Code to paste, on other people's programs

TAGGER = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(1000, 32), nn.LSTM(32, 32, batch_first=True)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(32, 1000)
        self.embed.weight.requires_grad_(False)

    def forward(self, x):
        return self.out(self.drop(self.lstm(self.embed(x))[0]))

model, x = Tagger().to(device), torch.randint(1000, (8, 64), device=device)
"""


@pytest.mark.parametrize(
    ("words", "line", "change", "expected"),
    [
        (
            "class Products",
            "model, x = ",
            ("", ""),
            r"(?s)(rnn_layer|addmm) \[torch.bfloat16.*mm \[torch.bfloat16.*aten::mm \[torch.bfloat16",
        ),
        ("def gradients", "model = ", ("", ""), r"output: [1-9][\d,]* of 512,000 became zero; all finite: True"),
        ("def gradients", "model = ", ("float16, 1.0", "float16, 65536.0"), "output: 0 of 512,000 became zero"),
    ],
    ids=["dtypes", "fp16", "fp16, scaled"],
)
def test_code_to_paste_works_on_a_frozen_embedding_dropout_and_an_lstm(words, line, change, expected, capsys) -> None:
    sources = [cell["source"] for cell in read_notebook(LESSON.path)["cells"] if cell["cell_type"] == "code"]
    source = next(source for source in sources if words in source).replace(*change)
    given = next(each for each in source.splitlines() if each.startswith(line))
    torch.manual_seed(0)
    try:
        with torch.backends.mkldnn.flags(enabled=torch.backends.mkldnn.enabled):
            exec(source.replace(given, TAGGER), {})
    except RuntimeError as error:
        if "could not create a primitive descriptor for the LSTM" not in str(error):
            raise
        pytest.skip("this CPU has no LSTM in bfloat16")
    assert re.search(expected, capsys.readouterr().out)
