"""The shared models, images and text: what they do with their input, and that they learn."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_utils.materials.digits import load_digits_split
from course_utils.materials.models import GPT, MLP, LSTMLanguageModel
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.fresh import Switches


@pytest.fixture(autouse=True)
def _one_thread():
    """Several threads on cores that are busy wait for each other."""
    with Switches.kept():
        torch.set_num_threads(1)
        yield


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_a_language_model_sees_only_earlier_bytes_and_learns_from_the_library(name: str):
    torch.manual_seed(0)
    model = GPT(context=32, width=32, layers=2, heads=2) if name == "gpt" else LSTMLanguageModel(width=32, layers=2)
    tokens = torch.randint(256, (2, 20))
    later = tokens.clone()
    later[:, 12:] = (later[:, 12:] + 1) % 256
    before, after = model(tokens), model(later)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens, targets in text_batches(library_text(50_000), batch=8, length=32, steps=30):
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    # All bytes alike would be log(256) = 5.5; a model that learnt nothing but how often each occurs stays above 3.
    assert 4.5 < losses[0] < 6.5
    assert sum(losses[-5:]) / 5 < 3.6


def test_the_digits_are_learnable():
    digits = load_digits_split()
    together = torch.cat([digits.train_images, digits.test_images]).flatten(1)
    assert together.shape == (1797, 64)
    assert (together.min(), together.max()) == (0, 1)
    torch.manual_seed(0)
    model = MLP((64, 64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, labels in zip(digits.train_images.split(64), digits.train_labels.split(64), strict=True):
        functional.cross_entropy(model(images.flatten(1)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    right = model(digits.test_images.flatten(1)).argmax(1) == digits.test_labels
    assert right.float().mean() > 0.5  # a tenth by chance


def test_targets_are_one_byte_further_on():
    data = torch.arange(200, dtype=torch.uint8)
    for tokens, targets in text_batches(data, batch=3, length=10, steps=2):
        assert tokens.shape == targets.shape == (3, 10)
        assert torch.equal(targets, tokens + 1)
