"""The ceilings: for real once."""

from __future__ import annotations

import pytest
import torch

from course_utils.measure import ceilings as limits


def test_ceilings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_SIZE", "test")
    before = torch.backends.cuda.matmul.fp32_precision
    real = limits.ceilings()
    assert torch.backends.cuda.matmul.fp32_precision == before
    names = [entry.name for entry in real]
    assert {"copy", "matmul float32", "matmul bfloat16", "launch"} <= set(names)
    assert real["copy"].work == 2 * real.parameters["copy_bytes"]  # read and written
    assert real["copy"].value == pytest.approx(real["copy"].work / min(real["copy"].samples_s))
    assert all(entry.value > 0 and min(entry.samples_s) > 0 for entry in real)
