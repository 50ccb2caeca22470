"""Lessons under ``--nbval``: each runs from the wheel in a folder of its own, and a dead kernel is noticed.

The folder holds nothing but the programs of the lessons, as on a hosted notebook.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from tests import wheels

ROOT = Path(__file__).resolve().parents[1]
_POLL_S = 1.0


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("nbval", default=False):
        return
    from nbval import kernel
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell

    from course_utils.show.page import bare

    # nbval waits for an answer until the cell's time is up, even when nobody is left to answer.
    get_message = RunningKernel.get_message

    def get_message_of_living_kernel(self: RunningKernel, stream: str, timeout: float | None = None) -> dict:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL_S if deadline is None else deadline - time.monotonic()
            try:
                return get_message(self, stream, timeout=max(0.0, min(left, _POLL_S)))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("The kernel died while this cell ran.") from None
                if deadline is not None and time.monotonic() >= deadline:
                    raise

    RunningKernel.get_message = get_message_of_living_kernel
    # Stored outputs are bare, live ones are dressed.
    IPyNbCell.sanitize = lambda _, text: bare(text) if isinstance(text, str) else text
    start_new_kernel = kernel.start_new_kernel

    def start_kernel_of_wheel(*arguments: Any, cwd: str, **options: Any) -> Any:
        if Path(cwd) == ROOT / "notebooks":
            target = wheels.installed()
            cwd = tempfile.mkdtemp(dir=target.parent)
            shutil.copytree(target / "course_utils" / "notebooks" / "scripts", Path(cwd, "scripts"))
            options["env"] = wheels.variables(target)
        try:
            return start_new_kernel(*arguments, cwd=cwd, **options)
        except RuntimeError:  # its ports are chosen before it starts, and another worker's kernel may take one
            return start_new_kernel(*arguments, cwd=cwd, **options)

    kernel.start_new_kernel = start_kernel_of_wheel


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a notebook's cell that leaves a dead kernel behind: nbval sees it in the next cell, if there is one."""
    result = yield
    kernel = getattr(item.parent, "kernel", None)
    if kernel is not None and not kernel.is_alive():
        raise RuntimeError("The kernel died after this cell.")
    return result
