"""Attention by every route that torch has on this machine: each is tried on a small input.

The routes are the kernels of :func:`torch.nn.functional.scaled_dot_product_attention` (SDPA), and FlexAttention. All
take ``[batch, heads, length, head_size]``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.measure.fresh import Fresh, Switches, fresh

# Every backend computes the same function and rounds in another order. The norm of the difference from float64 stays
# below this many machine epsilons of the dtype, forward and backward.
TOLERANCE_EPSILONS = 8
# What a trial lets pass: far above any rounding, also of TF32, and far below what a wrong layout or mask does.
_LARGEST_TRIAL_ERROR = 0.03
_TRIAL_HEADS = 3
_ERROR_LENGTH = 1024
_SDPA_SWITCHES = {
    "math": torch.backends.cuda.enable_math_sdp,
    "flash": torch.backends.cuda.enable_flash_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
}

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


@dataclass(frozen=True)
class Backend:
    """One way to compute attention: called with q, k, v of ``[batch, heads, length, head_size]`` and is_causal."""

    name: str
    attend: Attend
    sdpa: str | None = None  # the one SDPA kernel that is allowed meanwhile; None if its switches do not matter

    def select(self) -> None:
        """Allow SDPA no other kernel than this one, from now on."""
        if self.sdpa is not None:
            for name, enable in _SDPA_SWITCHES.items():
                enable(name == self.sdpa)

    def case(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False, backward: bool = False
    ) -> Fresh:
        """Make a case for :func:`course_utils.compare`. The switches are set once, outside of what is timed.

        With ``backward`` it returns the gradients of q, k and v, for a gradient of q's values, and the output without.
        """
        return fresh(self._built, q, k, v, is_causal, backward)

    def _built(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, backward: bool) -> Any:
        self.select()
        if not backward:
            return lambda: self.attend(q, k, v, is_causal)
        inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        upstream = q.detach().roll(1, dims=-1)
        return lambda: torch.autograd.grad(self.attend(*inputs, is_causal), inputs, upstream)


def attention_backends(
    device: str | torch.device,
    dtype: torch.dtype,
    head_size: int = 64,
    *,
    heads: int = _TRIAL_HEADS,
    training: bool = False,
    compiled: bool = False,
) -> dict[str, Backend]:
    """The routes that run here and are right, each tried on a small input of this kind.

    The number of heads matters to FlexAttention alone, which is compiled anew for another one. It is tried only if
    ``compiled`` is set: compiling takes seconds, and needs a compiler.

    Source:
        The rules behind the answers: aten/src/ATen/native/transformers/sdp_utils_cpp.h, sdp_utils_cpp.cpp (CPU) and
        cuda/sdp_utils.cpp, torch 2.13.0.

    Example:
        >>> list(attention_backends("cpu", torch.float32))
        ['math', 'flash']
    """
    routes = [Backend(name, _sdpa, sdpa=name) for name in _SDPA_SWITCHES]
    routes += [Backend("flex", _flex)] if compiled else []
    trial = (torch.device(device), dtype, head_size, heads, training)
    return {route.name: route for route in routes if _runs(route, *trial)}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """Attention in float64 on the CPU, by its definition: what others are held against.

    q is ``[..., length, head_size]`` of any dtype and on any device, and gradients flow through.
    """
    q, k, v = (tensor.to("cpu").double() for tensor in (q, k, v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(dim=-1) @ v


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference, relative to the norm of what was expected; both in float64."""
    actual, expected = (tensor.detach().to("cpu").double() for tensor in (actual, expected))
    return ((actual - expected).norm() / expected.norm()).item()


def assert_close(expected: Any, actual: Any) -> None:
    """A check for :func:`course_utils.compare`: tensors, or tuples of them, agree as two backends can.

    The relative error may be twice ``TOLERANCE_EPSILONS`` epsilons of the dtype; twice, because both have an error. A
    case that returns None is passed over: it computes something else on purpose.
    """
    if actual is None:
        return
    pairs = zip(expected, actual, strict=True) if isinstance(expected, tuple) else [(expected, actual)]
    for theirs, ours in pairs:
        error, allowed = relative_error(ours, theirs), 2 * TOLERANCE_EPSILONS * torch.finfo(theirs.dtype).eps
        if not error <= allowed:
            raise AssertionError(f"the relative error is {error:.1e}, and {allowed:.1e} is allowed for {theirs.dtype}")


class _OperationLog(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(str(operation).removesuffix(".default"))
        return operation(*args, **(kwargs or {}))


def kernel_of(call: Callable[[], Any]) -> str:
    """Which attention kernel one call of attention runs, by the operations that reach the device.

    Returns:
        ``flash``, ``efficient``, ``cudnn`` or another fused kernel of SDPA; ``math`` if it took a softmax apart from
        its matrix products; the full name of another operation that speaks of attention; ``none`` else. Of compiled
        code it tells nothing.

    Example:
        >>> q = torch.randn(1, 2, 16, 8)
        >>> kernel_of(lambda: functional.scaled_dot_product_attention(q, q, q))
        'flash'
        >>> kernel_of(lambda: functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1))
        'math'
    """
    with _OperationLog() as seen:
        call()
    for operation in seen.operations:
        if fused := re.search(r"_scaled_dot_product_(?!attention)(\w+?)_attention", operation):
            return fused[1]
    if any("softmax" in operation or "attention_math" in operation for operation in seen.operations):
        return "math"
    return next((name for name in seen.operations if re.search("attn|attention|fmha|flash", name)), "none")


def error_of(backend: Backend, device: str | torch.device, dtype: torch.dtype, head_size: int, heads: int) -> float:
    """How far a backend is from float64 on causal attention over 1024 positions: the relative error of its output.

    Both sides see the same rounded inputs; from the fourth head on, they repeat the first three.
    """
    inputs, expected = _exact(dtype, head_size)
    # Heads do not touch each other, so the reference need not know of those that repeat.
    repeated = [each[:, torch.arange(heads) % _TRIAL_HEADS].to(device) for each in inputs]
    with Switches.kept():
        backend.select()
        output = backend.attend(*repeated, is_causal=True)
    kept = slice(0, min(heads, _TRIAL_HEADS))
    return relative_error(output[:, kept], expected[:, kept])


def _with_gradients(attend: Attend, tensors: Sequence[torch.Tensor], is_causal: bool) -> list[torch.Tensor]:
    inputs = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    output = attend(*inputs, is_causal)
    upstream = tensors[0].detach().roll(1, dims=-1).to(output)
    return [output.detach(), *torch.autograd.grad(output, inputs, upstream)]


@cache
def _exact(dtype: torch.dtype, head_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs on the CPU, and what causal attention makes of them in float64."""
    generator = torch.Generator().manual_seed(0)
    tensors = torch.randn(3, 1, _TRIAL_HEADS, _ERROR_LENGTH, head_size, generator=generator).to(dtype)
    return tensors, reference(*tensors, is_causal=True)


def _runs(backend: Backend, *trial: Any) -> bool:
    """Whether the backend runs on a small input and is right. What torch says against a kernel is caught."""
    with Switches.kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _is_right(backend, *trial)
        except Exception:  # no such kernel for this input, or no compiler
            return False


def _is_right(
    backend: Backend, device: torch.device, dtype: torch.dtype, head_size: int, heads: int, training: bool
) -> bool:
    # Three different numbers, so that a backend that takes heads for positions gives other results.
    generator = torch.Generator().manual_seed(0)
    # FlexAttention is compiled anew where a size is 1 or was 1: the batch, or the number of blocks of 128 positions.
    sizes = (1, heads, 256) if backend.attend is _flex else (2, _TRIAL_HEADS, 128)
    inputs = [torch.randn(*sizes, head_size, generator=generator).to(device, dtype) for _ in range(3)]
    backend.select()
    for is_causal in (False, True):
        if backend.sdpa and kernel_of(lambda: backend.attend(*inputs, is_causal)) != backend.sdpa:  # noqa: B023
            return False
        if training:
            ours, theirs = (_with_gradients(attend, inputs, is_causal) for attend in (backend.attend, reference))
        else:
            ours, theirs = [backend.attend(*inputs, is_causal)], [reference(*inputs, is_causal)]
        if any(not relative_error(*pair) <= _LARGEST_TRIAL_ERROR for pair in zip(ours, theirs, strict=True)):
            return False
    return True


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


@cache
def _compiled_flex() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # One kernel serves all lengths, but not other heads, head sizes, masks, or gradients. After 8 kernels the compiler
    # would log a warning, give up and run the function as it is: with all scores in memory.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=True)


@cache
def _blocks(queries: int, keys: int, is_causal: bool, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    # The bound is a tensor, an input of the kernel: so one kernel serves a causal mask and none.
    later = torch.tensor(0 if is_causal else keys, device=device)

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key - query <= later

    return create_block_mask(sees, None, None, queries, keys, device=str(device))


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
    return _compiled_flex()(q, k, v, block_mask=_blocks(q.shape[2], k.shape[2], is_causal, q.device))
