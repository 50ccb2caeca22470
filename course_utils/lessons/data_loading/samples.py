"""The lesson's photographs, in a file: workers that are not forked import them. Real JPEG files, without a download."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


def write_photographs(folder: str, count: int) -> list[Path]:
    """Write ``count`` JPEG files of 400 x 300 pixels, each another cut from scikit-learn's two photographs."""
    from sklearn.datasets import load_sample_images

    both, generator = Image.fromarray(np.hstack(load_sample_images().images)), np.random.default_rng(0)
    paths = [Path(folder) / f"{number:04d}.jpg" for number in range(count)]
    for path in paths:
        left, top = (int(generator.integers(most)) for most in (both.width - 400, both.height - 300))
        both.crop((left, top, left + 400, top + 300)).save(path, quality=90)
    return paths


class Photographs(Dataset):
    """Sample i is one of the files as uint8 ``[3, 128, 128]``, after a wait as for storage over a network."""

    def __init__(self, paths: list[Path], wait_s: float = 0.0, length: int = 0, late_s: float = 0.0) -> None:
        self.paths, self.wait_s, self.length, self.late_s = paths, wait_s, length or len(paths), late_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        # Of 40 samples two come later than the others, each from another of two workers.
        time.sleep(self.wait_s + self.late_s * (index % 21 == 10))
        with Image.open(self.paths[index % len(self.paths)]) as image:
            small = image.convert("RGB").resize((128, 128))
        return torch.from_numpy(np.array(small)).permute(2, 0, 1)
