"""`data_loading`: its photographs with real workers, and its code to paste."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from course_utils.lessons.data_loading.samples import Photographs, write_photographs
from tests.lessons.pasted import pasted, source

forked = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_photographs(str(tmp_path_factory.mktemp("photographs")), 4)


def test_a_worker_that_is_not_forked_loads_the_same_photographs(paths: list[Path]) -> None:
    photographs = Photographs(paths)
    loader = DataLoader(photographs, batch_size=None, num_workers=1, multiprocessing_context="spawn", timeout=120)
    assert all(torch.equal(sample, photographs[index]) for index, sample in enumerate(loader))


def test_unequal_photographs_are_as_late_on_average(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("course_utils.lessons.data_loading.samples.time.sleep", waits.append)
    unequal = Photographs(paths, wait_s=0.005, length=40, late_s=0.200)
    for index in range(len(unequal)):
        unequal[index]
    assert np.mean(waits) == pytest.approx(0.015)


@forked
def test_the_error_of_a_broken_file_does_not_name_it(paths: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(paths[0].read_bytes()[:2000])
    loader = DataLoader(Photographs([broken]), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(OSError, match="Caught OSError in DataLoader worker process 0") as raised:
        list(loader)
    assert "image file is truncated" in str(raised.value)
    assert broken.name not in str(raised.value)


# Code to paste


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_cores_are_counted_by_affinity_and_by_a_quota(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert pasted("data_loading", "cores")["cores"](tmp_path) == cores


@forked
def test_the_race_takes_no_worker_for_rows_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    names = pasted("data_loading", "yours", "cores", "pace")
    rows = TensorDataset(torch.ones(20, 2))
    names |= {
        "load": lambda n: DataLoader(
            rows, num_workers=n, persistent_workers=n > 0, multiprocessing_context="fork" if n else None
        ),
        "step": lambda batch: time.sleep(0.003),
        "cores": lambda: 2,
    }
    for cell in ("numbers", "race"):
        exec(source("data_loading", cell), names)
    assert ": use 0\n" in capsys.readouterr().out
