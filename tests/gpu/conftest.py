"""Tests that need a CUDA GPU. Without one each is skipped by name, and says what it waits for.

On a machine with a GPU: ``python -m pytest -m gpu``. They always run at full size.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from course_utils.measure import ceilings as limits
from course_utils.measure.devices import CudaDevice
from course_utils.results.ceilings import Ceilings

_REASON = (
    f"needs a CUDA device, and torch {torch.__version__} sees none here; "
    "on a machine with one run `python -m pytest -m gpu`"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests in this folder, and skips them where there is no GPU."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.serial)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason=_REASON))


@pytest.fixture(autouse=True)
def full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' default is the smoke size, which says nothing about a GPU."""
    monkeypatch.setenv("COURSE_SIZE", "full")


@pytest.fixture
def device() -> CudaDevice:
    return CudaDevice()


@pytest.fixture(scope="session")
def full_ceilings() -> Ceilings:
    """This GPU's ceilings at full size, measured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_SIZE", "full")
        limits._measured.cache_clear()
        return limits.ceilings()
