"""What the lesson measures: a step with some blocks recomputed, its peak by their number, and silent mistakes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._functorch import config as partitioner
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from course_utils.materials.models import GPT
from course_utils.materials.step_memory import kept_bytes, peak_bytes
from course_utils.measure.machine import scaled
from course_utils.records.kinds.comparison import Comparison

LAYERS = 12
# FlopCounterMode knows the attention of CUDA, and not that of the CPU.
_ATTENTION_FLOPS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda grad, q, k, v, *_, **__: (
        sdpa_backward_flop_count(grad, q, k, v)
    ),
}
Change = Callable[[GPT], Any]


def _sizes() -> dict[str, int]:
    """Width, heads, tokens of a sequence, sequences."""
    return scaled(
        cpu={"width": 64, "heads": 2, "length": 128, "batch": 4},
        cuda={"width": 1024, "heads": 16, "length": 1024, "batch": 4},
    )


def _device() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def training_step(
    change: Change, *, layers: int = LAYERS, vocabulary: int = 256, optimizer: bool = True
) -> Callable[[], list[torch.Tensor]]:
    """A training step of a GPT whose blocks ``change`` has wrapped; the step returns its gradients.

    Args:
        change: what is done to the model before it trains, such as recomputing some of its blocks.
        layers: blocks.
        vocabulary: words.
        optimizer: whether AdamW's step is part of it.
    """
    sizes = _sizes()
    device = _device()
    model = GPT(vocabulary, sizes["length"], sizes["width"], layers, sizes["heads"]).to(device)
    change(model)
    adamw = torch.optim.AdamW(model.parameters(), fused=True) if optimizer else None
    tokens = torch.randint(vocabulary, (sizes["batch"], sizes["length"]), device=device)

    def step() -> list[torch.Tensor]:
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        gradients = [weight.grad for weight in model.parameters()]
        if adamw:
            adamw.step()
        model.zero_grad()
        return gradients

    return step


def summary(trade: Comparison, ways: Mapping[str, Change]) -> list[dict[str, Any]]:
    """Of each way its time and its FLOPs (products, attention's included) over the first one's, and its extra peak."""
    flops = {}
    for label, change in ways.items():
        step = training_step(change)
        with FlopCounterMode(display=False, custom_mapping=_ATTENTION_FLOPS) as counter:
            step()
        flops[label] = counter.get_total_flops()
    return [
        {
            "way": case.label,
            "time": 1.0 if case.is_baseline else case.ratio,
            "FLOPs": flops[case.label] / flops[trade.baseline],
            "extra peak": case.measurement.peak_allocated_bytes,
        }
        for case in trade
    ]


def same_gradients(expected: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> bool:
    """Whether gradients are equal: to the bit on a CPU, and on a GPU, whose sums may be in any order, nearly."""
    same = torch.equal if expected[0].device.type == "cpu" else partial(torch.allclose, rtol=1e-3, atol=1e-6)
    return all(same(ours, theirs) for ours, theirs in zip(expected, given, strict=True))


def peaks_by_count(recompute: Callable[..., Any], counts: Sequence[int]) -> list[dict[str, Any]]:
    """The peak of forward and backward pass with so many blocks recomputed: the first, or the last ones.

    Args:
        recompute: wraps the first so many modules of a list.
        counts: how many; 0 and 1, which give the line, must be among them.
    """

    def peak(change: Change) -> int | None:
        torch.manual_seed(0)
        return peak_bytes(training_step(change, optimizer=False))

    first = {count: peak(lambda model, count=count: recompute(model.blocks, count)) for count in counts}
    last = {
        count: first[count]  # none and all are the same blocks from either end
        if count in (0, LAYERS)
        else peak(lambda model, count=count: recompute(model.blocks[LAYERS - count :]))
        for count in counts
    }
    return [
        {
            "recomputed": f"{count} of {LAYERS}",
            "the first": first[count],
            "by the line": first[0] - count * (first[0] - first[1]),
            "the last": last[count],
        }
        for count in counts
    ]


def peaks_by_vocabulary(recompute: Callable[..., Any]) -> list[dict[str, Any]]:
    """The peak of a small model whose loss is over few words, and over many: blocks kept, and recomputed."""
    rows = []
    for vocabulary in (256, 16_384):
        row: dict[str, Any] = {"vocabulary": f"{vocabulary:,}"}
        for label, count in (("blocks kept", 0), ("recomputed", 2)):
            torch.manual_seed(0)
            step = training_step(
                lambda model, count=count: recompute(model.blocks, count),
                layers=2,
                vocabulary=vocabulary,
                optimizer=False,
            )
            row[label] = peak_bytes(step)
        rows.append(row | {"of it": row["recomputed"] / row["blocks kept"]})
    return rows


def peaks_by_budget(budgets: Iterable[float]) -> list[dict[str, Any]]:
    """What the compiler's partitioner keeps of a small GPT under each budget, and the peak of its backward pass.

    The graph is partitioned as for Inductor and then run by PyTorch's own kernels, so that nothing is generated.
    """
    rows = []
    for budget in budgets:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = GPT(width=64, layers=2, context=128).to(_device())
        tokens = torch.randint(256, (8, 128), device=_device())
        with partitioner.patch(activation_memory_budget=budget):
            compiled = torch.compile(model, backend="aot_eager_decomp_partition")
            kept = kept_bytes(lambda: compiled(tokens), [tokens, *model.parameters()])  # noqa: B023 - called here

        def step() -> None:
            compiled(tokens).square().mean().backward()  # noqa: B023 - called before the next budget
            model.zero_grad()  # noqa: B023

        rows.append({"budget": f"{budget:g}", "kept": kept, "peak": peak_bytes(step)})
    torch._dynamo.reset()
    return rows


def against_plain(block: nn.Module, x: torch.Tensor, **options: Any) -> dict[str, Any]:
    """What ``checkpoint(block, x, **options)`` does to the gradient of the block's first weight.

    Args:
        block: the module to recompute; it may draw random numbers.
        x: its input, which needs no gradient, like the output of a frozen embedding.
        **options: of ``checkpoint``.

    Returns:
        ``gradient`` in words, how far it is off, and what PyTorch said.
    """
    head = nn.Linear(x.shape[-1], 1)
    weight = next(block.parameters())
    gradients = []
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
    return {"gradient": words, "off by": off, "PyTorch says": str(said[-1].message)[:40] + "..." if said else "nothing"}
