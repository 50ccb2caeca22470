"""What lesson 10 says of compiled code on a GPU: right results, whole graphs, and what CUDA graphs do to outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from course_utils.materials.models import Block


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing that another test traced counts here."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 1.5 + y
    return z * torch.clamp(z + 3, 0, 6) / 6 * 0.9 + x


def _error(output: torch.Tensor, truth: torch.Tensor) -> float:
    return ((output.double() - truth).norm() / truth.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_fused_chain_is_no_further_from_float64_than_eager_code(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 64, 1024, device="cuda").to(dtype)
    truth = _chain(x.double(), y.double())
    compiled = torch.compile(_chain, fullgraph=True)(x, y)
    assert compiled.dtype == dtype
    assert _error(compiled, truth) < 1.1 * _error(_chain(x, y), truth)


def test_a_compiled_block_and_its_gradients_agree_with_eager_ones() -> None:
    block = Block(128, heads=4).cuda()
    x = torch.randn(4, 64, 128, device="cuda")
    results = {}
    for label, forward in (("eager", block), ("compiled", torch.compile(block, fullgraph=True))):
        block.zero_grad()
        output = forward(x)
        output.square().mean().backward()
        results[label] = [output.detach(), *(parameter.grad.clone() for parameter in block.parameters())]
    for expected, actual in zip(results["eager"], results["compiled"], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


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


@torch._dynamo.config.patch(recompile_limit=8)  # FlexAttention's backend raises it for all of the process
def test_changing_sizes_compile_twice_and_with_constants_up_to_the_limit() -> None:
    counts = {}
    for dynamic in (None, False):
        graphs: list[int] = []

        def count(graph: torch.fx.GraphModule, inputs: list, graphs: list[int] = graphs):
            graphs.append(len(inputs))
            return graph.forward

        torch.compiler.reset()
        compiled = torch.compile(lambda x: torch.relu(x) * 2, backend=count, dynamic=dynamic)
        for size in range(2, 14):
            x = torch.randn(size, device="cuda")
            torch.testing.assert_close(compiled(x), torch.relu(x) * 2)
        counts[dynamic] = len(graphs)
    assert counts == {None: 2, False: 8}
