"""torch on the scripted GPU: what ``torch.cuda`` asks in ``torch._C`` is played, and every tensor knows where it is.

Every name and signature that a lesson uses is so torch's own. Tensors are real and lie in main memory. Their storages
are marked: that is how they know that they are on the GPU, mix with others only as a GPU lets them, and count in its
allocator. Times follow from bytes. Autocast is the CPU's, with CUDA's list of what stays in float32.

A CUDA graph does its operations once more, on the same tensors.

Not played: a second GPU, NCCL, Triton and Inductor (compiled code runs as it is written), the limits of single kernels,
memory's history, checkpointing, and the order of streams: work is done at once, so that no race is seen. Other
processes see no GPU. The gradient of a CPU tensor that a backward pass reaches through ``.to("cuda")`` says that it is
on the GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.attention.varlen
from torch._subclasses.fake_tensor import is_fake
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tests.played_cuda.scripted import ScriptedCuda, ScriptedEvent

aten = torch.ops.aten
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class _Event(ScriptedEvent):
    """What ``torch.cuda.Event`` derives from."""

    device, cuda_event = GPU, 1

    def __new__(cls, *, enable_timing: bool, blocking: bool, interprocess: bool, external: bool) -> _Event:
        event = object.__new__(cls)
        ScriptedEvent.__init__(event, PLAYED, enable_timing)
        return event

    def __init__(self, *given: Any, **options: Any) -> None:
        """All is done by now."""

    def record(self, stream: Any) -> None:
        _checked(stream)
        super().record()

    def wait(self, stream: Any) -> None:
        _checked(stream)

    def synchronize(self) -> None:
        self._gpu.waits("cudaEventSynchronize")
        self._gpu.host_s = max(self._gpu.host_s, self.time_s or 0)


class _Stream:
    """What ``torch.cuda.Stream`` derives from. All have the one queue."""

    device, device_index, device_type = GPU, 0, 1
    made = 0

    def __new__(cls, priority: int = 0, stream_id: int | None = None, **place: int) -> _Stream:
        assert place.keys() <= {"device_index", "device_type", "stream_ptr"}
        stream = object.__new__(cls)
        if stream_id is None:
            _Stream.made += 1
            stream_id = _Stream.made
        stream.stream_id = stream.cuda_stream = stream_id
        stream.priority = priority
        return stream

    def __eq__(self, other: Any) -> bool:
        return self.stream_id == other.stream_id

    def is_capturing(self) -> bool:
        return PLAYED.graph is not None

    def synchronize(self) -> None:
        PLAYED.synchronize("cudaStreamSynchronize")


class _Graph:
    """What ``torch.cuda.CUDAGraph`` derives from. On a GPU capturing computes nothing, so here it is undone."""

    def __new__(cls, keep_graph: bool = False) -> _Graph:
        graph = object.__new__(cls)
        graph.operations, graph.before = [], {}
        return graph

    def capture_begin(self, *, pool: Any = None, capture_error_mode: str = "global") -> None:
        PLAYED.graph = self

    def capture_end(self) -> None:
        PLAYED.graph = None
        with torch.no_grad():
            for tensor, content in self.before.values():
                tensor.copy_(content)
        self.before.clear()

    def capture(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Do an operation, and keep it; first a copy of what it changes."""
        given = tensors_in((*args, *kwargs.values()))
        for tensor in given if func._schema.is_mutable else ():
            self.before.setdefault(id(storage_of(tensor)), (tensor, tensor.clone()))
        result = func(*args, **kwargs)
        own = [storage_of(tensor) for tensor in given]
        new = [each for each in tensors_in((result,)) if not any(storage_of(each) is storage for storage in own)]
        self.operations.append((func, args, kwargs, new if not func._schema.is_mutable else []))
        return result

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, results in self.operations:
                for held, result in zip(results, tensors_in((func(*args, **kwargs),)), strict=bool(results)):
                    held.copy_(result)


def _checked(stream: Any) -> None:
    if not isinstance(stream, torch.cuda.Stream):
        raise TypeError(f"argument 's' must be Stream, not {type(stream).__name__}")


def storage_of(tensor: torch.Tensor) -> Any:
    """A tensor's storage, which is one object as long as it lives; None if it has none: a sparse tensor."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the played GPU."""
    return hasattr(storage_of(tensor), "block")


def names_gpu(device: Any) -> bool | None:
    """Whether a device is the GPU (True) or main memory (False); None for any other, such as "meta"."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "cuda" and device.index:
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    return {"cuda": True, "cpu": False}.get(device.type)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """All tensors among arguments."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


# May be given tensors of main memory beside those of the GPU.
_MIXING = {aten.copy_.default, aten._foreach_copy_.default, aten.set_.source_Tensor, aten._pack_padded_sequence.default}
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# Refuse even a tensor of main memory that has no dimension.
_STRICT = {aten.cat.default, aten.stack.default}
# Need a number, or a size that is known only when the GPU is done; indexing by a mask is like that, too.
_MAY_WAIT = {
    aten.copy_.default,
    *_INDEXING,
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
}
_MAY_WAIT |= {aten.equal.default, aten._unique2.default, aten.unique_dim.default}
# Take long on a CPU, and always give the same for the same.
_HEAVY = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default}
_HEAVY |= {aten._scaled_dot_product_flash_attention_for_cpu.default, aten._softmax.default}
_HEAVY |= {aten._scaled_dot_product_flash_attention_for_cpu_backward.default}
_REMEMBERED, _LARGE = 100, 2**18
# What autocast computes in float32 on CUDA and not on a CPU.
# Source: AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE in aten/src/ATen/autocast_mode.h (torch 2.13.0).
_IN_FLOAT32 = {"acos", "asin", "binary_cross_entropy_with_logits", "cosh", "cosine_similarity", "cross_entropy"}
_IN_FLOAT32 |= {"cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "kl_div"}
_IN_FLOAT32 |= {"l1_loss", "layer_norm", "log", "log10", "log1p", "log2", "log_softmax", "logsumexp", "mse_loss"}
_IN_FLOAT32 |= {"nll_loss", "norm", "poisson_nll_loss", "pow", "prod", "reciprocal", "renorm", "rsqrt", "sinh"}
_IN_FLOAT32 |= {"smooth_l1_loss", "softmax", "softmin", "softplus", "sum", "tan", "__pow__"}
_STATS = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes", "allocation")
_STATS += ("segment", "active", "inactive_split", "oversize_allocations", "oversize_segments")
_COUNTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
_RNNS = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_COPIES = {aten.copy_.default, aten._to_copy.default, aten.clone.default}
_VARLEN = torch.ops.torch_attn._varlen_attn
_OTHER_KERNELS = {torch.nn.functional.scaled_dot_product_attention, _VARLEN, *_RNNS}
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_Base = torch._C.TensorBase


class PlayedCuda(ScriptedCuda):
    """The GPU under torch: what is placed where, what waits, and what it costs."""

    clock_s = 1e-4  # so that few calls of what costs nothing here make a timing
    kernel_s, bytes_per_s = 1e-3, 1e9

    def __init__(self) -> None:
        super().__init__()
        self.installed = False
        self.graph: _Graph | None = None  # that is being captured
        self.kernels = 0
        self.below = False  # while an operation runs, its own Python code finds everything in main memory
        # Whether the running call makes its tensors on the GPU: whatever it was given, and where it was given none.
        self.placing: bool | None = None
        self.target = False
        self.sync_debug_mode = self.stream_id = 0
        self.profiled: list[tuple[str, float, float, bool]] = []
        self._known: dict[Any, torch.Tensor] = {}

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Everything inside sees the GPU."""
        with _Operations(), _Calls():
            yield

    # Below torch: every operation, those of a backward pass included.

    def operation(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Do what an operation does, if a GPU would; place and charge its results."""
        placing = self.placing
        if "device" in kwargs and names_gpu(kwargs["device"]):  # from torch's own code
            kwargs, placing = kwargs | {"device": CPU}, True
        given = tensors_in((*args, *kwargs.values()) if kwargs else args)
        on = [on_gpu(tensor) for tensor in given]
        some, all_on = any(on), all(on)
        if some and not all_on and placing is None:
            _refuse_mixture(func, given, on)
        if some and func in _MAY_WAIT:
            self._wait_if_needed(func, args, kwargs, all_on)
        if self._known and func._schema.is_mutable:
            for tensor in given:
                vars(storage_of(tensor) or self).pop("digests", None)
        self.below = True
        try:
            compute = self.graph.capture if self.graph else self._computed
            result = compute(func, args, kwargs)
        finally:
            self.below = False
        placed = placing if placing is not None else some if given else self.target
        cost_s = self.kernel_s + sum(tensor.nbytes for tensor in given) / self.bytes_per_s
        if not (placed or some):
            self.host(cost_s)
            return result
        self.kernels += 1
        self.launch(func, on, cost_s)
        if placed:
            elsewhere = (
                () if all_on else [storage_of(tensor) for tensor, is_on in zip(given, on, strict=True) if not is_on]
            )
            for tensor in tensors_in((result,)):
                storage = storage_of(tensor)
                if not tensor.is_meta and not any(storage is other for other in elsewhere):
                    self.adopt(storage)
        return result

    def _wait_if_needed(self, func: Any, args: tuple, kwargs: dict[str, Any], all_on: bool) -> None:
        needed = True
        if func is aten.copy_.default:
            needed = not all_on and not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        elif func in _INDEXING:
            masks = (torch.bool, torch.uint8)
            needed = any(index.dtype in masks or not on_gpu(index) for index in tensors_in(args[1]))
        if needed:
            self.waits()

    def _computed(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an operation; that of a long one is remembered, since measuring repeats it."""
        given = tensors_in(args)
        # Fake tensors have no content to remember it by, and compute nothing.
        if func not in _HEAVY or sum(tensor.numel() for tensor in given) < _LARGE or any(map(is_fake, given)):
            return func(*args, **kwargs)
        key = (func, *map(_content, args), *sorted(kwargs.items()))
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = func(*args, **kwargs)
        return tree_map_only(torch.Tensor, torch._lazy_clone, self._known[key])  # copied when written to

    def adopt(self, storage: Any) -> None:
        """From now on this storage is on the GPU."""
        if storage is not None and not hasattr(storage, "block"):
            storage.block = self.allocate(storage.nbytes())

    def launch(self, func: Any, on: list[bool], seconds: float) -> None:
        """Enqueue a kernel, and let a running profiler see it."""
        end_s = self.enqueue(seconds)
        if torch.autograd.profiler._is_profiler_enabled:
            is_copy = func in _COPIES and not (self.placing is None and all(on))
            to_gpu = self.placing or bool(on and on[0])
            name = f"played::{func.overloadpacket.__name__}"
            if is_copy:
                name = "Memcpy HtoD (Pageable -> Device)" if to_gpu else "Memcpy DtoH (Device -> Pageable)"
            self.profiled.append(("cudaMemcpyAsync" if is_copy else "cudaLaunchKernel", self.host_s, 1e-6, False))
            self.profiled.append((name, end_s - seconds, seconds, True))

    def waits(self, name: str = "cudaStreamSynchronize") -> None:
        """Python waits for the GPU; what `torch.cuda.set_sync_debug_mode` says of that."""
        if self.graph:
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        if torch.autograd.profiler._is_profiler_enabled:
            self.profiled.append((name, self.host_s, max(self.busy_until_s - self.host_s, 0), False))
        super().synchronize()
        if self.sync_debug_mode == 2 and name == "cudaStreamSynchronize":
            raise RuntimeError("called a synchronizing CUDA operation")

    # Above torch: what Python calls.

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function of torch with each mention of the GPU taken out of its arguments."""
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__") or torch._C._get_dispatch_mode(_FAKE) is not None:
            return func(*args, **kwargs)
        device, place = kwargs.get("device") if name != "to" else None, None
        if device is not None and (place := names_gpu(device)):
            kwargs["device"] = CPU
        given = tensors_in((*args, *kwargs.values()) if kwargs else args)
        target = any(map(on_gpu, given)) if place is None else place
        if (generator := kwargs.get("generator")) is not None and (generator.device.type == "cuda") != target:
            expected = "cuda" if target else "cpu"
            raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{generator.device.type}'")
        pinned = kwargs.pop("pin_memory", False)
        if pinned and target:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        before = self.placing, self.target
        self.placing, self.target = before[0] if place is None else place, target
        try:
            run = _stands_in(func) if target and func in _OTHER_KERNELS else func
            if target and torch.is_autocast_enabled("cuda"):
                result = _autocast(run, name, args, kwargs)
            else:
                result = run(*args, **kwargs)
            if place is not None:
                result = self._placed(result, place, given)
        finally:
            self.placing, self.target = before
        for tensor in tensors_in((result,) if pinned else ()):
            storage_of(tensor).pinned = True
        return result

    @contextlib.contextmanager
    def making(self, placing: bool | None, target: bool) -> Iterator[None]:
        """Where tensors are made meanwhile."""
        before = self.placing, self.target
        self.placing, self.target = placing, target
        try:
            yield
        finally:
            self.placing, self.target = before

    def _placed(self, result: Any, place: bool, given: list[torch.Tensor]) -> Any:
        """Results where they were asked for, without moving what the caller has."""
        if not isinstance(result, torch.Tensor) or result.is_meta or on_gpu(result) == place:
            return result
        if any(storage_of(result) is storage_of(tensor) for tensor in given) or not place:
            return result.clone()
        self.adopt(storage_of(result))
        return result

    def moved(self, tensor: torch.Tensor, place: bool, convert: Callable[[], torch.Tensor], non_blocking: bool) -> Any:
        """A tensor's copy at another place, or the tensor itself where it is there already."""
        if on_gpu(tensor) != place and not non_blocking:
            self.waits()
        with self.making(place, place):
            return self._placed(convert(), place, [tensor])

    def memory_info(self) -> tuple[int, int]:
        """Free memory and all of it."""
        return self.memory_bytes - self.memory_reserved(), ScriptedCuda.memory_bytes

    # What torch.cuda asks in torch._C, by what comes after "_cuda_".

    def stats(self) -> dict[str, Any]:
        """The statistics of the allocator, in the shape in which torch gets them."""
        held = dict.fromkeys(_STATS, (0, 0))
        held |= dict.fromkeys(_STATS[:3], (self.allocated, self.peak_allocated))
        held["reserved_bytes"] = (self.memory_reserved(), self.peak_reserved)
        stats: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
        for key, (now, peak) in held.items():
            given_out = self.allocations if key == "allocation" else peak
            of = {"current": now, "peak": peak, "allocated": given_out, "freed": peak - now}
            stats[key] = of if key.startswith("oversize") else dict.fromkeys(("all", "small_pool", "large_pool"), of)
        return stats

    def synchronize(self, name: str = "cudaDeviceSynchronize") -> None:
        self.waits(name) if torch.autograd.profiler._is_profiler_enabled else super().synchronize()

    def fraction(self, fraction: float, device: int) -> None:
        self.memory_bytes = int(fraction * ScriptedCuda.memory_bytes)

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        self.stream_id = stream_id

    def in_c(self) -> dict[str, Any]:
        """Those functions by their names."""
        return {
            "getDeviceCount": lambda: 1,
            "getDevice": lambda: 0,
            "setDevice": lambda device: names_gpu(device) and None,
            "synchronize": self.synchronize,
            "sleep": self._sleep,
            "emptyCache": self.empty_cache,
            "getCurrentStream": lambda device: (self.stream_id, 0, 1),
            "getDefaultStream": lambda device: (0, 0, 1),
            "getCurrentRawStream": lambda device: self.stream_id,
            "setStream": self.set_stream,
            "memoryStats": lambda device: self.stats(),
            "hostMemoryStats": self.stats,
            "resetPeakMemoryStats": lambda device: self.reset_peak_memory_stats(),
            "resetAccumulatedMemoryStats": lambda device: None,
            "setMemoryFraction": self.fraction,
            "getMemoryFraction": lambda device: self.memory_bytes / ScriptedCuda.memory_bytes,
            "set_sync_debug_mode": lambda mode: setattr(self, "sync_debug_mode", mode),
            "get_sync_debug_mode": lambda: self.sync_debug_mode,
            "getArchFlags": lambda: "sm_80",
            "getAllocatorBackend": lambda: "native",
            "canDeviceAccessPeer": lambda device, peer: False,
            "ipc_collect": lambda: None,
            "memorySnapshot": lambda pool: {"segments": [], "device_traces": [[]], "allocator_settings": {}},
            "record_memory_history": lambda *given: None,
            "attach_out_of_memory_observer": lambda observer: None,
            "CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),
        }


PLAYED = PlayedCuda()


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports all of Dynamo, which is off

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        with torch._C.DisableTorchFunction():
            return PLAYED.operation(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return PLAYED.call(func, args, dict(kwargs or {}))


def _refuse_mixture(func: Any, given: list[torch.Tensor], on: list[bool]) -> None:
    if func in _INDEXING and on[0]:  # indices may come from main memory
        given, on = [given[0], *given[-1:]], [True, on[-1] or func is aten.index.Tensor]
    if func in _INDEXING and not on[0]:
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    for tensor, is_on in zip(given, on, strict=True):
        if not is_on and func not in _MIXING and tensor.device.type == "cpu" and (tensor.dim() or func in _STRICT):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"(in {func})"
            )


def _content(value: Any) -> Any:
    """What a result depends on."""
    if not isinstance(value, torch.Tensor):
        return tuple(value) if isinstance(value, list) else value
    view = (value.dtype, value.storage_offset(), value.shape, value.stride())
    known = vars(storage_of(value)).setdefault("digests", {})
    if view not in known:
        plain = value.detach().contiguous().reshape(-1).view(torch.uint8)
        known[view] = hashlib.sha1(_Base.numpy(plain)).digest()
    return value.dtype, value.shape, value.stride(), known[view]


def _stands_in(func: Any) -> Callable[..., Any]:
    """What a CPU computes where a GPU has kernels of its own."""
    if func is _VARLEN:
        return _by_document
    if func in _RNNS:  # oneDNN has none for float16
        return torch.backends.mkldnn.flags(enabled=False)(func)

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        others = torch._C._get_mem_efficient_sdp_enabled() or torch._C._get_cudnn_sdp_enabled()
        math = torch._C._get_math_sdp_enabled()
        torch._C._set_sdp_use_math(math or others)
        try:
            return func(*args, **kwargs)
        finally:
            torch._C._set_sdp_use_math(math)

    return attention


def _by_document(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
    """`varlen_attn` of [tokens, heads, head size]: attention over one document after the other."""
    sizes, causal = ends.diff().tolist(), rest[3]
    parts = zip(*(each.transpose(0, 1)[None].split(sizes, dim=2) for each in (q, k, v)), strict=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    return torch.cat([attend(*own, is_causal=causal) for own in parts], dim=2)[0].transpose(0, 1), None, None


def _autocast(func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function as under CUDA's autocast, by the CPU's."""
    if name in _IN_FLOAT32:
        low = (torch.float16, torch.bfloat16)
        args = tuple(a.float() if isinstance(a, torch.Tensor) and a.dtype in low else a for a in args)
        return func(*args, **kwargs)
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])


# Methods of tensors. They are replaced in the class, since other threads and other modes call them, too.


class _Tensor:
    device = property(lambda self: GPU if on_gpu(self) and not PLAYED.below else _Base.device.__get__(self))
    is_cuda = property(lambda self: on_gpu(self) or _Base.is_cuda.__get__(self))
    is_cpu = property(lambda self: not on_gpu(self) and _Base.is_cpu.__get__(self))

    def data_ptr(self) -> int:
        block = getattr(storage_of(self), "block", None)
        return block.address + self.storage_offset() * self.itemsize if block else _Base.data_ptr(self)

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs:  # by position, where nothing takes it for a factory's
            args = (kwargs.pop("device"), *args)
        named = {name: value for name, value in kwargs.items() if name != "copy"}
        device, _, non_blocking, _ = torch._C._nn._parse_to(*args, **named)
        place = None if device is None else names_gpu(device)
        if place:
            args = (CPU, *args[1:])
        if place is None or torch._C._get_dispatch_mode(_FAKE) is not None:
            return _Base.to(self, *args, **kwargs)
        return PLAYED.moved(self, place, lambda: _Base.to(self, *args, **kwargs), non_blocking)

    def cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format) -> torch.Tensor:
        device = torch.device("cuda", device or 0) if device is None or isinstance(device, int) else device
        return self.to(device, non_blocking=non_blocking, memory_format=memory_format)

    def cpu(self, memory_format=torch.preserve_format) -> torch.Tensor:
        return self.to(CPU, memory_format=memory_format)

    def numpy(self, *, force: bool = False) -> Any:
        if on_gpu(self) and not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return _Base.numpy(self.detach().cpu() if force else self)

    def pin_memory(self, device=None) -> torch.Tensor:
        if on_gpu(self):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if self.is_pinned():
            return self
        pinned = self.clone()
        storage_of(pinned).pinned = True
        return pinned

    def is_pinned(self, device=None) -> bool:
        return getattr(storage_of(self), "pinned", False)

    def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None) -> None:
        with PLAYED.making(None, on_gpu(self)):  # the modes stay in force in hooks, and where a forward is run again
            torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def share_memory_(self) -> torch.Tensor:
        return self if on_gpu(self) else _SHARE(self)


class _Storage:
    device = property(lambda self: GPU if hasattr(self, "block") else _STORAGE.device.__get__(self))

    def data_ptr(self) -> int:
        return self.block.address if hasattr(self, "block") else _STORAGE.data_ptr(self)

    def clone(self) -> torch.UntypedStorage:
        copied = torch.UntypedStorage(self.nbytes()).copy_(self)
        if hasattr(self, "block"):
            PLAYED.adopt(copied)
        return copied


_STORAGE = torch._C.StorageBase
_SHARE = torch.Tensor.share_memory_


class _Generator(torch._C.Generator):
    """``torch.Generator``, which on a CPU build knows no CUDA."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        is_on = names_gpu(device)
        generator = super().__new__(cls, CPU if is_on else device)
        generator.is_on = is_on
        return generator

    device = property(lambda self: GPU if self.is_on else torch._C.Generator.device.__get__(self))


def _put(owner: Any, **values: Any) -> None:
    """Replace what is there."""
    for name, value in values.items():
        assert hasattr(owner, name), f"{owner} has no {name}"
        setattr(owner, name, value)


def install() -> None:
    """Let torch, in all of this process, find the GPU."""
    if PLAYED.installed:
        return
    PLAYED.installed = True
    assert not torch.backends.cuda.is_built(), "play on a build of torch for CPUs: this one may find a real GPU"
    import pynvml

    import course_utils.measure.rounds as rounds

    torch.set_num_threads(1)  # two that wait for each other on a busy machine take a hundred times as long
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiled code runs as it is written
    for name, value in PLAYED.in_c().items():
        setattr(torch._C, f"_cuda_{name}", value)
    # What torch.cuda and torch.backends read when they are imported, and what initialising would set.
    torch.cuda._get_device_properties = lambda device: _PROPERTIES
    runtime = types.SimpleNamespace(cudaMemGetInfo=lambda device: PLAYED.memory_info())
    _put(torch.cuda, _initialized=True, _cudart=runtime, default_generators=(torch.default_generator,))
    _put(
        torch.cuda,
        _exchange_device=lambda device: names_gpu(max(device, 0)) - 1,
        _maybe_exchange_device=lambda device: 0,
    )
    parent = os.getpid()
    _put(torch.cuda, _is_in_bad_fork=lambda: os.getpid() != parent)  # CUDA does not work in a forked child
    torch._C._scatter = lambda tensor, devices, sizes, dim, streams: (tensor.cuda(devices[0]),)  # one GPU gets it all
    capturing = {"_cuda_isCurrentStreamCapturing": lambda: PLAYED.graph is not None}
    _put(torch.cuda.graphs, _graph_pool_handle=lambda: (0, 1), **capturing)
    torch._C._host_emptyCache = lambda: None
    _put(torch.version, cuda="13.0")
    _put(torch.backends.cudnn, version=lambda: 91900)
    _put(torch._C, _has_cuda=True, _has_cudnn=True)
    accelerator = {
        "getAccelerator": lambda: torch.device("cuda"),
        "getDeviceIndex": lambda: 0,
        "setDeviceIndex": lambda index: None,
        "exchangeDevice": lambda index: 0,
        "maybeExchangeDevice": lambda index: 0,
        "getStream": lambda index: torch.cuda.current_stream(index),
        "setStream": lambda stream: torch.cuda.set_stream(stream),
        "synchronizeDevice": lambda index: PLAYED.synchronize(),
        "isAllocatorInitialized": lambda: True,
        "emptyCache": PLAYED.empty_cache,
        "getDeviceStats": lambda index: PLAYED.stats(),
        "resetPeakStats": lambda index: PLAYED.reset_peak_memory_stats(),
        "getMemoryInfo": lambda index: PLAYED.memory_info(),
    }
    _put(torch._C, **{f"_accelerator_{name}": value for name, value in accelerator.items()})
    torch.cuda.Event.__bases__, torch.cuda.Stream.__bases__ = (_Event,), (_Stream,)
    torch.cuda.CUDAGraph.__bases__ = (_Graph,)
    for owner, played in ((torch.Tensor, _Tensor), (torch.UntypedStorage, _Storage)):
        _put(owner, **{name: value for name, value in vars(played).items() if name not in vars(type("", (), {}))})
    _put(torch, Generator=_Generator)
    torch.serialization.register_package(0, lambda storage: "cuda:0" if hasattr(storage, "block") else None, _loaded)
    _put(torch.autograd.profiler.profile, _parse_kineto_results=_profiled)
    _put(
        torch.autograd.profiler, _supported_activities=lambda: set(torch.autograd.ProfilerActivity.__members__.values())
    )
    nvml = {"Init": None, "DeviceGetHandleByIndex": 0, "DeviceGetHandleByUUID": 0, "DeviceGetTemperature": 40}
    nvml |= {"DeviceGetPowerUsage": 150_000, "DeviceGetClockInfo": 1410}
    nvml["DeviceGetUtilizationRates"] = types.SimpleNamespace(gpu=50, memory=20)
    for name, value in nvml.items():
        _put(pynvml, **{f"nvml{name}": lambda *given, value=value: value})
    # Few calls are enough: nothing here is noise.
    PLAYED.install(types.SimpleNamespace(setattr=_put_path))
    _put(time, perf_counter=PLAYED.perf_counter, sleep=_slept)
    _put(rounds, _TEST_BUDGET_S=1.0)


_PROPERTIES = types.SimpleNamespace(
    name="NVIDIA Played",
    total_memory=ScriptedCuda.memory_bytes,
    multi_processor_count=108,
    major=8,
    minor=0,
    L2_cache_size=2**17,
    gcnArchName="NVIDIA Played",
    uuid="0",
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=166912,
    shared_memory_per_multiprocessor=167936,
)


def _put_path(path: str, value: Any) -> None:
    owner, _, name = path.rpartition(".")
    _put(importlib.import_module(owner), **{name: value})


def _loaded(storage: Any, location: str) -> Any:
    if not location.startswith("cuda"):
        return None  # the next one's turn
    PLAYED.adopt(storage)
    return storage


_SLEEP = time.sleep


def _slept(seconds: float) -> None:
    """Let the played clock go on, and other threads run for a moment."""
    PLAYED.host(seconds)
    _SLEEP(min(seconds, 1e-4))


_PARSE = torch.autograd.profiler.profile._parse_kineto_results


def _profiled(profile: Any, *args: Any, **options: Any) -> list:
    """What the profiler saw, and the GPU's part of it."""
    events = _PARSE(profile, *args, **options)
    seen, PLAYED.profiled = PLAYED.profiled, []
    for number, (name, start_s, seconds, on_device) in enumerate(seen):
        where = {"device_type": torch.autograd.DeviceType.CUDA} if on_device else {}
        start_us, end_us = start_s * 1e6, (start_s + seconds) * 1e6
        event = torch.autograd.profiler_util.FunctionEvent(
            -number - 1, name, -1, start_us, end_us, overload_name="", use_device=profile.use_device, stack=[], **where
        )
        events.append(event)
    return events
