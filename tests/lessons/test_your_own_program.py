"""Lesson 24: each reader's first entry names the cause that we planted, and healthy twins have no entry."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from course_utils import diagnose, read_snapshot, read_trace
from course_utils.lessons.memory_snapshots import cases as snapshots
from course_utils.lessons.your_own_program import cases, planted

NOTEBOOK = Path(__file__).parents[2] / "notebooks/24_your_own_program.ipynb"


def _pasted(name: str) -> Callable[..., Any]:
    """A function of the lesson's cells to paste."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if "standalone" in cell["metadata"].get("tags", []) and re.search(rf"def {name}\b", source):
            pasted: dict[str, Any] = {}
            exec(source, pasted)
            return pasted[name]
    raise LookupError(name)


@pytest.fixture
def anomaly_detection() -> Iterator[None]:
    planted.debugging_helpers()
    yield
    torch.autograd.set_detect_anomaly(False)


def _trace(kind: type[planted.FromAfar], folder: Path) -> Path:
    path = folder / f"{kind.__name__}.json.gz"
    _pasted("record_trace")(cases.repeated(cases.loader(kind)), cases.train_step("cpu"), str(path))
    return path


def _snapshot(keep: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> Path:
    path = folder / f"{keep.__name__}.pickle"
    with snapshots.memory_history("cpu") as dump:
        kept = cases.training("cpu", keep)()
        dump(str(path))
    assert len(kept) == cases.STEPS
    return path


@pytest.mark.serial
@pytest.mark.usefixtures("anomaly_detection")
def test_the_switch_that_is_left_on_is_the_first_entry_of_a_step() -> None:
    found = diagnose(cases.step("cpu"), budget_s=4)
    assert "anomaly" in found.plan[0].change
    assert found.plan[0].known == "tried"
    assert torch.is_anomaly_enabled()  # put back as it was


@pytest.mark.serial
def test_a_healthy_step_has_no_entry() -> None:
    assert diagnose(cases.step("cpu", fused=True), budget_s=4).plan == ()


@pytest.mark.serial
def test_the_wait_of_the_loader_is_the_first_entry_of_a_trace(tmp_path: Path) -> None:
    first = read_trace(_trace(planted.FromAfar, tmp_path)).plan[0]
    assert (first.lesson, first.known) == ("05_data_loading", "at most")
    # A step waits for its rows, one after another: that much is planted, and no step is all waiting.
    assert 0 < first.saves < 1


@pytest.mark.serial
def test_a_loop_with_its_samples_in_memory_has_no_entry(tmp_path: Path) -> None:
    assert read_trace(_trace(planted.InMemory, tmp_path)).plan == ()


def test_what_is_kept_from_step_to_step_is_the_first_entry_of_a_snapshot(tmp_path: Path) -> None:
    first = read_snapshot(_snapshot(planted.all_logits, tmp_path)).plan[0]
    assert first.lesson == "12_memory_snapshots"
    assert "planted.py" in first.change + first.because


def test_a_training_that_keeps_next_to_nothing_has_no_entry(tmp_path: Path) -> None:
    assert read_snapshot(_snapshot(planted.most_likely, tmp_path)).plan == ()


def test_the_planted_and_the_mended_step_give_the_same_losses() -> None:
    ways = [cases.switched(True, "cpu"), cases.switched(False, "cpu"), cases.switched(False, "cpu", fused=True)]
    losses = [[way().item() for _ in range(3)] for way in ways]
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)
    assert losses[0][0] != losses[0][2]  # it trains


def test_workers_bring_the_batches_that_come_without(tmp_path: Path) -> None:
    alone, together = cases.loader(), cases.loader(workers=2)
    for (tokens, targets), (others, their_targets) in zip(alone, together, strict=True):
        assert torch.equal(tokens, others)
        assert torch.equal(targets, their_targets)
    in_memory = [tokens for tokens, _ in cases.loader(planted.InMemory)]
    assert torch.equal(torch.cat(in_memory), torch.cat([tokens for tokens, _ in alone]))


def test_a_training_reserves_what_its_history_says(tmp_path: Path) -> None:
    rows = [
        cases.memory_row(keep.__name__, pickle.loads(_snapshot(keep, tmp_path).read_bytes()))
        for keep in (planted.all_logits, planted.most_likely)
    ]
    batch, length = snapshots.sizes()
    kept = cases.STEPS * batch * length * snapshots.PAIRS * 4
    assert rows[0]["held at the end"] - rows[1]["held at the end"] == pytest.approx(kept, rel=0.01)
    assert rows[0]["reserved at most"] > rows[1]["reserved at most"]


def test_what_was_recorded_is_counted_by_the_cell_to_paste(tmp_path: Path) -> None:
    is_readable = _pasted("is_readable")
    assert is_readable(_trace(planted.InMemory, tmp_path)) == {"steps": 4, "of the GPU": 0}
    path = _snapshot(planted.most_likely, tmp_path)
    entries = len(pickle.loads(path.read_bytes())["device_traces"][0])
    assert is_readable(path) == {"entries of the history": entries}
