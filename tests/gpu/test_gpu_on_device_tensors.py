"""What lesson 02 says about a GPU: which mixtures of devices run, what waits, and what random numbers and ties do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from course_utils.lessons.on_device_tensors.checks import Decoder
from course_utils.materials.models import GPT


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
    found = {}
    for name, mixture in mixtures.items():
        try:
            found[name] = mixture().device.type
        except RuntimeError as error:
            if "device" not in str(error):
                raise
            found[name] = "refused"
    return found


def test_the_pretended_gpu_permits_what_the_real_one_does() -> None:
    with FakeTensorMode():
        pretended = _outcomes()
    assert pretended == _outcomes()


def test_only_scalars_indices_and_copies_are_permitted() -> None:
    permitted = {name for name, found in _outcomes().items() if found == "cuda"}
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


def test_what_is_made_there_does_not_wait_and_what_is_moved_does() -> None:
    gpu, scalar, index = torch.ones(4, device="cuda"), torch.tensor(2.0), torch.tensor([0, 3])
    pinned = torch.ones(4, pin_memory=True)
    with _waiting_is_an_error():
        torch.rand(4, device="cuda")
        torch.arange(4, device="cuda")
        torch.randn_like(gpu)
        gpu * scalar
        pinned.to("cuda", non_blocking=True)
        for waiting in (
            lambda: torch.rand(4).to("cuda"),
            lambda: torch.arange(4).cuda(),
            lambda: gpu[index],
            lambda: gpu.__setitem__(slice(2), torch.ones(2)),
        ):
            with pytest.raises(RuntimeError, match="synchroniz"):
                waiting()


def test_moving_keeps_a_tie_and_to_empty_cuts_it() -> None:
    moved = GPT(width=32, layers=1).to("cuda")
    assert moved.head.weight is moved.token_embedding.weight
    with torch.device("meta"):
        emptied = GPT(width=32, layers=1)
    emptied.to_empty(device="cuda")
    assert emptied.head.weight is not emptied.token_embedding.weight
    assert emptied.head.weight.is_cuda


def test_exercise_3_can_be_solved_for_a_gpu() -> None:
    expected = Decoder().to("cuda")
    with torch.device("meta"):
        model = Decoder()
    model.to_empty(device="cuda")
    model.load_state_dict({name: value.cpu() for name, value in expected.state_dict().items()})
    model.tie_weights()
    model.reset_buffers()
    tokens = torch.randint(64, (2, 8), device="cuda")
    torch.testing.assert_close(model(tokens), expected(tokens), rtol=1e-4, atol=1e-5)
    assert model.rotary.is_cuda
