"""Batches of variable length: lines of the standard library's source, grouped by length as training programs do it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from course_utils.materials.text import library_text

_TEXT_BYTES = 2**20
IGNORED = -100  # the target that torch.nn.functional.cross_entropy leaves out


def line_batches(batches: int, lines: int) -> list[list[bytes]]:
    """Draw lines from the standard library and put lines of similar length together, so that little is padded.

    Blank lines and lines of one byte are left out. All drawn lines are sorted by length and cut into batches; the
    batches come in random order. They are the same wherever the standard library is the same.
    """
    text = bytes(library_text(_TEXT_BYTES).numpy())
    choice = [line for line in text.split(b"\n") if len(line) > 1 and line.strip()]
    dice = random.Random(0)
    drawn = sorted(dice.sample(choice, batches * lines), key=len)
    cut = [drawn[start : start + lines] for start in range(0, len(drawn), lines)]
    dice.shuffle(cut)
    return cut


def padded_length(lines: Sequence[bytes]) -> int:
    """Tokens in a row of :func:`pad_lines` if nothing longer is asked for: one less than the longest line has bytes."""
    return max(map(len, lines)) - 1


def pad_lines(
    lines: Sequence[bytes], length: int | None = None, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make tensors for next-byte prediction out of lines. Shorter lines are padded, and their padding does not count.

    Returns:
        ``(tokens, targets)``, int64 ``[lines, length]`` each. Padding is 0 in ``tokens``; in ``targets`` it is -100,
        which ``cross_entropy`` leaves out.

    Raises:
        ValueError: if a line does not fit into ``length`` tokens.

    Example:
        >>> tokens, targets = pad_lines([b"abc", b"ab"])
        >>> tokens.tolist(), targets.tolist()
        ([[97, 98], [97, 0]], [[98, 99], [98, -100]])
    """
    longest = padded_length(lines)
    length = longest if length is None else length
    if length < longest:
        raise ValueError(f"length is {length}, and the longest line needs {longest}")
    tokens = torch.zeros(len(lines), length, dtype=torch.int64)
    targets = torch.full((len(lines), length), IGNORED)
    for row, line in enumerate(lines):
        encoded = torch.tensor(list(line))
        tokens[row, : len(line) - 1] = encoded[:-1]
        targets[row, : len(line) - 1] = encoded[1:]
    return tokens.to(device), targets.to(device)
