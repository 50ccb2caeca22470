"""Settings for all tests and for the notebooks under ``--nbval``: pytest looks above both, and so finds them here."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from queue import Empty

import pytest

# Kernels and other child processes inherit it. COURSE_SIZE=full from outside is kept: a GPU machine may want that.
os.environ.setdefault("COURSE_SIZE", "smoke")

# Workers of xdist share the cores. By default an idle OpenMP thread spins, and so takes the core from another worker:
# a small training loop then takes several times as long, and the less even the more is going on besides.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell starts what runs in the background with Ctrl-C ignored, and every child inherits that: those that are sent one
# would never stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_POLL_S = 1.0

# What takes longest starts first, so that no worker is left alone with it at the end. A file that is missing here
# costs time at worst.
_LONG = (
    "18_fsdp.ipynb",
    "test_book.py",
    "17_ddp.ipynb",
    "10_torch_compile.ipynb",
    "test_recording.py",
    "test_lab.py",
    "test_demo_lab.py",
    "11_caching_allocator.ipynb",
    "12_memory_snapshots.ipynb",
    "test_ranks.py",
    "test_scripts_ddp.py",
    "test_scripts_fsdp.py",
    "test_setup.py",
    "test_memory.py",
    "test_lessons.py",
    "test_notebooks.py",
    "test_store.py",
    "test_cluster.py",
    "test_report.py",
    "test_gpu_run.py",
)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long files first, then all other lessons; within a file, and among the others, nothing changes place."""
    rest = len(_LONG)

    def place(item: pytest.Item) -> int:
        name = item.path.name
        return _LONG.index(name) if name in _LONG else rest + (item.path.suffix != ".ipynb")

    items.sort(key=place)


@pytest.fixture(scope="module")
def only_new_objects() -> Iterator[None]:
    """Sets aside what exists before the first test of a module.

    A trace of memory looks for tensors among all objects, and a process that has run other tests holds a million.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Fails a notebook's cell that leaves a dead kernel behind: nbval sees it in the next cell, if there is one."""
    result = yield
    kernel = getattr(item.parent, "kernel", None)
    if kernel is not None and not kernel.is_alive():
        raise RuntimeError("The kernel died after this cell.")
    return result
