"""What `torch_compile` says of graphs, guards, names and messages, held to torch; none of it needs a compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import distributed, nn
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from course_utils.lessons.torch_compile.cases import Llama, counted, pays_at, with_own_code

SETTINGS = {"factor": 1}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch.compiler.reset()
    torch._logging.set_logs(dynamo=logging.ERROR)
    # `flash_attention` raises the limit for the whole process, which other tests of this one may have done.
    with torch._dynamo.config.patch(recompile_limit=8):
        yield
    torch._logging.set_logs()
    torch.compiler.reset()


class Counting:
    """A backend that compiles nothing and keeps its graphs."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward


def test_fullgraph_takes_item_into_the_graph_and_keeps_the_wait() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * 2 * x.max().item()

    assert counted(reads, [(torch.ones(3),)])["graphs"] == 2
    torch.compiler.reset()
    counting = Counting()
    torch.compile(reads, backend=counting, fullgraph=True)(torch.ones(3))
    [graph] = counting.graphs
    assert "item" in {node.target for node in graph.graph.nodes}


def test_fullgraph_refuses_a_branch_on_a_tensor_and_a_print() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.max() > 0 else x

    def prints(x: torch.Tensor) -> torch.Tensor:
        print("x")  # noqa: T201
        return x + 1

    for function, message in ((branches, "Data-dependent branching"), (prints, "print")):
        with pytest.raises(torch._dynamo.exc.Unsupported, match=message):
            torch.compile(function, backend="eager", fullgraph=True)(torch.ones(3))


def test_the_limit_ends_compiling_and_raises_under_fullgraph() -> None:
    sizes = [(torch.ones(n),) for n in range(2, 14)]
    assert counted(lambda x: x * 2, sizes, dynamic=False)["graphs"] == torch._dynamo.config.recompile_limit == 8
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        counted(lambda x: x * 2, sizes, dynamic=False, fullgraph=True)


def test_a_break_in_a_loop_spoils_the_code_object_and_no_other() -> None:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor, read_now: bool) -> Any:
            return (x * 2).max().item() if read_now else (x * 2).max()

    class Watched(nn.ModuleList):
        def forward(self, x: torch.Tensor, read_now: bool) -> list[Any]:
            peaks = []
            for layer in self:
                peaks.append(layer(x, read_now))
            return peaks

    layers, x = [Layer() for _ in range(5)], torch.ones(3)
    after = counted(Watched(layers), [(x, True), (x, False)])
    assert after["graphs run by the last call"] == 5
    torch.compiler.reset()
    counting = Counting()
    torch.compile(Watched(layers), backend="eager")(x, True)
    torch.compile(Watched(layers), backend=counting, fullgraph=True)(x, False)  # silent: the loop is skipped
    torch.compile(with_own_code(Watched)(layers), backend=counting, fullgraph=True)(x, False)
    torch.compiler.reset()  # the loop is no longer skipped
    torch.compile(Watched(layers), backend=counting, fullgraph=True)(x, False)
    assert [sum(node.target == "max" for node in graph.graph.nodes) for graph in counting.graphs] == [1, 5, 5]


def test_what_a_skipped_function_calls_is_compiled_and_past_the_limit_it_is_not() -> None:
    def calls(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    def in_a_loop(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = calls(x)
            torch._dynamo.graph_break()
        return x

    def recompiles(x: torch.Tensor) -> torch.Tensor:
        return calls(x) * SETTINGS["factor"]

    x = torch.ones(3)
    assert counted(in_a_loop, [(x,)]) == {"graphs": 1, "graphs run by the last call": 3}
    values = [*range(2, 14), 3]  # the last one has a graph, those past the limit have none
    each = [((x,) for SETTINGS["factor"] in values[:count]) for count in (12, 13)]
    assert [counted(recompiles, calls) for calls in each] == [
        {"graphs": 8, "graphs run by the last call": 0},
        {"graphs": 8, "graphs run by the last call": 1},
    ]


def test_grad_mode_and_autocast_each_have_a_graph_of_their_own() -> None:
    counting, x = Counting(), torch.randn(2, 4)
    compiled = torch.compile(nn.Linear(4, 4), backend=counting)
    compiled(x)
    compiled.eval()
    compiled(x)
    assert len(counting.graphs) == 1
    with torch.no_grad():
        compiled(x)
    assert len(counting.graphs) == 2
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16
    assert compiled(x).dtype == torch.float32
    assert len(counting.graphs) == 3


def test_mark_dynamic_makes_one_graph_and_objects_to_a_constant() -> None:
    counting = Counting()
    compiled = torch.compile(lambda x: x * 2, backend=counting)
    for length in range(2, 14):
        x = torch.ones(length)
        torch._dynamo.mark_dynamic(x, 0)
        compiled(x)
    assert len(counting.graphs) == 1
    with pytest.raises(torch.fx.experimental.symbolic_shapes.ConstraintViolationError):
        torch.compile(lambda x: x + torch.ones(13), backend="eager")(x)


def test_a_checkpoint_inside_is_one_graph() -> None:
    counting, layers = Counting(), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    function = torch.compile(
        lambda x: checkpoint(layers, x, use_reentrant=False).sum(), backend=counting, fullgraph=True
    )
    function(torch.randn(2, 4, requires_grad=True)).backward()
    assert len(counting.graphs) == 1


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return self.layer(x) * self.step


def test_in_place_nothing_is_compiled_where_forward_is_of_torch() -> None:
    x = torch.ones(2, 4)
    for model, graphs in ((nn.Linear(4, 4), 0), (nn.Sequential(nn.Linear(4, 4), nn.GELU()), 0), (Own(), 1)):
        torch.compiler.reset()
        in_place, wrapped = Counting(), Counting()
        torch.compile(model, backend=wrapped)(x)
        torch.compiler.reset()
        model.compile(backend=in_place)
        model(x)
        assert (len(in_place.graphs), len(wrapped.graphs)) == (graphs, 1)
    torch.compiler.reset()
    parts, counting = nn.Sequential(Own(), nn.Linear(4, 4), Own()), Counting()
    parts.compile(backend=counting, fullgraph=True)
    parts(x)  # the Linear between them is in no graph, and fullgraph=True is content
    assert [sum(node.target is nn.functional.linear for node in g.graph.nodes) for g in counting.graphs] == [1, 1]
    torch.compiler.reset()
    sequential = nn.Sequential(nn.Linear(4, 4))
    sequential.compile(backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="fullgraph=True found no compiled frames"):
        sequential(x)


@pytest.mark.parametrize(("allowed", "graphs"), [(False, 8), (True, 2)])
def test_a_counter_on_a_module_is_a_constant_unless_allowed(allowed: bool, graphs: int) -> None:
    model, counting = Own(), Counting()
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=allowed):
        compiled = torch.compile(model, backend=counting)
        for _ in range(12):
            compiled(torch.ones(2, 4))
    assert len(counting.graphs) == graphs


def test_the_wrapper_alone_renames_what_is_saved_and_both_load() -> None:
    model = Own()
    wrapper = torch.compile(model)
    model.compile()
    assert [*model.state_dict()] == [*wrapper._orig_mod.state_dict()] == ["layer.weight", "layer.bias"]
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "_orig_mod'):
        Own().load_state_dict(wrapper.state_dict())
    blocks, plain = nn.ModuleList([wrapper, Own()]), nn.ModuleList([Own(), Own()])
    assert "0._orig_mod.layer.weight" in blocks.state_dict()
    plain.load_state_dict({k.replace("_orig_mod.", ""): v for k, v in blocks.state_dict().items()})
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "_orig_mod'):
        wrapper.load_state_dict(model.state_dict())
    wrapper._orig_mod.load_state_dict(model.state_dict())


def test_disable_is_a_break_and_a_stance_makes_an_error_of_a_recompile() -> None:
    read = torch.compiler.disable(lambda x: x.max().item())
    assert counted(lambda x: (x * 2, read(x), x.sum()), [(torch.ones(3),)])["graphs"] == 2
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="Detected recompile"):
        compiled(torch.ones(4))


@pytest.mark.parametrize("first", ["DDP", "compile"])
def test_dynamo_splits_the_graph_at_the_buckets_of_ddp(tmp_path, first: str) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).relu()
            return x

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        counting, model = Counting(), Layers()
        inner = torch.compile(model, backend=counting) if first == "compile" else model
        wrapped = DistributedDataParallel(inner, bucket_cap_mb=1)
        if first == "DDP":
            wrapped.compile(backend=counting)
        for _ in range(2):
            wrapped(torch.randn(4, 256)).sum().backward()
        assert len(counting.graphs) == 2
    finally:
        distributed.destroy_process_group()


def test_a_workload_pays_at_a_call_only_if_it_is_shown_to_save() -> None:
    def case(verdict: str, ratio: float, low: float, high: float) -> Any:
        eager = {"eager": SimpleNamespace(median_s=0.01)}
        interval = SimpleNamespace(ends=(low, high))
        return SimpleNamespace(comparison=eager, verdict=verdict, ratio=ratio, interval=interval)

    assert pays_at(1.0, case("FASTER", 0.5, 0.4, 0.6)) == {"pays at call": 199, "by the interval": "166 to 249"}
    for calls in (199, 198):
        assert (1.0 + (calls - 1) * 0.005 <= calls * 0.01) == (calls == 199)
    assert pays_at(1.0, case("UNCLEAR", 0.9, 0.7, 1.1)) == {"pays at call": None, "by the interval": None}


def test_a_counter_of_integers_outlives_bfloat16_and_counts_twice_under_a_checkpoint() -> None:
    class Counter(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.register_buffer("calls", torch.full((), 256, dtype=dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x.sin()

    x = torch.ones(2, requires_grad=True)
    for dtype, calls in ((torch.float32, 256), (torch.int64, 258)):
        counter = Counter(dtype).bfloat16()
        checkpoint(counter, x, use_reentrant=False).sum().backward()
        assert counter.calls == calls


def test_dropout_draws_the_same_in_each_backend_with_fallback_random() -> None:
    dropout, x = nn.Dropout(0.5), torch.ones(64, 64)

    def run(backend: str) -> torch.Tensor:
        torch.compiler.reset()
        torch.manual_seed(0)
        return torch.compile(dropout, backend=backend)(x)

    for fallback in (True, False):
        with torch._inductor.config.patch(fallback_random=fallback):
            same = torch.equal(run("aot_eager_decomp_partition"), run("eager"))
        assert same == fallback


def test_no_compiler_is_named() -> None:
    named = "No working C\\+\\+ compiler found"
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(torch._dynamo.exc.TorchDynamoException, match=f"InvalidCxxCompiler: {named}"),
    ):
        torch.compile(lambda x: (x + 1).relu())(torch.ones(8))


def test_the_small_llama_is_one_graph_and_learns() -> None:
    torch.manual_seed(0)
    model, tokens = Llama(16, 8, layers=1, heads=2), torch.randint(256, (2, 8))
    assert counted(model, [(tokens,)], fullgraph=True)["graphs"] == 1
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    torch.testing.assert_close(model(tokens)[:, :-1], model(changed)[:, :-1])  # a token sees earlier ones alone
    model(tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Indexed(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx, self.layer = index, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: list[Any]) -> torch.Tensor:
        cache[self.layer_idx] = x
        return self.layer(x)


@pytest.mark.parametrize("isolated", [False, True])
def test_blocks_that_read_their_index_need_limits_of_their_own(isolated: bool) -> None:
    counting, blocks = Counting(), [Indexed(index) for index in range(12)]
    for block in blocks:
        block.compile(backend=counting, isolate_recompiles=isolated)
    for grad in (True, False):  # a validation makes a second graph of each
        with torch.set_grad_enabled(grad):
            x, cache = torch.ones(2, 4), [None] * 12
            for block in blocks:
                x = block(x, cache)
    assert len(counting.graphs) == (24 if isolated else 8)


def test_lengths_of_0_and_1_are_graphs_of_their_own_unless_unbacked() -> None:
    def graphs_of(mark: bool, **options: Any) -> int:
        torch.compiler.reset()
        counting = Counting()
        compiled = torch.compile(lambda x: x * 2, backend=counting, **options)
        for length in (5, 6, 1, 0, 9):
            x = torch.ones(length)
            if mark:
                torch._dynamo.decorators.mark_unbacked(x, 0)
            compiled(x)
        return len(counting.graphs)

    assert (graphs_of(False), graphs_of(False, dynamic=True), graphs_of(True)) == (4, 3, 1)


@pytest.mark.parametrize(("dynamic", "by_the_call"), [(False, 1), (True, 2)])
def test_the_backward_is_compiled_when_it_first_runs_or_with_variable_sizes_in_the_call(
    dynamic: bool, by_the_call: int
) -> None:
    compiled = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled.append(graph)
        return make_boxed_func(graph.forward)

    function = torch.compile(Own(), backend=aot_autograd(fw_compiler=compiler), dynamic=dynamic)
    out = function(torch.ones(2, 4))
    assert len(compiled) == by_the_call
    out.sum().backward()
    assert len(compiled) == 2


def test_a_stance_stops_what_is_new_and_still_lets_an_evaluation_run() -> None:
    compiled, new = (torch.compile(factor, backend="eager") for factor in (lambda x: x * 2, lambda x: x * 3))
    compiled(torch.ones(3))
    with torch.compiler.set_stance("fail_on_recompile"):
        with pytest.raises(RuntimeError, match="Detected recompile"):
            new(torch.ones(3))
        with torch.compiler.set_stance("force_eager"):
            assert new(torch.ones(3)).sum() == 9
        with pytest.raises(RuntimeError, match="Detected recompile"):
            new(torch.ones(3))


def test_a_wrapped_checkpoint_compiles_in_place_under_fsdp2_and_keeps_its_names(tmp_path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu()

    counting, blocks = Counting(), nn.Sequential(*(checkpoint_wrapper(Block()) for _ in range(2)))
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for block in blocks:
            block.compile(backend=counting)
            fully_shard(block)
        fully_shard(blocks)(torch.ones(2, 4)).sum().backward()
    finally:
        distributed.destroy_process_group()
    assert counting.graphs
    for graph in counting.graphs:
        assert "tag_activation_checkpoint" in {str(node.target) for node in graph.graph.nodes}
    assert next(iter(blocks.state_dict())) == "0.layer.weight"
