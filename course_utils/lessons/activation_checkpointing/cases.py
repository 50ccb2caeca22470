"""What the lesson measures: eight ways to run a GPT's step, their products and peaks, what blocks keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from course_utils.materials.models import GPT, Block, LlamaBlock, rotary_turns
from course_utils.materials.step_memory import kept_bytes, peak_bytes
from course_utils.measure.machine import course_size, device_kind, scaled

aten = torch.ops.aten
_ON_CPU = aten._scaled_dot_product_flash_attention_for_cpu
PRODUCTS = {aten.mm.default, aten.addmm.default}
ATTENTION = {_ON_CPU.default} | {
    getattr(aten, f"_scaled_dot_product_{kernel}_attention").default for kernel in ("flash", "efficient", "cudnn")
}


def recompute(blocks: Iterable[nn.Module], **options: Any) -> None:
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def selective() -> Any:
    """Keep attention and every second product, as torchtitan does."""
    seen = {False: 0, True: 0}  # products so far, in the first pass and in the second

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen[ctx.is_recompute] += op in PRODUCTS
        keep = op in ATTENTION or (op in PRODUCTS and seen[ctx.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def in_segments(model: GPT, size: int, most: int | None = None) -> None:
    model.blocks = nn.ModuleList(nn.Sequential(*model.blocks[i : i + size]) for i in range(0, len(model.blocks), size))
    recompute(model.blocks[:most])


WAYS: dict[str, Callable[[GPT], Any]] = {
    "keep everything": lambda model: None,
    "first 6 blocks": lambda model: recompute(model.blocks[:6]),
    "first 8 blocks": lambda model: recompute(model.blocks[:8]),
    "first 10 blocks": lambda model: recompute(model.blocks[:10]),
    "each block": lambda model: recompute(model.blocks),
    "segments of 4": lambda model: in_segments(model, 4),
    "2 of 3 segments": lambda model: in_segments(model, 4, 2),
    "selective": lambda model: recompute(model.blocks, context_fn=selective),
}


def sizes() -> dict[str, Any]:
    """On a CPU an eighth of the width and length. Where a GPU holds it, the batch keeps it busy while Python queues."""
    gpu = {"width": 1024, "heads": 16, "length": 1024, "batch": 4, "dtype": "bf16 autocast"}
    if device_kind() == "cuda" and torch.cuda.get_device_properties(0).total_memory > 40 * 2**30:
        gpu["batch"] = 32
    length = 8 if course_size() == "test" else 128
    return scaled(cpu={"width": 128, "heads": 2, "length": length, "batch": 4, "dtype": "fp32"}, cuda=gpu)


def step(way: str, *, texts: int | None = None, optimizer: bool = True) -> Callable[[], Any]:
    """A training step that returns its gradients, of so many texts (None: as `sizes` says)."""
    of, device = sizes(), torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = GPT(256, of["length"], of["width"], 12, of["heads"]).to(device)
    WAYS[way](model)
    adamw = torch.optim.AdamW(model.parameters(), fused=True) if optimizer else None
    tokens = torch.randint(256, (texts or of["batch"], of["length"]), device=device)

    def train() -> list[torch.Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled="bf16" in of["dtype"]):
            loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        gradients = [weight.grad for weight in model.parameters()]
        if adamw:
            adamw.step()
        model.zero_grad()
        return gradients

    return train


def products_and_peaks() -> list[dict[str, Any]]:
    """Of a step without its optimizer, over those with everything kept."""
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        train = step(way, optimizer=False)
        peak = peak_bytes(train)
        with _counted() as counter:  # it keeps tensors alive: not while the peak is measured
            train()
        rows.append({"wrapped": way, "products": counter.get_total_flops(), "peak": peak})
    return [row | {it: row[it] / rows[0][it] for it in ("products", "peak")} for row in rows]


def same_gradients(expected: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> bool:
    """Whether each weight's gradient is off by no more than sums in another order are: 1% in bf16, 0.01% in fp32."""
    most = 1e-2 if "bf16" in sizes()["dtype"] else 1e-4
    return all((one - two).norm() <= most * two.norm() for one, two in zip(expected, given, strict=True))


# An eighth of a 7B model's 4,096 and of 2,048 tokens: the ratios are the same.
_WIDTH, _TOKENS = (64, 32) if course_size() == "test" else (512, 256)
_BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "GPT": (partial(Block, _WIDTH, 4), ()),
    "Llama": (partial(LlamaBlock, _WIDTH, 4, 4, _WIDTH * 43 // 16), (rotary_turns(_TOKENS, _WIDTH // 4),)),
}


def kept_by_blocks() -> list[dict[str, Any]]:
    """How many tensors of its input's size a block keeps, and the products of a step by what is computed again."""
    rows = []
    for name, (build, others) in _BLOCKS.items():
        again = _products(build(), others)
        for dtype in ("fp32", "bf16 autocast", "all bf16"):
            block = build().to(torch.bfloat16 if dtype == "all bf16" else torch.float32)
            x = torch.randn(2, _TOKENS, _WIDTH, dtype=next(block.parameters()).dtype, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16 autocast"):
                one, two = (kept_bytes(partial(block, part, *others)) for part in (x[:1].clone(), x.clone()))
            units = 2 * (two - one) / x.nbytes  # weights drop out
            rows.append({"block": f"{name}, {dtype}", "keeps": units} | again)
    return rows


def _counted() -> FlopCounterMode:
    """It does not know a CPU's attention by itself."""
    known = {
        _ON_CPU: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
        ),
    }
    return FlopCounterMode(display=False, custom_mapping=known)


def _products(block: nn.Module, others: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Of a step, over those with everything kept."""
    flops, wrap = [], partial(partial, checkpoint, block, use_reentrant=False)
    for run in (block, wrap(), wrap(context_fn=selective)):
        with _counted() as counter:
            run(torch.randn(1, _TOKENS, _WIDTH, requires_grad=True), *others).sum().backward()
        flops.append(counter.get_total_flops())
    return {"all again": flops[1] / flops[0], "selective": flops[2] / flops[0]}


def against_plain(block: nn.Module, x: torch.Tensor, **options: Any) -> dict[str, Any]:
    """What ``checkpoint(block, x, **options)`` does to the gradient of the block's first weight."""
    head, weight, gradients = nn.Linear(x.shape[-1], 1), next(block.parameters()), []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for run in (block, partial(checkpoint, block, **options)):
            torch.manual_seed(0)
            weight.grad = None
            head(run(x)).sum().backward()
            gradients.append(weight.grad)
    plain, given = gradients
    off = None if given is None else ((given - plain).norm() / plain.norm()).item()
    words = "none at all" if off is None else "wrong" if off else "the same to the bit"
    return {"gradient": words, "off by": off, "PyTorch says": "a warning" if said else "nothing"}
