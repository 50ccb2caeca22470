"""`flash_attention`: its code to take along, on the lesson and on its reference page, hides what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from authoring.reference_pages import code_blocks
from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.materials.attention import assert_close

PAGE = Path(__file__).parents[2] / "book" / "reference" / "flash_attention.md"


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_to_paste_hides_padding_and_looks_ahead_only_as_an_encoder(causal: bool):
    exec(next(code for code in code_blocks(PAGE) if "class Attention" in code), pasted := {})
    layer, x = pasted["Attention"](64, 4, causal=causal).eval(), torch.randn(1, 12, 64)
    changed = torch.cat([x[:, :-1], torch.randn(1, 1, 64)], dim=1)
    assert torch.allclose(layer(x)[:, 0], layer(changed)[:, 0], atol=1e-5) == causal
    for real in (torch.arange(12) < 9, torch.arange(12) >= 3):  # padding on the right, on the left
        assert_close(layer(x, real[None])[:, real], layer(x[:, real]))


@pytest.mark.parametrize("call", ["sdpa(x, x, x, torch.ones(128, 128).half())", "(x @ x.mT @ x)"])
def test_the_test_to_paste_raises_for_a_mask_and_for_attention_by_hand(call: str):
    cells = read_notebook(find_lesson("flash_attention").path)["cells"]
    source = next(cell["source"] for cell in cells if "standalone" in cell["metadata"].get("tags", ()))
    changed = source.replace("F.scaled_dot_product_attention(x, x, x, is_causal=True)", call)
    assert changed != source
    with pytest.raises((AssertionError, RuntimeError), match=r"attn_mask|0 calls"):
        exec(changed, {"sdpa": sdpa})
