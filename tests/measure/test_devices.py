"""The clocks and meters: the CPU's for real, the GPU's through a scripted one."""

from __future__ import annotations

import gc

import pytest
import torch

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
    return CudaDevice(api=gpu)


def test_cuda_asynchronous_work_is_enqueued_long_before_it_is_done(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    sample = cuda.sample(lambda: gpu.kernel(1e-3), 10)
    assert sample.enqueue_s == pytest.approx(gpu.launch_s, rel=0.1)
    assert sample.device_s == pytest.approx(1e-3, rel=0.01)
    assert sample.device_s < sample.elapsed_s < 1.01 * sample.device_s


def test_many_tiny_kernels_are_launch_bound_and_one_long_kernel_is_not(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    cases = {"long": lambda: gpu.kernel(500e-6), "tiny": lambda: [gpu.kernel(1e-6) for _ in range(20)].clear()}
    result = compare(cases, budget_s=0.4, device=cuda)
    tiny = result["tiny"].measurement
    assert tiny.enqueue_median_s == pytest.approx(100e-6, rel=0.05)
    assert tiny.device_median_s == pytest.approx(100e-6, rel=0.05)
    assert tiny.prequeued_s == pytest.approx(20e-6, rel=0.1)
    assert tiny.launch_bound is True
    assert result["long"].measurement.launch_bound is False


def test_code_that_waits_for_the_gpu_cannot_be_confirmed(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    def synchronises() -> None:
        gpu.kernel(50e-6)
        gpu.synchronize()

    assert measure(synchronises, budget_s=0.2, device=cuda).launch_bound is None


def test_cuda_out_of_memory_names_the_case_and_advises(gpu: ScriptedCuda, cuda: CudaDevice) -> None:
    calls = 0

    def greedy() -> None:
        nonlocal calls
        calls += 1
        gpu.kernel(100e-6)
        gpu.allocate(1e12 if calls >= 200 else 1024)

    with pytest.raises(CaseError, match=r"'greedy' failed in .*OutOfMemoryError.*Make the problem smaller"):
        compare({"modest": lambda: gpu.kernel(100e-6), "greedy": greedy}, budget_s=0.2, device=cuda)
    assert gc.isenabled()


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


def test_mps_waits_for_the_gpu_around_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: events.append("wait"))
    sample = MpsDevice().sample(lambda: events.append("call"), 3)
    assert events == ["wait", "call", "call", "call", "wait"]
    assert sample.elapsed_s > 0
    assert (sample.enqueue_s, sample.device_s) == (None, None)


def test_no_garbage_collection_inside_a_timing() -> None:
    seen: list[bool] = []
    assert gc.isenabled()
    Device().sample(lambda: seen.append(gc.isenabled()), 3)
    assert seen == [False] * 3
    assert gc.isenabled()


def test_cpu_peak_memory_of_known_patterns() -> None:
    mib = torch.ones(MIB // 4)
    one_after_the_other, together = (
        Device().peak_memory(case)[0]
        for case in (lambda: [mib.clone().numel() for _ in range(3)], lambda: (mib + 1) * (mib + 2))
    )
    scalars = 64  # bytes that torch takes for the number in `tensor + 1`
    assert MIB <= one_after_the_other <= MIB + scalars
    assert 3 * MIB <= together <= 3 * MIB + scalars
