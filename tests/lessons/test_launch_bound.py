"""`measuring`'s test for a launch-bound function, on a scripted GPU: Python's costs must not hide its work."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest

from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook
from tests.played_cuda.scripted import ScriptedCuda

BUILDING_A_TIMER_S = 50e-6  # it compiles source code, while a GPU that has work goes on


class Gpu(ScriptedCuda):
    """It knows which waits are watched, and what a ``timeit.Timer`` costs."""

    latency_s = clock_s = synchronize_s = 0.0
    mode = "default"

    def set_sync_debug_mode(self, mode: str) -> None:
        self.mode = mode

    def is_available(self) -> bool:
        return False  # only the function is wanted

    def timeit(self, fn: Callable[[], object], number: int) -> float:
        self.host(BUILDING_A_TIMER_S)
        start = self.perf_counter()
        for _ in range(number):
            fn()
        return self.perf_counter() - start


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def done_over_queued(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """``queued_and_done``, as the lesson has it to paste."""
    cells = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson("measuring").path)["cells"]}
    names: dict[str, Callable[..., float]] = {}
    with monkeypatch.context() as played:
        played.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=gpu))
        played.setitem(sys.modules, "time", types.SimpleNamespace(perf_counter=gpu.perf_counter))
        played.setitem(sys.modules, "timeit", types.SimpleNamespace(timeit=gpu.timeit))
        exec(cells["queue-or-work-live"], names)
    return names["queued_and_done"]


@pytest.mark.parametrize(("launch_us", "kernel_us"), [(10, 15), (4, 6), (4, 8), (4, 10), (4, 40)])
def test_a_busy_gpu_is_done_that_much_later_than_it_was_queued(gpu, done_over_queued, launch_us, kernel_us):
    gpu.launch_s = launch_us * 1e-6
    assert done_over_queued(lambda: gpu.kernel(kernel_us * 1e-6)) == pytest.approx(kernel_us / launch_us, rel=0.03)


@pytest.mark.parametrize(("launch_us", "kernel_us"), [(10, 2), (5, 4), (10, 10)])
def test_a_launch_bound_gpu_is_done_when_it_was_queued(gpu, done_over_queued, launch_us, kernel_us):
    gpu.launch_s = launch_us * 1e-6
    assert done_over_queued(lambda: gpu.kernel(kernel_us * 1e-6)) == pytest.approx(1, abs=0.03)


def test_one_call_is_watched_for_waits_and_none_that_is_timed(gpu, done_over_queued):
    modes = []

    def fn() -> None:
        gpu.kernel(1e-6)
        modes.append(gpu.mode)

    done_over_queued(fn, calls=3)
    assert modes == ["warn", "default", "default", "default"]
