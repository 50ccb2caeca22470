"""Pages of memory, as the operating system sees them: count page faults, lock pages into main memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch


def page_faults(fn: Callable[[], Any]) -> int | None:
    """Count the minor page faults of one call: pages that the operating system had to find or fill while it ran.

    None where the system does not count them (Windows).
    """
    try:
        import resource
    except ImportError:
        fn()
        return None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    output = fn()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del output  # giving memory back is not what is counted
    return faults


def lock_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Lock the pages under a CPU tensor into main memory: the part of pinning that needs no GPU.

    The lock ends when the memory is unmapped. Whole pages are locked, so give it memory of its own (``mmap``). An
    OSError says that this system has no ``mlock``, or does not allow this process to lock so much.

    Source:
        mlock(2), https://man7.org/linux/man-pages/man2/mlock2.2.html
    """
    if os.name != "posix":
        raise OSError("this operating system has no mlock()")
    libc = ctypes.CDLL(None, use_errno=True)
    size = tensor.nbytes
    if libc.mlock(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(size)):
        error = ctypes.get_errno()
        raise OSError(error, f"{os.strerror(error)}: this process may not lock {size} bytes; see `ulimit -l`")
    return tensor


def can_lock(size_bytes: int) -> bool:
    """Whether this process may lock that many bytes now. It tries."""
    try:
        lock_pages(torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8))
    except OSError:
        return False
    return True
