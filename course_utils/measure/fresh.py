"""State that one case could leave to the next: random numbers and torch's global switches.

A comparison gives each case the switches that it set itself, the same random numbers in the same round, and puts
everything back at the end.
"""

from __future__ import annotations

import contextlib
import operator
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


def _attribute(path: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    owner_path, _, name = path.rpartition(".")
    owner = operator.attrgetter(owner_path)(torch)
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _matmul_precision() -> str | None:
    # Set through the newer fp32_precision switches, the old name has no answer, and those below carry the truth.
    with contextlib.suppress(RuntimeError):
        return torch.get_float32_matmul_precision()
    return None


def _default_device() -> torch.device | None:
    # torch.get_default_device() cannot tell "cpu" from "never set", and a default that is set slows every constructor.
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


# The switches that the lessons turn, with getter and setter. The precision switches come parent first: setting a parent
# also changes children that were never set themselves.
_SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "default_device": (_default_device, torch.set_default_device),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic_algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "flash_sdp": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "mem_efficient_sdp": (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    "math_sdp": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "cudnn_sdp": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "float32_matmul_precision": (_matmul_precision, lambda value: value and torch.set_float32_matmul_precision(value)),
    **{
        path: _attribute(path)
        for path in (
            "utils.deterministic.fill_uninitialized_memory",
            "backends.cudnn.enabled",
            "backends.cudnn.benchmark",
            "backends.cudnn.deterministic",
            "backends.fp32_precision",
            "backends.cuda.matmul.fp32_precision",
            "backends.cudnn.fp32_precision",
            "backends.cudnn.conv.fp32_precision",
            "backends.cudnn.rnn.fp32_precision",
            "backends.mkldnn.fp32_precision",
            "backends.mkldnn.matmul.fp32_precision",
            "backends.mkldnn.conv.fp32_precision",
            "backends.mkldnn.rnn.fp32_precision",
        )
    },
}


@dataclass(frozen=True)
class Switches:
    """The values of torch's global switches at one moment."""

    values: dict[str, Any]

    @classmethod
    def now(cls) -> Switches:
        """Read all switches."""
        return cls({name: get() for name, (get, _) in _SWITCHES.items()})

    @classmethod
    @contextlib.contextmanager
    def kept(cls) -> Iterator[None]:
        """Put all switches back at the end of a block."""
        before = cls.now()
        try:
            yield
        finally:
            before.restore()

    def restore(self) -> None:
        """Set every switch that differs from what it was."""
        for name, value in self.values.items():
            get, put = _SWITCHES[name]
            if get() != value:
                put(value)


@dataclass(frozen=True)
class RandomState:
    """The state of all random number generators at one moment, each beside the function that puts it back."""

    states: list[tuple[Callable[[Any], None], Any]]

    @classmethod
    def seeded(cls, seed: int) -> RandomState:
        """Seed all generators and read them."""
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        return cls.now()

    @classmethod
    def now(cls) -> RandomState:
        """Read torch's generators, Python's and, if it is loaded, numpy's. An unused GPU is not woken up for it."""
        states = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
        if torch.cuda.is_initialized():
            states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
        if torch.backends.mps.is_available():
            states.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
        if numpy := sys.modules.get("numpy"):
            states.append((numpy.random.set_state, numpy.random.get_state()))
        return cls(states)

    def restore(self) -> None:
        """Put the generators back to where they were."""
        for put, state in self.states:
            put(state)


@dataclass(frozen=True)
class Fresh:
    """A case that is built by a factory: see :func:`fresh`."""

    factory: Callable[..., Callable[[], Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def build(self) -> Callable[[], Any]:
        """Call the factory; a TypeError if it does not return a callable."""
        built = self.factory(*self.args, **self.kwargs)
        if not callable(built):
            name = getattr(self.factory, "__name__", "the factory")
            raise TypeError(f"{name} must return the function to time, but returned {type(built).__name__}")
        return built


def fresh(factory: Callable[..., Callable[[], Any]], *args: Any, **kwargs: Any) -> Fresh:
    """Mark a case that has state of its own: a model, an optimizer, a data iterator, global switches.

    The factory runs once for each case, always from the same random state, so that every case begins with the same
    weights and shares nothing with the others. Switches that it sets (TF32, thread count, deterministic algorithms...)
    are in force whenever its case runs, and at no other time.

    ``factory`` is called with ``args`` and ``kwargs``, and returns the function to time, which takes no arguments.

    Example:
        >>> def training_step(fused):
        ...     model = torch.nn.Linear(8, 8)
        ...     optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        ...     def step():
        ...         loss = model(torch.ones(4, 8)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...         return loss
        ...     return step
        >>> cases = {"foreach": fresh(training_step, fused=False), "fused": fresh(training_step, fused=True)}
    """
    return Fresh(factory, args, kwargs)
