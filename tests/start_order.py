"""What takes longest starts first: no worker is left alone with it at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Files that keep a worker busy for a minute or more, the slowest first.
SLOW = (
    "lessons/test_cuda_cells.py",
    "authoring/test_book.py",
    "ranks/test_scripts_fsdp.py",
    "ranks/test_launch.py",
    "ranks/test_scripts_ddp.py",
    "test_lab.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts slow files first, then the lessons, then all others; within a file nothing changes place."""
    slow = [ROOT / "tests" / name for name in SLOW]

    def place(item: pytest.Item) -> int:
        if item.path in slow:
            return slow.index(item.path)
        return len(slow) + (item.path.suffix != ".ipynb")

    items.sort(key=place)
