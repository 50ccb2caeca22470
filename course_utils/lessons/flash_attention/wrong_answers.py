"""Wrong answers to the exercises of lesson 09: one for each hint."""

import torch
import torch.nn.functional as F


def overflowing(left, left_lse, right, right_lse):
    a, b = left_lse.exp(), right_lse.exp()
    return (left * a + right * b) / (a + b)


def swapped(left, left_lse, right, right_lse):
    share = torch.sigmoid(left_lse - right_lse)
    return left * (1 - share) + right * share


def keeps_three_dimensions(q, k, v):
    return F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())


def keeps_strides(q, k, v):
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def keeps_the_fourth(q, k, v):
    q, k, v = (tensor.contiguous()[None] for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)


def mask_with(rule):
    return lambda document: lambda b, h, query, key: rule(document, query, key)


WRONG = {
    "check_join": {
        "average": lambda left, left_lse, right, right_lse: (left + right) / 2,
        "added": lambda left, left_lse, right, right_lse: left + right,
        "no_exponential": lambda left, left_lse, right, right_lse: (
            (left * left_lse + right * right_lse) / (left_lse + right_lse)
        ),
        "overflow": overflowing,
        "swapped": swapped,
    },
    "check_evaluate": {
        "drops": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        "math_shape": keeps_three_dimensions,
        "math_strides": keeps_strides,
        "wrong_shape": keeps_the_fourth,
    },
    "check_packed": {
        "not_causal": mask_with(lambda document, query, key: document[query] == document[key]),
        "not_apart": mask_with(lambda document, query, key: key <= query),
        "reversed": mask_with(lambda document, query, key: (document[query] == document[key]) & (query <= key)),
        "python_and": mask_with(lambda document, query, key: document[query] == document[key] and key <= query),
    },
}
