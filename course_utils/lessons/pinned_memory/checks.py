"""Checks of lesson 04. The second and third run the answer on tensors that only pretend to be on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

# (compute, staging, transfer) in seconds: a step bound by its computation, one bound by its copies, one in between.
_STEPS = ((0.1, 0.002, 0.001), (0.001, 0.006, 0.003), (0.01, 0.02, 0.01))


@exercise
def check_step_speedup(answer: Any) -> str | None:
    """Compares with each formula that people write, on steps where they differ."""
    given = [number(ask(answer, *step)) for step in _STEPS]
    formulas = {
        None: lambda c, s, t: (c + s + t) / (c + t),
        "whole_copy": lambda c, s, t: (c + s + t) / c,
        "copy_only": lambda c, s, t: (s + t) / t,
        "seconds_saved": lambda c, s, t: s,
        "inverted": lambda c, s, t: (c + t) / (c + s + t),
    }
    key = recognise(given, formulas, _STEPS)
    if key == UNKNOWN:
        key = recognise(given, {"seconds_saved": lambda c, s, t: s / (c + s + t)}, _STEPS)
    if key != UNKNOWN:
        return key
    (compute_s, staging_s, transfer_s), value = _STEPS[2], given[2]
    right = formulas[None](*_STEPS[2])
    raise NotRight(
        f"For {compute_s} s of computation, {staging_s} s of staging and {transfer_s} s of transfer you return "
        f"{value:.4g}, and {right:.4g} is right. Write down the step's time before and after."
    )


@exercise
def check_upload(answer: Any) -> str | None:
    """Runs the answer on a tensor that notes each pin and each transfer."""
    gpu = _PretendedGpu()
    data = gpu.tensor(torch.arange(60.0).reshape(20, 3), "pageable")
    batches = ask(answer, data, 6, "cuda")
    if not isinstance(batches, list | tuple | Iterator):
        raise NotRight(f"Yield batches, or return a list of them; you return {type(batches).__name__}.")
    batches = listed(batches)
    if not batches or not all(isinstance(batch, torch.Tensor) for batch in batches):
        raise NotRight("There must be at least one batch, and each must be a tensor.")
    if not all(getattr(batch, "place", None) == "cuda" for batch in batches):
        return "not_moved"
    if [len(batch) for batch in batches] != [6, 6, 6, 2]:
        sizes = ", ".join(str(len(batch)) for batch in batches)
        raise NotRight(f"20 rows in batches of 6 make 6, 6, 6 and 2 rows; yours have {sizes}.")
    if not torch.equal(torch.cat([_plain(batch) for batch in batches]), _plain(data)):
        raise NotRight("The batches, one after the other, are not the data.")
    if any(source != "pinned" for source, _ in gpu.uploads):
        return "pageable"
    if gpu.pins > 1:
        return "pins_each_batch"
    if not all(non_blocking for _, non_blocking in gpu.uploads):
        return "blocking"
    return None


@exercise
def check_collect(answer: Any) -> str | None:
    """Runs the answer on results whose copies arrive only when somebody waits."""
    gpu = _PretendedGpu()
    expected = [6.0, 15.0, 24.0, 33.0]
    outputs = [gpu.tensor(torch.tensor([n, n + 1.0, n + 2.0]), "cuda") for n in (1.0, 4.0, 7.0, 10.0)]
    given = ask(answer, outputs, gpu)
    if not isinstance(given, Iterable):
        raise NotRight(f"Return a list with the sum of each result, as numbers; you return {type(given).__name__}.")
    numbers = [number(value, "A list with the sum of each result, as numbers,") for value in listed(given)]
    if len(numbers) != len(expected):
        raise NotRight(f"There are {len(expected)} results, and you return {len(numbers)} numbers.")
    if any(map(math.isnan, numbers)):
        return "waits_first" if gpu.waits else "reads_early"
    if numbers != expected:
        raise NotRight("Return the sum of each result; these are other numbers.")
    return "waits_each_time" if gpu.waits > 1 else None


class _Pretended(torch.Tensor):
    """A CPU tensor that says where it would be, and tells its GPU about pins, copies and reads."""

    gpu: _PretendedGpu
    place: str = "pageable"
    _READS: ClassVar = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__, torch.Tensor.__bool__)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        origin = next(_pretended_in(args), None)
        if origin is None:
            return super().__torch_function__(func, types, args, kwargs)
        gpu = origin.gpu
        if func is torch.Tensor.is_pinned:
            return origin.place == "pinned"
        if func is torch.Tensor.pin_memory:
            return origin if origin.place == "pinned" else gpu.pin(origin)
        if func in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu):
            target = _target(func, args, kwargs)
            if target is not None:
                non_blocking = kwargs.get("non_blocking", any(value is True for value in args[1:]))
                return gpu.move(origin, target, non_blocking)
        if func in cls._READS and origin.place == "cuda":
            gpu.synchronize()
        result = super().__torch_function__(func, types, args, kwargs)
        for tensor in _pretended_in((result,)):
            tensor.gpu, tensor.place = gpu, origin.place
        return result


class _PretendedGpu:
    """Stands in for ``torch.cuda``: copies that nobody waited for have not arrived, and hold NaN."""

    def __init__(self) -> None:
        self.pins = 0
        self.waits = 0
        self.uploads: list[tuple[str, bool]] = []
        self._on_the_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def tensor(self, values: torch.Tensor, place: str) -> _Pretended:
        pretended = values.as_subclass(_Pretended)
        pretended.gpu, pretended.place = self, place
        return pretended

    def pin(self, source: _Pretended) -> _Pretended:
        self.pins += 1
        return self.tensor(_plain(source).clone(), "pinned")

    def move(self, source: _Pretended, target: str, non_blocking: bool) -> _Pretended:
        if (source.place == "cuda") == (target == "cuda"):
            return source
        if target == "cuda":
            self.uploads.append((source.place, non_blocking))
            return self.tensor(_plain(source).clone(), "cuda")
        values = _plain(source)
        # PyTorch makes the target of a non-blocking copy to the CPU pinned, and that of a blocking one pageable.
        arrived = self.tensor(torch.full_like(values, math.nan), "pinned" if non_blocking else "pageable")
        self._on_the_way.append((_plain(arrived), values.clone()))
        if not non_blocking:
            self.synchronize()
        return arrived

    def synchronize(self, device: Any = None) -> None:
        del device
        self.waits += 1
        for target, values in self._on_the_way:
            target.copy_(values)
        self._on_the_way.clear()

    def current_stream(self, device: Any = None) -> _PretendedGpu:
        return self

    def Event(self, **options: Any) -> _PretendedGpu:  # noqa: N802 - the name in torch.cuda
        return self

    def record(self, stream: Any = None) -> None:
        """An event is recorded, or recorded by a stream: the wait comes later."""


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


def _pretended_in(values: Any) -> Iterator[_Pretended]:
    for value in values:
        if isinstance(value, _Pretended):
            yield value
        elif isinstance(value, list | tuple):
            yield from _pretended_in(value)


def _target(func: Any, args: Any, kwargs: Any) -> str | None:
    """The kind of device that ``.to()``, ``.cuda()`` or ``.cpu()`` names; None if it only changes the dtype."""
    if func is not torch.Tensor.to:
        return "cuda" if func is torch.Tensor.cuda else "cpu"
    named = kwargs.get("device", args[1] if len(args) > 1 else None)
    return torch.device(named).type if isinstance(named, str | torch.device) else None
