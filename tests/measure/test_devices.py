"""The clocks and meters: the CPU's for real, the GPU's through a scripted one."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from course_utils.measure import devices
from course_utils.measure.compare import CaseError, compare, measure
from course_utils.measure.devices import CudaDevice, Device, MpsDevice
from tests.played_cuda.scripted import MIB, ScriptedCuda


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ScriptedCuda:
    scripted = ScriptedCuda()
    scripted.install(monkeypatch)
    return scripted


@pytest.fixture
def cuda(gpu: ScriptedCuda) -> CudaDevice:
    return CudaDevice(api=gpu, torch_device="cpu")


# The stand-in is worth something only if torch.cuda really is like that.


def test_stand_in_offers_nothing_that_torch_does_not() -> None:
    used: set[str] = set()

    class Watched(ScriptedCuda):
        def __getattribute__(self, name: str) -> object:
            if sys._getframe(1).f_code.co_filename == devices.__file__:
                used.add(name)
            return super().__getattribute__(name)

    watched = Watched()
    device = CudaDevice(api=watched, torch_device="cpu")
    for cache in ("warm", "cold", "kept"):
        device.sample(lambda: watched.kernel(1e-5), 3, cache)
    device.prequeued_s(lambda: watched.kernel(1e-5), 3, 1e-5)
    device.peak_memory(lambda: watched.allocate(1024))
    assert {"Event", "synchronize", "_sleep", "empty_cache", "max_memory_reserved", "get_device_properties"} <= used
    assert [name for name in sorted(used) if not hasattr(torch.cuda, name)] == []
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters
    assert list(inspect.signature(torch.cuda._sleep).parameters) == ["cycles"]
    assert hasattr(torch.cuda.Event, "record")
    assert hasattr(torch.cuda.Event, "elapsed_time")


# GPU: times


def test_cuda_asynchronous_work_is_enqueued_long_before_it_is_done(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    sample = cuda.sample(lambda: gpu.kernel(1e-3), 10, "warm")
    assert sample.enqueue_s == pytest.approx(gpu.launch_s, rel=0.1)
    assert sample.device_s == pytest.approx(1e-3, rel=0.01)
    assert sample.device_s < sample.elapsed_s < 1.01 * sample.device_s
    assert sample.enqueue_s < 0.01 * sample.elapsed_s


# GPU: cold cache


def test_cuda_cold_flushes_once_for_each_call_with_twice_the_l2(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    calls: list[int] = []
    cuda.sample(lambda: calls.append(cuda._buffer._version), 5, "cold")
    # An in-place write raises a tensor's version by one: each call saw a freshly written buffer.
    assert calls == [calls[0] + i for i in range(5)]
    assert cuda._buffer.nbytes == 2 * gpu.l2_bytes
    cuda.sample(lambda: None, 5, "warm")
    assert cuda._buffer._version == calls[-1]


def test_cuda_cold_time_excludes_flush_and_launch(
    gpu: ScriptedCuda, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "flush_cache", lambda: gpu.kernel(100e-6))

    def case() -> None:
        gpu.host(30e-6)  # hidden behind the flush: Python queues the call while the GPU writes the buffer
        gpu.kernel(40e-6)

    gpu.calls.clear()
    sample = cuda.sample(case, 20, "cold")
    assert gpu.calls == ["synchronize"] * 2  # no waiting between the calls
    assert sample.elapsed_s == sample.device_s
    assert sample.device_s == pytest.approx(40e-6 + gpu.event_s, abs=gpu.resolution_s)
    assert sample.enqueue_s == pytest.approx(35e-6, rel=0.05)
    assert cuda.sample(case, 20, "warm").elapsed_s > 1.0 * sample.elapsed_s


def test_cuda_kept_time_has_the_clock_of_the_cold_one_and_leaves_the_cache_alone(
    gpu: ScriptedCuda, cuda: CudaDevice
) -> None:
    def case() -> None:
        gpu.host(30e-6)  # hidden behind the spinning
        gpu.kernel(40e-6)

    kept = cuda.sample(case, 20, "kept")
    assert kept.elapsed_s == kept.device_s == pytest.approx(40e-6 + gpu.event_s, abs=gpu.resolution_s)
    assert not hasattr(cuda, "_buffer"), "nothing was written to empty the cache"


# GPU: launch-bound


def _two(gpu: ScriptedCuda, cuda: CudaDevice, case: Callable[[], object], **options: object):
    """The measurement of a case, from a real comparison with an ordinary baseline."""
    result = compare({"baseline": lambda: gpu.kernel(1e-3), "case": case}, budget_s=0.4, device=cuda, **options)
    return result["case"].measurement


def test_many_tiny_kernels_are_launch_bound_and_one_long_kernel_is_not(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    tiny = _two(gpu, cuda, lambda: [gpu.kernel(1e-6) for _ in range(20)].clear())
    assert tiny.enqueue_median_s == pytest.approx(100e-6, rel=0.05)
    assert tiny.device_median_s == pytest.approx(100e-6, rel=0.05)
    assert tiny.prequeued_s == pytest.approx(20e-6, rel=0.1)
    assert tiny.launch_bound is True
    assert _two(gpu, cuda, lambda: gpu.kernel(500e-6)).launch_bound is False


def test_code_that_waits_for_the_gpu_cannot_be_confirmed(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def synchronises() -> None:
        gpu.kernel(50e-6)
        gpu.synchronize()

    measurement = _two(gpu, cuda, synchronises)
    assert measurement.enqueue_median_s >= 0.8 * measurement.device_median_s
    assert measurement.prequeued_s is None
    assert measurement.launch_bound is None


def test_spinning_that_ends_too_soon_is_noticed(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def many() -> None:
        for _ in range(20):
            gpu.kernel(1e-6)

    gpu.sleep_hz = 2e8  # an idle GPU's clock, when the spinning is calibrated
    cuda._spin_cycles(1.0)
    gpu.sleep_hz = 2e9  # under load; the same cycles now last a tenth
    # Taken at its word, the spinning would cover 50 calls, and the gaps would be in the time: 100 µs.
    assert cuda.prequeued_s(many, 50, 100e-6) == pytest.approx(20e-6, rel=0.1)


# GPU: a whole comparison


def test_cuda_out_of_memory_names_the_case_and_advises(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    calls = 0

    def greedy() -> None:
        nonlocal calls
        calls += 1
        gpu.kernel(100e-6)
        gpu.allocate(1e12 if calls >= 200 else 1024)

    with pytest.raises(CaseError, match=r"'greedy' failed in .*OutOfMemoryError.*Make the problem smaller") as caught:
        compare({"modest": lambda: gpu.kernel(100e-6), "greedy": greedy}, budget_s=0.2, device=cuda)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert gc.isenabled()
    del caught
    assert gpu.memory_allocated() == 0


def test_out_of_memory_in_the_memory_pass_keeps_the_rounds_and_is_named(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def greedy() -> None:
        gpu.kernel(1e-4)
        if "reset_peak_memory_stats" in gpu.calls:
            gpu.allocate(1e12)

    result = measure(greedy, budget_s=0.1, device=cuda)
    assert result.rounds > 0
    assert result.peak_allocated_bytes is None
    assert any("passes of 'code' failed: OutOfMemoryError" in note for note in result.notes)


# GPU: memory


def test_cuda_peak_memory_is_what_one_call_adds(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    before = gpu.allocate(30 * MIB)

    def case() -> object:
        scratch = gpu.allocate(12 * MIB)
        output = gpu.allocate(5 * MIB + 1)
        del scratch
        return output

    assert cuda.peak_memory(case) == (17 * MIB + 512, 32 * MIB)  # rounded to 512 B; segments of 12 and 20 MiB
    assert gpu.memory_allocated() == 30 * MIB  # the output is gone
    del before


def test_cuda_peak_memory_does_not_profit_from_the_cache(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    gpu.allocate(100 * MIB)  # at once free again, and kept in the cache
    assert gpu.memory_reserved() == 100 * MIB
    gpu.calls.clear()
    assert cuda.peak_memory(lambda: gpu.allocate(40 * MIB)) == (40 * MIB, 40 * MIB)
    # Memory that a running kernel uses is not free yet.
    assert gpu.calls == ["synchronize", "empty_cache", "reset_peak_memory_stats", "synchronize"]


# Apple GPU


def test_mps_waits_for_the_gpu_around_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: events.append("wait"))
    sample = MpsDevice().sample(lambda: events.append("call"), 3, "warm")
    assert events == ["wait", "call", "call", "call", "wait"]
    assert sample.elapsed_s > 0
    assert (sample.enqueue_s, sample.device_s) == (None, None)


# CPU, for real


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_no_garbage_collection_inside_a_timing(cache: str) -> None:
    seen: list[bool] = []
    assert gc.isenabled()
    Device().sample(lambda: seen.append(gc.isenabled()), 3, cache)
    assert seen == [False] * 3
    assert gc.isenabled()


def test_last_level_cache_is_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "_cache_folder", tmp_path)
    assert Device().cache_bytes() == 64 * MIB
    for folder, text in {"index0": "32K", "index2": "96M", "index3": ""}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "size").write_text(text + "\n", encoding="ascii")
    assert Device().cache_bytes() == 96 * MIB


# What torch takes for the number in `tensor * 2`.
_SCALARS = 64


def test_cpu_peak_memory_of_known_patterns() -> None:
    mib = torch.ones(MIB // 4)
    one_after_the_other, together = (
        Device().peak_memory(case)[0]
        for case in (lambda: [mib.clone().numel() for _ in range(3)], lambda: (mib + 1) * (mib + 2))
    )
    assert MIB <= one_after_the_other <= MIB + _SCALARS
    assert 3 * MIB <= together <= 3 * MIB + _SCALARS


def test_cpu_peak_memory_of_a_step_that_drops_the_last_steps_gradients() -> None:
    weight = torch.ones(MIB // 4, requires_grad=True)

    def step() -> None:
        weight.grad = None
        weight.exp().sum().backward()

    step()  # these gradients come from a time when no profiler watched
    peak, _ = Device().peak_memory(step)
    # exp's result and the new gradients are there at once, and the old gradients are gone: one more than before.
    assert MIB <= peak <= MIB + _SCALARS


def test_memory_pass_hides_no_output_of_the_code_and_no_later_warning(capfd: pytest.CaptureFixture[str]) -> None:
    held = [torch.ones(MIB // 4)]

    def case() -> None:
        held.clear()
        print("said by the code")  # noqa: T201

    Device().peak_memory(case)
    os.write(2, b"said later")
    out, err = capfd.readouterr()
    assert "said by the code" in out
    assert err == "said later"
