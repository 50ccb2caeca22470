"""The ceilings: for real once, and under which precision a product runs."""

from __future__ import annotations

import pytest
import torch

from course_utils.measure import ceilings as limits


def test_ceilings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_SIZE", "test")
    real = limits.ceilings()
    names = [entry.name for entry in real]
    assert {"copy", "matmul float32", "matmul bfloat16", "launch"} <= set(names)
    assert real["copy"].work == 2 * real.parameters["copy_bytes"]  # read and written
    assert real["copy"].value == pytest.approx(real["copy"].work / min(real["copy"].samples_s))
    assert all(entry.value > 0 and min(entry.samples_s) > 0 for entry in real)


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
