"""What `flash_attention` says of attention in torch that is easy to get wrong, run on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import SDPBackend, list_flash_attention_impls, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.profiler import ProfilerActivity, profile
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

from authoring.evidence import evaluate
from course_utils.lessons.flash_attention import cases
from course_utils.materials.attention import assert_close, kernel_of, reference
from course_utils.measure.devices import Device
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook


def inputs(heads: int = 4, length: int = 32) -> list[torch.Tensor]:
    return list(torch.randn(3, 2, heads, length, 16, generator=torch.Generator().manual_seed(4)))


def operations(call: Callable[[], object]) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        call()
    return {event.key for event in trace.key_averages()}


def test_the_causal_mask_begins_in_the_upper_left():
    q, k, v = inputs()
    full = sdpa(q, k, v, is_causal=True)
    assert_close(v[:, :, :1], sdpa(q[:, :, -1:], k, v, is_causal=True))  # the trap of decoding
    assert_close(full[:, :, -1:], sdpa(q[:, :, -1:], k, v))
    lower_right = torch.ones(3, 32, dtype=torch.bool).tril(32 - 3)
    assert_close(full[:, :, -3:], sdpa(q[:, :, -3:], k, v, attn_mask=lower_right))
    assert_close(full[:, :, -3:], sdpa(q[:, :, -3:], k, v, attn_mask=causal_lower_right(3, 32)))


def test_causal_lower_right_makes_a_tensor_on_a_cpu():
    q, k, v = inputs()
    assert "aten::tril" in operations(lambda: sdpa(q[:, :, -3:], k, v, attn_mask=causal_lower_right(3, 32)))


def test_padding_on_the_left_needs_both_rules():
    q, k, v = inputs()
    real = torch.arange(32) >= 8
    both = real & torch.ones(32, 32).tril().bool()
    alone = sdpa(q[:, :, 8:], k[:, :, 8:], v[:, :, 8:], is_causal=True)
    assert_close(alone, sdpa(q, k, v, attn_mask=both)[:, :, 8:])
    assert not torch.allclose(alone, sdpa(q, k, v, is_causal=True)[:, :, 8:], atol=1e-3)


def test_decoding_a_padded_batch_needs_a_mask():
    q, k, v = inputs()
    real = torch.arange(32) >= torch.tensor([[0], [20]])
    last = q[:, :, -1:]
    alone = sdpa(last[1:], k[1:, :, 20:], v[1:, :, 20:])
    assert_close(alone, sdpa(last, k, v, attn_mask=real[:, None, None, :])[1:])
    assert not torch.allclose(alone, sdpa(last, k, v)[1:], atol=1e-1)


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


def test_a_float_mask_in_the_dtype_of_q_does_as_well():
    real = (torch.arange(32) < 20)[None, None, None, :]
    assert_close(
        sdpa(*inputs(), attn_mask=real), sdpa(*inputs(), attn_mask=torch.zeros(real.shape).where(real, -torch.inf))
    )


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


def test_cross_attention_between_packed_documents():
    queries, keys = [10, 6], [20, 12]
    one, other = (torch.repeat_interleave(torch.arange(2), torch.tensor(each)) for each in (queries, keys))
    q = torch.randn(1, 2, 16, 16)
    k, v = torch.randn(2, 1, 2, 32, 16).unbind()

    def same(batch, head, query, key):
        return one[query] == other[key]

    packed = sdpa(q, k, v, attn_mask=create_mask(same, None, None, 16, 32, device="cpu"))
    each = zip(q.split(queries, 2), k.split(keys, 2), v.split(keys, 2), strict=True)
    assert_close(torch.cat([sdpa(*document) for document in each], dim=2), packed)


def test_rows_without_a_key_give_zeros():
    q, k, v = inputs()
    mask = torch.ones(32, 32, dtype=torch.bool)
    mask[5] = False
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            assert torch.equal(sdpa(q, k, v, attn_mask=mask)[:, :, 5], torch.zeros(2, 4, 16))


def test_a_cpu_ignores_the_order_of_kernels():
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert kernel_of(lambda: sdpa(*inputs())) == "flash"
    # Without cuDNN in front: flash, efficient, math.
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
    assert torch._C._get_sdp_priority_order()[:4] == [int(backend) for backend in order]


def test_what_multihead_attention_runs():
    x = torch.randn(2, 16, 64)
    layer = nn.MultiheadAttention(64, 4, batch_first=True)
    assert kernel_of(lambda: layer(x, x, x)) == "math"
    assert kernel_of(lambda: layer(x, x, x, need_weights=False)) == "flash"
    dropping = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)
    assert kernel_of(lambda: dropping(x, x, x, need_weights=False)) == "math"
    with torch.no_grad():
        assert "_native_multi_head_attention" in kernel_of(lambda: layer.eval()(x, x, x, need_weights=False))
        assert kernel_of(lambda: layer(x, 2 * x, 2 * x, need_weights=False)) == "flash"  # cross-attention
        length_first = nn.MultiheadAttention(64, 4).eval()
        assert kernel_of(lambda: length_first(x, x, x, need_weights=False)) == "flash"


def test_one_head_broadcasts_without_an_error_by_math():
    q, k, v = inputs()
    assert kernel_of(lambda: sdpa(q, k[:, :1], v[:, :1])) == "math"
    assert kernel_of(lambda: sdpa(q, k[:, :1], v[:, :1], enable_gqa=True)) == "flash"


def test_a_bias_goes_to_math_on_a_cpu_if_it_needs_gradients():
    bias = torch.randn(32, 32)
    assert kernel_of(lambda: sdpa(*inputs(), attn_mask=bias)) == "flash"
    assert kernel_of(lambda: sdpa(*inputs(), attn_mask=bias.requires_grad_())) == "math"


def test_with_dropout_attention_by_hand_keeps_three_matrices():
    q, k, v = (x.requires_grad_() for x in inputs())
    for dropout, kept in ((0.0, 1), (0.1, 3)):
        matrices = set()

        def pack(tensor, matrices=matrices):
            if tensor.shape[-2:] == (32, 32):
                matrices.add(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = nn.functional.dropout((q @ k.mT / 4).softmax(dim=-1), dropout) @ v
        assert len(matrices) == kept
        assert result.requires_grad


def test_the_compiler_rewrites_some_attention_by_hand():
    for call, rewritten in (
        (lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v, True),
        (lambda q, k, v: ((q / 4) @ k.mT).softmax(-1) @ v, False),
    ):
        compiled = torch.compile(call)
        compiled(*inputs())
        assert any("flash" in name for name in operations(partial(compiled, *inputs()))) is rewritten


def test_the_guard_does_not_see_what_was_compiled_before_it():
    compiled = torch.compile(lambda q, k, v: sdpa(q[0], k[0], v[0]))  # three dimensions: math
    expected = compiled(*inputs())
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert_close(expected, compiled(*inputs()))
        torch._dynamo.reset()
        with pytest.raises(RuntimeError):
            compiled(*inputs())


def test_an_inner_context_manager_overrides_the_guard():
    def math_inside():
        with sdpa_kernel(SDPBackend.MATH):
            sdpa(*inputs())

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert "aten::_scaled_dot_product_attention_math" in operations(math_inside)


def test_another_layout_passes_without_an_error():
    q, k, v = (x.transpose(1, 2) for x in inputs())
    assert sdpa(q, k, v).shape == q.shape
    assert not torch.allclose(sdpa(q, k, v).transpose(1, 2), sdpa(*inputs()), atol=1e-3)


def test_checkpointing_counts_each_call_twice():
    x = inputs()[0].requires_grad_()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        checkpoint(lambda x: sdpa(x, x, x), x, use_reentrant=False).sum().backward()
    counts = {event.key: event.count for event in trace.key_averages()}
    assert counts["aten::scaled_dot_product_attention"] == 2


def test_a_cpus_flash_applies_both_the_mask_and_the_flag():
    real = torch.arange(32) < 20
    both = sdpa(*inputs(), attn_mask=real & torch.ones(32, 32).tril().bool())
    assert_close(both, sdpa(*inputs(), attn_mask=real.expand(32, 32), is_causal=True))


def test_the_guard_does_not_see_a_layer_that_computes_by_hand():
    x, layer = torch.randn(2, 16, 64), nn.MultiheadAttention(64, 4, batch_first=True)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        ran = operations(lambda: layer(x, x, x))
    assert "aten::bmm" in ran
    assert not any("_scaled_dot_product" in operation for operation in ran)


def test_true_means_the_opposite_in_the_layer_and_in_sdpa():
    x, layer = torch.randn(1, 16, 64), nn.MultiheadAttention(64, 1, batch_first=True, bias=False)
    padding = torch.arange(16)[None] >= 10
    q, k, v = (x @ layer.in_proj_weight.T).chunk(3, dim=-1)
    by_sdpa = sdpa(q[:, None], k[:, None], v[:, None], attn_mask=~padding[:, None, None, :])[:, 0]
    assert_close(layer(x, x, x, key_padding_mask=padding)[0], by_sdpa @ layer.out_proj.weight.T)


def test_autocast_casts_the_inputs_of_attention():
    with torch.autocast("cpu", torch.bfloat16):
        assert sdpa(*inputs()).dtype is torch.bfloat16


def test_newer_versions_of_flash_can_be_swapped_in():
    assert {"FA3", "FA4"} <= {name.upper() for name in list_flash_attention_impls()}


def both_masks(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        sdpa(q, k, v, attn_mask=torch.ones(32, 32, dtype=torch.bool), is_causal=True)


def only_flash(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        sdpa(q[0], k[0], v[0])


MESSAGES = {
    "No available kernel": only_flash,
    "Explicit attn_mask should not be set when is_causal=True": both_masks,
    "Expected query, key, and value to have the same dtype": lambda q, k, v: sdpa(q, k.half(), v.half()),
    "Expected attn_mask dtype to be bool or float": lambda q, k, v: sdpa(q, k, v, attn_mask=torch.ones(32, 32).long()),
    r"The size of tensor a \(4\) must match the size of tensor b \(2\)": lambda q, k, v: sdpa(q, k[:, :2], v[:, :2]),
    r"The size of tensor a \(32\) must match": lambda q, k, v: sdpa(q, k, v, attn_mask=torch.ones(2, 32).bool()),
    "Could not run 'aten::_flash_attention_forward' with arguments from the 'CPU' backend": lambda q, k, v: varlen_attn(
        q[0], k[0], v[0], torch.tensor([0, 4], dtype=torch.int32), torch.tensor([0, 4], dtype=torch.int32), 4, 4
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("message", MESSAGES)
def test_messages_of_the_lesson(message: str):
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        MESSAGES[message](*inputs())


def test_flexattention_warns_where_it_is_not_compiled():
    with pytest.warns(UserWarning, match=r"flex_attention called without torch.compile\(\)"):
        flex_attention(*inputs())


def test_the_table_and_what_the_source_says_of_an_a100_have_the_same_rows():
    calls = evaluate('[row["call"] for row in flash_attention/fallbacks]', "intel-xeon-processor")
    assert set(calls) == set(cases.ON_AN_A100)
