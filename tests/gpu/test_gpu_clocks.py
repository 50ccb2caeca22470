"""Clocks and launch-bound detection on a real GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch

from course_utils.measure.compare import compare, measure
from course_utils.measure.devices import CudaDevice


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
    samples = [device.sample(work, 5) for _ in range(10)]
    for sample in samples:
        # The host sees the same work and its own waiting, which is microseconds in 50 ms.
        assert sample.device_s <= sample.elapsed_s <= 1.02 * sample.device_s
        assert sample.enqueue_s < 0.1 * sample.elapsed_s
    assert statistics.median(sample.device_s for sample in samples) == pytest.approx(10e-3, rel=0.1)


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
    return statistics.median(device.sample(graph.replay, 5).device_s for _ in range(20)) / 20


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


def test_code_that_waits_for_the_gpu_is_not_called_launch_bound() -> None:
    x = torch.randn(1000, device="cuda")
    assert measure(lambda: x.sum().item(), memory=False).launch_bound is None


def test_what_touches_the_gpu_is_said_to_have_worked_there() -> None:
    x, there, graph = torch.ones(2**20), torch.ones(2**20, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there.add_(1)
    ways = {"new memory": lambda: there + 1, "in place": lambda: there.add_(1).shape, "a graph": graph.replay}

    def worked_by(fn: Callable[[], object], **options: object) -> str:
        return compare({"a": fn, "b": fn}, check=False, budget_s=0.2, memory=False, **options).worked_by

    assert {name: worked_by(fn) for name, fn in ways.items()} == dict.fromkeys(ways, "gpu")
    assert worked_by(lambda: x.add_(1).shape) == "cpu"
    assert worked_by(lambda: there + 1, on="cpu") == "cpu"
