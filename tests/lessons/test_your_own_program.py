"""`your_own_program`: the first entry names a planted cause, a healthy twin has none, and what to paste works."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from course_utils.lessons.your_own_program import cases, planted
from course_utils.results.lessons import find_lesson
from own_program import diagnose, read_trace
from tests.own_clock import own_clock

__all__ = ["own_clock"]

NOTEBOOK = find_lesson("your_own_program").path
REFERENCE = Path(__file__).parents[2] / "book" / "reference" / "your_own_program.md"


def _defined(source: str, name: str) -> Callable[..., Any]:
    pasted: dict[str, Any] = {}
    exec(source, pasted)
    return pasted[name]


def _pasted(name: str) -> Callable[..., Any]:
    """A function of the lesson's cells to paste, or of its reference page."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if "standalone" in cell["metadata"].get("tags", []) and re.search(rf"def {name}\b", source):
            return _defined(source, name)
    blocks = re.findall(r"^```python\n(.*?)^```$", REFERENCE.read_text(encoding="utf-8"), re.M | re.S)
    return _defined(next(block for block in blocks if re.search(rf"def {name}\b", block)), name)


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


def _step(fused: bool = False) -> Callable[[torch.Tensor], None]:
    """The lesson's step."""
    (model, optimizer), losses = cases.build(fused), []

    def step(batch: torch.Tensor) -> None:
        logits = model(batch[:, :-1]).flatten(0, 1)
        loss = functional.cross_entropy(logits, batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    return step


def _trace(wait_s: float, folder: Path) -> Path:
    path = folder / f"{wait_s}.json.gz"
    _pasted("record_trace")(cases.loader(wait_s=wait_s), _step(), str(path), steps=4)
    return path


# What is planted is found, and nothing else


@pytest.mark.usefixtures("anomaly_detection", "enough_time", "own_clock")
def test_the_switch_that_is_left_on_is_the_first_entry_of_a_step() -> None:
    first = diagnose(_step(), data=[next(iter(cases.loader()))], budget_s=9).card().plan[0]
    assert "anomaly" in first.change
    assert first.known == "tried"
    assert torch.is_anomaly_enabled()  # put back as it was


@pytest.mark.usefixtures("enough_time", "own_clock")
def test_a_healthy_step_has_no_entry() -> None:
    batch = next(iter(cases.loader()))
    step = _step(fused=True)
    assert diagnose(lambda: step(batch), budget_s=6).card().plan == ()


@pytest.mark.usefixtures("enough_time")
def test_the_wait_for_files_is_the_first_entry_of_a_trace_and_its_bound(tmp_path: Path) -> None:
    path = _trace(0.02, tmp_path)
    first = read_trace(path).card().plan[0]
    assert (first.lesson, first.known) == ("data_loading", "at most")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    starts = sorted(e["ts"] for e in events if e["name"].startswith("ProfilerStep#") and e["ph"] == "X")
    # Each step waits once, and longer where the machine is busy; the last step's end is not counted here.
    assert 0.75 * 0.02 * 1e6 * (len(starts) - 1) / (starts[-1] - starts[0]) < first.saves < 1


def test_a_loop_over_tokens_is_seen_in_the_calls() -> None:
    net, x, valid = planted.Tagger(one_by_one=True), torch.ones(50, 64), torch.ones(50, dtype=torch.bool)
    called = dict(_pasted("most_called")(lambda: net(x, valid), most=5))
    assert called["aten::select"] == 100  # of the tokens, and of what says which are valid
    net.one_by_one = False
    assert max(count for _, count in _pasted("most_called")(lambda: net(x, valid))) < 50


# The programs


def test_the_program_gives_the_same_losses_planted_and_mended() -> None:
    ways = [cases.steps(), cases.steps(mended=True, read=False), cases.steps(workers=2), cases.steps(fused=True)]
    losses = [[way().item() for _ in range(3)] for way in ways]
    assert losses[0] == losses[1] == losses[2]
    assert losses[0] == pytest.approx(losses[3], rel=1e-5)
    assert losses[0][0] != losses[0][2]  # it trains


# What to paste


def test_a_trace_of_too_few_batches_is_no_file(tmp_path: Path) -> None:
    path, record_trace = tmp_path / "trace.json.gz", _pasted("record_trace")
    record_trace(list(cases.loader(wait_s=0))[:6], _step(), str(path))
    assert not path.exists()
