"""`flash_attention`: its code to take along, on the lesson and on its reference page, hides what it says."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from course_utils.materials.attention import assert_close
from tests.lessons.pasted import pasted, source


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_to_paste_hides_padding_and_looks_ahead_only_as_an_encoder(causal: bool):
    attention = pasted("flash_attention", "real: [batch, length]")["Attention"]
    layer, x = attention(64, 4, causal=causal).eval(), torch.randn(1, 12, 64)
    changed = torch.cat([x[:, :-1], torch.randn(1, 1, 64)], dim=1)
    assert torch.allclose(layer(x)[:, 0], layer(changed)[:, 0], atol=1e-5) == causal
    for real in (torch.arange(12) < 9, torch.arange(12) >= 3):  # padding on the right, on the left
        assert_close(layer(x, real[None])[:, real], layer(x[:, real]))


@pytest.mark.parametrize("call", ["sdpa(x, x, x, torch.ones(128, 128).half())", "(x @ x.mT @ x)"])
def test_the_test_to_paste_raises_for_a_mask_and_for_attention_by_hand(call: str):
    theirs = "F.scaled_dot_product_attention(x, x, x, is_causal=True)"
    changed = source("flash_attention", theirs).replace(theirs, call)
    with pytest.raises((AssertionError, RuntimeError), match=r"attn_mask|0 calls"):
        exec(changed, {"sdpa": sdpa})
