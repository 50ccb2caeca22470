"""Checks of lesson 09. All run on the CPU, where SDPA has a flash and a math kernel; none needs a compiler."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn import functional

from course_utils.lessons.answers import NotRight, ask, effect, exercise
from course_utils.materials.attention import kernel_of, reference, relative_error


@exercise
def check_join(answer: Any) -> str | None:
    """Splits real attention into two parts of its keys, for small scores and for huge ones."""
    generator = torch.Generator().manual_seed(3)
    for scale in (1.0, 200.0):
        q, k, v = torch.randn(3, 2, 6, 10, 8, generator=generator)
        halves = [_half(q * scale, k[..., part, :], v[..., part, :]) for part in (slice(0, 7), slice(7, 10))]
        expected = reference(q * scale, k, v)
        given = ask(answer, *(part.clone() for part in itertools.chain(*halves)))
        if isinstance(given, tuple | list) and given:
            given = given[0]
        _check_shape(given, expected, "joined output", "a half")
        if scale > 1 and not given.isfinite().all():
            return "overflow"
        if relative_error(given, expected) < 1e-4:
            continue
        for key, wrong in _wrong_joins(*itertools.chain(*halves)).items():
            if wrong.isfinite().all() and relative_error(given, wrong) < 1e-4:
                return key
        raise NotRight(
            "This is not the attention over all keys. Write a half as (sum of weights times values) / (sum of "
            "weights), and put the two fractions over one denominator."
        )
    return None


def _check_shape(given: Any, expected: torch.Tensor, what: str, like: str) -> None:
    if not isinstance(given, torch.Tensor):
        raise NotRight(f"Return the {what}, a tensor; you return {type(given).__name__}.")
    if given.shape != expected.shape:
        raise NotRight(f"The output has the shape of {like}, {list(expected.shape)}; yours has {list(given.shape)}.")


def _half(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over some of the keys, and the log-sum-exp of its scores, ``[..., length, 1]``."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ v, scores.logsumexp(dim=-1, keepdim=True)


def _wrong_joins(left: torch.Tensor, a: torch.Tensor, right: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    share = torch.sigmoid(a - b)
    return {
        "average": (left + right) / 2,
        "added": left + right,
        "no_exponential": (left * a + right * b) / (a + b),
        "swapped": left * (1 - share) + right * share,
    }


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


@exercise
def check_packed(answer: Any) -> str | None:
    """Turns the mask function into a mask with ``create_mask``: no compiler is needed for that."""
    from torch.nn.attention.flex_attention import create_mask

    for sizes in ((3, 1, 5), (2, 6, 1, 3)):
        document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        length = len(document)
        mask_mod = ask(answer, document.clone())
        if not callable(mask_mod):
            raise NotRight(f"Return a function of (b, h, query, key); you return {type(mask_mod).__name__}.")
        try:
            mask = effect(create_mask, mask_mod, None, None, length, length, "cpu")[0, 0]
        except NotRight as problem:
            if "data-dependent control flow" in str(problem.__cause__):
                return "python_and"
            raise
        apart = document[:, None] == document[None, :]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        wrong = {"not_causal": apart, "not_apart": causal, "reversed": (apart & causal).T}
        if torch.equal(mask, apart & causal):
            continue
        for key, pattern in wrong.items():
            if torch.equal(mask, pattern):
                return key
        raise NotRight(
            f"For documents {document.tolist()} the mask is wrong at {int((mask != (apart & causal)).sum())} of "
            f"{mask.numel()} pairs of positions."
        )
    return None
