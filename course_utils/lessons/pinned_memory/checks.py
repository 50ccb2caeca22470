"""Checks of the lesson. The second runs the answer on tensors that only pretend to be on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

# (compute, staging, transfer) in seconds: bound by the work, by the staging copy, by neither alone, by the transfer.
_STEPS = ((0.1, 0.002, 0.001), (0.001, 0.006, 0.003), (0.01, 0.015, 0.008), (0.002, 0.003, 0.007))
# What people write for each of the three times; None is what is right.
_WAYS: tuple[Mapping[str | None, Callable[[float, float, float], float]], ...] = (
    {
        None: lambda c, s, t: c + max(s, t),
        "pieces_in_turn": lambda c, s, t: c + s + t,
        "overlaps_while_waiting": lambda c, s, t: max(c, s, t),
        "transfer_goes": lambda c, s, t: c + s,
    },
    {
        None: lambda c, s, t: max(c + t, s),
        "thread_forgotten": lambda c, s, t: c + t,
        "staging_stays": lambda c, s, t: c + s + t,
        "transfer_goes": lambda c, s, t: max(c, s),
    },
    {
        None: lambda c, s, t: max(c, s, t),
        "thread_forgotten": lambda c, s, t: max(c, t),
        "still_in_turn": lambda c, s, t: max(c + t, s),
        "transfer_goes": lambda c, s, t: max(c, s),
    },
)


@exercise
def check_step_times(answer: Any) -> str | None:
    """Compares each of the three times with what people write, on steps where the formulas differ."""
    given = []
    for step in _STEPS:
        times = listed(ask(answer, *step))
        if len(times) != len(_WAYS):
            raise NotRight(f"Return three times, one for each way; you return {len(times)}.")
        given.append([number(each, "A number of seconds") for each in times])
    for place, ways in enumerate(_WAYS):
        key = recognise([times[place] for times in given], ways, _STEPS)
        if key == UNKNOWN:
            right = [ways[None](*step) for step in _STEPS]
            values = [times[place] for times in given]
            wrong = next(at for at, value in enumerate(values) if not math.isclose(value, right[at], rel_tol=1e-6))
            compute_s, staging_s, transfer_s = _STEPS[wrong]
            raise NotRight(
                f"The {('first', 'second', 'third')[place]} time: for {compute_s} s of work, {staging_s} s of staging "
                f"and {transfer_s} s of transfer you return {values[wrong]:.4g} s; {right[wrong]:.4g} s is right. "
                "Which parts come one after the other, and which run beside each other?"
            )
        if key is not None:
            return key
    return None


@exercise
def check_collect(answer: Any) -> str | None:
    """Runs the answer on results whose copies arrive only when somebody waits."""
    gpu = _PretendedGpu()
    expected = [[1.0, 2.0, 3.0], [4.0, 5.0], [6.0], [7.0, 8.0, 9.0, 10.0]]
    given = listed(ask(answer, [gpu.tensor(torch.tensor(values), "cuda") for values in expected], gpu))
    if len(given) != len(expected):
        raise NotRight(f"There are {len(expected)} outputs, and you return {len(given)} values.")
    values = []
    for each in given:
        if isinstance(each, torch.Tensor):
            raise NotRight("Return lists of Python numbers; there is a tensor in yours.")
        values.append(_python_numbers(each))
    if any(math.isnan(value) for each in values for value in each):
        return "waits_first" if gpu.waits and gpu.waited_for < gpu.downloads else "reads_early"
    if values != expected:
        raise NotRight("Return the values of each output, in their order; these are other numbers.")
    return "waits_each_time" if gpu.waits > 1 else None


def _python_numbers(values: Any) -> list[float]:
    found = listed(values)
    if any(isinstance(value, torch.Tensor) for value in found):
        raise NotRight("Return lists of Python numbers; a tensor of one number is still a tensor.")
    return [number(value, "A list of numbers for each output") for value in found]


class _Pretended(torch.Tensor):
    """A CPU tensor that says where it would be, and tells its GPU about copies and reads."""

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
            return gpu.tensor(_plain(origin).clone(), "pinned")
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
        self.waits = 0
        self.downloads = 0
        self.waited_for = 0  # downloads that were under way when somebody last waited
        self._on_the_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def tensor(self, values: torch.Tensor, place: str) -> _Pretended:
        pretended = values.as_subclass(_Pretended)
        pretended.gpu, pretended.place = self, place
        return pretended

    def move(self, source: _Pretended, target: str, non_blocking: bool) -> _Pretended:
        if (source.place == "cuda") == (target == "cuda"):
            return source
        values = _plain(source)
        if target == "cuda":
            return self.tensor(values.clone(), "cuda")
        self.downloads += 1
        # PyTorch makes the target of a non-blocking copy to the CPU pinned, and that of a blocking one pageable.
        arrived = self.tensor(torch.full_like(values, math.nan), "pinned" if non_blocking else "pageable")
        self._on_the_way.append((_plain(arrived), values.clone()))
        if not non_blocking:
            self.synchronize()
        return arrived

    def synchronize(self, device: Any = None) -> None:
        del device
        self.waits += 1
        self.waited_for = self.downloads
        for target, values in self._on_the_way:
            target.copy_(values)
        self._on_the_way.clear()

    def current_stream(self, device: Any = None) -> _PretendedGpu:
        return self

    def Event(self, **options: Any) -> _PretendedGpu:  # noqa: N802 - the name in torch.cuda
        return self

    def record_event(self, event: Any = None) -> _PretendedGpu:
        """A stream's event: its ``synchronize`` is the wait."""
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
