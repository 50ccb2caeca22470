"""What the lesson's loops are given: time to spend, and a small model with optimizer, ten batches and progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from course_utils import scaled
from course_utils.lessons.host_device_syncs.pictures import EACH, ONCE
from course_utils.materials.digits import load_digits_split


def spin(seconds: float) -> None:
    """Keep Python busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def ways(loop: Callable[..., torch.Tensor], prepare_ms: float) -> dict[str, Callable[[], torch.Tensor]]:
    """The cases of a loop on the GPU for a time to prepare: how often it reads in its twenty steps."""
    width, reads = scaled(cpu=64, cuda=2048), {EACH: 1, "one read in 10 steps": 10, ONCE: 20}
    run = partial(loop, torch.randn(width, width, device="cuda") / width**0.5, prepare_ms / 1e3)
    return {way: partial(run, every) for way, every in reads.items()}


def new_run(device: str) -> tuple[nn.Sequential, torch.optim.Optimizer, list[Any], tqdm]:
    """All of it anew, on a device; the bar shows nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    digits = load_digits_split()
    images, labels = digits.train_images.flatten(1).to(device), digits.train_labels.to(device)
    batches = list(zip(images.split(64), labels.split(64), strict=True))[:10]
    return model, torch.optim.AdamW(model.parameters()), batches, tqdm(disable=True)
