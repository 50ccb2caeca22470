"""What `torch_compile` says of compiled code on a GPU: what CUDA graphs do to outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing that another test traced counts here."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


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
