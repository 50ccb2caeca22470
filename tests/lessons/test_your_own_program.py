"""`your_own_program`: what to paste works, and its programs give the same, planted and mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from course_utils.lessons.your_own_program import cases, planted
from tests.lessons.pasted import pasted


def _pasted(name: str) -> Callable[..., Any]:
    return pasted("your_own_program", f"def {name}(")[name]


def _step() -> Callable[[torch.Tensor], None]:
    """The lesson's step."""
    model, optimizer = cases.build(fused=False)

    def step(batch: torch.Tensor) -> None:
        logits = model(batch[:, :-1]).flatten(0, 1)
        functional.cross_entropy(logits, batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_trace_is_recorded_of_whole_steps_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_SIZE", "smoke")
    path, record_trace = tmp_path / "trace.json.gz", _pasted("record_trace")
    record_trace(list(cases.loader(wait_s=0))[:3], _step(), str(path))
    assert not path.exists()  # of too few batches
    record_trace(cases.loader(wait_s=0), _step(), str(path), steps=4)
    assert _pasted("what_is_in")(path) == {"steps": 4, "of the GPU": 0}


def test_a_loop_over_tokens_is_seen_in_the_calls() -> None:
    net, x, valid = planted.Tagger(one_by_one=True), torch.ones(50, 64), torch.ones(50, dtype=torch.bool)
    called = dict(_pasted("most_called")(lambda: net(x, valid), most=5))
    assert called["aten::select"] == 100  # of the tokens, and of what says which are valid
    net.one_by_one = False
    assert max(count for _, count in _pasted("most_called")(lambda: net(x, valid))) < 50


def test_the_program_gives_the_same_losses_planted_and_mended() -> None:
    ways = [cases.steps(), cases.steps(mended=True, read=False), cases.steps(fused=True)]
    losses = [[way().item() for _ in range(3)] for way in ways]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-5)
    assert losses[0][0] != losses[0][2]  # it trains


def test_one_by_one_and_at_once_are_the_same_network() -> None:
    losses = [[step().item() for _ in range(2)] for step in map(cases.tagger_step, (True, False))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
