"""The program's side of run_ranks, without any launcher."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from course_utils.ranks import programs
from course_utils.ranks.programs import memory_by_kind, report, timed_rounds


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(programs, "_reported", {})


def test_reports_elsewhere_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    report(loss=torch.tensor([2.0, 1.5]), peak_bytes=8, kinds={"weights": 4}, gap=float("nan"), ok=True)
    assert capsys.readouterr().out.splitlines() == [
        "loss: 2 values, the first 2, the last 1.5",
        "peak_bytes: 8",
        "kinds: weights 4",
        "gap: None",
        "ok: True",
    ]
    monkeypatch.setenv("RANK", "1")
    report(loss=1.0)
    assert capsys.readouterr().out == ""
    for value in (object(), b"bytes", torch.zeros(2, 2)):
        with pytest.raises(TypeError, match=r"report\(\) cannot hand over 'it'"):
            report(it=value)


def test_a_report_that_no_record_could_hold_is_refused_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_RANKS_FOLDER", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    report(loss=1.0)
    with pytest.raises(ValueError, match=r"this rank's report has 100 kB with curve"):
        report(curve=[0.123456] * 10_000)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["values"] == {"loss": 1.0}


def test_rounds_run_in_one_process_and_are_the_same_on_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def order() -> list[str]:
        called: list[str] = []
        seconds = timed_rounds({"a": lambda: called.append("a"), "b": lambda: called.append("b"), "none": None})
        assert [len(seconds[label]) for label in ("a", "b", "none")] == [8, 8, 0]
        return called

    first, second = order(), order()
    assert first == second
    # The first call, two of warm-up and the fewest rounds; the baseline once more each time.
    assert (first.count("a"), first.count("b")) == (1 + 2 * 2 + 2 * 8, 1 + 2 + 8)
    assert capsys.readouterr().out.splitlines()[0] == "rounds: 8 rounds of a, b, none"
    with pytest.raises(ValueError, match="two cases"):
        timed_rounds({"a": list})


def test_all_ranks_come_to_the_same_answer_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, of which the second is the slower one, and has nothing to do in the last case."""
    alone, quick, slow = [1.0, 1.001] * 6, [1.0, 1.002] * 6, [2.0, 2.002] * 6
    ranks = [[quick, quick, alone, quick], [slow, quick, [], slow]]

    def answer(first: int, control: list[float] = slow) -> float:
        seen = [[0.1 * (rank + 1), *series[:-1], control if rank else quick] for rank, series in enumerate(ranks)]
        monkeypatch.setattr(programs, "_from_all_ranks", lambda own: [seen[first], seen[1 - first]])
        return programs._reached(ranks[first], 12, 0.1, 10.0, 0.01)

    # Of the slowest rank's times, the second case and the one that only rank 0 has take half as long.
    assert answer(0) == answer(1) == 0.999
    # A control that strays as far decides nothing, on either rank.
    assert answer(0, control=alone) == answer(1, control=alone) == 0.0


def test_memory_by_kind_counts_each_storage_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.BatchNorm1d(8))
    model.append(torch.nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    # What Adam holds; making a real one would import half of torch's compiler.
    optimizer = SimpleNamespace(state={})
    assert memory_by_kind(model, optimizer)["optimizer state"] == 0
    model(torch.randn(4, 8)).sum().backward()
    for parameter in model.parameters():
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    parameters = (64 + 8 + 8) * 4
    assert memory_by_kind(model, optimizer) == {
        "weights": parameters + 8 * 4 * 2 + 8,
        "gradients": parameters,
        # Two moments for each parameter, and a count of the steps for each of the three.
        "optimizer state": 2 * parameters + 3 * 4,
    }
