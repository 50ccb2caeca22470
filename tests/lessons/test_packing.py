"""`packing`: attention that a CPU can run looks where the block mask lets it, and the leak test finds leaks alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from course_utils.lessons.packing import cases
from course_utils.materials.attention import assert_close
from tests.lessons.pasted import pasted


def test_flex_attention_and_the_function_to_paste_look_where_the_block_mask_lets_them(monkeypatch):
    monkeypatch.setattr(cases, "compiled", lambda: cases.flex_attention)
    by_document = pasted("packing", "def by_document")["by_document"]
    sizes, (q, k, v) = torch.tensor([100, 1, 55]), torch.randn(3, 1, 2, 156, 16)
    document = torch.arange(3).repeat_interleave(sizes)
    mask = (document[:, None] == document).tril()
    for attend in (*(make(mask, sizes) for make in cases._ANYWHERE.values()), cases._flex(mask, sizes)):
        assert_close(cases.sdpa(q, k, v, attn_mask=mask), attend(q, k, v))
    assert_close(cases.sdpa(q, k, v, attn_mask=mask), by_document(q, k, v, sizes.tolist()))


def test_the_function_to_paste_masks_each_batch_and_compiles_nothing_anew(monkeypatch):
    counted = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    code = pasted("packing", "def make_mask", torch=torch)
    q, k, v = torch.randn(3, 2, 4, 256, 16, generator=torch.Generator().manual_seed(4))
    for sizes in ([128, 128], [100, 156], [30, 200, 26]):
        document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).expand(2, -1)
        mask = (document[:, :, None] == document[:, None, :]) & torch.ones(256, 256).tril().bool()
        found = code["flex"](q, k, v, block_mask=code["make_mask"](document))
        assert_close(cases.sdpa(q, k, v, attn_mask=mask[:, None]), found)
    assert counted.frame_count == 2


def test_the_leak_test_takes_no_dropout_for_a_leak_and_refuses_what_it_cannot_change():
    leak = pasted("packing", "def leak(")["leak"]
    drops, tokens = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Dropout(0.5)), torch.randint(1, 9, (1, 20))
    assert leak(drops, tokens, first=6) == 0
    assert leak(lambda x: x[:, [5]].expand_as(x).float(), tokens, first=6) == 0  # where the separator is
    for rows, first in ((tokens.repeat(2, 1), 6), (tokens, 2), (tokens, 0), (torch.ones_like(tokens), 6)):
        with pytest.raises(ValueError, match="Give one row, and a longer document 1"):
            leak(drops, rows, first)
