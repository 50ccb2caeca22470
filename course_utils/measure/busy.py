"""What else the machine did while something was measured: other programs, a core taken away, stalls, slower clocks."""

from __future__ import annotations

import contextlib
import os
import statistics
import time

from course_utils.measure.machine import gpu_state, slowdown
from course_utils.results.verdicts import TOOK_THE_CORE

# Below these nobody needs to know. A browser and JupyterLab that wait for a result take a tenth of a core.
_OTHERS_CORES, _OTHERS_S = 0.2, 0.05
_PREEMPTIONS_PER_S = 40
# A fixed loop, timed before and after: it shows what a virtual machine does not tell of its neighbours.
_SPINS, _SPIN_LOOPS = 40, 4000
_STALLED = 4.0


class Watch:
    """Looks at the machine before and after a block; ``sentence`` says what a reader must know, if anything.

    Example:
        >>> with Watch() as watch:
        ...     total = sum(range(1000))
        >>> isinstance(watch.sentence, str)
        True
    """

    sentence = ""

    def __enter__(self) -> Watch:
        self._spins = _spins()
        self._gpu = gpu_state()
        self._before = _usage()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        seconds = time.perf_counter() - self._started
        everybody, own, taken = (after - before for after, before in zip(_usage(), self._before, strict=True))
        self._spins += _spins()
        self.sentence = _in_words(max(0.0, everybody - own) / seconds, seconds, taken)
        slowest = statistics.quantiles(self._spins, n=20)[-1] / statistics.median(self._spins)
        if not self.sentence and slowest > _STALLED:
            self.sentence = f"The machine stalls: a fixed loop took {slowest:.0f} times as long in one of twenty tries."
        self.sentence = " ".join(filter(None, (self.sentence, slowdown(self._gpu, gpu_state()))))


def _in_words(others: float, seconds: float, taken: int) -> str:
    """How many cores others kept busy in so many seconds, and how often they took this program's core."""
    cores = os.cpu_count() or 1
    if others < _OTHERS_CORES or others * seconds < _OTHERS_S:
        return ""
    words = f"Other programs kept {min(others, cores):.1f} of {cores} cores busy"
    if taken / seconds >= _PREEMPTIONS_PER_S:
        words += f", and {TOOK_THE_CORE} {taken / seconds:.0f} times a second"
    return f"{words}."


def _usage() -> tuple[float, float, int]:
    """CPU seconds of all programs, of this one with its children; how often its core was taken from it."""
    import psutil

    times = psutil.cpu_times()
    # Linux counts guests' time as the host's own as well; a neighbour's time ("steal") is another program's.
    idle = (getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    everybody = sum(times) - sum(idle)
    this = psutil.Process()
    own = sum(this.cpu_times()[:4])
    for child in this.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end in this moment
            own += sum(child.cpu_times()[:4])
    return everybody, own, _preemptions()


def _preemptions() -> int:
    """How often this thread had to give up its core; 0 where the system does not count it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nivcsw


def _spins() -> list[float]:
    """Seconds that a fixed loop takes, several times."""
    seconds = []
    for _ in range(_SPINS):
        start = time.perf_counter()
        for _ in range(_SPIN_LOOPS):
            pass
        seconds.append(time.perf_counter() - start)
    return seconds
