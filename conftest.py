"""Settings for all tests and for the notebooks under ``--nbval``: pytest looks above both, and so finds them here."""

from __future__ import annotations

import os
import time
from queue import Empty

import pytest

# Kernels and other child processes inherit it. COURSE_SIZE=full from outside is kept: a GPU machine may want that.
os.environ.setdefault("COURSE_SIZE", "smoke")

_POLL_S = 1.0


def pytest_configure(config: pytest.Config) -> None:
    """Makes nbval notice a dead kernel."""
    if not config.getoption("nbval", default=False):
        return
    from nbval.kernel import RunningKernel

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Fails a notebook's cell that leaves a dead kernel behind: nbval sees it in the next cell, if there is one."""
    result = yield
    kernel = getattr(item.parent, "kernel", None)
    if kernel is not None and not kernel.is_alive():
        raise RuntimeError("The kernel died after this cell.")
    return result
