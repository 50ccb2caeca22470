"""The program's side of run_ranks, without any launcher."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_utils.ranks import programs
from course_utils.ranks.programs import memory_by_kind, report, timed_rounds


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(programs, "_waiting", None)
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
    with pytest.raises(ValueError, match=r"this rank's report has 100 kB.*'curve' alone takes 100 kB"):
        report(curve=[0.123456] * 10_000)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["values"] == {"loss": 1.0}
    # A lesson with three runs of two ranks at the limit stays below what a record should have.
    assert 3 * 2 * programs.MOST_REPORT_BYTES < 200_000


def test_rounds_run_in_one_process_and_are_the_same_on_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def order(seed: int) -> list[str]:
        called: list[str] = []
        seconds = timed_rounds(
            {"a": lambda: called.append("a"), "b": lambda: called.append("b"), "none": None},
            rounds=24,
            warmup=1,
            seed=seed,
        )
        assert [len(seconds[label]) for label in ("a", "b", "none")] == [24, 24, 0]
        assert min(seconds["a"]) > 0
        return called

    one, same, other = order(0), order(0), order(1)
    assert one == same != other
    # The first call, the warm-up and the rounds; the baseline once more each time.
    assert (one.count("a"), one.count("b")) == (1 + 2 + 2 * 24, 1 + 1 + 24)
    assert capsys.readouterr().out.splitlines()[0] == "rounds: 24 rounds of a, b, none"
    for wrong in ({"cases": {"a": len}}, {"rounds": 0}, {"items": {"a": 1}}):
        with pytest.raises(ValueError, match=r"two cases|items="):
            timed_rounds(**{"cases": {"a": list, "b": list}, **wrong})


def test_ranks_wait_on_the_cpu_so_that_their_gpus_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real process group; that it has two ranks on NCCL is only said."""
    done: list[str] = []
    monkeypatch.setattr(programs, "_synchronize", lambda: done.append("device"))
    all_reduce = dist.all_reduce

    def noting(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
        done.append(f"{real_backend(group)} on {tensor.device}")
        all_reduce(tensor, group=group)

    real_backend = dist.get_backend
    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert len(timed_rounds({"a": list, "b": list}, rounds=2)["b"]) == 2
        assert programs._waiting is None  # one rank has nobody to wait for
        done.clear()
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
        monkeypatch.setattr(dist, "all_reduce", noting)
        timed_rounds({"a": None, "b": None}, rounds=1, warmup=0)
        (_, group), before = programs._waiting, len(done)
        timed_rounds({"a": None, "b": None}, rounds=1, warmup=0)
    finally:
        dist.destroy_process_group()
    # The device is idle before the others are waited for; the group is made once.
    assert done == ["device", "gloo on cpu"] * 10
    assert before == 10
    assert group is programs._waiting[1]


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
