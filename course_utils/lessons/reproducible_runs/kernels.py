"""The same seed and the same input, with the kernels that this process chose: a program that prints a digest."""

from __future__ import annotations

import hashlib

import torch


def numbers() -> str:
    """A SHA-256 of random numbers and of their softmax, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    found = torch.cat([x, x.softmax(1)])
    torch.set_num_threads(threads)
    return hashlib.sha256(found.numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    print(numbers())  # noqa: T201 - that is what the parent reads
