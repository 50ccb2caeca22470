"""`flash_attention`: its code to take along, and the mask of `packing`'s reference page, hide what they say."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import scaled_dot_product_attention as sdpa

from authoring.reference_pages import code_blocks
from course_utils.materials.attention import assert_close, reference
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

PAGES = Path(__file__).parents[2] / "book" / "reference"


def block(which: str, page: str = "flash_attention.md") -> str:
    return next(code for code in code_blocks(PAGES / page) if which in code)


def test_the_function_to_paste_masks_each_batch_and_compiles_nothing_anew(monkeypatch: pytest.MonkeyPatch):
    counted, pasted = CompileCounter(), {"torch": torch}
    with monkeypatch.context() as patched:
        patched.setattr(torch, "compile", partial(torch.compile, backend=counted))
        exec(block("def make_mask", "packing.md"), pasted)
    q, k, v = torch.randn(3, 2, 4, 256, 16, generator=torch.Generator().manual_seed(4))
    for sizes in ([128, 128], [100, 156], [30, 200, 26]):
        document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).expand(2, -1)
        mask = (document[:, :, None] == document[:, None, :]) & torch.ones(256, 256).tril().bool()
        found = pasted["flex"](q, k, v, block_mask=pasted["make_mask"](document))
        assert_close(sdpa(q, k, v, attn_mask=mask[:, None]), found)
    assert counted.frame_count == 2


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_to_paste_hides_padding_and_looks_ahead_only_as_an_encoder(causal: bool):
    exec(block("class Attention"), pasted := {})
    layer, x = pasted["Attention"](64, 4, causal=causal).eval(), torch.randn(1, 12, 64)
    changed = torch.cat([x[:, :-1], torch.randn(1, 1, 64)], dim=1)
    assert torch.allclose(layer(x)[:, 0], layer(changed)[:, 0], atol=1e-5) == causal
    for real in (torch.arange(12) < 9, torch.arange(12) >= 3):  # padding on the right, on the left
        assert_close(layer(x, real[None])[:, real], layer(x[:, real]))
    assert (layer.train()(x) != layer(x)).any()
    assert torch.equal(layer.eval()(x), layer(x))


def test_the_lessons_module_is_causal_attention():
    pasted: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    cells = read_notebook(find_lesson("flash_attention").path)["cells"]
    exec(next(cell["source"] for cell in cells if cell["source"].startswith("class Attention")), pasted)
    layer, x = pasted["Attention"](64, 4), torch.randn(2, 12, 64)
    q, k, v = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in layer.qkv(x).chunk(3, dim=-1))
    assert_close(layer.out(reference(q, k, v, is_causal=True).float().transpose(1, 2).flatten(2)), layer(x))


@pytest.mark.parametrize(
    "call", ["sdpa(x, x, x, torch.ones(128, 128).half())", "sdpa(x[0], x[0], x[0])", "(x @ x.mT @ x)"]
)
def test_the_test_to_paste_raises_for_a_mask_for_math_and_for_attention_by_hand(call: str):
    cells = read_notebook(find_lesson("flash_attention").path)["cells"]
    source = next(cell["source"] for cell in cells if "standalone" in cell["metadata"].get("tags", ()))
    changed = source.replace("F.scaled_dot_product_attention(x, x, x, is_causal=True)", call)
    assert changed != source
    with pytest.raises((AssertionError, RuntimeError), match=r"attn_mask|No available kernel|0 calls"):
        exec(changed, {"sdpa": sdpa})
