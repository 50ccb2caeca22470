"""`data_loading`: its cases with real workers, its code to paste and its exercises."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from course_utils import compare
from course_utils.lessons.data_loading.checks import check_share, check_workers
from course_utils.lessons.data_loading.memory import ROW_BYTES, growth_in_a_worker, read_short_of_memory, write_rows
from course_utils.lessons.data_loading.samples import Photographs, write_photographs
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

forked = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone limits what a process allocates")
FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


class Calls(Dataset):
    """Sample i is what a function makes of i."""

    def __init__(self, of: Callable[[int], Any], length: int = 4) -> None:
        self.of, self.length = of, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.of(index)


def workers_left() -> list[psutil.Process]:
    """The loaders' processes below this one, once they have had time to end."""
    gc.collect()  # a traceback keeps its frames, and with them the loader
    children = [each for each in psutil.Process().children(recursive=True) if each.name() == "pt_data_worker"]
    return psutil.wait_procs(children, timeout=5)[1]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_photographs(tmp_path_factory.mktemp("photographs"), 4)


# Photographs


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_every_start_method_loads_the_same_photographs(paths: list[Path], method: str) -> None:
    photographs = Photographs(paths)
    loader = DataLoader(photographs, batch_size=None, num_workers=1, multiprocessing_context=method, timeout=120)
    assert all(torch.equal(sample, photographs[index]) for index, sample in enumerate(loader))


# Memory


@forked
def test_a_forked_worker_copies_python_objects_and_no_array() -> None:
    texts = [f"{number:0100d}" for number in range(50_000)]
    array = np.array(texts, dtype="S")
    grown = growth_in_a_worker({"array": array, "tensor": torch.from_numpy(array.view(np.uint8)), "list": texts})
    assert grown["list"] > 5 * 2**20
    assert max(grown["array"], grown["tensor"]) < 2**20


@on_linux
def test_a_file_larger_than_the_memory_limit_arrives_whole_where_it_is_mapped(tmp_path: Path) -> None:
    written = write_rows(tmp_path / "rows", 128)
    room = 64 * ROW_BYTES
    assert read_short_of_memory(tmp_path / "rows", room, "mapped", workers=2) == written
    assert "Unable to allocate" in str(read_short_of_memory(tmp_path / "rows", room, "whole"))


# Workers end


def test_kept_workers_end_with_their_loader() -> None:
    def cases() -> dict[str, Any]:
        loaders = [
            DataLoader(TensorDataset(torch.zeros(8)), 4, num_workers=workers, persistent_workers=workers > 0)
            for workers in (0, 1)
        ]
        return {f"{loader.num_workers} workers": partial(list, loader) for loader in loaders}

    compare(cases(), budget_s=0.1, memory=False)
    assert not workers_left()


def _cut_off(path: Path, index: int) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))[:index]


@forked
def test_the_error_of_a_broken_file_does_not_name_it(paths: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    whole = paths[0].read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match="Caught OSError in DataLoader worker process 0") as raised:
        list(DataLoader(Calls(partial(_cut_off, broken), 1), **FORK))
    assert "image file is truncated" in str(raised.value)
    assert broken.name not in str(raised.value)


# Code to paste


def test_a_watched_loader_tells_of_a_break_and_of_no_batch(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = [cell for cell in pasted() if "def watched" in cell]
    names: dict[str, Any] = {}
    exec(source, names)
    assert capsys.readouterr().out.startswith("16 batches")
    for _ in names["watched"]([1, 2, 3]):
        break
    assert capsys.readouterr().out.startswith("1 batches")
    assert list(names["watched"]([])) == []
    assert capsys.readouterr().out.startswith("0 batches")


def test_the_numbers_to_time_are_those_of_the_loader_and_of_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = [cell for cell in pasted() if "Timer" in cell]
    slow = source.replace("torch.randn(2048, 256), batch_size=64", "Late(), batch_size=1").replace("@ batch.T", "* 2")
    exec(slow, {"Late": lambda: Calls(lambda index: time.sleep(0.005) or torch.zeros(2), 23)})
    load_ms, _, step_ms = map(float, re.findall(r"([\d.e+-]+) ms", capsys.readouterr().out))
    assert load_ms > 4
    assert load_ms > step_ms


@pytest.mark.parametrize(
    ("load_ms", "price_ms", "step_ms", "workers"), [(1, 2, 0.1, "no"), (3, 2, 9, 1), (50, 2, 0.1, os.cpu_count())]
)
def test_workers_are_advised_where_a_batch_costs_more_than_to_send_it(
    load_ms: float, price_ms: float, step_ms: float, workers: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    times_ms = {"next(batches)": load_ms, "next(sent)": price_ms, "step()": step_ms}
    timer = lambda call, **_: SimpleNamespace(timeit=lambda _: SimpleNamespace(mean=times_ms[call] / 1e3))  # noqa: E731
    monkeypatch.setattr("torch.utils.benchmark.Timer", timer)
    (source,) = [cell for cell in pasted() if "Timer" in cell]
    exec(source, {})
    assert capsys.readouterr().out.endswith(f": {workers} workers\n")


def pasted() -> list[str]:
    """The lesson's cells to paste."""
    cells = read_notebook(find_lesson("data_loading").path)["cells"]
    return [cell["source"] for cell in cells if "standalone" in cell["metadata"].get("tags", [])]


# The exercises


def in_blocks(shards: list[str], worker: Any) -> Any:
    if worker is None:
        return iter(shards)
    return (shards[int(at)] for at in np.array_split(range(len(shards)), worker.num_workers)[worker.id])


def test_other_right_answers_are_right() -> None:
    assert check_share(in_blocks).outcome == "right"
    assert check_workers(lambda load, step, cores: np.array(_by_trying(load, step, cores))).outcome == "right"


def _by_trying(load: float, step: float, cores: int) -> tuple[int, float]:
    workers = next((n for n in range(1, cores) if load / n <= step), cores)
    return workers, max(load / workers, step)


def test_a_worker_may_shuffle_its_own_share() -> None:
    def split_then_shuffled(shards: list[str], worker: Any) -> list[str]:
        own = shards[worker.id :: worker.num_workers] if worker else shards
        return random.sample(own, len(own))

    assert check_share(split_then_shuffled).outcome == "right"


def test_an_answer_that_forgets_the_loop_without_workers_hears_of_it() -> None:
    words = check_share(lambda shards, worker: shards[worker.id :: worker.num_workers]).words
    assert "get_worker_info() returns None" in words
