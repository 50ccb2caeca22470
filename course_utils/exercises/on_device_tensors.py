"""Checks of lesson 02. Wrong devices show on every machine: ``meta`` is a device that is not the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from course_utils.exercises import NotRight, ask, exercise

_ACCELERATORS = ("cuda", "mps", "xpu", "mtia", "hpu")


@exercise(
    "Follow the input",
    right="The noise is made where the images are and in their dtype, so nothing is moved and no device is named.",
    hints={
        "names_device": (
            "Your code names a device, so it fails wherever the images are on another one. The images know where they "
            "are. How can the noise learn it from them?"
        ),
        "stays_here": (
            "With images that are not on the CPU, your code raises an error: the noise is on the CPU, and an operation "
            "does not move it. Where should the noise be made?"
        ),
        "moved": (
            "Right device in the end, but the noise is made on the CPU and copied from there, in each call. Which "
            "functions make a tensor on the device of another one from the start?"
        ),
        "other_dtype": (
            "For images in float16 you return float32: the noise has the default dtype, and the sum takes the wider "
            "one. What else besides the device can the noise take over from the images?"
        ),
        "in_place": (
            "You change the images that were passed in. The caller may need them again. Which operation makes a new "
            "tensor?"
        ),
    },
)
def check_add_noise(answer: Any) -> str | None:
    """Runs the answer on images on ``meta``, noting where tensors are made; then on the CPU, for the values."""
    images = torch.empty(16, 1, 8, 8, dtype=torch.float16, device="meta")
    problem: NotRight | None = None
    result = None
    with _Watch() as watch:
        try:
            result = ask(answer, images, 0.1)
        except NotRight as raised:
            problem = raised
    if watch.named_accelerator:
        return "names_device"
    if problem is not None:
        if watch.made_on_cpu:
            return "stays_here"
        raise problem
    if not isinstance(result, torch.Tensor) or result.shape != images.shape:
        raise NotRight(f"Return the noisy images, with the shape of the images; you return {_kind(result)}.")
    if not result.is_meta:
        return "stays_here"
    if watch.made_on_cpu:
        return "moved"
    if result.dtype != images.dtype:
        return "other_dtype"
    return _judged_by_values(answer)


def _judged_by_values(answer: Any) -> str | None:
    images = torch.linspace(0, 1, 64 * 64, dtype=torch.float64).reshape(64, 1, 8, 8)
    before = images.clone()
    first, second = (ask(answer, images, 0.5) for _ in range(2))
    if not all(isinstance(noisy, torch.Tensor) and noisy.shape == images.shape for noisy in (first, second)):
        raise NotRight(f"Return the noisy images, with the shape of the images; on the CPU you return {_kind(first)}.")
    if not torch.equal(images, before):
        return "in_place"
    noise = (first - images) / 0.5
    # 4096 normal numbers: the mean strays by 1/64, the standard deviation by less; eight times that is no accident.
    if abs(noise.mean().item()) > 8 / 64 or abs(noise.std().item() - 1) > 8 / 64:
        raise NotRight("What you add is not scale times normal noise of mean 0 and standard deviation 1.")
    if torch.equal(first, second):
        raise NotRight("Two calls return the same: the noise must be new in each call.")
    return None


class _Watch(TorchFunctionMode):
    """Notes whether code names an accelerator, and whether it makes tensors with dimensions on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.named_accelerator = False
        self.made_on_cpu = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda or any(_is_accelerator(value) for value in (*args, *kwargs.values())):
            self.named_accelerator = True
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.device.type == "cpu" and result.dim() > 0:
            self.made_on_cpu = True
        return result


def _is_accelerator(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type in _ACCELERATORS
    return isinstance(value, str) and value.partition(":")[0] in _ACCELERATORS


@exercise(
    "From NumPy without detours",
    right="The features are the array's own memory, and the labels became integers in one pass.",
    hints={
        "float64": (
            "The features come back as float64. That is twice the memory, and a float32 model refuses them. The array "
            "is float32: on which detour did the numbers change?"
        ),
        "copies": (
            "The values are right, but they lie in new memory: all of them were copied. `torch.tensor()` always "
            "copies. Which function makes a tensor out of the memory that is there?"
        ),
        "float_labels": (
            "The labels are still floating-point numbers. `cross_entropy` takes such targets for probabilities, and "
            "fails or computes something else. Which dtype do class numbers have?"
        ),
        "other_integers": (
            "The labels are integers, but not the ones that `cross_entropy` asks for in class numbers. Which integer "
            "dtype does PyTorch index with?"
        ),
    },
)
def check_as_tensors(answer: Any) -> str | None:
    """Compares addresses, dtypes and values."""
    features = np.arange(60, dtype=np.float32).reshape(12, 5) / 7
    labels = np.array([3.0, 0.0, 9.0, 1.0] * 3)
    given = ask(answer, features, labels)
    if not isinstance(given, tuple | list) or len(given) != 2 or not all(isinstance(t, torch.Tensor) for t in given):
        raise NotRight(f"Return two tensors, the features and the labels; you return {_kind(given)}.")
    inputs, targets = given
    if inputs.shape != (12, 5) or targets.shape != (12,):
        raise NotRight(
            f"The features have shape (12, 5) and the labels (12,); yours have {tuple(inputs.shape)} and "
            f"{tuple(targets.shape)}."
        )
    if inputs.dtype == torch.float64:
        return "float64"
    if inputs.dtype != torch.float32:
        raise NotRight(f"The features are float32; yours are {inputs.dtype}.")
    if not torch.equal(inputs, torch.from_numpy(features)):
        raise NotRight("The features have other values than the array.")
    if inputs.data_ptr() != features.ctypes.data:
        return "copies"
    if targets.is_floating_point():
        return "float_labels"
    if targets.tolist() != labels.astype(int).tolist():
        raise NotRight("The labels have other values than the array.")
    return "other_integers" if targets.dtype != torch.int64 else None


class Decoder(nn.Module):
    """What exercise 3 loads: a table of rotations that no checkpoint holds, and an output layer tied to the embedding.

    Args:
        vocabulary: number of tokens.
        width: size of a token's vector; even.

    Attributes:
        rotary: cosines and sines of each position, float32 ``[2, 16, width / 2]``; a buffer outside of the state.

    Example:
        >>> Decoder()(torch.zeros(2, 4, dtype=torch.int64)).shape
        torch.Size([2, 4, 64])
    """

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
        """Predict the next token.

        Args:
            tokens: int64 ``[batch, length]``, at most 16 long.

        Returns:
            Logits, float32 ``[batch, length, vocabulary]``.
        """
        even, odd = self.embedding(tokens).unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.rotary[:, : tokens.shape[1]]
        rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
        return self.head(self.mixing(rotated))


@exercise(
    "Load it only once",
    right="Built without memory, filled from the checkpoint alone; what no checkpoint holds is computed afterwards.",
    hints={
        "built_for_real": (
            "The model is built with memory and random weights, and then the checkpoint overwrites them. On which "
            "device does building a model cost neither?"
        ),
        "on_meta": (
            "A tensor of your model is still on meta: it has a shape and no numbers. Either give all tensors memory "
            "before you load, or compute what the checkpoint does not hold. Which one is it here?"
        ),
        "never_loaded": (
            "A parameter holds whatever was in its memory before. `to_empty` gives memory, not numbers. What fills it?"
        ),
        "empty_buffer": (
            "All parameters are right, and `rotary` holds whatever was in its memory before. No checkpoint holds it. "
            "Which method of the model computes it, and when may you call it?"
        ),
        "untied": (
            "Embedding and output layer have equal numbers now, but they are two parameters. The first optimizer step "
            "drives them apart. What ties them again, and after which step?"
        ),
    },
)
def check_load_decoder(answer: Any) -> str | None:
    """Looks at every tensor of the model, which was built by a function that notes where, in memory full of NaN."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        expected = Decoder()
    checkpoint = {name: value.clone() for name, value in expected.state_dict().items()}
    built_on: list[str] = []

    def make_model() -> Decoder:
        model = Decoder()
        built_on.append(model.embedding.weight.device.type)
        return model

    with _visible_uninitialised_memory():
        model = ask(answer, make_model, checkpoint, "cpu")
    if not isinstance(model, Decoder):
        raise NotRight(f"Return the model; you return {_kind(model)}.")
    if not built_on:
        raise NotRight("Build the model by calling make_model(), so that the check sees where that happens.")
    if set(built_on) != {"meta"}:
        return "built_for_real"
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    if any(tensor.is_meta for tensor in tensors.values()):
        return "on_meta"
    if missing := sorted({*checkpoint, "rotary"} - set(tensors)):
        raise NotRight(f"{missing[0]} is no longer in the model.")
    for name, value in checkpoint.items():
        if not torch.equal(tensors[name], value):
            if tensors[name].isnan().any():
                return "never_loaded"
            raise NotRight(f"{name} has other values than the checkpoint.")
    if not torch.equal(tensors["rotary"], expected.rotary):
        return "empty_buffer"
    return None if model.head.weight is model.embedding.weight else "untied"


@contextlib.contextmanager
def _visible_uninitialised_memory() -> Iterator[None]:
    """Fill memory that nobody initialised with NaN.

    Source:
        https://docs.pytorch.org/docs/2.13/deterministic.html, ``fill_uninitialized_memory`` (torch 2.13).
    """
    modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__
