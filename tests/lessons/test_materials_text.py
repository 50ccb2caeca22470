"""The standard library's bytes, and the batches cut from them."""

from __future__ import annotations

import hashlib
import sys

import pytest
import torch

from course_utils.materials.text import library_text, text_batches


def test_the_text_is_the_standard_librarys_source():
    text = library_text(100_000)
    assert text.data.dtype is torch.uint8
    assert len(text.data) == 100_000
    assert b"import" in bytes(text.data.tolist())
    assert text.files >= 1
    assert text.python == ".".join(map(str, sys.version_info[:3]))
    assert text.sha256 == hashlib.sha256(bytes(text.data.tolist())).hexdigest()


def test_more_text_begins_with_the_same_bytes():
    assert torch.equal(library_text(5000).data, library_text(9000).data[:5000])


@pytest.mark.parametrize("size", [0, -1, 2.5, 10**12])
def test_a_size_that_cannot_be_had_is_named(size: object):
    with pytest.raises(ValueError, match="size_bytes"):
        library_text(size)


def test_targets_are_one_byte_further_on():
    data = torch.arange(200, dtype=torch.uint8)
    batches = list(text_batches(data, batch=3, length=10, steps=4))
    assert len(batches) == 4
    for tokens, targets in batches:
        assert tokens.shape == targets.shape == (3, 10)
        assert tokens.dtype is targets.dtype is torch.int64
        assert torch.equal(targets, tokens + 1)


def test_the_seed_alone_decides_the_pieces():
    data = library_text(20_000).data

    def pieces(seed: int) -> torch.Tensor:
        return torch.cat([tokens for tokens, _ in text_batches(data, 4, 32, 3, seed=seed)])

    torch.manual_seed(1)
    first = pieces(0)
    torch.manual_seed(2)
    assert torch.equal(first, pieces(0))
    assert not torch.equal(first, pieces(1))


def test_the_last_byte_is_used_and_none_beyond_it():
    data = torch.arange(12, dtype=torch.uint8)
    tokens, targets = next(text_batches(data, batch=1, length=11, steps=1))
    assert tokens[0].tolist() == list(range(11))
    assert targets[0, -1] == 11


@pytest.mark.parametrize(
    "data", [torch.zeros(10, dtype=torch.uint8), torch.zeros(100), torch.zeros(5, 50, dtype=torch.uint8)]
)
def test_text_that_cannot_be_cut_is_named(data: torch.Tensor):
    with pytest.raises(ValueError, match="data"):
        next(text_batches(data, batch=1, length=10, steps=1))
