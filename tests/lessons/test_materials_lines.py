"""Lines of the standard library in batches."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_utils.materials.lines import IGNORED, line_batches, pad_lines, padded_length


def test_lines_of_similar_length_are_together_and_batches_are_shuffled():
    batches = line_batches(batches=30, lines=8)
    assert [len(batch) for batch in batches] == [8] * 30
    assert len({line for batch in batches for line in batch}) > 100
    in_order = sorted(batches, key=padded_length)
    assert in_order != batches
    ends = [(min(map(len, batch)), max(map(len, batch))) for batch in in_order]
    assert all(longest <= shortest for (_, longest), (shortest, _) in itertools.pairwise(ends))


def test_targets_are_one_byte_further_on_and_padding_does_not_count():
    lines = [b"return x", b"if y:"]
    tokens, targets = pad_lines(lines, length=10)
    assert tokens.shape == targets.shape == (2, 10)
    assert tokens.dtype is targets.dtype is torch.int64
    for row, line in enumerate(lines):
        used = len(line) - 1
        assert bytes(tokens[row, :used].tolist()) == line[:-1]
        assert bytes(targets[row, :used].tolist()) == line[1:]
        assert targets[row, used:].eq(IGNORED).all()
    assert pad_lines(lines)[0].shape[1] == padded_length(lines) == 7
    with pytest.raises(ValueError, match="length is 3, and the longest line needs 7"):
        pad_lines(lines, length=3)
