"""What is found out of who worked, with a scripted GPU.

Where lessons run on the played one (``tests/lessons/test_cuda_cells.py``), their results are held against a real GPU's.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course_utils import compare, tabulate
from course_utils.measure import worked_by
from course_utils.measure.devices import CudaDevice
from course_utils.measure.tabulate import curves
from course_utils.memory.allocator import Allocate, simulate_allocator
from tests.played_cuda.scripted import ScriptedCuda


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ScriptedCuda:
    """The GPU of this machine, as far as anybody counts what it did."""
    scripted = ScriptedCuda()
    scripted.install(monkeypatch)
    monkeypatch.setattr(worked_by, "device_kind", lambda: "cuda")
    monkeypatch.setattr(worked_by, "device_under_test", lambda: CudaDevice(api=scripted))
    worked_by.begin_cell()
    return scripted


def table() -> str:
    return tabulate([{"case": "a", "value": 1}]).worked_by


def on_cpu() -> torch.Tensor:
    return torch.ones(8).add_(1)


def test_a_case_worked_on_the_gpu_if_it_took_memory_there_or_queued_work(gpu: ScriptedCuda):
    device = CudaDevice(api=gpu)

    def allocates() -> None:
        gpu.allocate(1024)
        gpu.kernel(1e-4)

    # The second only queues work, as a CUDA graph does.
    for case, expected in ((allocates, "gpu"), (lambda: gpu.kernel(1e-4), "gpu"), (lambda: gpu.host(1e-4), "cpu")):
        result = compare({"one": case, "two": case}, check=False, budget_s=0.05, device=device)
        assert result.worked_by == expected


def test_on_cpu_measures_with_the_cpus_clock_though_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("course_utils.measure.devices.device_kind", lambda: "cuda")
    result = compare({"one": on_cpu, "two": on_cpu}, on="cpu", budget_s=0.05)
    assert (result.clock, result.worked_by) == ("host clock", "cpu")


def test_a_table_is_of_the_gpu_if_the_cell_took_memory_there(gpu: ScriptedCuda):
    assert table() == "cpu"
    gpu.allocate(1024)
    # All that a cell keeps, also what it makes of a measurement before.
    assert (table(), table(), curves({"a": [1.0]}, x="x", y="y").worked_by) == ("gpu", "gpu", "gpu")
    worked_by.begin_cell()
    assert table() == "cpu"
    worked_by.ranks_worked_on_gpus()
    assert table() == "gpu"


def test_what_fake_tensors_gave_was_worked_out_though_they_say_cuda(gpu: ScriptedCuda):
    def fake() -> None:
        with FakeTensorMode():
            torch.empty(4, 4, device="cuda").sum()

    gpu.allocate(1024)
    assert table() == "gpu"
    fake()
    assert (table(), table()) == ("arithmetic", "gpu")
    fake()
    gpu.allocate(1024)
    assert table() == "gpu"


def test_what_the_simulated_allocator_gave_was_simulated_unless_the_gpu_worked_as_well(gpu: ScriptedCuda):
    simulate_allocator([Allocate("a", 2**20)])
    assert (table(), table()) == ("simulation", "simulation")
    gpu.allocate(1024)
    assert table() == "gpu"
    worked_by.begin_cell()
    assert table() == "cpu"
