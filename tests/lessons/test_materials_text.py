"""The standard library's bytes, and the batches cut from them."""

from __future__ import annotations

import torch

from course_utils.materials.text import library_text, text_batches


def test_the_text_is_the_standard_librarys_source():
    text = library_text(100_000)
    assert text.dtype is torch.uint8
    assert len(text) == 100_000
    assert b"import" in bytes(text.tolist())


def test_targets_are_one_byte_further_on():
    data = torch.arange(200, dtype=torch.uint8)
    batches = list(text_batches(data, batch=3, length=10, steps=4))
    assert len(batches) == 4
    for tokens, targets in batches:
        assert tokens.shape == targets.shape == (3, 10)
        assert tokens.dtype is targets.dtype is torch.int64
        assert torch.equal(targets, tokens + 1)


def test_the_seed_alone_decides_the_pieces():
    data = library_text(20_000)

    def pieces(seed: int) -> torch.Tensor:
        return torch.cat([tokens for tokens, _ in text_batches(data, 4, 32, 3, seed=seed)])

    torch.manual_seed(1)
    first = pieces(0)
    torch.manual_seed(2)
    assert torch.equal(first, pieces(0))
    assert not torch.equal(first, pieces(1))
