"""What `ddp` says of DDP's messages, of its debug levels and of checkpoints, in a group of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DistributedSampler

LINEAR = "import torch.distributed as dist; from torch import nn; from torch.nn.parallel import *\n"
LINEAR += "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
LINEAR += "model = DistributedDataParallel(nn.Linear(2, 2))\n"


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def unused(model: nn.Module) -> None:
    for _ in range(2):
        model(torch.ones(1, 2))[0].sum().backward()


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.one(x), self.other(x)]


class ReentrantCheckpoint(nn.Linear):
    def forward(self, x: torch.Tensor, reentrant: bool = True) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=reentrant)


def checkpointed(reentrant: bool) -> None:
    model = DistributedDataParallel(ReentrantCheckpoint(2, 2), find_unused_parameters=True)
    model(torch.ones(1, 2, requires_grad=True), reentrant).sum().backward()


MESSAGES: dict[str, Callable[[], object]] = {
    "Expected to have finished reduction in the prior iteration": lambda: unused(DistributedDataParallel(TwoHeads())),
    "Expected to mark a variable ready only once": lambda: checkpointed(reentrant=True),
    "SyncBatchNorm layers only work with GPU modules": lambda: DistributedDataParallel(nn.SyncBatchNorm(2)),
    'Unexpected key(s) in state_dict: "module.weight"': lambda: nn.Linear(2, 2).load_state_dict(
        DistributedDataParallel(nn.Linear(2, 2)).state_dict()
    ),
    "only work with single-device/multiple-device GPU modules": lambda: DistributedDataParallel(
        nn.Linear(2, 2), device_ids=[0]
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_raised_for_its_cause(message: str, group_of_one: None) -> None:
    with pytest.raises((RuntimeError, ValueError)) as caught:
        MESSAGES[message]()
    assert message in str(caught.value)


def test_a_checkpoint_that_is_not_reentrant_marks_a_variable_once(group_of_one: None) -> None:
    checkpointed(reentrant=False)


def test_without_torchrun_the_rank_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="environment variable RANK expected, but not set"):
        dist.init_process_group("gloo")


@pytest.mark.parametrize(("level", "ends_well"), [("INFO", True), ("DETAIL", False)])
def test_detail_ends_the_constructor_of_ddp_on_a_cpu(level: str, ends_well: bool) -> None:
    """If this fails for DETAIL, torch has mended it: take the row out of the lesson's table."""
    ran = subprocess.run(
        [sys.executable, "-c", LINEAR], env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": level}, capture_output=True
    )
    assert (ran.returncode == 0) == ends_well


def test_info_names_the_parameter_that_took_no_part() -> None:
    lines = LINEAR + "import torch\nm = nn.Module(); m.used, m.idle = nn.Linear(2, 2), nn.Linear(2, 2)\n"
    lines += "m.forward = lambda x: m.used(x)\nd = DistributedDataParallel(m)\n"
    lines += "d(torch.ones(1, 2)).sum().backward(); d(torch.ones(1, 2)).sum().backward()"
    env = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    ran = subprocess.run([sys.executable, "-c", lines], env=env, capture_output=True, text=True)
    assert "idle.weight" in ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="faulthandler.register is not there")
def test_a_signal_shows_where_a_rank_waits_within_a_call_of_c10d() -> None:
    lines = "import faulthandler, signal, torch.distributed as dist; faulthandler.register(signal.SIGUSR1)\n"
    lines += "print('here', flush=True); dist.HashStore().wait(['what nobody sets'])"
    waiting = subprocess.Popen([sys.executable, "-c", lines], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiting.stdout.readline() == "here\n"
    time.sleep(0.5)
    waiting.send_signal(signal.SIGUSR1)
    said = [waiting.stderr.readline() for _ in range(2)]
    waiting.kill()
    waiting.communicate()
    assert "most recent call first" in said[0]
    assert 'File "<string>", line 2 in <module>' in said[1]


def test_a_port_that_another_run_has_cannot_be_had() -> None:
    first = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    with pytest.raises(dist.DistNetworkError, match=r"The server socket has failed to listen.*EADDRINUSE"):
        dist.TCPStore("127.0.0.1", first.port, None, True, wait_for_workers=False)


def test_a_sampler_without_set_epoch_repeats_its_order_and_pads_by_repeating() -> None:
    def sampler(**options: bool) -> DistributedSampler:
        return DistributedSampler(range(11), num_replicas=2, rank=0, **options)

    same = sampler()
    assert list(same) == list(same)
    same.set_epoch(1)
    assert list(same) != list(sampler())
    assert (len(same), len(sampler(drop_last=True))) == (6, 5)
