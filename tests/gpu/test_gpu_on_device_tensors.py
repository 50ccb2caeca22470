"""What `on_device_tensors` says about a GPU: which devices mix, and what waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

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


def _outcomes() -> dict[str, str]:
    """The lesson's mixtures of a CPU tensor and a CUDA tensor: permitted or refused."""
    cpu, gpu = torch.ones(4), torch.ones(4, device="cuda:0")
    scalar, index = torch.tensor(2.0), torch.tensor([0, 3])
    mixtures: dict[str, Callable[[], torch.Tensor]] = {
        "add": lambda: gpu + cpu,
        "CPU scalar": lambda: gpu * scalar,
        "GPU scalar": lambda: cpu * gpu.sum(),
        "dot": lambda: gpu @ cpu,
        "cat": lambda: torch.cat([gpu, cpu]),
        "where": lambda: torch.where(cpu > 0, gpu, gpu),
        "index": lambda: torch.ops.aten.index(gpu, [index]),
        "index_put": lambda: torch.ops.aten.index_put(gpu, [index], cpu[:2]),
        "slice assignment": lambda: torch.ops.aten.copy_(gpu.narrow(0, 0, 2), cpu[:2]),
        "gather": lambda: gpu.gather(0, index),
        "embedding": lambda: nn.functional.embedding(index, gpu.view(4, 1)),
        "copy_": lambda: torch.ops.aten.copy_(gpu, cpu),
        "to": lambda: cpu.to(gpu.device),
    }
    outcomes = {}
    for name, mixture in mixtures.items():
        try:
            outcomes[name] = mixture().device.type
        except RuntimeError as error:
            if "device" not in str(error):
                raise
            outcomes[name] = "refused"
    return outcomes


def test_a_pretended_gpu_and_the_real_one_permit_scalars_indices_and_copies_alone() -> None:
    with FakeTensorMode():
        pretended = _outcomes()
    assert pretended == _outcomes()
    permitted = {name for name, outcome in pretended.items() if outcome == "cuda"}
    assert permitted == {"CPU scalar", "index", "slice assignment", "copy_", "to"}


@contextlib.contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("line", [*LINES])
def test_the_lesson_s_lines_do_what_its_card_says(line: str) -> None:
    assert outcome(line) == eight[line]["outcome"]


@pytest.mark.parametrize("line", FREE)
def test_what_the_reference_page_calls_free_does_not_wait(line: str) -> None:
    assert not waits(line)


@pytest.mark.parametrize("line", WAITING)
def test_what_the_reference_page_says_waits_waits(line: str) -> None:
    assert waits(line)


@pytest.mark.parametrize("line", ["gpu[there] = cpu[:2]", "gpu[index] = cpu[:2]"])
def test_chosen_positions_take_no_values_of_the_cpu_that_have_dimensions(line: str) -> None:
    assert outcome(line) == "raises"


def test_a_pinned_copy_does_not_wait() -> None:
    pinned = torch.ones(4, pin_memory=True)
    with _waiting_is_an_error():
        pinned.to("cuda", non_blocking=True)


def test_a_number_for_one_element_waits_until_torch_2_15() -> None:
    gpu = torch.ones(4, device="cuda")
    waits = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
    with _waiting_is_an_error(), pytest.raises(RuntimeError, match="synchroniz") if waits else contextlib.nullcontext():
        gpu[0] = 5


def test_the_real_gpu_stacks_no_number_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([torch.ones(4, device="cuda").sum(), torch.tensor(2.0)])
