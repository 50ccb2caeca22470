"""What the lesson measures: activations in place and out of place, in blocks and in ResNet-50; writes past autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils import fresh, scaled
from course_utils.materials.step_memory import worked_out

Activation = Callable[[], nn.Module]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON = None if DEVICE == "cuda" else "cpu"  # a Mac's GPU keeps no peak: there, too, the CPU is measured
ACTIVATIONS: dict[str, type[nn.Module]] = {"ReLU": nn.ReLU, "LeakyReLU": nn.LeakyReLU, "SiLU": nn.SiLU}


def blocks(activation: Activation) -> tuple[nn.Module, torch.Tensor]:
    """Four times convolution, norm and activation, and a last convolution; with images."""
    batch, channels, size = scaled(cpu=(8, 32, 32), cuda=(256, 64, 56))
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), activation()]
    return nn.Sequential(*layers, nn.Conv2d(channels, 16, 1)), torch.randn(batch, channels, size, size)


class Bottleneck(nn.Module):
    """ResNet-50's block: three convolutions with batch norms, and what came in added before the last activation."""

    def __init__(self, inputs: int, width: int, stride: int, activation: Activation) -> None:
        super().__init__()
        outputs = 4 * width

        def convolution(into: int, out: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
            return nn.Conv2d(into, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)

        first, second = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.path = nn.Sequential(*first, activation(), *second, activation(), *convolution(width, outputs, 1))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))
        self.activation = activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.path(x)
        out += self.shortcut(x)
        return self.activation(out)


def resnet50(activation: Activation, batch: int = 32, size: int = 224) -> tuple[nn.Module, torch.Tensor]:
    """ResNet-50 as torchvision builds it, with an activation of your choice; with images."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), activation(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            layers.append(Bottleneck(channels, width, 2 if block == 0 and width > 64 else 1, activation))
            channels = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return model, torch.randn(batch, 3, size, size)


def training(net: Callable[[Activation], Any], activation: Activation, device: str = DEVICE) -> tuple[Any, Any, Any]:
    """A net and its training step without optimizer, which gives the first layer's gradient."""
    with torch.device(device):
        model, images = net(activation)

    def step() -> torch.Tensor:
        model.zero_grad()
        model(images).square().mean().backward()
        return next(model.parameters()).grad

    return model, None, step


def both(name: str) -> dict[str, Activation]:
    return {"out of place": ACTIVATIONS[name], "in place": partial(ACTIVATIONS[name], inplace=True)}


def ways(name: str, net: Callable[[Activation], Any] = blocks) -> dict[str, Any]:
    """The same step with an activation out of place and in place."""
    return {way: fresh(lambda each: training(net, each)[2], each) for way, each in both(name).items()}


class _Copies(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten.clone.default
        return function(*args, **(kwargs or {}))


def copies_of(step: Callable[[], Any]) -> int:
    """How many times a step calls `aten::clone`."""
    with _Copies() as copies:
        step()
    return copies.count


def copies(name: str) -> dict[str, int]:
    """How many tensors a step of the blocks copies."""
    return {way: copies_of(training(blocks, each)[2]) for way, each in both(name).items()}


def worked_out_peaks() -> Iterator[dict[str, Any]]:
    """The peak of a step of ResNet-50, from the sizes of its tensors; and what it copies in place."""
    for name in ACTIVATIONS:
        counted: list[int] = []

        def build(activation: Activation, counted: list[int] = counted) -> Any:
            model, _, step = training(resnet50, activation, "cpu")
            return model, None, lambda: counted.append(copies_of(step))

        row = {way: worked_out(partial(build, each), steps=1).peak_bytes for way, each in both(name).items()}
        yield {"activation": name} | row | {"copies added": counted[1] - counted[0]}


def gate(h: torch.Tensor, w: torch.Tensor, write: Any) -> torch.Tensor:
    s = torch.sigmoid(h)
    y = s @ w
    if write:
        write(s, w)
    return y


def residual(h: torch.Tensor, w: torch.Tensor, leaky: Any) -> torch.Tensor:
    return h + (leaky or nn.functional.leaky_relu)(h) @ w


def written(write: Callable[..., Any], forward: Callable[..., torch.Tensor] = gate) -> dict[str, Any]:
    """What ``backward()`` says after a write, and how far the gradient is off, of its maximum; on the CPU."""

    def gradient(write: Callable[..., Any] | None) -> torch.Tensor:
        torch.manual_seed(0)
        x, w = torch.randn(64, 64), (torch.randn(64, 64) / 8).requires_grad_()
        w.grad = torch.ones_like(w)  # for an optimizer
        return torch.autograd.grad(forward(x @ w, w, write).square().sum(), w)[0]

    right = gradient(None)
    try:
        off = (gradient(write) - right).abs().max() / right.abs().max()
    except RuntimeError:
        return {"backward()": "raises", "gradient off by": None}
    return {"backward()": "no error", "gradient off by": off.item()}
