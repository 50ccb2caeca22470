"""Real images without a download: the scanned digits that ship inside scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_TEST_SHARE = 5  # one digit in five


@dataclass(frozen=True)
class Digits:
    """Scanned digits: images float32 ``[n, 1, 8, 8]``, from 0 (paper) to 1 (ink), and labels int64 ``[n]``, 0 to 9."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_digits_split() -> Digits:
    """Load the digits in a random order and keep a fifth of them for testing.

    Source:
        https://scikit-learn.org/1.7/modules/generated/sklearn.datasets.load_digits.html (scikit-learn 1.7), from the
        UCI data set "Optical Recognition of Handwritten Digits".
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.as_tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.as_tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order.tensor_split([len(images) // _TEST_SHARE])
    return Digits(images[train], labels[train], images[test], labels[test])
