"""What `loading_large_models` hands out for pasting, on models of several kinds, and what it asks the system."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lessons.loading_large_models import cases
from course_utils.lessons.loading_large_models.checks import TiedLlama
from course_utils.lessons.loading_large_models.fresh_process import staged
from course_utils.materials.models import GPT
from tests.lessons import pasted as pasting

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


class Truncated(nn.Module):
    """Draws by trunc_normal_, holds running statistics, a shared table, extra state, a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4))
        nn.init.trunc_normal_(self.weight)
        self.norm, self.scale = nn.BatchNorm1d(4), torch.arange(4.0)
        self.register_buffer("one", torch.ones(2), persistent=False)
        self.register_buffer("two", self.one, persistent=False)

    def get_extra_state(self) -> dict[str, int]:
        return {}

    def set_extra_state(self, state: dict[str, int]) -> None: ...


MODELS = {
    "tied": lambda: GPT(width=32, layers=1),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2),
    "statistics": Truncated,
}


@pytest.fixture(scope="module")
def pasted() -> dict[str, Any]:
    return pasting.pasted("loading_large_models", "no-drawing", "load-large", "check-loaded")


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_any_model_is_loaded_whole(pasted: dict[str, Any], tmp_path: Path, capsys: Any, make: Any):
    saved = make()
    torch.save(saved.state_dict(), tmp_path / "model.pt")
    with pasted["no_drawing"]():
        fresh, built = make(), make()
    model = pasted["load_large"](built, torch.load(tmp_path / "model.pt", mmap=True))
    for kind in ("named_parameters", "named_buffers"):
        loaded, expected = dict(getattr(model, kind)()), dict(getattr(saved, kind)())
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in loaded.items())
    assert nn.Linear(64, 64).weight.any()  # weights are drawn again
    pasted["check_loaded"](model, fresh, torch.load(tmp_path / "model.pt"))
    pasted["check_loaded"](model.bfloat16(), fresh.bfloat16(), torch.load(tmp_path / "model.pt"))
    assert not capsys.readouterr().out


def test_a_weight_too_few_is_an_error(pasted: dict[str, Any]):
    with pytest.raises(RuntimeError, match="Missing key"):
        pasted["load_large"](nn.Linear(2, 2), {})


def test_what_is_wrong_is_named(pasted: dict[str, Any], capsys: Any):
    state, fresh = TiedLlama().state_dict(), TiedLlama()
    with torch.device("meta"):
        assigned, never_loaded, emptied = TiedLlama(), TiedLlama(), TiedLlama()
    assigned.load_state_dict(dict(state), assign=True)  # a dictionary of its own: this one remembers `assign`
    emptied.to_empty(device="cpu")
    emptied.tie_weights()
    emptied.turns.fill_(float("nan"))
    emptied.load_state_dict(state)

    def said(model: nn.Module) -> set[str]:
        pasted["check_loaded"](model, fresh, state)
        return set(capsys.readouterr().out.splitlines())

    assert said(assigned) == {"turns: torch.complex64 on meta", "tied weights: no longer tied"}
    assert said(emptied) == {"turns: other numbers"}
    emptied.reset_buffers()
    assert not said(emptied)
    emptied.turns *= 1 + 1e-4
    emptied.norm.weight.data *= 1 + 5e-7  # what a file holds has no slack
    assert said(emptied) == {"turns: other numbers", "norm.weight: other numbers"}
    emptied.reset_buffers()
    assert {"turns: torch.complex64 on meta", "head.weight: torch.float32 on meta"} < said(never_loaded)
    assert {"head.weight: other numbers"} < said(TiedLlama())
    emptied.norm.bfloat16()
    assert said(emptied) == {"norm.weight: torch.bfloat16 on cpu"}


def test_nothing_is_drawn_as_in_the_lesson(pasted: dict[str, Any]):
    for context in (pasted["no_drawing"], cases.no_drawing):
        before = torch.get_rng_state()
        with context():
            MODELS["tied"](), Truncated(), MODELS["attention"]()
            assert torch.equal(nn.init.ones_(torch.empty(4)), torch.ones(4))  # what is not random is done
        assert torch.equal(torch.get_rng_state(), before)


def fill(done: Any) -> tuple[Any, float]:
    ones = torch.ones(32 * MIB, dtype=torch.uint8)
    ones.clone()
    done("filled")
    return ones, 1.0


def assigned(path: Path, done: Any) -> tuple[Any, float]:
    with cases.no_drawing():
        model = nn.Linear(2048, 4096)
    model.load_state_dict(torch.load(path, mmap=True), assign=True)
    return model, float(model.weight.max())


@linux
def test_memory_of_its_own_and_of_a_file(tmp_path: Path):
    run = staged(fill)
    assert run["own memory"] == pytest.approx(64 * MIB, rel=0.1)
    assert run["filled"] > 0
    torch.save(nn.Linear(2048, 4096).state_dict(), tmp_path / "model.pt")
    run = staged(partial(assigned, tmp_path / "model.pt"))
    assert run["own memory"] < 4 * MIB
    assert 32 * MIB <= run["file in use"] < 64 * MIB  # with pages of code


def test_a_full_disk_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch):
    full = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(cases.shutil, "disk_usage", lambda folder: full)
    with pytest.raises(RuntimeError, match=r"needs 0\.0\d GiB.*set TMPDIR"), cases.checkpoint():
        raise AssertionError("unreachable")


@linux
def test_a_file_that_is_mapped_and_written_again_is_a_bus_error(tmp_path: Path):
    code = f"""
import torch
path = {str(tmp_path / "model.pt")!r}
torch.save(torch.nn.Linear(2048, 2048).state_dict(), path)
weights = torch.load(path, mmap=True)
torch.save(weights, path)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -7
