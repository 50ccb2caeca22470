"""`your_own_program`: a trace names the planted wait for files, its programs agree, and what to paste works."""

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
from own_program import read_trace

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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the lesson: two would wait for each other on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _step() -> Callable[[torch.Tensor], None]:
    """The lesson's step."""
    (model, optimizer), losses = cases.build(fused=False), []

    def step(batch: torch.Tensor) -> None:
        logits = model(batch[:, :-1]).flatten(0, 1)
        loss = functional.cross_entropy(logits, batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    return step


def test_the_wait_for_files_is_the_first_entry_of_a_trace_and_its_bound(tmp_path: Path) -> None:
    path, wait_s = tmp_path / "trace.json.gz", 0.2  # longer than the rest of a step on a busy machine
    _pasted("record_trace")(cases.loader(wait_s=wait_s), _step(), str(path), steps=4)
    first = read_trace(path).card().plan[0]
    assert (first.lesson, first.known) == ("data_loading", "at most")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    starts = sorted(e["ts"] for e in events if e["name"].startswith("ProfilerStep#") and e["ph"] == "X")
    # Each step waits once, and longer where the machine is busy; the last step's end is not counted here.
    assert 0.75 * wait_s * 1e6 * (len(starts) - 1) / (starts[-1] - starts[0]) < first.saves < 1


def test_a_loop_over_tokens_is_seen_in_the_calls() -> None:
    net, x, valid = planted.Tagger(one_by_one=True), torch.ones(50, 64), torch.ones(50, dtype=torch.bool)
    called = dict(_pasted("most_called")(lambda: net(x, valid), most=5))
    assert called["aten::select"] == 100  # of the tokens, and of what says which are valid
    net.one_by_one = False
    assert max(count for _, count in _pasted("most_called")(lambda: net(x, valid))) < 50


def test_the_program_gives_the_same_losses_planted_and_mended() -> None:
    ways = [cases.steps(), cases.steps(mended=True, read=False), cases.steps(workers=2), cases.steps(fused=True)]
    losses = [[way().item() for _ in range(2)] for way in ways]
    assert losses[0] == losses[1] == losses[2]
    assert losses[0] == pytest.approx(losses[3], rel=1e-5)
    assert losses[0][0] != losses[0][1]  # it trains


def test_a_trace_of_too_few_batches_is_no_file(tmp_path: Path) -> None:
    path, record_trace = tmp_path / "trace.json.gz", _pasted("record_trace")
    record_trace(list(cases.loader(wait_s=0))[:6], _step(), str(path))
    assert not path.exists()
