"""Wrong answers to the exercise of `on_device_tensors`: one for each hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def mixing(
    weights: Callable[[int, float, torch.device], Any] = lambda n, share, device: torch.full(
        (n,), share, device=device
    ),
    first: Callable[[torch.Tensor], Any] = lambda kept: kept[0].fill_(1),
    order: Callable[[int, torch.device], Any] = lambda n, device: torch.arange(n, device=device).flip(0),
) -> Any:
    """The exercise's function, with a part of it done in another way."""

    def mix(images: torch.Tensor, share: float) -> torch.Tensor:
        n, device = len(images), images.device
        kept = weights(n, share, device)
        first(kept)
        kept = kept.view(-1, 1, 1, 1)
        return kept * images + (1 - kept) * images[order(n, device)]

    return mix


def in_place(images: torch.Tensor, share: float) -> torch.Tensor:
    images[1:] = (share * images + (1 - share) * images.flip(0))[1:]
    return images


WRONG = {
    "names_device": mixing(weights=lambda n, share, device: torch.full((n,), share).cuda()),
    "builds": mixing(weights=lambda n, share, device: torch.tensor([share] * n, device=device)),
    "sets_element": mixing(first=lambda kept: kept.__setitem__(0, torch.tensor(1.0))),
    "index": mixing(order=lambda n, device: torch.arange(n).flip(0)),
    "moved": mixing(weights=lambda n, share, device: torch.full((n,), share).to(device)),
    "stays_here": mixing(weights=lambda n, share, device: torch.full((n,), share)),
    "fetches": lambda images, share: mixing()(images.cpu(), share).to(images.device),
    "in_place": in_place,
}
