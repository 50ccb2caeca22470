"""What `torch_compile` says of compiled code on a GPU: right results, whole graphs, what CUDA graphs do to outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing that another test traced counts here."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_every_call_of_a_mode_gives_the_eager_result(mode: str) -> None:
    """Warm-up, recording and replay of a CUDA graph, with other numbers each time."""
    layers = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128)).cuda()
    compiled = torch.compile(layers, mode=mode)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(16, 128, device="cuda")
            torch.testing.assert_close(compiled(x).clone(), layers(x), rtol=1e-3, atol=1e-4)


def test_an_output_overwritten_during_warm_up_raises_and_a_clone_stays_right() -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
    kept = compiled(torch.full((1024,), 3.0, device="cuda"))
    cloned = kept.clone()
    compiled(torch.full((1024,), -1.0, device="cuda"))
    with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        kept.sum().item()
    assert bool((cloned == 7).all())


def test_a_replay_overwrites_the_output_of_the_replay_before() -> None:
    """The lesson says that nothing raises here; whether or not it does, the old numbers are gone."""
    compiled = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
    for _ in range(4):
        compiled(torch.full((1024,), 0.0, device="cuda"))
    kept = compiled(torch.full((1024,), 3.0, device="cuda"))
    compiled(torch.full((1024,), -1.0, device="cuda"))
    try:
        still_right = bool((kept == 7).all())
    except RuntimeError:
        still_right = False
    assert not still_right
