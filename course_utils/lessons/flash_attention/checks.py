"""Checks of the lesson. All run on the CPU, where SDPA has a flash and a math kernel; none needs a compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.materials.attention import kernel_of, reference, relative_error


@exercise
def check_cross_attention(answer: Any) -> str | None:
    """Runs the answer on three padded texts, with fewer queries than keys."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(3, 2, 4, 8, generator=generator)
    k, v = torch.randn(2, 3, 2, 7, 8, generator=generator)
    is_padding = torch.arange(7) >= torch.tensor([6, 5, 2])[:, None]
    real = ~is_padding[:, None, None, :]
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=real)
    given = ask(answer, q.clone(), k.clone(), v.clone(), is_padding.clone())
    _check_shape(given, expected, "output of the attention", "q")
    if relative_error(given, expected) < 1e-4:
        return None
    wrong_masks = {
        "polarity": [~real],
        "no_mask": [torch.ones_like(real)],
        "causal": [real & torch.ones(4, 7).tril().bool(), torch.ones(4, 7).tril().bool()],
        "added": [real.float(), (~real).float()],
    }
    for key, masks in wrong_masks.items():
        wrong = [functional.scaled_dot_product_attention(q, k, v, attn_mask=mask) for mask in masks]
        if any(relative_error(given, each) < 1e-4 for each in wrong):
            return key
    raise NotRight("This is not the attention over the real keys. Which keys may each query of a text look at?")


def _check_shape(given: Any, expected: torch.Tensor, what: str, like: str) -> None:
    if not isinstance(given, torch.Tensor):
        raise NotRight(f"Return the {what}, a tensor; you return {type(given).__name__}.")
    if given.shape != expected.shape:
        raise NotRight(f"The output has the shape of {like}, {list(expected.shape)}; yours has {list(given.shape)}.")


@exercise
def check_evaluate(answer: Any) -> str | None:
    """Runs the answer on 3-D inputs whose last dimension is not contiguous, and watches the kernel."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = torch.randn(3, 4, 16, 40, generator=generator).transpose(-2, -1)
    expected = reference(q, k, v)

    def asked() -> Any:
        # A clone of a view has its strides, and an answer that overwrites it changes nothing here.
        return ask(answer, q.clone(), k.clone(), v.clone())

    given = asked()
    if isinstance(given, torch.Tensor):
        if given.numel() == expected.numel() and not torch.equal(given, asked()):
            return "drops"
        if given.shape != expected.shape and given.squeeze(0).shape == expected.shape:
            return "wrong_shape"
    _check_shape(given, expected, "output of the attention", "q")
    if not relative_error(given, expected) < 1e-4:
        raise NotRight("The numbers are not those of attention over q, k and v without dropout.")
    watched = _Watched()
    with watched:
        ran = kernel_of(asked)
    if ran == "flash":
        return None
    if not watched.shapes:
        raise NotRight("SDPA is never called. Keep `F.scaled_dot_product_attention`, and change what you pass to it.")
    return "math_strides" if len(watched.shapes[0]) == 4 else "math_shape"


class _Watched(torch.overrides.TorchFunctionMode):
    """Notes the shapes of the queries that SDPA is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self.shapes.append(tuple((args[0] if args else kwargs["query"]).shape))
        return func(*args, **kwargs)
