"""The ceilings: for real once, and what they would measure on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from course_utils.measure import ceilings as limits
from course_utils.measure.devices import Device, Sample
from course_utils.measure.machine import environment
from course_utils.results.ceilings import Ceilings


@pytest.fixture(scope="session")
def real() -> Ceilings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_SIZE", "test")
        return limits.ceilings()


class _Looking(Device):
    """Times nothing, and looks at the tensors that the work is done on."""

    def __init__(self, kind: str = "cpu") -> None:
        self.kind = kind
        self.tensors: dict[Callable[[], Any], list[torch.Tensor]] = {}

    def sample(self, fn: Callable[[], Any], calls: int, cache: str) -> Sample:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
        self.tensors[fn] = [value for value in cells if isinstance(value, torch.Tensor)]
        return Sample(1e-3)


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """The ceilings are measured anew, and what other tests measured stays away from it."""
    limits._measured.cache_clear()
    yield
    limits._measured.cache_clear()


def test_ceilings_of_this_machine(real: Ceilings) -> None:
    names = [entry.name for entry in real]
    assert {"copy", "matmul float32", "matmul bfloat16", "launch"} <= set(names)
    assert len(names) == len(set(names))
    assert all(entry.value > 0 and min(entry.samples_s) > 0 for entry in real)
    assert real.environment.machine == environment().machine


def test_a_named_question_is_kept_while_a_lesson_is_recorded(
    real: Ceilings, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_SIZE", "test")
    monkeypatch.setenv("COURSE_RECORD_TO", str(tmp_path))
    limits.ceilings()
    assert list(tmp_path.iterdir()) == []
    limits.ceilings(name="tiny/ceilings")
    assert [file.name for file in tmp_path.iterdir()] == ["tiny__ceilings.json"]


def test_rates_are_measured_on_random_data(unmeasured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Looking()
    monkeypatch.setattr(limits, "device_under_test", lambda on: device)
    monkeypatch.setattr(Device, "cache_bytes", lambda self: 2**18)
    result = limits.ceilings()
    inputs = [tensors for tensors in device.tensors.values() if tensors and tensors[0].numel() > 1]
    assert len(inputs) == len(result.entries) - 1  # all but the launch of a tiny operation
    for tensors in inputs:
        # A product also has a target, whose memory holds whatever was there before.
        normal = [t for t in map(torch.Tensor.float, tensors) if abs(t.std() - 1) < 0.05 and abs(t.mean()) < 0.05]
        assert len(normal) >= 2, "an input is not random"
    copied = inputs[0][0]
    assert copied.nbytes == 4 * 2**18 == result.parameters["copy_bytes"]
    assert result["copy"].work == 2 * copied.nbytes  # read and written
    assert result["copy"].value == pytest.approx(2 * copied.nbytes / 1e-3)
    assert result["matmul float32"].work == 2 * 1024**3


@pytest.mark.parametrize("tf32", [False, True])
def test_a_matrix_product_runs_under_its_own_precision_and_puts_it_back(
    monkeypatch: pytest.MonkeyPatch, tf32: bool
) -> None:
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    seen: list[str] = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *a, **k: (seen.append(switch.fp32_precision), product(*a, **k))[1])
    limits._matmul(16, torch.float32, "cpu", tf32=tf32)()
    assert seen == ["tf32" if tf32 else "ieee"]
    assert switch.fp32_precision == before
