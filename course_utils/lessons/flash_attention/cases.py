"""What the lesson tries and times: attention by length, calls that fall back, and documents of different lengths."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from course_utils.materials import attention
from course_utils.materials.attention import Attend, Backend
from course_utils.measure.ceilings import ceilings
from course_utils.measure.fresh import Fresh
from course_utils.records.kinds.sweep import Sweep

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RELATIVE = dict.fromkeys(KINDS, "relative")

# What SDPA runs for each call of the lesson's table on an A100, in 16 bits unless the row says otherwise: read in
# aten/src/ATen/native/transformers/cuda/sdp_utils.cpp at 001f694a (can_use_flash_attention,
# can_use_mem_efficient_attention); the order flash, efficient, math is Context.h's. There, efficient takes fewer heads
# in k and v already (pull request 191085, July 2026); in torch 2.13, whose row this is, flash and math alone do.
ON_AN_A100 = {
    "plain": "flash",
    "is_causal=True": "flash",
    "boolean mask": "efficient",
    "mask that needs a gradient": "efficient",
    "mask of three dimensions": "efficient",
    "dropout": "flash",
    "float32": "efficient",
    "float64": "math",
    "three dimensions": "math",
    "last dimension not contiguous": "math",
    "bfloat16": "flash",
    "inputs that need gradients": "flash",
    "heads moved by a view": "flash",
    "k and v of batch 1": "math",
    "fewer heads in k and v": "flash",
    "fewer heads, and a mask": "math",
    "one query, many keys": "flash",
    "one query, is_causal=True": "efficient",
    "head size 320": "efficient",
    "smaller head size in v": "efficient",
}


def of(
    chosen_ways: Mapping[str, Backend],
    length: int,
    *,
    heads: int,
    head_size: int,
    device: torch.device,
    dtype: torch.dtype,
    without: str = "",
    batch: int = 1,
    queries: int | None = None,
    is_causal: bool = False,
    backward: bool = False,
) -> dict[str, Fresh]:
    """Attention in some ways, ``without`` one, as cases of a comparison; ``queries`` takes that many of them."""
    q, k, v = torch.randn(3, batch, heads, length, head_size, device=device, dtype=dtype)
    kept = {name: way for name, way in chosen_ways.items() if name != without}
    return {name: way.case(q[:, :, :queries], k, v, is_causal, backward) for name, way in kept.items()}


def ways(
    by_hand: Attend, device: torch.device, dtype: torch.dtype, *, heads: int, head_size: int
) -> dict[str, Backend]:
    """Attention by hand, and each way that runs here, forward and backward."""
    compiled = device.type == "cuda"  # a CPU's FlexAttention has no backward pass
    sizes = {"heads": heads, "head_size": head_size}
    tried = attention.attention_backends(device, dtype, training=True, compiled=compiled, **sizes)
    return {"by hand": Backend("by hand", by_hand)} | attention.available(tried)


def operations(length: int, *, heads: int, head_size: int, training: bool = False) -> float:
    """Of the matrix products alone, as the FlashAttention papers count them; training is causal."""
    forward = 4 * heads * length**2 * head_size
    return 3.5 * forward / 2 if training else forward


def ceiling(dtype: torch.dtype) -> Any:
    """This machine's matrix product in a dtype."""
    return ceilings()[f"matmul {str(dtype).removeprefix('torch.')}"]


def own_choice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    """The kernel that SDPA chooses for a plain call."""
    return attention.kernel_of(lambda: functional.scaled_dot_product_attention(q, k, v))


def errors(by_hand: Attend, device: torch.device, *, heads: int, head_size: int) -> list[dict[str, Any]]:
    """Rows for a table: how far each way that runs here is from float64, by dtype; None where one does not run."""
    found: dict[str, dict[str, Any]] = {}
    for kind, dtype in KINDS.items():
        tried = attention.available(attention.attention_backends(device, dtype, head_size, heads=heads))
        for name, way in ({"by hand": Backend("by hand", by_hand)} | tried).items():
            error = attention.errors_of(way, device, dtype, head_size, heads)["output"]
            found.setdefault(name, {"way": name, **dict.fromkeys(KINDS)})[kind] = error
    return list(found.values())


def peaks(sweeps: Mapping[str, Sweep]) -> list[dict[str, Any]]:
    """Rows for a table: each way's peak memory on top of its inputs, at each length of each sweep."""
    rows, names = [], [case.label for case in next(iter(sweeps.values())).points[0].comparison]
    for kind, found in sweeps.items():
        for point in found.points:
            peak = {case.label: case.measurement.peak_allocated_bytes for case in point.comparison}
            rows.append({"sweep, length": f"{kind}, {point.value}"} | {name: peak.get(name) for name in names})
    return rows


def more_calls(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """The calls of the table that the notebook does not spell out."""
    sdpa, wide = functional.scaled_dot_product_attention, torch.randn(2, 4, 128, 320, device=q.device, dtype=q.dtype)
    bias = torch.zeros(128, 128, device=q.device, dtype=q.dtype, requires_grad=True)
    mask = torch.ones(1, 128, 128, dtype=torch.bool, device=q.device)
    return {
        "one query, many keys": lambda: sdpa(q[:, :, :1], k, v),
        "mask that needs a gradient": lambda: sdpa(q, k, v, attn_mask=bias),
        "mask of three dimensions": lambda: sdpa(q, k, v, attn_mask=mask),
        "bfloat16": lambda: sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16()),
        "float64": lambda: sdpa(q.double(), k.double(), v.double()),
        "inputs that need gradients": lambda: sdpa(q.detach().requires_grad_(), k, v),
        "heads moved by a view": lambda: sdpa(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))),
        "head size 320": lambda: sdpa(wide, wide, wide),
        "smaller head size in v": lambda: sdpa(q, k, v[..., :32]),
    }


def chosen(calls: Mapping[str, Callable[[], Any]]) -> list[dict[str, str]]:
    """Rows for a table: the kernel that runs here, and the one that an A100 would run, by the source."""
    return [
        {"call": name, "kernel": attention.kernel_of(call), "on an A100, by the source": ON_AN_A100[name]}
        for name, call in calls.items()
    ]


def padded(packed: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """``[documents, heads, longest, head_size]`` from documents that follow each other in ``[1, heads, all, ...]``."""
    documents = [document[0].transpose(0, 1) for document in packed.split(list(sizes), dim=2)]
    return torch.nn.utils.rnn.pad_sequence(documents, batch_first=True).transpose(1, 2).contiguous()


def padding_mask(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """``[documents, 1, 1, longest]``: true where a key is no padding."""
    real = torch.arange(max(sizes), device=device) < torch.tensor(sizes, device=device)[:, None]
    return real[:, None, None, :]


def padded_batches(
    packed: Sequence[torch.Tensor], batches: Sequence[Sequence[int]]
) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """q, k and v of each batch of documents, padded to its longest, and the mask of its real keys."""
    tokens = [sum(sizes) for sizes in batches]
    parts = zip(*(tensor.split(tokens, dim=2) for tensor in packed), strict=True)
    return [
        ([padded(tensor, sizes) for tensor in part], padding_mask(sizes, packed[0].device))
        for part, sizes in zip(parts, batches, strict=True)
    ]


def same_documents(sizes: Sequence[int]) -> Callable[[Any, Any], None]:
    """A check for a comparison: the documents agree, packed or in padded batches. Padding is ignored."""

    def packed(output: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
        if isinstance(output, torch.Tensor):
            return output
        padded_documents = [document for batch in output for document in batch]
        documents = [each[None, :, :size] for each, size in zip(padded_documents, sizes, strict=True)]
        return torch.cat(documents, dim=2)

    return lambda expected, actual: attention.assert_close(packed(expected), packed(actual))


def compiles(call: Callable[[], Any]) -> bool:
    """Whether compiled code runs here; if not, a warning says why.

    For CUDA, torch before 2.13 makes a Triton kernel of the sort in ``create_block_mask``, which takes it minutes
    (https://github.com/pytorch/pytorch/pull/182745). There nothing is tried.
    """
    if torch.cuda.is_available() and torch.__version__ < (2, 13):
        why = f"torch {torch.__version__} compiles create_block_mask for minutes on CUDA. Take torch 2.13 or later."
        warnings.warn(f"FlexAttention and its block mask are left out: {why}", stacklevel=2)
        return False
    try:
        call()
    except Exception as error:  # a compiler that is missing, or whatever it says
        warnings.warn(f"FlexAttention does not run here: {type(error).__name__}: {str(error)[:300]}", stacklevel=2)
        return False
    return True


def same_blocks(expected: Any, actual: Any) -> bool:
    """A check for a comparison: two block masks name the same blocks."""
    pairs = zip(expected.as_tuple(), actual.as_tuple(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs if isinstance(one, torch.Tensor))
