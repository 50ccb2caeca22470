"""What `on_device_tensors` asks PyTorch and the system, and the cases that it times on a GPU."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lessons.on_device_tensors.gpu_cases import LENGTH, MASKS, same_distribution
from course_utils.lessons.on_device_tensors.private_memory import resident_bytes
from course_utils.lessons.on_device_tensors.two_devices import OPERATIONS, needs_numbers, outcome, waits
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

NOTEBOOK = find_lesson("on_device_tensors").path
MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


def tensors(device: str) -> dict[str, Any]:
    gpu = torch.ones(4, device=device)
    return {"gpu": gpu, "loss": gpu.sum(), "cpu": torch.arange(4.0), "index": torch.tensor([0, 3])}


@pytest.mark.parametrize("line", OPERATIONS)
def test_an_operation_does_what_its_line_does(line: str):
    states = []
    for code in (line, OPERATIONS[line]):
        names = {"torch": torch, **tensors("cpu")}
        result = None if "] = " in line else eval(code, names)
        if result is None:
            exec(code, names)
        states.append((names["gpu"], torch.zeros(()) if result is None else result))
    torch.testing.assert_close(*states)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("gpu + cpu", "raises"), ("gpu + gpu", "runs"), ("gpu * torch.tensor(2.0)", "runs"), ("gpu[index]", "runs")],
)
def test_two_devices_meet(line: str, expected: str):
    assert outcome(line, tensors) == expected


def test_a_line_that_is_wrong_anyway_is_no_answer():
    with pytest.raises(NameError):
        outcome("gpu + nobody", tensors)


def test_an_error_of_another_kind_is_no_answer():
    with pytest.raises(RuntimeError, match="broadcast"):
        outcome("torch.ones(3) + torch.ones(2)", tensors)


@pytest.mark.parametrize(
    "line",
    [
        *("loss.item()", "gpu.cpu()", "gpu.tolist()", "gpu.unique()", "gpu.nonzero()", "gpu.masked_select(gpu > 0)"),
        *("gpu.repeat_interleave(gpu.long())", 'f"{loss:.3f}"', "torch.full((2,), loss)"),
        *("torch.nn.functional.one_hot(gpu.long())", "(gpu * torch.tensor(2.0, requires_grad=True)).sum().backward()"),
    ],
)
def test_what_needs_a_number(line: str):
    assert needs_numbers(line, tensors)


@pytest.mark.parametrize("line", ["gpu * loss", "gpu.repeat_interleave(gpu.long(), output_size=4)", 'f"{loss}"'])
def test_what_runs_without_a_number(line: str):
    assert not needs_numbers(line, tensors)


def test_a_type_that_is_wrong_anyway_needs_no_number():
    with pytest.raises(TypeError):
        needs_numbers("gpu + None", tensors)


@pytest.mark.parametrize(
    ("says", "expected"), [("called a synchronizing CUDA operation", True), ("CUDA out of memory", None)]
)
def test_only_a_wait_is_a_wait(monkeypatch: pytest.MonkeyPatch, says: str, expected: bool | None):
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with nullcontext() if expected else pytest.raises(RuntimeError, match=says):
        assert waits(f"raise RuntimeError({says!r})", lambda device: {}) is expected
    assert modes == ["error", "default"]
    assert not waits("torch.ones(1)", lambda device: {})


class Tied(nn.Module):
    """A tied model with a table that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("angles", torch.arange(4.0), persistent=False)


def compute_angles(model: Any) -> None:
    model.angles = torch.arange(4.0)


@pytest.fixture(scope="module")
def load_large() -> Any:
    (cell,) = (cell for cell in read_notebook(NOTEBOOK)["cells"] if cell["id"] == "load-large-code")
    names: dict[str, Any] = {}
    exec("".join(cell["source"]), names)
    return names["load_large"]


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("weights", [("head.weight", "embedding.weight"), ("head.weight",), ("embedding.weight",)])
def test_a_tied_model_is_loaded(load_large: Any, tmp_path: Path, weights: tuple[str, ...], mmap: bool):
    state = {name: value for name, value in Tied().state_dict().items() if name in weights}
    torch.save(state, tmp_path / "model.pt")
    model = load_large(Tied, tmp_path / "model.pt", "cpu", mmap=mmap, finish=compute_angles)
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, state[weights[0]])
    assert model.angles.tolist() == [0, 1, 2, 3]


def test_a_bare_state_is_read_and_a_forgotten_buffer_raises(load_large: Any, tmp_path: Path):
    torch.save({"model": Tied().state_dict(), "step": 3}, tmp_path / "run.pt")

    def read(path: Path) -> Any:
        return torch.load(path, map_location="cpu")["model"]

    assert load_large(Tied, tmp_path / "run.pt", torch.device("cpu"), read=read, finish=compute_angles).angles[3] == 3
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        load_large(Tied, tmp_path / "run.pt", "cpu", read=read)


@linux
def test_memory_of_its_own_and_of_a_file(tmp_path: Path):
    own = resident_bytes(lambda: torch.ones(32 * MIB, dtype=torch.uint8).clone())
    assert own["peak"] == pytest.approx(64 * MIB, rel=0.1)
    assert own["own"] == pytest.approx(32 * MIB, rel=0.1)
    assert own["file"] < MIB

    torch.save(torch.ones(32 * MIB, dtype=torch.uint8), tmp_path / "ones.pt")

    def mapped() -> Any:
        ones = torch.load(tmp_path / "ones.pt", mmap=True)
        return ones, ones.max()

    file = resident_bytes(mapped)
    assert file["own"] < 4 * MIB
    assert file["file"] == pytest.approx(32 * MIB, rel=0.1)


@linux
def test_a_call_that_fails_says_why():
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
        resident_bytes(lambda: 1 / 0)


def test_all_masks_are_equal(monkeypatch: pytest.MonkeyPatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # pinning needs a GPU
    lengths = torch.tensor([[40], [LENGTH]])
    masks = [make(lengths, lengths, torch.arange(LENGTH)) for make in MASKS.values()]
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    assert masks[0].sum(1).tolist() == [40, LENGTH]


def test_random_numbers_are_compared_by_their_distribution():
    same_distribution(torch.rand(1000), torch.rand(1000))
    with pytest.raises(AssertionError):
        same_distribution(torch.rand(1000), 2 * torch.rand(1000))
    with pytest.raises(AssertionError):
        same_distribution(torch.rand(1000), torch.rand(1000, dtype=torch.float64))
