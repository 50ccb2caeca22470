"""Clocks, launch-bound detection and cache state on a real GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from scipy.stats import binomtest

from course_utils.measure.compare import compare, measure
from course_utils.measure.devices import CudaDevice
from course_utils.records import paired


def _spin(device: CudaDevice, seconds: float) -> Callable[[], None]:
    """A kernel that does nothing for a known time."""
    cycles = device._spin_cycles(seconds)
    return lambda: torch.cuda._sleep(cycles)


def _busy_for(seconds: float) -> None:
    """Brings the clocks up: an idle GPU runs at a fraction of them."""
    a = torch.randn(2048, 2048, device="cuda")
    done = torch.cuda.Event(enable_timing=True)
    begun = torch.cuda.Event(enable_timing=True)
    begun.record()
    while True:
        for _ in range(50):
            torch.mm(a, a)
        done.record()
        done.synchronize()
        if begun.elapsed_time(done) / 1e3 > seconds:
            return


def test_event_time_agrees_with_host_time_on_known_work(device: CudaDevice) -> None:
    _busy_for(0.5)
    work = _spin(device, 10e-3)
    samples = [device.sample(work, 5, "warm") for _ in range(10)]
    for sample in samples:
        # The host sees the same work and its own waiting, which is microseconds in 50 ms.
        assert sample.device_s <= sample.elapsed_s <= 1.02 * sample.device_s
        assert sample.enqueue_s < 0.1 * sample.elapsed_s
    assert statistics.median(sample.device_s for sample in samples) == pytest.approx(10e-3, rel=0.1)


def test_event_time_holds_work_that_another_stream_does_for_this_one(device: CudaDevice) -> None:
    spin = _spin(device, 5e-3)
    side = torch.cuda.Stream()

    def apart() -> None:
        with torch.cuda.stream(side):
            spin()

    def joined() -> None:
        side.wait_stream(torch.cuda.current_stream())
        apart()
        torch.cuda.current_stream().wait_stream(side)

    alone = device.sample(apart, 4, "warm")
    assert alone.device_s < 0.5 * alone.elapsed_s
    together = device.sample(joined, 4, "warm")
    assert together.device_s > 0.95 * together.elapsed_s


def test_known_ratio_of_two() -> None:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    out = torch.empty_like(a)

    def once() -> torch.Tensor:
        return torch.mm(a, a, out=out)

    def twice() -> torch.Tensor:
        torch.mm(a, a, out=out)
        return torch.mm(a, a, out=out)

    case = compare({"once": once, "twice": twice}, memory=False)["twice"]
    assert case.decision_interval.meets(1.98, 2.02), case
    assert case.decision_interval.relative_width <= 0.03, case
    assert case.verdict == "SLOWER"


def _graph_replay_s(fn: Callable[[], object], device: CudaDevice) -> float:
    """Seconds for one call when the GPU replays it from a graph: no Python, no launches in between."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Many calls in one graph, so that the replay's own launch does not count.
        for _ in range(20):
            fn()
    return statistics.median(device.sample(graph.replay, 5, "warm").device_s for _ in range(20)) / 20


def _many_small_layers() -> Callable[[], torch.Tensor]:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)]).cuda()
    x = torch.randn(4, 8, device="cuda")

    @torch.inference_mode()
    def forward() -> torch.Tensor:
        return model(x)

    return forward


def test_many_tiny_kernels_are_launch_bound_and_a_graph_confirms_it(device: CudaDevice) -> None:
    forward = _many_small_layers()
    measurement = measure(forward, memory=False)
    replay_s = _graph_replay_s(forward, device)
    assert measurement.launch_bound is True
    assert replay_s < 0.8 * measurement.device_median_s
    # A graph also shortens the gap between two kernels, so it may be quicker still than work that was queued ahead.
    assert 0.3 * measurement.prequeued_s < replay_s < 1.3 * measurement.prequeued_s


def test_one_large_kernel_is_not_launch_bound_and_a_graph_confirms_it(device: CudaDevice) -> None:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    out = torch.empty_like(a)

    def large() -> torch.Tensor:
        return torch.mm(a, a, out=out)

    measurement = measure(large, memory=False)
    replay_s = _graph_replay_s(large, device)
    assert measurement.launch_bound is False
    assert measurement.enqueue_median_s < 0.8 * measurement.device_median_s
    assert replay_s > 0.8 * measurement.device_median_s


def test_code_that_waits_for_the_gpu_is_not_called_launch_bound() -> None:
    x = torch.randn(1000, device="cuda")
    assert measure(lambda: x.sum().item(), memory=False).launch_bound is None


class _NotEmptying(CudaDevice):
    """Times each call apart like a cold cache, but only keeps the GPU busy in between: the cache stays as it is."""

    def flush_cache(self) -> None:
        torch.cuda._sleep(self._spin_cycles(200e-6))


def _cold_over_kept(fn: Callable[[], object]) -> paired.Interval:
    """Ratio of the time with an emptied cache over the same timing with the cache left alone."""
    cold, kept = CudaDevice(), _NotEmptying()
    for device in (cold, kept):
        device.sample(fn, 20, "cold")
    return paired.ratio_interval(
        [math.log(cold.sample(fn, 20, "cold").device_s / kept.sample(fn, 20, "cold").device_s) for _ in range(60)]
    )


def test_cold_cache_slows_a_small_memory_bound_kernel(l2_bytes: int) -> None:
    _busy_for(0.5)
    x = torch.randn(l2_bytes // 4 // 4, device="cuda")  # a quarter of the cache
    assert _cold_over_kept(lambda: x.mul_(1.0)).low > 1.02


def test_cold_cache_does_not_matter_to_a_big_kernel(l2_bytes: int) -> None:
    _busy_for(0.5)
    free_bytes, _ = torch.cuda.mem_get_info()
    size_bytes = min(50 * l2_bytes, free_bytes // 4)
    x = torch.randn(size_bytes // 4, device="cuda")
    assert _cold_over_kept(lambda: x.mul_(1.0)).inside(0.95, 1.08)  # writing back the emptying buffer costs 1/50


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_difference_is_not_called_one(record_property: Callable[[str, object], None]) -> None:
    a = torch.randn(1024, 1024, device="cuda")
    x = torch.randn(1 << 20, device="cuda")
    tiny = torch.zeros(1, device="cuda")
    kinds: list[Callable[[], object]] = [
        lambda: a @ a,
        lambda: torch.sin(x),
        lambda: tiny.add_(1),
        _many_small_layers(),
    ]
    trials = 400
    false = []
    for trial in range(trials):
        fn = kinds[trial % len(kinds)]
        case = compare({"a": fn, "b": fn}, budget_s=0.3, check=False, memory=False, seed=trial)["b"]
        if case.verdict in ("FASTER", "SLOWER"):
            false.append((trial % len(kinds), repr(case)))
    bound = binomtest(len(false), trials, alternative="less").proportion_ci(0.95).high
    record_property("false_verdicts", f"{len(false)} of {trials}, 95% upper bound {bound:.2%}")
    assert len(false) <= trials // 400, f"{len(false)} of {trials}, upper bound {bound:.2%}: {false}"
