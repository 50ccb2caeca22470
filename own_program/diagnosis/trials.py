"""Changes that are tried on a training step: each can be taken back, and none is a matter of taste.

A trial is in force inside of a context. Before and after it all of the step's state is put back (``step_rounds.py``):
a context has to undo only what no snapshot holds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from course_utils.measure.compiler import compiler
from course_utils.show.formats import listed
from own_program.diagnosis.phases import Seen, is_compiled, wrapped
from own_program.diagnosis.state import Found

# From this tolerance on, somebody wants to know of bfloat16: its products have three significant digits.
_BFLOAT16_TOLERANCE = 1e-2
COMPILE = "torch.compile"


@dataclass
class Work:
    """What is called: a step, and what it is given.

    Attributes:
        compile_until: after this moment of ``time.perf_counter()`` no further graph is compiled, and the step fails.
        gave_up: whether it failed so.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...] = ()
    compile_until: float = math.inf
    gave_up: bool = False

    def call(self) -> Any:
        """Call it once."""
        return self.step(*self.args)


@dataclass(frozen=True)
class Trial:
    """One change.

    Attributes:
        name: what it is called in a list.
        change: what to do, as an order.
        because: what was seen that speaks for it.
        lesson: the notebook that shows it.
        on: gives a context in which the change is in force.
        instead_of: the same text for those of which one excludes the others.
    """

    name: str
    change: str
    because: str
    lesson: str
    on: Callable[[Work], AbstractContextManager[Any]]
    instead_of: str = ""


def trials(found: Found, seen: Seen, work: Work, tolerance: float) -> Iterator[Trial]:
    """Yield what may help this step, the likeliest first."""
    devices = {p.device.type for p in found.parameters}
    if seen.anomaly:
        yield Trial(
            "anomaly mode off",
            "switch anomaly mode off",
            "Autograd's anomaly mode is on: it keeps a Python stack for every operation and looks for NaN in every "
            "gradient.",
            "your_own_program",
            lambda work: _no_anomaly(),
        )
    if hooks := _hooks(found):
        names = listed(sorted({getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks}))
        yield Trial(
            "hooks off",
            f"take the hooks off the modules: {names}",
            f"{len(hooks)} hook{'s' * (len(hooks) > 1)} of your own run in each step.",
            "your_own_program",
            lambda work: _no_hooks(found),
        )
    if seen.deterministic:
        yield Trial(
            "deterministic algorithms off",
            "switch deterministic algorithms off, where runs need not give the same bits",
            "torch.use_deterministic_algorithms is on.",
            "reproducible_runs",
            lambda work: _deterministic_off(),
        )
    if useless := _without_optimizer(found):
        yield Trial(
            f"freezing {useless}",
            f"run {useless} under torch.no_grad(), or freeze what is trained nowhere",
            f"No optimizer that this step names updates {useless}, and its parameters ask for gradients.",
            "no_grad",
            lambda work: _frozen(found),
        )
    if not is_compiled(found) and can_compile(devices):
        yield _compile(found)
    for name, optimizer in found.optimizers.items():
        yield from _of_optimizer(name if len(found.optimizers) > 1 else type(optimizer).__name__, optimizer)
    if seen.zeroes:
        yield Trial(
            "set_to_none",
            "let zero_grad() set gradients to None: leave out set_to_none=False",
            "zero_grad() writes zeros into every gradient, and the backward pass adds to them.",
            "memory_snapshots",
            lambda work: _set_to_none(found),
        )
    if any(isinstance(module, torch.nn.Conv2d) for module in found.modules) and not _is_channels_last(found):
        yield Trial(
            "channels_last",
            "put the model and its images into channels_last",
            "Its convolutions work on tensors whose channels come first.",
            "mixed_precision",
            lambda work: _channels_last(found),
        )
    if devices == {"cpu"}:
        yield from _threads()
    if devices == {"cuda"}:
        yield from _on_cuda(found, work)
    if tolerance >= _BFLOAT16_TOLERANCE and len(devices) == 1 and not torch.is_autocast_enabled(*devices):
        device = next(iter(devices))
        yield Trial(
            "bfloat16",
            "run the forward pass under torch.autocast in bfloat16",
            f"It stays within the tolerance of {tolerance:g} that you gave.",
            "mixed_precision",
            lambda work: _stepping(work, lambda step: torch.autocast(device, torch.bfloat16)(step)),
        )


def can_compile(devices: set[str]) -> bool:
    """Whether torch.compile finds what it needs: a C++ compiler for a CPU, Triton for a GPU."""
    if devices == {"cpu"}:
        return compiler() is not None
    from torch.utils._triton import has_triton

    return devices == {"cuda"} and has_triton()


@contextlib.contextmanager
def _no_anomaly() -> Iterator[None]:
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    # The step may switch it on itself.
    with wrapped(torch, "set_anomaly_enabled", lambda *_: None):
        yield
    torch.set_anomaly_enabled(*before)


@contextlib.contextmanager
def _deterministic_off() -> Iterator[None]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


_KINDS_OF_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _modules_hooks(found: Found) -> Iterator[dict[int, Any]]:
    for model in found.models.values():
        for module in model.modules():
            yield from (getattr(module, kind) for kind in _KINDS_OF_HOOKS)


def _hooks(found: Found) -> list[Any]:
    """Hooks that are not PyTorch's own, such as those that normalise weights."""
    every = [hook for hooks in _modules_hooks(found) for hook in hooks.values()]
    return [hook for hook in every if not (getattr(hook, "__module__", None) or "").startswith("torch.")]


@contextlib.contextmanager
def _no_hooks(found: Found) -> Iterator[None]:
    own = {id(hook) for hook in _hooks(found)}
    before = [(hooks, dict(hooks)) for hooks in _modules_hooks(found)]
    for hooks, kept in before:
        for key in [key for key, hook in kept.items() if id(hook) in own]:
            del hooks[key]
    try:
        yield
    finally:
        for hooks, kept in before:
            hooks.clear()
            hooks.update(kept)


def _of_optimizer(name: str, optimizer: Optimizer) -> Iterator[Trial]:
    """Another way to run the same update."""
    groups = optimizer.param_groups
    count = sum(len(group["params"]) for group in groups)
    if not count or any(group.get("fused") or group.get("differentiable") for group in groups):
        return
    if _can_fuse(optimizer):
        how = "one by one" if _is_loop(optimizer) else "by several kernels each"
        yield Trial(
            f"fused {name}",
            f"pass fused=True to {name}",
            f"{name} updates {count} tensors, {how}.",
            "torch_compile",
            lambda work: _flags(optimizer, {"fused": True, "foreach": False}),
        )
    elif "foreach" in optimizer.defaults and _is_loop(optimizer):
        yield Trial(
            f"foreach {name}",
            f"pass foreach=True to {name}",
            f"{name} updates {count} tensors, one by one.",
            "torch_compile",
            lambda work: _flags(optimizer, {"foreach": True}),
        )


def _is_loop(optimizer: Optimizer) -> bool:
    """Whether tensors are updated one by one: what torch does on a CPU unless told otherwise."""
    groups = optimizer.param_groups
    return all(
        group.get("foreach") is False
        or (group.get("foreach") is None and any(p.device.type == "cpu" for p in group["params"]))
        for group in groups
    )


def _can_fuse(optimizer: Optimizer) -> bool:
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    places = _get_fused_kernels_supported_devices()
    return "fused" in optimizer.defaults and all(p.is_floating_point() and p.device.type in places for p in parameters)


@contextlib.contextmanager
def _flags(optimizer: Optimizer, flags: Mapping[str, bool]) -> Iterator[None]:
    before = [{key: group.get(key) for key in flags} for group in optimizer.param_groups]
    scaling = getattr(optimizer, "_step_supports_amp_scaling", None)
    for group in optimizer.param_groups:
        group.update(flags)
    if flags.get("fused"):
        optimizer._step_supports_amp_scaling = True  # as its constructor would: a gradient scaler asks
        for p, state in optimizer.state.items():  # a fused kernel reads the number of the step from beside the weights
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(p.device)
    try:
        yield
    finally:
        for group, values in zip(optimizer.param_groups, before, strict=True):
            group.update(values)
        if flags.get("fused"):
            del optimizer._step_supports_amp_scaling
            if scaling is not None:
                optimizer._step_supports_amp_scaling = scaling


def _compile(found: Found) -> Trial:
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

    return Trial(
        COMPILE, f"compile {names}: torch.compile", f"{names} runs operation by operation.", "torch_compile", on
    )


@contextlib.contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Without the compiler's warnings: nobody can mend what it says of a trial. Other loggers speak on."""
    loggers = [logging.getLogger(f"torch.{part}") for part in ("_dynamo", "_functorch", "_inductor")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _set_to_none(found: Found) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner in (*found.optimizers.values(), *found.models.values()):
            stack.enter_context(wrapped(owner, "zero_grad", lambda zero_grad, *_, **__: zero_grad(set_to_none=True)))
        yield


def _without_optimizer(found: Found) -> str:
    """The modules that need gradients though no optimizer updates any of their parameters; empty if there are none."""
    updated = found.updated
    if not updated:
        return ""
    names: list[str] = []
    for name, model in found.models.items():
        idle = {id(p) for p in model.parameters() if p.requires_grad} - updated
        for path, module in model.named_modules():
            own = {id(p) for p in module.parameters()}
            full = f"{name}.{path}".rstrip(".")
            if own & idle and not own & updated and not any(full.startswith(f"{other}.") for other in names):
                names.append(full)
    return listed(names[:3]) + (" and others" if len(names) > 3 else "") if names else ""


@contextlib.contextmanager
def _frozen(found: Found) -> Iterator[None]:
    updated = found.updated
    idle = [p for p in found.parameters if p.requires_grad and id(p) not in updated]
    for p in idle:
        p.requires_grad_(False)
        p.grad = None
    try:
        yield
    finally:
        for p in idle:
            p.requires_grad_(True)


def _images(found: Found) -> list[torch.nn.Parameter]:
    return [m.weight for m in found.modules if isinstance(m, torch.nn.Conv2d)]


def _is_channels_last(found: Found) -> bool:
    wide = [w for w in _images(found) if w.shape[1] > 1 and w.shape[2:].numel() > 1]
    return any(not w.is_contiguous() and w.is_contiguous(memory_format=torch.channels_last) for w in wide)


@contextlib.contextmanager
def _channels_last(found: Found) -> Iterator[None]:
    before = [(weight, weight.data) for weight in _images(found)]
    for weight, data in before:
        weight.data = data.to(memory_format=torch.channels_last)
        for optimizer in found.optimizers.values():
            state = optimizer.state.get(weight, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == data.shape:
                    state[key] = value.to(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for weight, data in before:
            weight.data = data


def cores() -> int:
    """Cores that this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> Iterator[Trial]:
    now, most = torch.get_num_threads(), cores()
    for count in sorted({1, max(1, most // 2), most} - {now}):
        yield Trial(
            f"{count} thread{'s' if count > 1 else ''}",
            f"call torch.set_num_threads({count})",
            f"It runs in {now} thread{'s' if now > 1 else ''} on {most} core{'s' if most > 1 else ''}.",
            "measuring",
            lambda work, count=count: _in_threads(count),
            "threads",
        )


@contextlib.contextmanager
def _in_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_cuda(found: Found, work: Work) -> Iterator[Trial]:
    is_new = torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    if is_new and not torch.backends.cuda.matmul.allow_tf32 and any(p.dtype == torch.float32 for p in found.parameters):
        yield Trial(
            "TF32",
            'call torch.set_float32_matmul_precision("high")',
            "Matrix products in float32 do not use TF32.",
            "mixed_precision",
            lambda work: _attribute(torch.backends.cuda.matmul, "allow_tf32", True),
        )
    if _images(found) and not torch.backends.cudnn.benchmark and not torch.backends.cudnn.deterministic:
        yield Trial(
            "cudnn.benchmark",
            "set torch.backends.cudnn.benchmark = True, where sizes stay the same",
            "cuDNN chooses its convolutions by rule, and does not time them.",
            "reproducible_runs",
            lambda work: _attribute(torch.backends.cudnn, "benchmark", True),
        )
    if any(isinstance(leaf, torch.Tensor) and leaf.is_cpu and not leaf.is_pinned() for leaf in tree_leaves(work.args)):
        yield Trial(
            "pinned batches",
            "pass pin_memory=True to the loader",
            "Batches are copied to the GPU from pageable memory.",
            "pinned_memory",
            _pinned,
        )


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _pinned(work: Work) -> Iterator[None]:
    pin = tree_map_only(torch.Tensor, lambda tensor: tensor.pin_memory() if tensor.is_cpu else tensor, work.args)
    with _attribute(work, "args", pin):
        yield


def _stepping(work: Work, change: Callable[[Any], Any]) -> AbstractContextManager[None]:
    return _attribute(work, "step", change(work.step))


def of_each_kind(several: list[Trial]) -> list[Trial]:
    """Without those that an earlier one excludes."""
    kept: dict[str, Trial] = {}
    for trial in several:
        kept.setdefault(trial.instead_of or trial.name, trial)
    return list(kept.values())
