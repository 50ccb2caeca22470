"""What `on_device_tensors` says about a GPU: which devices mix, what waits, and what random numbers and ties do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


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
