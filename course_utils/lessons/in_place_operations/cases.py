"""What the lesson compares: operations in place and out of place, in small nets, and in ResNet-50 at its real size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.models import GPT, Block
from course_utils.materials.step_memory import worked_out
from course_utils.measure.devices import CudaDevice, Device
from course_utils.measure.machine import course_size
from course_utils.show.progress import progress

Function = Callable[..., torch.Tensor]
Operation = Callable[[torch.Tensor], torch.Tensor]
Pair = tuple[Operation, Operation | None]  # out of place and, where PyTorch has it, in place
# Of a net for the tables: a tensor between its layers has 1 MiB in float32, far more than a weight.
ROWS, WIDTH, PAIRS = 2048, 128, 8
_KEEP_OUTPUT: dict[str, Pair] = {
    "ReLU": (functional.relu, functional.relu_),
    "sigmoid": (torch.sigmoid, torch.sigmoid_),
    "tanh": (torch.tanh, torch.tanh_),
    "times 2": (lambda x: x * 2, lambda x: x.mul_(2)),
    "masked_fill": (lambda x: x.masked_fill(_mask(x), 0), lambda x: x.masked_fill_(_mask(x), 0)),
    "dropout": (lambda x: functional.dropout(x, 0.1), lambda x: functional.dropout(x, 0.1, inplace=True)),
}
_TWO_FORMULAS: dict[str, Pair] = {
    "LeakyReLU": (functional.leaky_relu, functional.leaky_relu_),
    "ELU": (functional.elu, functional.elu_),
    "CELU": (functional.celu, functional.celu_),
    "SELU": (functional.selu, functional.selu_),
    "RReLU": (lambda x: functional.rrelu(x, training=True), lambda x: functional.rrelu_(x, training=True)),
}
_KEEP_INPUT: dict[str, Pair] = {
    "ReLU6": (functional.relu6, lambda x: functional.relu6(x, inplace=True)),
    "clamp": (lambda x: x.clamp(-1, 1), lambda x: x.clamp_(-1, 1)),
    "SiLU": (functional.silu, lambda x: functional.silu(x, inplace=True)),
    "Mish": (functional.mish, lambda x: functional.mish(x, inplace=True)),
    "Hardswish": (functional.hardswish, lambda x: functional.hardswish(x, inplace=True)),
    "GELU": (functional.gelu, None),
}
# By what the gradient is computed from: the output or less; the input, and in place the output; the input both ways.
FAMILIES = (_KEEP_OUTPUT, _TWO_FORMULAS, _KEEP_INPUT)
OPERATIONS = _KEEP_OUTPUT | _TWO_FORMULAS | _KEEP_INPUT


def _mask(x: torch.Tensor) -> torch.Tensor:
    """Every second column, as one row that is broadcast: it takes next to nothing."""
    return torch.arange(x.shape[-1], device=x.device) % 2 == 0


def peak_bytes(fn: Callable[[], Any], device: str) -> int:
    """The most bytes that a call holds at once, on top of what was there, on this device.

    On a Mac the lesson runs on the CPU, and not on the device that the others measure there.
    """
    if device == "cuda":
        fn()  # a thread's first product takes a workspace that stays, and the first step has no gradients to drop
    return (CudaDevice() if device == "cuda" else Device()).peak_memory(fn)[0]


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return self.operation(x)


def step_with(
    operation: Operation, device: str, pairs: int = PAIRS, compiled: bool = False
) -> Callable[[], list[torch.Tensor]]:
    """A training step of so many pairs of a linear layer and the operation, and a linear layer; it gives gradients.

    Example:
        >>> len(step_with(torch.relu, "cpu", pairs=2)())
        6
    """
    torch.manual_seed(0)
    layers = [layer for _ in range(pairs) for layer in (nn.Linear(WIDTH, WIDTH), Apply(operation))]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH)).to(device)
    batch = torch.randn(ROWS, WIDTH, device=device)
    forward = torch.compile(model) if compiled else model

    def step() -> list[torch.Tensor]:
        torch.manual_seed(1)  # for the operations that draw random numbers
        model.zero_grad()
        forward(batch).square().mean().backward()
        return [weight.grad for weight in model.parameters()]

    return step


def small_net(operation: Operation) -> tuple[Callable[[], torch.Tensor], list[torch.Tensor]]:
    """Two linear layers with an operation between them: the forward pass, and the tensors that live anyway.

    Example:
        >>> forward, alive = small_net(torch.relu)
        >>> forward().shape, len(alive)
        (torch.Size([128, 32]), 5)
    """
    first, last, x = nn.Linear(32, 32), nn.Linear(32, 32), torch.randn(128, 32)
    return lambda: last(operation(first(x))), [x, *first.parameters(), *last.parameters()]


def step_peaks(
    operations: Mapping[str, Pair], kept_by: Callable[[Operation, torch.Tensor], str], device: str
) -> list[dict[str, Any]]:
    """For each operation the peak of a step in three ways, what is kept, and how far the gradients in place are off."""
    rows, x = [], torch.randn(8, 8, device=device)
    pairs = 2 if course_size() == "test" else PAIRS
    with progress("training steps", expected_s=0.6 * len(operations)) as bar:
        for name, (operation, in_place) in operations.items():
            ways = {
                "out of place": operation,
                "in place": in_place,
                "cloned": lambda x, operation=operation: operation(x).clone(),
            }
            steps = {way: each and step_with(each, device, pairs) for way, each in ways.items()}
            row = {way: step and peak_bytes(step, device) for way, step in steps.items()}
            right = [gradient.clone() for gradient in steps["out of place"]()]
            row["gradients differ by"] = in_place and difference(steps["in place"](), right)
            row |= {"keeps": kept_by(operation, x), "keeps in place": in_place and kept_by(in_place, x)}
            rows.append({"operation": name} | row)
            bar.advance(0.6)
    return rows


def difference(ours: Iterable[torch.Tensor], reference: Iterable[torch.Tensor]) -> float:
    """The largest difference of two lists of gradients, each relative to the largest number of its reference."""
    return max(
        ((one - other).abs().max() / other.abs().max()).item() for one, other in zip(ours, reference, strict=True)
    )


def tried(
    out_of_place: Callable[..., torch.Tensor], in_place: Callable[..., torch.Tensor], device: str
) -> dict[str, Any]:
    """What ``backward()`` says in place, and how far the weight's gradient is from the one out of place.

    Both are called with ``x @ w``, ``x`` and ``w``, which are square.

    Example:
        >>> tried(lambda h, x, w: h.sigmoid() * 2, lambda h, x, w: h.sigmoid().mul_(2), "cpu")["backward()"]
        'raises: output 0 of Sigmoid'
    """

    def gradient(function: Function) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device) / 8
        w.requires_grad_()
        function(x @ w, x, w).square().sum().backward()
        return [w.grad]

    right = gradient(out_of_place)
    try:
        return {"backward()": "no error", "gradient differs by": difference(gradient(in_place), right)}
    except RuntimeError as error:
        return {"backward()": f"raises: {named_in(error)}", "gradient differs by": None}


def named_in(error: RuntimeError) -> str:
    """What autograd's message about a tensor that was overwritten calls it; of a leaf it names no operation.

    Example:
        >>> named_in(RuntimeError("[torch.FloatTensor [4]], which is output 0 of Mul, is at version 1; expected ..."))
        'output 0 of Mul'
    """
    return str(error).partition("which is ")[2].partition(", is at")[0] or "a leaf"


def doubled(write: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """What ``tried`` finds if this call doubles the output of a sigmoid, which keeps it; on the CPU, as NumPy needs.

    Example:
        >>> doubled(lambda s: s.mul_(2))["backward()"]
        'raises: output 0 of Sigmoid'
    """

    def in_place(h: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        s = h.sigmoid()
        write(s)
        return s

    return tried(lambda h, x, w: h.sigmoid() * 2, in_place, "cpu")


def stepped(fused: bool) -> dict[str, Any]:
    """The same where SGD updates the weight between the forward pass, which keeps it, and the backward pass."""

    def forward(h: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return h.sigmoid() @ w

    def and_step(h: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = forward(h, x, w)
        w.grad = w.detach().clone()
        torch.optim.SGD([w], lr=1, fused=fused).step()  # the weight is 0 now
        w.grad = None
        return y

    return tried(forward, and_step, "cpu")


def doubled_by_numpy(x: torch.Tensor) -> None:
    """Multiply a tensor in main memory by 2, without PyTorch's knowledge."""
    numbers = x.detach().numpy()
    numbers *= 2


# What may or may not be a tensor of its own.
_MADE = ("x[0]", "x[[0]]", "x.float()", "x.double()", "x.to(x.device)", "x.reshape(-1)", "x.T.reshape(-1)")
_MADE += ("F.dropout(x, 0.5, training=False)",)


def aliases() -> list[dict[str, Any]]:
    """For tensors that are made of a contiguous float32 one in main memory: does writing into them change it?"""
    rows = []
    for made in _MADE:
        x = torch.ones(3, 4)
        y = eval(made, {"x": x, "F": functional})
        y += 1
        rows.append({"y is": made, "y += 1 changes x": not torch.equal(x, torch.ones(3, 4))})
    return rows


def without_gradients(cases: Mapping[str, Sequence[Callable[[], Any]]], device: str) -> list[dict[str, Any]]:
    """The peak of each case, out of place and in place, with no gradients to compute."""
    with torch.no_grad():
        peaks = {name: [peak_bytes(way, device) for way in ways] for name, ways in cases.items()}
    return [{"without gradients": name, "out of place": out, "in place": into} for name, (out, into) in peaks.items()]


def caches(length: int, device: str, tokens: int = 64) -> dict[str, Callable[[], torch.Tensor]]:
    """Append so many tokens to a cache of 8 heads, one by one, until it has this length: two ways.

    Example:
        >>> cat, in_place = caches(128, "cpu").values()
        >>> torch.equal(cat(), in_place())
        True
    """
    new = torch.ones(1, 8, 1, 64, device=device)
    places = torch.arange(length, device=device)

    def grown() -> torch.Tensor:
        cache = torch.zeros(1, 8, length - tokens, 64, device=device)
        for _ in range(tokens):
            cache = torch.cat([cache, new], dim=2)
        return cache

    def written() -> torch.Tensor:
        cache = torch.zeros(1, 8, length, 64, device=device)
        for place in range(length - tokens, length):
            cache.index_copy_(2, places[place : place + 1], new)
        return cache

    return {"cat": grown, "index_copy_": written}


class Bottleneck(nn.Module):
    """ResNet-50's block: three convolutions with batch norms, and what came in added before the last activation."""

    def __init__(self, inputs: int, width: int, stride: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        outputs = 4 * width

        def convolution(into: int, out: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
            return nn.Conv2d(into, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)

        self.path = nn.Sequential(
            *convolution(inputs, width, 1),
            activation(),
            *convolution(width, width, 3, stride),
            activation(),
            *convolution(width, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))
        self.activation = activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, inputs, height, width]`` to four times the width in channels; the sum is taken in place."""
        out = self.path(x)
        out += self.shortcut(x)
        return self.activation(out)


def resnet50(activation: Callable[[], nn.Module]) -> nn.Sequential:
    """ResNet-50 as torchvision builds it, with an activation of your choice.

    Example:
        >>> with torch.device("meta"):
        ...     sum(weight.numel() for weight in resnet50(nn.ReLU).parameters())
        25557032
    """
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), activation(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            layers.append(Bottleneck(channels, width, stride, activation))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet_peak(activation: Callable[[], nn.Module], training: bool = True, batch: int = 32) -> int:
    """The peak of a ResNet-50 at 224 pixels, worked out: a training step without optimizer, or evaluation.

    In evaluation the weights are in it, and no gradients.
    """

    def build() -> tuple[nn.Module, None, Callable[[], Any]]:
        model = resnet50(activation).train(training)
        images = torch.empty(batch, 3, 224, 224)

        def step() -> None:
            if not training:
                with torch.no_grad():
                    model(images)
                return
            model.zero_grad()
            model(images).sum().backward()

        return model, None, step

    return worked_out(build, steps=1).peak_bytes


class ResidualsInPlace(Block):
    """The course's transformer block with each residual added into the branch's result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same numbers as the block: ``[batch, length, width]``, in and out."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        after = self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        after += x
        out = self.mlp(self.mlp_norm(after))
        out += after
        return out


def gpt2_peak(block: type[Block], batch: int = 8) -> int:
    """The peak of a training step of GPT-2 with 124 million weights and 1,024 tokens, worked out, without optimizer."""

    def build() -> tuple[nn.Module, None, Callable[[], Any]]:
        model = GPT(vocabulary=50257, context=1024, width=768, layers=0, heads=12)
        model.blocks = nn.ModuleList(block(768, 12) for _ in range(12))
        tokens = torch.zeros(batch, 1024, dtype=torch.int64)

        def step() -> None:
            model.zero_grad()
            functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

        return model, None, step

    return worked_out(build, steps=1).peak_bytes
