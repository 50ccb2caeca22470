"""The lesson's data sets, in a file: workers that are not forked import them. Real JPEG files, without a download."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info

SIZE = (800, 600)  # of a file, in pixels
SIDE = 128  # of a sample


def write_photographs(folder: str | Path, count: int) -> list[Path]:
    """Write ``count`` JPEG files of 800 x 600 pixels, each another cut from the same two photographs.

    Returns:
        Their paths, in order. The same ``count`` gives the same files.

    Source:
        https://scikit-learn.org/1.9/modules/generated/sklearn.datasets.load_sample_images.html (scikit-learn 1.9): a
        temple in China and a flower, 640 x 427 pixels each, under a Creative Commons licence.
    """
    from sklearn.datasets import load_sample_images

    temple, flower = load_sample_images().images
    # Side by side and mirrored below: large enough to cut from, and no pixel is made up.
    upper, lower = np.hstack([temple, flower]), np.hstack([flower[:, ::-1], temple[:, ::-1]])
    canvas = Image.fromarray(np.vstack([upper, lower]))
    width, height = SIZE
    generator = np.random.default_rng(0)
    paths = []
    for number in range(count):
        left = int(generator.integers(canvas.width - width))
        top = int(generator.integers(canvas.height - height))
        paths.append(Path(folder) / f"{number:04d}.jpg")
        canvas.crop((left, top, left + width, top + height)).save(paths[-1], quality=90)
    return paths


class Photographs(Dataset):
    """JPEG files; sample i is uint8 ``[3, 128, 128]``."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            small = image.convert("RGB").resize((SIDE, SIDE))
        return torch.from_numpy(np.array(small)).permute(2, 0, 1)


class FromAfar(Photographs):
    """The same photographs, each after a wait, as from storage over a network."""

    WAIT_S = 0.015

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.WAIT_S)
        return super().__getitem__(index)


class ProcessNumbers(Dataset):
    """Eight samples: each is the number of the process that loads it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Numbers(IterableDataset):
    """The numbers 0 to 3 as a stream; ``split`` leaves each worker its share."""

    def __init__(self, split: bool) -> None:
        self.split = split

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info() if self.split else None
        return iter(range(worker.id, 4, worker.num_workers) if worker else range(4))
