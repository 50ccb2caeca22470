"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch
import torch.nn.functional as F


def masked(mask):
    """Cross-attention with a mask that is made from ``is_padding``, ``[batch, 1, 1, keys]``."""

    def answer(q, k, v, is_padding):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(is_padding[:, None, None, :]))

    return answer


def keeps_three_dimensions(q, k, v):
    return F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())


def keeps_strides(q, k, v):
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def keeps_the_fourth(q, k, v):
    q, k, v = (tensor.contiguous()[None] for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)


WRONG = {
    "check_cross_attention": {
        "polarity": masked(lambda is_padding: is_padding),
        "no_mask": lambda q, k, v, is_padding: F.scaled_dot_product_attention(q, k, v),
        "causal": masked(lambda is_padding: ~is_padding & torch.ones(4, 7).tril().bool()),
        "added": masked(lambda is_padding: (~is_padding).float()),
    },
    "check_evaluate": {
        "drops": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        "math_shape": keeps_three_dimensions,
        "math_strides": keeps_strides,
        "wrong_shape": keeps_the_fourth,
    },
}
