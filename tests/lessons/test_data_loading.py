"""`data_loading`: its cases with real workers, its code to paste and its exercise."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from course_utils import compare
from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.lessons.data_loading import cases
from course_utils.lessons.data_loading.checks import check_workers
from course_utils.lessons.data_loading.samples import Photographs, write_photographs

forked = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
CELLS = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson("data_loading").path)["cells"]}


class Calls(Dataset):
    """Sample i is what a function makes of i."""

    def __init__(self, of: Callable[[int], Any], length: int = 4) -> None:
        self.of, self.length = of, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.of(index)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_photographs(str(tmp_path_factory.mktemp("photographs")), 4)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_every_start_method_loads_the_same_photographs(paths: list[Path], method: str) -> None:
    photographs = Photographs(paths)
    loader = DataLoader(photographs, batch_size=None, num_workers=1, multiprocessing_context=method, timeout=120)
    assert all(torch.equal(sample, photographs[index]) for index, sample in enumerate(loader))


def test_unequal_photographs_are_as_late_on_average(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "UNEQUAL", 40)
    monkeypatch.setattr(cases, "loader", lambda data, *_, **options: data)
    monkeypatch.setattr(cases, "passes", lambda photographs, _: photographs)
    waits: list[float] = []
    monkeypatch.setattr("course_utils.lessons.data_loading.samples.time.sleep", waits.append)
    for photographs in cases.unequal_cases(paths).values():
        waits.clear()
        list(map(photographs.__getitem__, range(len(photographs))))
        assert np.mean(waits) == pytest.approx(0.015)


def test_every_number_of_workers_passes_as_many_batches(paths: list[Path]) -> None:
    for workers in (0, 2):
        counts = [case() for case in cases.scaling_cases(paths)(workers).values()]
        assert counts == [cases.scaling_batches()] * 2


def test_kept_workers_end_with_their_loader() -> None:
    def ways() -> dict[str, Any]:
        loaders = [cases.loader(TensorDataset(torch.zeros(8)), 4, workers) for workers in (0, 1)]
        return {f"{loader.num_workers} workers": partial(list, loader) for loader in loaders}

    compare(ways(), budget_s=0.1, memory=False)
    gc.collect()  # a traceback keeps its frames, and with them the loader
    children = [each for each in psutil.Process().children(recursive=True) if each.name() == "pt_data_worker"]
    assert not psutil.wait_procs(children, timeout=5)[1]


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
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)
def test_cores_are_counted_by_affinity_and_by_a_quota(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    names: dict[str, Any] = {}
    exec(CELLS["cores"], names)
    assert names["cores"](tmp_path) == cores


@forked
@pytest.mark.parametrize(
    ("sample", "step", "says"),
    [
        (lambda index: torch.ones(2), lambda batch: None, ": use 0\n"),  # cheaper than its price
        (lambda index: time.sleep(0.006) or torch.ones(2), lambda batch: time.sleep(0.005), ": use 2\n"),
        (lambda index: time.sleep(0.004) or {"x": "text"}, lambda batch: time.sleep(0.010), ": use 1\n"),
        (
            lambda index: time.sleep(0.08 if index == 9 else 0.002) or 0,
            lambda batch: time.sleep(0.003),
            " 2 worker(s)\n",
        ),
    ],
)
def test_the_race_advises_what_is_faster(sample: Any, step: Any, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for cell in ("yours", "cores", "pace"):
        exec(CELLS[cell], names)
    context = {"multiprocessing_context": "fork"}
    names |= {
        "load": lambda n: DataLoader(
            Calls(sample, 40), num_workers=n, persistent_workers=n > 0, **context if n else {}
        ),
        "step": step,
        "cores": lambda: 2,
    }
    for cell in ("numbers", "race"):
        exec(CELLS[cell], names)
    assert says in capsys.readouterr().out


# The exercise


def test_other_right_answers_are_right() -> None:
    assert (
        check_workers(lambda load, step, price, cores: np.int64(_by_trying(load, step, price, cores))).outcome
        == "right"
    )


def _by_trying(load: float, step: float, price: float, cores: int) -> int:
    """The fewest workers that nothing beats."""
    times = {n: max(load / n, step + price) if n else load + step for n in range(cores + 1)}
    return min(times, key=times.__getitem__)
