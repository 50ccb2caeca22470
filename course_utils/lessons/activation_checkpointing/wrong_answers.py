"""Wrong answers to the exercises of the lesson: one for each hint."""

import math

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

aten = torch.ops.aten


def exactly(peak, with_one, layers, limit):
    return (peak - limit) / (peak - with_one)


def keeping(*ops):
    return lambda ctx, op, *args, **kwargs: (
        CheckpointPolicy.MUST_SAVE if op in ops else CheckpointPolicy.PREFER_RECOMPUTE
    )


attention = aten._scaled_dot_product_flash_attention_for_cpu.default


def upside_down(ctx, op, *args, **kwargs):
    products = (aten.mm.default, aten.addmm.default, aten.bmm.default, attention)
    return CheckpointPolicy.PREFER_RECOMPUTE if op in products else CheckpointPolicy.MUST_SAVE


def with_a_seed(block, x):
    torch.manual_seed(0)
    return checkpoint(block, x, use_reentrant=False)


def without_dropout(block, x):
    return checkpoint(block.eval(), x, use_reentrant=False)


WRONG = {
    "check_count": {
        "negative": lambda *model: math.ceil(exactly(*model)),
        "rounds_down": lambda *model: max(0, int(exactly(*model))),
        "rounds": lambda *model: max(0, round(exactly(*model))),
        "not_whole": lambda *model: max(0, exactly(*model)),
        "one_more": lambda *model: max(0, math.floor(exactly(*model)) + 1),
        "all": lambda peak, with_one, layers, limit: layers,
        "all_or_nothing": lambda peak, with_one, layers, limit: layers if peak > limit else 0,
        "in_proportion": lambda peak, with_one, layers, limit: max(0, math.ceil((peak - limit) / (peak / layers))),
    },
    "check_policy": {
        "nothing": keeping(aten.mm, aten.addmm, aten.bmm),
        "never_arrive": keeping(aten.matmul.default, aten.linear.default),
        "everything": lambda ctx, op, *args, **kwargs: CheckpointPolicy.MUST_SAVE,
        "upside_down": upside_down,
        "without_bias_only": keeping(aten.mm.default, aten.bmm.default, attention),
        "with_bias_only": keeping(aten.addmm.default, aten.bmm.default, attention),
        "not_batched": keeping(aten.mm.default, aten.addmm.default, attention),
        "without_attention": keeping(aten.mm.default, aten.addmm.default, aten.bmm.default),
    },
    "check_repair": {
        "frozen": lambda block, x: checkpoint(block, x, use_reentrant=True),
        "other_dropout": lambda block, x: checkpoint(block, x, use_reentrant=False, preserve_rng_state=False),
        "cut_off": lambda block, x: checkpoint(block, x.detach().requires_grad_(), use_reentrant=True),
        "same_mask_always": with_a_seed,
        "no_dropout": without_dropout,
        "not_recomputed": lambda block, x: block(x),
    },
}
