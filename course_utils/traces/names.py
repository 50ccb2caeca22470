"""Names of kernels: what they tell, and how people read them."""

from __future__ import annotations

import functools
import re

from course_utils.traces.events import KERNEL, Event

_SENDS = re.compile(
    r"nccl|rccl|oneccl|nvshmem|cross_device_reduce|(one|two)_shot_|multimem_|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)


def is_communication(event: Event) -> bool:
    """Whether a kernel sends or receives."""
    return event.kind == KERNEL and _sends(event.name)


@functools.lru_cache(4096)
def _sends(name: str) -> bool:
    return bool(_SENDS.search(name)) and "triton_" not in name


def short(name: str) -> str:
    """A kernel's name without what a template was given.

    Example:
        >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)")
        'at::native::vectorized_elementwise_kernel'
    """
    if ".py(" in name:  # a function of Python's, with its line
        return name if len(name) <= 70 else "…" + name[-69:]
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    plain = plain.partition("<")[0].partition("(")[0] or name
    return plain if len(plain) <= 70 else plain[:69] + "…"
