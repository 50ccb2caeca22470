"""`packing`: attention that a CPU can run looks where the block mask lets it, and the leak test finds leaks alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from authoring.reference_pages import code_blocks, reference_pages
from course_utils.lessons.packing import cases
from course_utils.materials.attention import assert_close
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook


def test_flex_attention_and_the_function_to_paste_look_where_the_block_mask_lets_them(monkeypatch):
    monkeypatch.setattr(cases, "compiled", lambda: cases.flex_attention)
    page = next(page for page in reference_pages() if page.stem == "packing")
    exec(next(code for code in code_blocks(page) if "def by_document" in code), pasted := {})
    sizes, (q, k, v) = torch.tensor([100, 1, 55]), torch.randn(3, 1, 2, 156, 16)
    document = torch.arange(3).repeat_interleave(sizes)
    mask = (document[:, None] == document).tril()
    for attend in (*(make(mask, sizes) for make in cases._ANYWHERE.values()), cases._flex(mask, sizes)):
        assert_close(cases.sdpa(q, k, v, attn_mask=mask), attend(q, k, v))
    assert_close(cases.sdpa(q, k, v, attn_mask=mask), pasted["by_document"](q, k, v, sizes.tolist()))


def test_the_leak_test_takes_no_dropout_for_a_leak_and_refuses_what_it_cannot_change():
    cells = read_notebook(find_lesson("packing").path)["cells"]
    names: dict[str, Any] = {}
    exec(next(cell["source"] for cell in cells if "def leak(" in cell["source"]), names)
    drops, tokens = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Dropout(0.5)), torch.randint(1, 9, (1, 20))
    assert names["leak"](drops, tokens, first=6) == 0
    assert names["leak"](lambda x: x[:, [5]].expand_as(x).float(), tokens, first=6) == 0  # where the separator is
    for rows, first in ((tokens.repeat(2, 1), 6), (tokens, 2), (tokens, 0), (torch.ones_like(tokens), 6)):
        with pytest.raises(ValueError, match="Give one row, and a longer document 1"):
            names["leak"](drops, rows, first)
