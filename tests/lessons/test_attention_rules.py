"""`flash_attention`: its cases of padding and masks, and its code to paste; facts about torch are in its lesson.yml."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.torch_version import TorchVersion

from authoring.evidence import evaluate
from course_utils.lessons.flash_attention import cases
from course_utils.materials.attention import assert_close, reference
from course_utils.measure.devices import Device
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook


def inputs(heads: int = 4, length: int = 32) -> list[torch.Tensor]:
    return list(torch.randn(3, 2, heads, length, 16, generator=torch.Generator().manual_seed(4)))


def test_padded_batches_of_an_encoder_agree_with_packed_documents():
    sizes = [20, 8, 4]
    packed = torch.randn(3, 1, 2, sum(sizes), 16, generator=torch.Generator().manual_seed(1)).unbind()
    each = zip(*(x.split(sizes, dim=2) for x in packed), strict=True)
    alone = torch.cat([sdpa(*document) for document in each], dim=2)
    for batches in ([sizes], [sizes[:1], sizes[1:]]):
        outputs = [sdpa(*qkv, attn_mask=real) for qkv, real in cases.padded_batches(packed, batches)]
        cases.same_documents(sizes)(alone, outputs)
        assert all(torch.isfinite(output).all() for output in outputs)  # padded queries return rows as well
    with pytest.raises(AssertionError):
        cases.same_documents(sizes)(alone, [sdpa(*qkv) for qkv, _ in cases.padded_batches(packed, [sizes])])


def test_padding_on_the_right_needs_no_mask_in_a_causal_model():
    sizes = [20, 8, 4]
    packed = torch.randn(3, 1, 2, sum(sizes), 16, generator=torch.Generator().manual_seed(1)).unbind()
    padded = [cases.padded(each, sizes) for each in packed]
    causal = torch.ones(20, 20).tril().bool()
    with_mask = [sdpa(*padded, attn_mask=causal & cases.padding_mask(sizes, torch.device("cpu")))]
    cases.same_documents(sizes)(with_mask, [sdpa(*padded, is_causal=True)])
    alone = [reference(*each, True) for each in zip(*(x.split(sizes, dim=2) for x in packed), strict=True)]
    cases.same_documents(sizes)(torch.cat(alone, dim=2).float(), with_mask)


def test_create_block_mask_as_it_is_makes_the_whole_mask_first():
    def earlier(batch, head, query, key):
        return key <= query

    peaks = [
        Device().peak_memory(lambda make=make: make(earlier, None, None, 1024, 1024, device="cpu"))[0]
        for make in (create_block_mask, create_mask)
    ]
    assert peaks[0] >= peaks[1] > 1024**2


@pytest.mark.parametrize(
    ("version", "has_cuda", "tried"),
    [
        ("2.11.0+cu130", True, False),
        ("2.12.1+cu130", True, False),
        ("2.13.0+cu130", True, True),
        ("2.11.0", False, True),
    ],
)
def test_no_block_mask_is_compiled_for_cuda_before_torch_2_13(
    version: str, has_cuda: bool, tried: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    calls: list[None] = []
    with nullcontext() if tried else pytest.warns(UserWarning, match=r"torch 2\.1[12].* create_block_mask for minutes"):
        assert cases.compiles(lambda: calls.append(None)) == tried
    assert bool(calls) == tried


def test_the_function_to_paste_masks_each_batch_and_compiles_nothing_anew(monkeypatch: pytest.MonkeyPatch):
    texts = [cell["source"] for cell in read_notebook(find_lesson("flash_attention").path)["cells"]]
    [code] = [code for text in texts for code in re.findall(r"```python\n(.*?)```", text, re.S)]
    counted, pasted = CompileCounter(), {}
    with monkeypatch.context() as patched:
        patched.setattr(torch, "compile", partial(torch.compile, backend=counted))
        exec(code, pasted)
    q, k, v = inputs(length=256)
    for sizes in ([128, 128], [100, 156], [30, 200, 26]):
        document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).expand(2, -1)
        mask = (document[:, :, None] == document[:, None, :]) & torch.ones(256, 256).tril().bool()
        found = pasted["flex"](q, k, v, block_mask=pasted["make_mask"](document))
        assert_close(sdpa(q, k, v, attn_mask=mask[:, None]), found)
    assert counted.frame_count == 2


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_to_paste_hides_padding_and_looks_ahead_only_as_an_encoder(causal: bool):
    texts = [
        cell["source"]
        for cell in read_notebook(find_lesson("flash_attention").path)["cells"]
        if cell["cell_type"] == "code"
    ]
    exec(next(text for text in texts if "class Attention" in text), pasted := {})
    layer, x = pasted["Attention"](64, 4, causal=causal).eval(), torch.randn(1, 12, 64)
    changed = torch.cat([x[:, :-1], torch.randn(1, 1, 64)], dim=1)
    assert torch.allclose(layer(x)[:, 0], layer(changed)[:, 0], atol=1e-5) == causal
    for real in (torch.arange(12) < 9, torch.arange(12) >= 3):  # padding on the right, on the left
        assert_close(layer(x, real[None])[:, real], layer(x[:, real]))
    assert (layer.train()(x) != layer(x)).any()
    assert torch.equal(layer.eval()(x), layer(x))


def test_the_table_and_what_the_source_says_of_an_a100_have_the_same_rows():
    calls = evaluate('[row["call"] for row in flash_attention/fallbacks]', "intel-xeon-processor")
    assert set(calls) == set(cases.ON_AN_A100)
