"""What `on_device_tensors` asks PyTorch, the copies that it shows, and its cell to paste."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from course_utils.lessons.on_device_tensors.cases import OPERATIONS, outcome
from course_utils.lessons.on_device_tensors.pictures import copies
from tests.lessons.pasted import pasted


def crossings() -> Any:
    """The mode that two cells of the notebook define."""
    return pasted("on_device_tensors", "crosses", "crossings")["Crossings"]()


@pytest.mark.parametrize("line", [*OPERATIONS])
def test_an_operation_does_what_its_line_does(line: str):
    states = []
    for code in (line, OPERATIONS[line]):
        names = {"torch": torch, "gpu": torch.ones(4), "cpu": torch.arange(4.0), "index": torch.tensor([0, 3])}
        result = None if "] = " in line else eval(code, names)
        if result is None:
            exec(code, names)
        states.append((names["gpu"], torch.zeros(()) if result is None else result))
    torch.testing.assert_close(*states)


def test_two_devices_meet():
    lines = "gpu + cpu", "gpu + gpu", "gpu[index]", "gpu.fill_(torch.tensor(5.0))"
    assert [outcome(line) for line in lines] == ["raises", "free", "waits", "free"]


def test_a_line_that_is_wrong_anyway_is_no_answer():
    with pytest.raises(NameError):
        outcome("gpu + nobody")
    with pytest.raises(RuntimeError, match="broadcast"):
        outcome("torch.ones(3) + torch.ones(2)")


def test_python_goes_on_where_a_copy_does_not_block():
    lines, *_, goes_on = (column.cells for column in copies().table.columns)
    assert [answer != "no" for answer in goes_on] == ["non_blocking" in line for line in lines]


def trains() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device="meta")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        (model(torch.ones(2, 3, 8, device="meta")).mean() * torch.tensor(2.0)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        (trains, ""),
        (lambda: there().__setitem__(slice(2), torch.tensor(0.0)), ""),
        (lambda: there().__setitem__(there() > 0, 5), ""),
        (lambda: there().__setitem__(0, there().sum()), ""),
        (lambda: torch.tensor(2.0) * there(), ""),
        (lambda: there()[torch.tensor([0, 3])], "__getitem__ in:"),
        (lambda: there()[[0, 3]], "__getitem__ in:"),
        (lambda: there()[np.array([0, 3])], "__getitem__ in:"),
        (lambda: there().__setitem__(0, 5), "__setitem__ in:"),
        (lambda: there().__setitem__(slice(2), torch.zeros(2)), "__setitem__ in:"),
        (lambda: torch.tensor([2.0], device="meta"), "tensor in:"),
        (lambda: there().new_tensor([2.0]), "new_tensor in:"),
        (lambda: torch.tensor(0.1).to(there().device), "to in:"),
        (lambda: torch.where(there() > 0, torch.tensor(0.0), 1.0), "where in:"),
    ],
)
def test_crossings_lists_what_copies_and_nothing_of_a_step_that_does_not(capsys, step: Any, printed: str):
    with crossings():
        step()
    out = capsys.readouterr().out
    assert (printed in out) if printed else not out


@pytest.mark.parametrize(
    "step", [lambda: there() + torch.ones(4), lambda: there()[there() > 0], lambda: there().item()]
)
def test_what_raises_or_reads_stops_crossings(step: Any):
    with crossings(), pytest.raises(RuntimeError):
        step()


def there() -> torch.Tensor:
    return torch.ones(4, device="meta")
