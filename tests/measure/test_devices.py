"""The clocks and meters: the CPU's for real, the GPU's through a scripted one, and that tests/gpu is in order."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from course_utils.measure import devices, rounds
from course_utils.measure.compare import CaseError, compare, measure
from course_utils.measure.devices import CudaDevice, Device, MpsDevice, Sample, device_under_test
from course_utils.measure.fresh import fresh
from tests.scripted_cuda import MIB, ScriptedCuda

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ScriptedCuda:
    scripted = ScriptedCuda()
    scripted.install(monkeypatch)
    return scripted


@pytest.fixture
def cuda(gpu: ScriptedCuda) -> CudaDevice:
    return CudaDevice(api=gpu, torch_device="cpu")


# ---------------------------------------------------------------------------------------------------------------------
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
    device.sample(lambda: watched.kernel(1e-5), 3, "warm")
    device.sample(lambda: watched.kernel(1e-5), 3, "cold")
    device.prequeued_s(lambda: watched.kernel(1e-5), 3, 1e-5)
    device.peak_memory(lambda: watched.allocate(1024))
    assert {"Event", "synchronize", "_sleep", "empty_cache", "max_memory_reserved", "get_device_properties"} <= used
    assert [name for name in sorted(used) if not hasattr(torch.cuda, name)] == []
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters
    assert list(inspect.signature(torch.cuda._sleep).parameters) == ["cycles"]
    assert hasattr(torch.cuda.Event, "record")
    assert hasattr(torch.cuda.Event, "elapsed_time")


def test_stand_in_refuses_events_that_are_not_reached(gpu: ScriptedCuda) -> None:
    first, last, untimed = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True), gpu.Event()
    first.record()
    gpu.kernel(1.0)
    last.record()
    untimed.record()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(last)
    gpu.synchronize()
    assert first.elapsed_time(last) == pytest.approx(1000, rel=1e-4)
    with pytest.raises(ValueError, match="enable_timing"):
        first.elapsed_time(untimed)


# ---------------------------------------------------------------------------------------------------------------------
# GPU: times


def test_cuda_asynchronous_work_is_enqueued_long_before_it_is_done(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    sample = cuda.sample(lambda: gpu.kernel(1e-3), 10, "warm")
    assert sample.enqueue_s == pytest.approx(gpu.launch_s, rel=0.1)
    assert sample.device_s == pytest.approx(1e-3, rel=0.01)
    assert sample.device_s < sample.elapsed_s < 1.01 * sample.device_s
    assert sample.enqueue_s < 0.01 * sample.elapsed_s


def test_cuda_device_time_holds_the_gaps_that_a_slow_host_leaves(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def slow_host() -> None:
        gpu.host(80e-6)
        gpu.kernel(20e-6)

    sample = cuda.sample(slow_host, 50, "warm")
    assert sample.device_s == pytest.approx(85e-6, rel=0.03)  # 80 µs in Python, 5 µs for the launch; not 20 µs
    assert sample.enqueue_s == pytest.approx(sample.device_s, rel=0.03)


def test_cuda_work_on_another_stream_is_in_elapsed_time_only(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    sample = cuda.sample(lambda: gpu.kernel(1e-3, stream=1), 4, "warm")
    assert sample.elapsed_s == pytest.approx(1e-3, rel=0.02)
    assert sample.device_s < 0.02 * sample.elapsed_s


def test_cuda_work_that_the_current_stream_waits_for_is_in_both(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def joined() -> None:
        gpu.kernel(1e-3, stream=1)
        gpu.wait_stream(0, 1)

    sample = cuda.sample(joined, 4, "warm")
    assert sample.device_s == pytest.approx(1e-3, rel=0.02)
    assert sample.elapsed_s == pytest.approx(1e-3, rel=0.02)


def test_cuda_timing_begins_when_the_gpu_is_idle(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    gpu.kernel(5.0)  # somebody else's work from before
    assert cuda.sample(lambda: gpu.kernel(1e-3), 1, "warm").elapsed_s < 2e-3
    gpu.kernel(5.0)
    assert cuda.sample(lambda: gpu.kernel(1e-3), 1, "cold").elapsed_s < 2e-3


# ---------------------------------------------------------------------------------------------------------------------
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


def test_cuda_cold_comparison_says_so_and_is_never_called_launch_bound(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    result = compare(
        {"short": lambda: gpu.kernel(10e-6), "long": lambda: gpu.kernel(20e-6)},
        cache="cold",
        budget_s=0.2,
        device=cuda,
    )
    assert (result.cache, result.clock) == ("cold", "GPU events, each call apart")
    assert result["long"].ratio == pytest.approx(21 / 11, rel=0.05)  # an event costs the GPU 1 µs
    assert result["long"].measurement.launch_bound is not True


# ---------------------------------------------------------------------------------------------------------------------
# GPU: launch-bound


def _two(gpu: ScriptedCuda, cuda: CudaDevice, case: Callable[[], object], **options: object):
    """The measurement of a case, from a real comparison with an ordinary baseline."""
    result = compare({"baseline": lambda: gpu.kernel(1e-3), "case": case}, budget_s=0.4, device=cuda, **options)
    return result["case"].measurement


def test_many_tiny_kernels_are_launch_bound(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    measurement = _two(gpu, cuda, lambda: [gpu.kernel(1e-6) for _ in range(20)].clear())
    assert measurement.enqueue_median_s == pytest.approx(100e-6, rel=0.05)
    assert measurement.device_median_s == pytest.approx(100e-6, rel=0.05)
    assert measurement.prequeued_s == pytest.approx(20e-6, rel=0.1)
    assert measurement.launch_bound is True


def test_one_long_kernel_is_not_launch_bound(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    measurement = _two(gpu, cuda, lambda: gpu.kernel(500e-6))
    assert measurement.launch_bound is False
    assert measurement.prequeued_s is None  # nothing to confirm


def test_enqueueing_that_is_as_slow_as_the_gpu_but_hides_nothing_is_not_launch_bound(
    gpu: ScriptedCuda, cuda: CudaDevice
) -> None:
    # Python needs 90% of the GPU's time, so there is a suspicion; the GPU never waits, so it is not confirmed.
    def case() -> None:
        gpu.host(85e-6)
        gpu.kernel(100e-6)

    measurement = _two(gpu, cuda, case)
    assert measurement.prequeued_s == pytest.approx(100e-6, rel=0.05)
    assert measurement.launch_bound is False


def test_code_that_waits_for_the_gpu_cannot_be_confirmed(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def synchronises() -> None:
        gpu.kernel(50e-6)
        gpu.synchronize()

    measurement = _two(gpu, cuda, synchronises)
    assert measurement.enqueue_median_s >= 0.8 * measurement.device_median_s
    assert measurement.prequeued_s is None
    assert measurement.launch_bound is None


def test_a_full_launch_queue_halves_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ScriptedCuda(queue_limit=1024)
    gpu.install(monkeypatch)
    cuda = CudaDevice(api=gpu, torch_device="cpu")
    rounds: list[int] = []
    monkeypatch.setattr(gpu, "_sleep", lambda cycles: (rounds.append(0), ScriptedCuda._sleep(gpu, cycles)))

    def hundred_kernels() -> None:
        rounds[-1] += 1
        for _ in range(100):
            gpu.kernel(1e-6)

    cuda._spin_cycles(1.0)
    rounds.clear()
    # 50 calls are 5000 launches, and 1024 fit.
    assert cuda.prequeued_s(hundred_kernels, 50, 500e-6) == pytest.approx(100e-6, rel=0.05)
    assert rounds == [50, 25, 12, 6]


def test_a_call_with_more_launches_than_fit_cannot_be_confirmed(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def two_thousand_kernels() -> None:
        for _ in range(2000):
            gpu.kernel(1e-6)

    assert cuda.prequeued_s(two_thousand_kernels, 4, 10e-3) is None


def test_spinning_that_ends_too_soon_is_noticed(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def many() -> None:
        for _ in range(20):
            gpu.kernel(1e-6)

    gpu.sleep_hz = 2e8  # an idle GPU's clock, when the spinning is calibrated
    cuda._spin_cycles(1.0)
    gpu.sleep_hz = 2e9  # under load; the same cycles now last a tenth
    # Taken at its word, the spinning would cover 50 calls, and the gaps would be in the time: 100 µs.
    assert cuda.prequeued_s(many, 50, 100e-6) == pytest.approx(20e-6, rel=0.1)


def test_cpu_code_on_a_gpu_machine_is_not_called_launch_bound(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    measurement = _two(gpu, cuda, lambda: gpu.host(200e-6))
    assert measurement.enqueue_median_s >= 0.8 * measurement.device_median_s  # the events see only Python's time
    assert measurement.prequeued_s is None
    assert measurement.launch_bound is None


def test_work_on_another_stream_only_is_not_called_launch_bound(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    measurement = _two(gpu, cuda, lambda: gpu.kernel(3e-6, stream=1))
    assert measurement.launch_bound is None


def test_one_tiny_kernel_in_much_python_is_launch_bound(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    # As little GPU work as there can be must not be taken for none.
    def case() -> None:
        gpu.host(300e-6)
        gpu.kernel(2e-6)

    measurement = _two(gpu, cuda, case)
    assert measurement.prequeued_s == pytest.approx(2e-6, rel=0.5)
    assert measurement.launch_bound is True


def test_spin_rate_is_calibrated_once(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    gpu.sleep_hz = 1.7e9
    assert cuda._spin_cycles(0.01) == pytest.approx(0.01 * 1.7e9, rel=0.01)
    spins = len(gpu.sleeps)
    assert cuda._spin_cycles(0.02) == pytest.approx(0.02 * 1.7e9, rel=0.01)
    assert len(gpu.sleeps) == spins == 2


# ---------------------------------------------------------------------------------------------------------------------
# GPU: a whole comparison


@pytest.mark.parametrize("kernel_s", [2e-6, 50e-6, 900e-6, 5e-3])
def test_cuda_timings_get_enough_calls(gpu: ScriptedCuda, cuda: CudaDevice, kernel_s: float) -> None:
    result = compare({"a": lambda: gpu.kernel(kernel_s), "b": lambda: gpu.kernel(kernel_s)}, budget_s=0.5, device=cuda)
    for measurement in result.cases:
        assert measurement.calls * measurement.median_s >= 0.9 * cuda.min_sample_s
        assert len(measurement.enqueue_s) == len(measurement.device_s) == measurement.rounds == result.rounds
    assert result.control.calls == result.cases[0].calls


def test_cuda_known_ratio(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def twice() -> None:
        gpu.kernel(200e-6)
        gpu.kernel(200e-6)

    result = compare({"once": lambda: gpu.kernel(200e-6), "twice": twice}, budget_s=0.5, device=cuda)
    assert result["twice"].interval.meets(1.98, 2.02)
    assert result["twice"].verdict == "SLOWER"
    assert result.clock == "host clock, until the GPU is idle"


def test_cuda_first_call_waits_for_the_gpu(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    measurement = measure(lambda: gpu.kernel(20e-3), budget_s=0.2, device=cuda)
    assert measurement.first_call_s == pytest.approx(20e-3, rel=0.01)


@pytest.mark.parametrize("failing_call", [1, 3, 200])
def test_cuda_out_of_memory_names_the_case_and_advises(gpu: ScriptedCuda, cuda: CudaDevice, failing_call: int) -> None:
    calls = 0

    def greedy() -> None:
        nonlocal calls
        calls += 1
        gpu.kernel(100e-6)
        gpu.allocate(1e12 if calls >= failing_call else 1024)

    with pytest.raises(CaseError, match=r"'greedy' failed in .*OutOfMemoryError.*Make the problem smaller") as caught:
        compare({"modest": lambda: gpu.kernel(100e-6), "greedy": greedy}, budget_s=0.2, device=cuda)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert gc.isenabled()
    del caught
    assert gpu.memory_allocated() == 0
    # And the next comparison is as if nothing had been.
    assert compare({"a": lambda: gpu.kernel(1e-4), "b": lambda: gpu.kernel(1e-4)}, budget_s=0.2, device=cuda).rounds > 8


def test_out_of_memory_in_the_memory_pass_keeps_the_rounds_and_is_named(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def greedy() -> None:
        gpu.kernel(1e-4)
        if "reset_peak_memory_stats" in gpu.calls:
            gpu.allocate(1e12)

    result = measure(greedy, budget_s=0.1, device=cuda)
    assert result.rounds > 0
    assert result.peak_allocated_bytes is None
    assert any("passes of 'code' failed: OutOfMemoryError" in note for note in result.notes)


# ---------------------------------------------------------------------------------------------------------------------
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
    order = [name for name in gpu.calls if name != "synchronize"]
    assert order == ["empty_cache", "reset_peak_memory_stats"]
    assert gpu.calls[0] == "synchronize"  # memory that a running kernel uses is not free yet
    assert gpu.calls[-1] == "synchronize"


def test_cuda_peak_memory_forgets_earlier_peaks(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    gpu.allocate(500 * MIB)
    assert cuda.peak_memory(lambda: None) == (0, 0)


def test_comparison_shows_peaks_of_each_case_apart(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def case(size_bytes: int) -> Callable[[], None]:
        def run() -> None:
            block = gpu.allocate(size_bytes)
            gpu.kernel(100e-6)
            del block

        return run

    result = compare({"large": case(64 * MIB), "small": case(MIB)}, budget_s=0.2, device=cuda)
    large, small = result.cases
    assert (large.peak_allocated_bytes, large.peak_reserved_bytes) == (64 * MIB, 64 * MIB)
    assert (small.peak_allocated_bytes, small.peak_reserved_bytes) == (MIB, 2 * MIB)
    without = compare({"large": case(64 * MIB), "small": case(MIB)}, budget_s=0.2, memory=False, device=cuda)
    assert without.cases[0].peak_allocated_bytes is None


# ---------------------------------------------------------------------------------------------------------------------
# Apple GPU


def test_mps_waits_for_the_gpu_around_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: events.append("wait"))
    sample = MpsDevice().sample(lambda: events.append("call"), 3, "warm")
    assert events == ["wait", "call", "call", "call", "wait"]
    assert sample.elapsed_s > 0
    assert (sample.enqueue_s, sample.device_s) == (None, None)


def test_mps_empties_the_cache_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: events.append("wait"))
    zeros = torch.zeros
    placed: list[str] = []
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: (placed.append(device), zeros(1, dtype=dtype))[1])
    device = MpsDevice()
    device.sample(lambda: events.append("call"), 2, "cold")
    assert events == ["wait", "call", "wait"] * 2
    assert placed == ["mps"]


def test_mps_has_no_peak_and_no_launch_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "synchronize", lambda: None)
    ran: list[int] = []
    device = MpsDevice()
    assert device.peak_memory(lambda: ran.append(1)) == (None, None)
    assert device.prequeued_s(lambda: ran.append(1), 1, 1.0) is None
    assert ran == []
    result = compare({"a": lambda: sum(range(500)), "b": lambda: sum(range(500))}, budget_s=0.1, device=device)
    assert result["b"].measurement.launch_bound is None
    assert result.clock == "host clock, until the GPU is idle"


@pytest.mark.parametrize(("kind", "expected"), [("cpu", Device), ("cuda", CudaDevice), ("mps", MpsDevice)])
def test_device_under_test_follows_the_machine(monkeypatch: pytest.MonkeyPatch, kind: str, expected: type) -> None:
    monkeypatch.setattr(devices, "device_kind", lambda: kind)
    device = device_under_test()
    assert type(device) is expected
    assert device.kind == kind


# ---------------------------------------------------------------------------------------------------------------------
# CPU, for real


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_no_garbage_collection_inside_a_timing(cache: str) -> None:
    seen: list[bool] = []
    assert gc.isenabled()
    Device().sample(lambda: seen.append(gc.isenabled()), 3, cache)
    assert seen == [False] * 3
    assert gc.isenabled()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_garbage_collection_comes_back_after_an_error(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(error):
        Device().sample(fails, 1, "warm")
    assert gc.isenabled()


def test_garbage_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        Device().sample(lambda: None, 1, "warm")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_cpu_sample_is_for_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ScriptedCuda()
    gpu.install(monkeypatch)
    sample = Device().sample(lambda: gpu.host(1e-3), 7, "warm")
    assert sample == Sample(pytest.approx(1e-3, rel=1e-3), None, None)
    assert Device().sample(lambda: gpu.host(1e-3), 7, "cold").elapsed_s == pytest.approx(1e-3, rel=1e-3)


def test_cpu_cold_time_excludes_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ScriptedCuda()
    gpu.install(monkeypatch)
    device = Device()
    flushes: list[float] = []
    monkeypatch.setattr(device, "flush_cache", lambda: (flushes.append(gpu.host_s), gpu.host(1.0)))
    assert device.sample(lambda: gpu.host(1e-3), 4, "cold").elapsed_s == pytest.approx(1e-3, rel=1e-3)
    assert len(flushes) == 4


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"index0": "32K", "index2": "1024K", "index3": "32768K"}, 32 * MIB),
        ({"index0": "32K", "index3": "96M"}, 96 * MIB),
        ({"index0": "1G"}, 1024 * MIB),
        ({"index0": "32K", "index3": ""}, 32 * 1024),
        ({"index0": "unknown"}, 64 * MIB),
        ({}, 64 * MIB),
    ],
)
def test_last_level_cache_is_read_from_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    for folder, text in files.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "size").write_text(text + "\n", encoding="ascii")
    monkeypatch.setattr(Device, "_cache_folder", tmp_path)
    assert Device().cache_bytes() == expected


def test_flush_buffer_is_twice_the_cache_and_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index3").mkdir()
    (tmp_path / "index3" / "size").write_text("3072K\n", encoding="ascii")
    monkeypatch.setattr(Device, "_cache_folder", tmp_path)
    device = Device()
    device.flush_cache()
    buffer = device._buffer
    assert buffer.nbytes == 6 * MIB
    device.flush_cache()
    assert device._buffer is buffer
    assert buffer.unique().tolist() == [2]


# What torch takes for the number in `tensor * 2`.
_SCALARS = 64


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(lambda mib: None, 0, id="nothing"),
        pytest.param(lambda mib: mib[1:].view(-1), 0, id="view"),
        pytest.param(lambda mib: mib.mul_(1.0), 0, id="in place"),
        pytest.param(lambda mib: mib.clone(), MIB, id="one"),
        pytest.param(lambda mib: [mib.clone().numel() for _ in range(3)], MIB, id="one after the other"),
        pytest.param(lambda mib: (mib.clone(), mib.clone()), 2 * MIB, id="two at once"),
        pytest.param(lambda mib: (mib + 1) * (mib + 2), 3 * MIB, id="two intermediates and a result"),
    ],
)
def test_cpu_peak_memory_of_known_patterns(case: Callable[[torch.Tensor], object], expected: int) -> None:
    mib = torch.ones(MIB // 4)
    peak, reserved = Device().peak_memory(lambda: case(mib))
    assert expected <= peak <= expected + _SCALARS
    assert reserved is None


def test_cpu_peak_memory_sees_scratch_inside_operations() -> None:
    a = torch.randn(1, 2, 256, 64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        peak, _ = Device().peak_memory(lambda: torch.nn.functional.scaled_dot_product_attention(a, a, a))
    assert peak > 2 * 256 * 256 * 4  # the scores, which no caller ever sees


def test_cpu_peak_memory_is_never_negative() -> None:
    held = [torch.ones(MIB // 4) for _ in range(8)]
    assert Device().peak_memory(held.clear) == (0, None)


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


def test_memory_pass_gives_the_error_stream_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        Device().peak_memory(lambda: 1 / 0)
    os.write(2, b"said later")
    assert capfd.readouterr().err == "said later"


def test_profiler_of_the_memory_pass_is_silent_and_leaves_no_profiler_on(capfd: pytest.CaptureFixture[str]) -> None:
    Device().peak_memory(lambda: torch.ones(8))
    assert not torch.autograd._profiler_enabled()
    assert capfd.readouterr() == ("", "")


def test_a_cold_comparison_on_a_cpu_reaches_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Servers with hundreds of MiB of cache take so long to empty it that a busy one gets too few rounds: how many it
    # gets there is no property of this code, so the size that most CPUs stay below is set.
    (tmp_path / "index3").mkdir()
    (tmp_path / "index3" / "size").write_text("16384K\n")
    monkeypatch.setattr(Device, "_cache_folder", tmp_path)
    a = torch.randn(20_000)
    device = Device()
    result = compare({"once": lambda: a.sum(), "again": lambda: a.sum()}, cache="cold", memory=False, device=device)
    assert result.rounds >= 8
    assert result.cases[0].calls * result.cases[0].median_s >= 0.9 * device.min_cold_sample_s
    assert (result.cache, result.clock) == ("cold", "host clock, each call apart")


def test_factory_cases_run_on_a_gpu_too(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def factory(seconds: float) -> Callable[[], None]:
        return lambda: gpu.kernel(seconds)

    result = compare({"slow": fresh(factory, 4e-4), "fast": fresh(factory, 1e-4)}, budget_s=0.3, device=cuda)
    assert result["fast"].speedup == pytest.approx(4, rel=0.05)
    assert result["fast"].verdict == "FASTER"


def test_interrupted_gpu_comparison_keeps_whole_rounds(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    calls = 0

    def case() -> None:
        nonlocal calls
        calls += 1
        if calls == 120:
            raise KeyboardInterrupt
        gpu.kernel(1e-3)

    result = compare({"a": lambda: gpu.kernel(1e-3), "b": case}, budget_s=50.0, device=cuda)
    assert result.interrupted
    assert {m.rounds for m in (*result.cases, result.control)} == {result.rounds}
    assert result.cases[1].launch_bound is False
    assert result.cases[1].peak_allocated_bytes is None


# ---------------------------------------------------------------------------------------------------------------------
# The tests that need a GPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="here they run")
def test_gpu_tests_collect_and_say_why_they_are_skipped() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-rs", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "needs a CUDA device" in run.stdout
    assert "python -m pytest -m gpu" in run.stdout
    summary = run.stdout.strip().splitlines()[-1]
    assert "skipped" in summary
    for word in ("passed", "failed", "error"):
        assert word not in summary


def test_measuring_code_reads_no_other_clock() -> None:
    # The stand-in replaces `time` in these two modules; a clock taken in by name would escape it.
    for module in (devices, rounds):
        assert "from time import" not in Path(module.__file__).read_text(encoding="utf-8")
