"""Asks PyTorch what a line does whose tensors are on two devices, which need a tensor's numbers, and which wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

# Python's way to these operations asks for a real GPU, so a fake one is asked by the name of the operation itself.
OPERATIONS = {
    "gpu[index]": "torch.ops.aten.index(gpu, [index])",
    "gpu[:2] = cpu[:2]": "torch.ops.aten.copy_(torch.ops.aten.slice(gpu, 0, 0, 2), cpu[:2])",
    "gpu[index] = cpu[:2]": "torch.ops.aten.index_put_(gpu, [index], cpu[:2])",
}


def outcome(line: str, tensors: Callable[[str], Mapping[str, Any]]) -> str:
    """Run a line with tensors of the CPU and of a GPU: ``runs``, or ``raises``.

    Without a GPU, the model of tensors that ``torch.compile`` reasons with is asked. It knows most of the rules of a
    ``cuda`` device that is not there.

    Args:
        line: one statement.
        tensors: makes the names that the statement uses, for the device that it is given.

    Source:
        torch/_subclasses/fake_tensor.py, ``_find_common_device`` (2.13.0). It is no public name yet.
    """
    has_gpu = torch.cuda.is_available()
    with contextlib.nullcontext() if has_gpu else FakeTensorMode():
        names = {"torch": torch, **tensors("cuda:0")}
        return _outcome(line if has_gpu else OPERATIONS.get(line, line), names, ("device",))


def needs_numbers(line: str, tensors: Callable[[str], Mapping[str, Any]]) -> bool:
    """Whether a line needs to know numbers of its tensors: on ``meta``, where there are none, it raises an error.

    Without a format, printing is an exception: ``print(loss)`` and ``f"{loss}"`` ask first whether there are numbers.
    """
    return _outcome(line, {"torch": torch, **tensors("meta")}, _NO_NUMBERS) == "raises"


def waits(line: str, tensors: Callable[[str], Mapping[str, Any]]) -> bool:
    """Whether Python waits for the GPU in a line, as far as PyTorch's mode knows that makes an error of a wait.

    Source:
        c10/cuda/CUDAFunctions.cpp, ``warn_or_error_on_sync``, and what calls it.
    """
    names = {"torch": torch, **tensors("cuda")}
    torch.cuda.set_sync_debug_mode("error")
    try:
        return _outcome(line, names, ("synchroniz",)) == "raises"
    finally:
        torch.cuda.set_sync_debug_mode("default")


_NO_NUMBERS = ("meta", "format string passed to tensor")
"""What errors say that are raised on ``meta``: the latter by formats, as in ``f"{loss:.3f}"``."""


def _outcome(line: str, names: dict[str, Any], reasons: tuple[str, ...]) -> str:
    try:
        exec(line, names)
    except (RuntimeError, TypeError) as error:
        if not any(reason in str(error).casefold() for reason in reasons):
            raise
        return "raises"
    return "runs"
