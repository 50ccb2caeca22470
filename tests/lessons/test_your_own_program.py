"""`your_own_program`: each reader's first entry names the cause that we planted, and healthy twins have no entry."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from authoring.lesson_files import load_lessons
from course_utils import diagnose, read_snapshot, read_trace
from course_utils.lessons.memory_snapshots import cases as snapshots
from course_utils.lessons.your_own_program import cases, planted
from course_utils.materials.h100_step import h100_steps
from course_utils.records.lessons import find_lesson
from course_utils.show.advice import Advice
from tests.own_clock import own_clock

__all__ = ["own_clock"]

NOTEBOOK = find_lesson("your_own_program").path


def _pasted(name: str) -> Callable[..., Any]:
    """A function of the lesson's cells to paste."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if "standalone" in cell["metadata"].get("tags", []) and re.search(rf"def {name}\b", source):
            pasted: dict[str, Any] = {}
            exec(source, pasted)
            return pasted[name]
    raise LookupError(name)


def _published(name: str) -> Any:
    return next(row for lesson in load_lessons() for row in lesson.published if row.id == name)


@pytest.fixture
def anomaly_detection() -> Iterator[None]:
    planted.debugging_helpers()
    yield
    torch.autograd.set_detect_anomaly(False)


@pytest.fixture
def enough_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A diagnosis takes the time that it is given, in one thread, as in the lesson."""
    monkeypatch.setenv("COURSE_SIZE", "smoke")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _step(fused: bool = False) -> Callable[[], torch.Tensor]:
    """The lesson's step."""
    (model, optimizer), (tokens, targets), losses = cases.build("cpu", fused), cases.batch("cpu"), []

    def step() -> torch.Tensor:
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        return loss

    return step


def _trace(wait_s: float, folder: Path) -> Path:
    path = folder / f"{wait_s}.json.gz"
    batches, train_step = cases.repeated(cases.loader(wait_s)), cases.train_step("cpu")
    _pasted("record_trace")(batches, train_step, str(path), wait=1, warmup=1, steps=4)
    return path


def _snapshot(keep: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> Path:
    path = folder / f"{keep.__name__}.pickle"
    with snapshots.memory_history("cpu") as dump:
        kept = cases.training("cpu", keep)()
        dump(str(path))
    assert len(kept) == cases.STEPS
    return path


def _row(keep: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> dict[str, Any]:
    return cases.memory_row(keep.__name__, pickle.loads(_snapshot(keep, folder).read_bytes()))


# What is planted is found, and nothing else


@pytest.mark.usefixtures("anomaly_detection", "enough_time", "own_clock")
def test_the_switch_that_is_left_on_is_the_first_entry_of_a_step() -> None:
    first = diagnose(_step(), budget_s=9).card().plan[0]
    assert "anomaly" in first.change
    assert first.known == "tried"
    assert torch.is_anomaly_enabled()  # put back as it was


@pytest.mark.usefixtures("enough_time", "own_clock")
def test_a_healthy_step_has_no_entry() -> None:
    assert diagnose(_step(fused=True), budget_s=6).card().plan == ()


@pytest.mark.usefixtures("enough_time")
def test_the_wait_for_files_is_the_first_entry_of_a_trace_and_its_bound(tmp_path: Path) -> None:
    path = _trace(cases.WAIT_S, tmp_path)
    first = read_trace(path).card().plan[0]
    assert (first.lesson, first.known) == ("data_loading", "at most")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    starts = sorted(e["ts"] for e in events if e["name"].startswith("ProfilerStep#") and e["ph"] == "X")
    # Each step waits once, and longer where the machine is busy; the last step's end is not counted here.
    assert 0.75 * cases.WAIT_S * 1e6 * (len(starts) - 1) / (starts[-1] - starts[0]) < first.saves < 1


@pytest.mark.serial
@pytest.mark.usefixtures("enough_time")
def test_a_loop_with_its_files_at_hand_has_no_entry(tmp_path: Path) -> None:
    assert read_trace(_trace(0, tmp_path)).card().plan == ()


def test_what_is_kept_from_step_to_step_is_the_first_entry_of_a_snapshot(tmp_path: Path) -> None:
    first = read_snapshot(_snapshot(planted.all_logits, tmp_path)).card().plan[0]
    assert first.lesson == "memory_snapshots"
    assert "keeps" in first.change
    planted_row, mended = (_row(keep, tmp_path) for keep in (planted.all_logits, planted.most_likely))
    # The simulation frees what each step leaves, which the mended program never makes.
    assert first.saves == pytest.approx(1 - mended["reserved at most"] / planted_row["reserved at most"], abs=0.1)


def test_a_training_that_keeps_next_to_nothing_has_no_entry(tmp_path: Path) -> None:
    assert read_snapshot(_snapshot(planted.most_likely, tmp_path)).card().plan == ()


def test_the_published_plan_is_that_of_the_stored_steps() -> None:
    steps, row = h100_steps(), _published("modded_nanogpt_plan")
    hidden = steps.changes_s("overlapped_s")
    for name, parity in (("odd", 1), ("even", 0)):
        before = [step for step in steps.before if step.number % 2 == parity]
        share = sum(step.exposed_s for step in before) / sum(step.span_s for step in before)
        assert row.values[f"bound_{name}_percent"] == pytest.approx(100 * share, abs=0.001)
        more = statistics.fmean(1e6 * hidden[step.number] for step in before)
        assert row.values[f"hidden_{name}_us"] == pytest.approx(more, abs=0.05)
    for when in ("before", "after"):
        assert row.values[f"runs_{when}_s"] == pytest.approx(statistics.fmean(steps.runs[f"{when}_s"]), abs=1e-4)


# The programs


def test_the_planted_and_the_mended_step_give_the_same_losses() -> None:
    ways = [cases.step(True, "cpu"), cases.step(False, "cpu"), cases.step(False, "cpu", fused=True)]
    losses = [[way().item() for _ in range(3)] for way in ways]
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)
    assert losses[0][0] != losses[0][2]  # it trains


def test_workers_bring_the_files_that_come_without() -> None:
    alone, together, at_once = (list(cases.loader(wait, n)) for wait, n in ((0.001, 0), (0.001, 2), (0, 0)))
    assert len(alone) == cases.FILES
    for others in (together, at_once):
        assert all(all(map(torch.equal, *pair)) for pair in zip(alone, others, strict=True))


def test_a_training_holds_what_it_keeps(tmp_path: Path) -> None:
    rows = [_row(keep, tmp_path) for keep in (planted.all_logits, planted.most_likely)]
    batch, length = snapshots.sizes()
    kept = cases.STEPS * batch * length * snapshots.PAIRS * 4
    assert rows[0]["at its end"] - rows[1]["at its end"] == pytest.approx(kept, rel=0.01)
    assert rows[0]["reserved at most"] > rows[1]["reserved at most"]


def test_what_was_there_before_counts_as_reserved() -> None:
    """20 were reserved before the history, 30 more in it, of which 10 went."""
    entries = [("segment_alloc", 30), ("alloc", 5), ("segment_free", 10)]
    segment = {"device": 0, "total_size": 40, "allocated_size": 5}
    snapshot = {
        "device_traces": [[{"action": action, "size": size} for action, size in entries]],
        "segments": [segment, {"device": 1, "total_size": 99, "allocated_size": 9}],
    }
    assert cases.memory_row("a", snapshot) == {"training": "a", "reserved at most": 50, "at its end": 5}


def test_what_was_said_stands_beside_what_came_out() -> None:
    assert cases.said_row("a step", (), 0.1)["first entry"] == "none"
    first = Advice("compile it", "It waits.", "torch_compile", 0.2)
    assert cases.said_row("a step", (first,), 0.1) == {
        "program": "a step", "said": "at most 20%", "came out": 0.1, "first entry": "compile it",
    }  # fmt: skip
    assert cases.said_row("a step", (dataclasses.replace(first, saves=None),), 0.1)["said"] == "no number"


def test_a_trace_of_too_few_batches_is_an_error(tmp_path: Path) -> None:
    batches, path = list(cases.loader(wait_s=0)), tmp_path / "trace.json.gz"
    train_step, record_trace = cases.train_step("cpu"), _pasted("record_trace")
    with pytest.raises(StopIteration):
        record_trace(iter(batches), train_step, str(path))
    assert not path.exists()
    record_trace(iter(batches), train_step, str(path), wait=1, warmup=1, steps=4)
    assert path.exists()


def test_what_was_recorded_is_counted_by_the_cell_to_paste(tmp_path: Path) -> None:
    what_is_in = _pasted("what_is_in")
    assert what_is_in(_trace(0, tmp_path)) == {"steps": 4, "of the GPU": 0}
    path = _snapshot(planted.most_likely, tmp_path)
    entries = len(pickle.loads(path.read_bytes())["device_traces"][0])
    assert what_is_in(path) == {"entries of the history": entries}
