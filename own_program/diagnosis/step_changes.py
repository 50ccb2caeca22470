"""Changes that are tried on a training step: each can be taken back, and none is a matter of taste.

Before and after each, all of the step's state is put back (``state.py``), with torch's switches, attributes of modules
and of optimizers: a change has to undo only what no snapshot holds, and gives a context for that.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from course_utils.measure.compiler import compiler
from course_utils.show.formats import listed
from own_program.diagnosis.phases import Seen, is_compiled, wrapped
from own_program.diagnosis.state import Found

COMPILE = "torch.compile"


@dataclass
class Work:
    """What is called: a step, and what it is given."""

    step: Callable[..., Any]
    args: tuple[Any, ...] = ()
    # After this moment of ``time.perf_counter()`` no further graph is compiled, and the step fails: it gave up.
    compile_until: float = math.inf
    gave_up: bool = False

    def call(self) -> Any:
        """Call it once."""
        return self.step(*self.args)


@dataclass(frozen=True)
class StepChange:
    """One change to a step."""

    name: str  # in a list
    change: str  # as an order
    because: str  # what was seen that speaks for it
    lesson: str
    on: Callable[[Work], AbstractContextManager[Any] | None]  # puts it in force, until its context ends
    instead_of: str = ""  # the same text for those of which one excludes the others


def changes_for(found: Found, seen: Seen, work: Work) -> Iterator[StepChange]:
    """Yield what may help this step, the likeliest first."""
    devices = {p.device.type for p in found.parameters}
    if seen.anomaly:
        because = "Autograd's anomaly mode is on: it keeps a stack of each operation and looks for NaN in gradients."
        yield StepChange("anomaly mode off", "switch anomaly mode off", because, "your_own_program", _no_anomaly)
    if hooks := _hooks(found):
        names = listed(sorted({getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks}))
        change = f"take the hooks off the modules: {names}"
        because = f"{len(hooks)} hook{'s' * (len(hooks) > 1)} of your own run{'s' * (len(hooks) == 1)} in each step."
        yield StepChange("hooks off", change, because, "your_own_program", lambda work: _no_hooks(found))
    if not is_compiled(found) and can_compile(devices):
        yield _compile(found)
    for optimizer in found.optimizers.values():
        yield from _fused(optimizer)
    if devices == {"cpu"}:
        yield from _threads()
    if devices == {"cuda"}:
        yield from _on_cuda(found, work)


def can_compile(devices: set[str]) -> bool:
    """Whether torch.compile finds what it needs: a C++ compiler for a CPU, Triton for a GPU."""
    if devices == {"cpu"}:
        return compiler() is not None
    from torch.utils._triton import has_triton

    return devices == {"cuda"} and has_triton()


def _no_anomaly(work: Work) -> AbstractContextManager[None]:
    torch.set_anomaly_enabled(False)
    return wrapped(torch, "set_anomaly_enabled", lambda *_: None)  # the step may switch it on itself


_KINDS_OF_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_own(hook: Any) -> bool:
    """PyTorch's hooks are none to take off: some normalise weights."""
    return not (getattr(hook, "__module__", None) or "").startswith("torch.")


def _hooks(found: Found) -> list[Any]:
    every = [h for module in found.modules for kind in _KINDS_OF_HOOKS for h in getattr(module, kind).values()]
    return list(filter(_is_own, every))


def _no_hooks(found: Found) -> None:
    for module in found.modules:
        for kind in _KINDS_OF_HOOKS:
            hooks = getattr(module, kind)
            setattr(module, kind, type(hooks)((key, hook) for key, hook in hooks.items() if not _is_own(hook)))


def _fused(optimizer: Optimizer) -> Iterator[StepChange]:
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    name, groups, places = type(optimizer).__name__, optimizer.param_groups, _get_fused_kernels_supported_devices()
    parameters = [p for group in groups for p in group["params"]]
    taken = any(group.get("fused") or group.get("differentiable") for group in groups)
    can = all(p.is_floating_point() and p.device.type in places for p in parameters)
    if parameters and not taken and can and "fused" in optimizer.defaults:
        one_by_one = all(p.is_cpu for p in parameters) and not any(group.get("foreach") for group in groups)
        how = "one by one" if one_by_one else "by several kernels each"
        because = f"{name} updates {len(parameters)} tensors, {how}."
        change = f"pass fused=True to {name}"
        yield StepChange(f"fused {name}", change, because, "torch_compile", lambda work: _fuse(optimizer))


def _fuse(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
    optimizer._step_supports_amp_scaling = True  # as its constructor would: a gradient scaler asks
    for p, state in optimizer.state.items():  # a fused kernel reads the number of the step from beside the weights
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(p.device)


def _compile(found: Found) -> StepChange:
    names = listed(found.models)
    compiled: dict[str, Any] = {}

    @contextlib.contextmanager
    def on(work: Work) -> Iterator[None]:
        import torch._inductor.config as inductor
        from torch._dynamo.external_utils import wrap_inline
        from torch._inductor import compile as compile_graph

        def in_time(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            work.gave_up = time.perf_counter() > work.compile_until
            if work.gave_up:
                raise TimeoutError("compiling takes too long")
            return compile_graph(graph, inputs)

        work.gave_up = False
        for name, model in found.models.items():
            if name not in compiled:
                # As torch.compile(model) does: model.compile() leaves a Sequential as it is, and says nothing.
                compiled[name] = torch.compile(wrap_inline(model._call_impl), backend=in_time)
            model._compiled_call_impl = compiled[name]
        try:
            # Dropout draws what it draws without: with numbers of its own the losses could not be compared.
            with inductor.patch(fallback_random=True), _quiet_compiler():
                yield
        finally:
            for model in found.models.values():
                model._compiled_call_impl = None

    because = f"{names} runs operation by operation."
    return StepChange(COMPILE, f"compile {names}: torch.compile", because, "torch_compile", on)


@contextlib.contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Without the compiler's warnings: nobody can mend what it says here. Other loggers speak on."""
    with contextlib.ExitStack() as stack:
        for part in ("_dynamo", "_functorch", "_inductor"):
            logger = logging.getLogger(f"torch.{part}")
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield


def cores() -> int:
    """Cores that this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> Iterator[StepChange]:
    now, most = torch.get_num_threads(), cores()
    for count in sorted({1, max(1, most // 2), most} - {now}):
        change, name = f"call torch.set_num_threads({count})", f"{count} thread{'s' * (count > 1)}"
        because = f"It runs in {now} thread{'s' * (now > 1)} on {most} core{'s' * (most > 1)}."
        on = partial(lambda count, work: torch.set_num_threads(count), count)
        yield StepChange(name, change, because, "measuring", on, "threads")


def _on_cuda(found: Found, work: Work) -> Iterator[StepChange]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    is_new = torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    if is_new and not matmul.allow_tf32 and any(p.dtype == torch.float32 for p in found.parameters):
        change = 'call torch.set_float32_matmul_precision("high")'
        because = "Matrix products in float32 do not use TF32."
        yield StepChange("TF32", change, because, "mixed_precision", lambda work: setattr(matmul, "allow_tf32", True))
    images = any(isinstance(module, torch.nn.Conv2d) for module in found.modules)
    if images and not cudnn.benchmark and not cudnn.deterministic:
        change = "set torch.backends.cudnn.benchmark = True, where sizes stay the same"
        because, on = "cuDNN chooses its convolutions by rule.", lambda work: setattr(cudnn, "benchmark", True)
        yield StepChange("cudnn.benchmark", change, because, "reproducible_runs", on)
    if any(isinstance(leaf, torch.Tensor) and leaf.is_cpu and not leaf.is_pinned() for leaf in tree_leaves(work.args)):
        change, because = "pass pin_memory=True to the loader", "Batches are copied to the GPU from pageable memory."
        yield StepChange("pinned batches", change, because, "pinned_memory", _pinned)


def _pinned(work: Work) -> AbstractContextManager[None]:
    pin = tree_map_only(torch.Tensor, lambda tensor: tensor.pin_memory() if tensor.is_cpu else tensor, work.args)
    return mock.patch.object(work, "args", pin)
