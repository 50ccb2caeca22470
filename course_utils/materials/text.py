"""Real text without a download: the source of Python's own standard library, as bytes."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch

# Not part of every installation, or not text that people wrote.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


@functools.lru_cache(maxsize=4)
def library_text(size_bytes: int = 2**20) -> torch.Tensor:
    """Read the first ``size_bytes`` of the standard library's Python files, folder by folder, sorted by name: uint8.

    The tensor is shared: copy it before you change it. Versions of Python differ, so compare losses within one run.

    Example:
        >>> text = library_text(4096)
        >>> text.shape, text.dtype
        (torch.Size([4096]), torch.uint8)
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: list[bytes] = []
    missing = size_bytes
    for path in _source_files(root):
        if missing <= 0:
            break
        parts.append(path.read_bytes())
        missing -= len(parts[-1])
    if missing > 0:
        raise ValueError(
            f"size_bytes={size_bytes} is more than the standard library has here: {size_bytes - missing} bytes. "
            "Ask for less."
        )
    return torch.frombuffer(bytearray(b"".join(parts)[:size_bytes]), dtype=torch.uint8)


def _source_files(folder: Path) -> Iterator[Path]:
    """The Python files below a folder, in an order that does not depend on the file system."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_dir():
            if path.name not in _LEFT_OUT:
                yield from _source_files(path)
        elif path.suffix == ".py":
            yield path


def text_batches(
    data: torch.Tensor, batch: int, length: int, steps: int, seed: int = 0, device: torch.device | str = "cpu"
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut random pieces out of a text for next-byte prediction. The same seed gives the same pieces on every device.

    Yields:
        ``(tokens, targets)``, int64 ``[batch, length]`` each; ``targets`` is one byte further on in the text.

    Example:
        >>> tokens, targets = next(text_batches(library_text(4096), batch=2, length=16, steps=1))
        >>> tokens.shape, bool((tokens[:, 1:] == targets[:, :-1]).all())
        (torch.Size([2, 16]), True)
    """
    if len(data) <= length:
        raise ValueError(f"data has {len(data)} bytes, and a piece with its target needs {length + 1}: use more text")
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(length + 1)
    for _ in range(steps):
        starts = torch.randint(len(data) - length, (batch, 1), generator=generator)
        pieces = data[starts + offsets].long().to(device)
        yield pieces[:, :-1], pieces[:, 1:]
