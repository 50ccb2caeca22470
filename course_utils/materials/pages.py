"""Pages of memory, as the operating system sees them: count page faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
