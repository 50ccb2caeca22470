"""Checks of the lesson. Wrong devices show on every machine: ``meta`` is a device that is not the CPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.measure.fresh import Switches

_ACCELERATORS = ("cuda", "mps", "xpu", "mtia", "hpu")


@contextlib.contextmanager
def _own_default_device() -> Iterator[None]:
    """Let a check make its tensors on the CPU, whatever default device the notebook has set by now."""
    with Switches.kept():
        torch.set_default_device(None)
        yield


@exercise
@_own_default_device()
def check_add_noise(answer: Any) -> str | None:
    """Runs the answer on images on ``meta``, noting where tensors are made; then on the CPU, for the values."""
    for dtype in (torch.float16, torch.bfloat16):
        if hint := _judged_on_meta(answer, torch.empty(16, 1, 8, 8, dtype=dtype, device="meta")):
            return hint
    return _judged_by_values(answer)


def _judged_on_meta(answer: Any, images: torch.Tensor) -> str | None:
    with _Watch() as watch, _unvalidated_distributions():
        try:
            result = _ask(answer, images, 0.1)
        except NotRight as problem:
            result = problem
    if watch.named_accelerator:
        return "names_device"
    if watch.fetched:
        return "fetches"
    if isinstance(result, NotRight) and not watch.made_on_cpu:
        raise result
    if not isinstance(result, NotRight) and getattr(result, "shape", None) != images.shape:
        raise NotRight(f"Return the noisy images, with the shape of the images; you return {_kind(result)}.")
    if not getattr(result, "is_meta", False):
        return "stays_here"
    if watch.made_on_cpu:
        return "moved"
    if watch.copied_number:
        return "copies_number"
    return None if result.dtype == images.dtype else "other_dtype"


def _judged_by_values(answer: Any) -> str | None:
    images = torch.linspace(0, 1, 64 * 64, dtype=torch.float64).reshape(64, 1, 8, 8)
    before = images.clone()
    first, second = (_ask(answer, images, 0.5) for _ in range(2))
    for noisy in (first, second):
        if not isinstance(noisy, torch.Tensor) or noisy.shape != images.shape or noisy.layout != torch.strided:
            raise NotRight(
                f"Return the noisy images, with the shape of the images; on the CPU you return {_kind(noisy)}."
            )
        if (noisy.dtype, noisy.device) != (images.dtype, images.device):
            raise NotRight(
                f"For images in {images.dtype} on the {images.device} you return {noisy.dtype} on {noisy.device}."
            )
    if not torch.equal(images, before):
        return "in_place"
    noise = (first - images) / 0.5
    # Noise of 4096 numbers; a few may agree in six decimals by chance.
    if noise.std() > 0.5 and noise.round(decimals=6).unique().numel() < 0.98 * noise.numel():
        raise NotRight("You add the same noise in several places: each number of each image needs noise of its own.")
    # The mean of so many strays by 1/64, the standard deviation by less; eight times that is no accident.
    if not (abs(noise.mean().item()) <= 8 / 64 and abs(noise.std().item() - 1) <= 8 / 64):
        raise NotRight("What you add is not scale times normal noise of mean 0 and standard deviation 1.")
    if torch.equal(first, second):
        raise NotRight("Two calls return the same: the noise must be new in each call.")
    return None


def _ask(answer: Any, *args: Any) -> Any:
    """Ask, and put back what the answer switches."""
    with Switches.kept():
        result = ask(answer, *args)
        if torch.get_default_device() != torch.device("cpu"):
            raise NotRight(
                "Your function leaves another default device behind, for all code that runs after it. "
                "`with torch.device(...)` ends by itself."
            )
    return result


@contextlib.contextmanager
def _unvalidated_distributions() -> Iterator[None]:
    """Let distributions take parameters on ``meta``, which have no values that could be validated."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


_READ_NAMES = ("cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__")
_READS = {getattr(torch.Tensor, name) for name in _READ_NAMES}
_FROM_VALUES = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
_MOVES = {torch.Tensor.to, torch.Tensor.type_as}


class _Watch(TorchFunctionMode):
    """Notes whether code names an accelerator, makes tensors on the CPU, copies a number from there, or fetches one."""

    def __init__(self) -> None:
        super().__init__()
        self.named_accelerator = self.made_on_cpu = self.copied_number = self.fetched = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        devices = {_device(value) for value in given}
        self.named_accelerator |= func is torch.Tensor.cuda or not devices.isdisjoint(_ACCELERATORS)
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            self.fetched |= func in _READS or (func is torch.Tensor.to and "cpu" in devices)
        self.made_on_cpu |= any(_is_on_cpu(value) for value in given)
        self.made_on_cpu |= func in _FROM_VALUES and any(isinstance(v, list | tuple) and len(v) > 1 for v in args)
        result = func(*args, **kwargs)
        self.made_on_cpu |= _is_on_cpu(result)
        if func in _FROM_VALUES | _MOVES and getattr(result, "is_meta", False):
            source = args[1] if func is torch.Tensor.new_tensor else args[0]
            self.copied_number |= not getattr(source, "is_meta", False)
        return result


def _is_on_cpu(value: Any) -> bool:
    """Whether it is a tensor with dimensions, or an array of several numbers, in main memory."""
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.dim() > 0
    return isinstance(value, np.ndarray) and value.size > 1


def _device(value: Any) -> str | None:
    """The kind of device that an argument names, or that the tensor in its place is on if that is the CPU."""
    if isinstance(value, torch.Tensor):
        return "cpu" if value.device.type == "cpu" else None
    return str(value).partition(":")[0] if isinstance(value, str | torch.device) else None


class Decoder(nn.Module):
    """What exercise 2 loads: an output layer tied to the embedding, and a table of rotations outside of the state."""

    def __init__(self, vocabulary: int = 64, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mixing = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.tie_weights()
        self.reset_buffers()

    def tie_weights(self) -> None:
        """Let the output layer use the embedding's weights: one parameter under two names."""
        self.head.weight = self.embedding.weight

    def reset_buffers(self) -> None:
        """Compute the table of rotations, on the device on which the embedding is now."""
        width, device = self.embedding.embedding_dim, self.embedding.weight.device
        frequencies = 10_000 ** -torch.linspace(0, 1, width // 2, device=device)
        angles = torch.arange(16, device=device)[:, None] * frequencies
        self.register_buffer("rotary", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Predict the next token, from at most 16."""
        even, odd = self.embedding(tokens).unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.rotary[:, : tokens.shape[1]]
        rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
        return self.head(self.mixing(rotated))


@exercise
@_own_default_device()
def check_load_decoder(answer: Any) -> str | None:
    """Looks at every tensor of the model, which was built by a function that notes where, in memory full of NaN."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        expected = Decoder()
        before = torch.get_rng_state()
        try:
            checkpoint = {name: value.clone() for name, value in expected.state_dict().items()}
            model, built_on = _loaded(answer, checkpoint, "cpu")
            drawn = not torch.equal(torch.get_rng_state(), before)
            if hint := _hint_about_model(model, built_on, expected):
                return hint
            if _memory(_tensors(model)) & _memory(checkpoint):
                return "shares"
            elsewhere, _ = _loaded(answer, checkpoint, "meta")
        except NotRight as raised:
            if "meta tensor" in str(raised):
                return "moves_meta"
            raise
    if not isinstance(elsewhere, Decoder) or not all(tensor.is_meta for tensor in _tensors(elsewhere).values()):
        return "other_device"
    return "draws" if drawn else None


def _loaded(answer: Any, checkpoint: dict[str, torch.Tensor], device: str) -> tuple[Any, set[str]]:
    """What the answer returns, and on which devices it built a model."""
    built_on: set[str] = set()

    def make_model() -> Decoder:
        model = Decoder()
        built_on.add(model.embedding.weight.device.type)
        return model

    with _visible_uninitialised_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading into a model on meta does nothing, and says so for each tensor
        return _ask(answer, make_model, dict(checkpoint), device), built_on


def _tensors(model: Decoder) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def _memory(tensors: dict[str, torch.Tensor]) -> set[int]:
    """Where the tensors' numbers lie."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}


def _hint_about_model(model: Any, built_on: set[str], expected: Decoder) -> str | None:
    if not isinstance(model, Decoder):
        raise NotRight(f"Return the model; you return {_kind(model)}.")
    if not built_on:
        raise NotRight("Build the model by calling make_model(), so that the check sees where that happens.")
    if built_on != {"meta"}:
        return "built_for_real"
    tensors = _tensors(model)
    if all(tensors[name].is_meta for name in expected.state_dict()):
        return "nothing_loaded"
    if any(tensor.is_meta for tensor in tensors.values()):
        return "on_meta"
    for name, value in {**expected.state_dict(), "rotary": expected.rotary}.items():
        loaded = tensors[name]
        if (loaded.shape, loaded.dtype, loaded.device) != (value.shape, value.dtype, value.device):
            raise NotRight(
                f"{name} is {loaded.dtype} {tuple(loaded.shape)} on {loaded.device}, and was to be {value.dtype} "
                f"{tuple(value.shape)} on {value.device}."
            )
        if torch.equal(loaded, value):
            continue
        if name == "rotary":
            return "empty_buffer"
        if loaded.isnan().any():
            return "never_loaded"
        raise NotRight(f"{name} has other values than the checkpoint.")
    return None if model.head.weight is model.embedding.weight else "untied"


@contextlib.contextmanager
def _visible_uninitialised_memory() -> Iterator[None]:
    """Fill memory that nobody initialised with NaN: https://docs.pytorch.org/docs/2.13/deterministic.html."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with Switches.kept():
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = filled


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list) and value:
        return f"{len(value)} values ({', '.join(type(each).__name__ for each in value[:3])})"
    return f"an empty {type(value).__name__}" if isinstance(value, tuple | list) else type(value).__name__
