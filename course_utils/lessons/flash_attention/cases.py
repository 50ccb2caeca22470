"""What the lesson times and tries: attention in several ways, by length, and twenty ways to call it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn import functional

from course_utils.materials import attention
from course_utils.materials.attention import Backend
from course_utils.measure.fresh import Fresh
from course_utils.measure.machine import device_kind, scaled

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RELATIVE = dict.fromkeys(KINDS, "relative")
# On CUDA, flash takes numbers of 16 bits alone.
HERE = {"device": torch.device(device_kind()), "dtype": torch.float16 if device_kind() == "cuda" else torch.float32}
SIZES = {"heads": scaled(cpu=1, cuda=16), "head_size": scaled(cpu=64, cuda=128)}


def heads_that_fit(length: int) -> int:
    """One on a CPU; on a GPU sixteen, or fewer where its memory would not hold math's scores, 9.4 bytes for each."""
    if scaled(cpu=True, cuda=False):
        return 1
    return min(16, torch.cuda.get_device_properties(0).total_memory // (15 * length**2))


@cache
def later_keys(length: int) -> torch.Tensor:
    """Which keys come after each query: what a causal mask hides."""
    return torch.ones(length, length, dtype=torch.bool, device=HERE["device"]).triu(1)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """Attention as a product, a softmax and a product; the causal mask is made once, and written into the scores."""
    scores = (q / q.shape[-1] ** 0.5) @ k.mT
    if is_causal:
        scores.masked_fill_(later_keys(q.shape[-2]), -torch.inf)
    return scores.softmax(dim=-1) @ v


def inputs(heads: int, length: int, head_size: int, batch: int = 1) -> torch.Tensor:  # q, k and v
    return torch.randn(3, batch, heads, length, head_size, **HERE)


def forward(length: int) -> dict[str, Fresh]:
    """A forward pass in each way that runs here."""
    qkv = inputs(length=length, **SIZES)
    return {name: way.case(*qkv) for name, way in _ways().items()}


def training(length: int) -> dict[str, Fresh]:
    """A causal forward pass and the gradients of q, k and v; without math."""
    qkv = inputs(length=length, **SIZES)
    return {name: way.case(*qkv, True, True) for name, way in _ways().items() if name != "math"}


@cache
def _ways() -> dict[str, Backend]:
    compiled = HERE["device"].type == "cuda"  # a CPU's FlexAttention has no backward pass
    fused = attention.attention_backends(**HERE, **SIZES, training=True, compiled=compiled)
    return {"by hand": Backend("by hand", by_hand)} | fused


def errors() -> list[dict[str, Any]]:
    """Rows for a table: how far each way that runs here is from float64, by dtype; None where one does not run."""
    found: dict[str, dict[str, Any]] = {}
    for kind, dtype in KINDS.items():
        fused = attention.attention_backends(HERE["device"], dtype, **SIZES)
        for name, way in ({"by hand": Backend("by hand", by_hand)} | fused).items():
            error = attention.error_of(way, HERE["device"], dtype, **SIZES)
            found.setdefault(name, {"way": name, **dict.fromkeys(KINDS)})[kind] = error
    return list(found.values())


# Before each call: what an A100 runs, in 16 bits unless it says otherwise, by torch 2.13's source (cuda/sdp_utils.cpp).
# After 2.13, efficient takes fewer heads in k and v as well (pull request 191085, July 2026).
def kernels() -> list[dict[str, str]]:
    """Rows for a table: twenty calls, the kernel that each runs here, and the one that an A100 would run."""
    q, k, v = inputs(4, 128, 64, batch=2)
    sdpa, wide = functional.scaled_dot_product_attention, inputs(4, 128, 320, batch=2)[0]
    mask, bias = ~later_keys(128), torch.zeros(128, 128, **HERE, requires_grad=True)
    few_k, few_v = k[:, :2], v[:, :2]
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    calls = {
        "plain": ("flash", lambda: sdpa(q, k, v)),
        "boolean mask": ("efficient", lambda: sdpa(q, k, v, attn_mask=mask)),
        "fewer heads in k and v": ("flash", lambda: sdpa(q, few_k, few_v, enable_gqa=True)),
        "fewer heads, and a mask": ("math", lambda: sdpa(q, few_k, few_v, attn_mask=mask, enable_gqa=True)),
        "one query, is_causal=True": ("efficient", lambda: sdpa(q[:, :, :1], k, v, is_causal=True)),
        "float32": ("efficient", lambda: sdpa(q.float(), k.float(), v.float())),
        "dropout": ("flash", lambda: sdpa(q, k, v, dropout_p=0.1)),
        "three dimensions": ("math", lambda: sdpa(q[0], k[0], v[0])),
        "is_causal=True": ("flash", lambda: sdpa(q, k, v, is_causal=True)),
        "last dimension not contiguous": ("math", lambda: sdpa(*(x.mT.contiguous().mT for x in (q, k, v)))),
        "k and v of batch 1": ("math", lambda: sdpa(q, k[:1], v[:1])),
        "one query, many keys": ("flash", lambda: sdpa(q[:, :, :1], k, v)),
        "mask that needs a gradient": ("efficient", lambda: sdpa(q, k, v, attn_mask=bias)),
        "mask of three dimensions": ("efficient", lambda: sdpa(q, k, v, attn_mask=mask.new_ones(1, 128, 128))),
        "bfloat16": ("flash", lambda: sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16())),
        "float64": ("math", lambda: sdpa(q.double(), k.double(), v.double())),
        "inputs that need gradients": ("flash", lambda: sdpa(q.detach().requires_grad_(), k, v)),
        "heads moved by a view": ("flash", lambda: sdpa(*moved)),
        "head size 320": ("efficient", lambda: sdpa(wide, wide, wide)),
        "smaller head size in v": ("efficient", lambda: sdpa(q, k, v[..., :32])),
    }
    return [
        {"call": name, "kernel": attention.kernel_of(call), "on an A100, by the source": there}
        for name, (there, call) in calls.items()
    ]
