"""The check of the exercise. ``meta`` is a device that is not the CPU, so what crosses shows on every machine."""

from __future__ import annotations

from contextlib import ExitStack
from numbers import Integral
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.lessons.on_device_tensors.cases import Copies
from course_utils.measure.fresh import Switches

_ACCELERATORS = ("cuda", "mps", "xpu", "mtia", "hpu")
_READS = {getattr(torch.Tensor, x) for x in ("cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__")}
_BUILDS = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
_BRACKETS = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
_COPIES_A_NUMBER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)  # since, a kernel fills it in


@exercise
def check_mix(answer: Any) -> str | None:
    """Runs the answer on images on ``meta``, noting what crosses; then on the CPU, for the values."""
    with Switches.kept():
        torch.set_default_device(None)  # whatever the notebook has set by now
        return _judged_on_meta(answer, torch.empty(8, 1, 4, 4, device="meta")) or _judged_by_values(answer)


def _judged_on_meta(answer: Any, images: torch.Tensor) -> str | None:
    problem = result = None
    copies, watch = Copies(), _Watch()
    try:
        result = _ask(answer, images, 0.7, modes=(copies, watch))
    except _Unwatched:
        raise
    except NotRight as raised:
        problem = raised
    for hint in ("names_device", "fetches", "builds", "sets_element", "index"):
        if hint in watch.found:
            return hint
    if copies.copy or "moved" in watch.found:
        return "moved"
    if problem and not watch.made_on_cpu:
        raise problem
    return "stays_here" if problem or not getattr(result, "is_meta", False) else None


def _judged_by_values(answer: Any) -> str | None:
    images = torch.linspace(0, 1, 6 * 16).sqrt().reshape(6, 1, 4, 4)
    before = images.clone()
    mixed = _ask(answer, images, 0.7)
    if not torch.equal(images, before):
        return "in_place"
    expected = 0.7 * images + 0.3 * images.flip(0)
    expected[0] = images[0]
    if mixed.shape != images.shape or not torch.allclose(mixed.float(), expected, atol=1e-5):
        raise NotRight("Nothing waits, but the images are not those that `mix` returned before.")
    return None


class _Unwatched(NotRight):
    """What is wrong whatever crosses."""


def _ask(answer: Any, *args: Any, modes: tuple[Any, ...] = ()) -> torch.Tensor:
    with Switches.kept():
        with ExitStack() as entered:
            for mode in modes:
                entered.enter_context(mode)
            result = ask(answer, *args)
        if torch.get_default_device() != torch.device("cpu"):
            raise _Unwatched("Your function leaves another default device behind, for all code that runs after it.")
    if not isinstance(result, torch.Tensor):
        raise NotRight(f"Return the mixed images, a tensor; you return a {type(result).__name__}.")
    return result


class _Watch(TorchFunctionMode):
    """Notes what the dispatcher does not tell of code: what it names, builds, reads and puts into brackets."""

    made_on_cpu = False

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_leaves((args, kwargs))
        devices = {str(value).partition(":")[0] for value in given if isinstance(value, str | torch.device)}
        if func is torch.Tensor.cuda or not devices.isdisjoint(_ACCELERATORS):
            self.found.add("names_device")
        there = bool(args) and getattr(args[0], "is_meta", False)
        if there and (func in _READS or (func is torch.Tensor.to and "cpu" in devices)):
            self.found.add("fetches")
        if there and func in _BRACKETS:
            self._brackets(args[0], args[1], args[2:])
        if func is torch.Tensor.pin_memory:
            self.found.add("moved")
        result = func(*args, **(kwargs or {}))
        self.made_on_cpu |= any(_is_on_cpu(value) for value in (*given, result))
        data = args[1:] if func is torch.Tensor.new_tensor else given
        if func in _BUILDS and getattr(result, "is_meta", False) and not any(_is_there(value) for value in data):
            self.found.add("builds")
        return result

    def _brackets(self, tensor: torch.Tensor, index: Any, value: tuple[Any, ...]) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        chosen = [part for part in parts if isinstance(part, torch.Tensor) and part.dim()]
        if any(_is_on_cpu(part) for part in chosen) or not all(_is_simple(part) for part in parts):
            self.found.add("index")
        elif value and not _is_there(value[0]) and not _is_on_cpu(value[0]):
            one = not chosen and torch.empty(tensor.shape, device="meta")[index].dim() == 0
            by_index = any(part.dtype != torch.bool for part in chosen)
            if (one or by_index) and (_COPIES_A_NUMBER or isinstance(value[0], torch.Tensor)):
                self.found.add("sets_element")


def _is_simple(part: Any) -> bool:
    return part is None or part is ... or isinstance(part, Integral | slice | torch.Tensor)


def _is_there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def _is_on_cpu(value: Any) -> bool:
    """Whether it is a tensor with dimensions in main memory: a number may lie there."""
    return isinstance(value, torch.Tensor) and value.is_cpu and value.dim() > 0
