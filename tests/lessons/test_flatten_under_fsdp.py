"""What `flatten_parameters` says of FSDP2: an RNN that flattens itself leaves the memory that FSDP fills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_utils.lessons.flatten_parameters.stand_in import CountingLSTM


@pytest.fixture(autouse=True)
def _one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _outputs(rnn: nn.LSTM, sharded: bool) -> list[torch.Tensor]:
    """The output before each of three updates."""
    model = nn.Sequential(rnn)
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer, x, outputs = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(4, 2, 8), []
    for _ in range(3):
        outputs.append(model(x)[0])
        outputs[-1].square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return outputs


def test_a_flattened_rnn_keeps_the_weights_of_its_first_step() -> None:
    plain, flattens, never = nn.LSTM(8, 8), CountingLSTM(8, 8), CountingLSTM(8, 8)
    for rnn in (flattens, never):
        rnn.load_state_dict(plain.state_dict())
    sharded_plain = nn.LSTM(8, 8)
    sharded_plain.load_state_dict(plain.state_dict())
    never.flatten_parameters = lambda: None
    expected = _outputs(plain, sharded=False)
    assert not torch.allclose(expected[0], expected[1])

    torch.testing.assert_close(_outputs(sharded_plain, sharded=True), expected)
    torch.testing.assert_close(_outputs(never, sharded=True), expected)
    torch.testing.assert_close(_outputs(flattens, sharded=True), [expected[0]] * 3)
