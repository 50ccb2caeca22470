"""What `on_device_tensors` says about a GPU: which devices mix, and what waits."""

from __future__ import annotations

import pytest

from course_utils import recorded
from course_utils.lessons.on_device_tensors.cases import LINES, outcome, waits

FREE = ("gpu[0].fill_(5)", "gpu[:1] = 5", "m[0] = 5", "gpu[cpu > 0]", "gpu[:2] = torch.tensor(0.0)")
FREE += ("gpu * torch.tensor(2.0)", "torch.full((), 2.0, device='cuda')", "torch.where(gpu > 0, gpu, 0.0)")
FREE += ("gpu[gpu > 0] = 5", "torch.where(gpu > 0, loss, gpu)", "gpu.index_fill_(0, there, 5.0)")
FREE += ("torch.randn_like(gpu)",)
WAITING = ("gpu[index]", "gpu[[0, 3]]", "gpu[:2] = cpu[:2]", "gpu.copy_(cpu)", "cpu[:2] = gpu[:2]", "cpu.to('cuda')")
WAITING += ("torch.tensor([1.0], device='cuda')", "gpu.new_tensor([1.0])", "gpu[index] = torch.tensor(5.0)")
WAITING += ("torch.where(gpu > 0, gpu, torch.tensor(0.0))", "gpu[gpu > 0]", "gpu[gpu > 0] = loss")
WAITING += ("gpu.masked_fill(gpu > 0, loss)", "torch.arange(loss, device='cuda')", "gpu[0] = torch.tensor(0.0)")
eight = recorded("on_device_tensors/mixtures")


@pytest.mark.parametrize("line", [*LINES])
def test_the_lesson_s_lines_do_what_its_card_says(line: str) -> None:
    assert outcome(line) == eight[line]["outcome"]


@pytest.mark.parametrize("line", FREE)
def test_what_the_reference_page_calls_free_does_not_wait(line: str) -> None:
    assert not waits(line)


@pytest.mark.parametrize("line", WAITING)
def test_what_the_reference_page_says_waits_waits(line: str) -> None:
    assert waits(line)
