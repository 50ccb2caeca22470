"""Settings for all tests and for the notebooks under ``--nbval``: pytest looks above both, and so finds them here."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import browser

pytest_plugins = ["tests.notebook_runs", "tests.start_order"]

# Kernels and other child processes inherit it. COURSE_SIZE=full from outside is kept: a GPU machine may want that.
os.environ.setdefault("COURSE_SIZE", "test")
# What Inductor has compiled once need not be compiled in the next run; a lesson that times it takes a cache of its own.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).with_name(".cache") / "inductor"))
# With each new cache it compiles six programs to see what the compiler can, which is what the processor can.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Threads that wait for each other sleep: on a machine that other tests keep busy, spinning takes five times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# What is made once for all workers of a run; they inherit the folder's name.
if "PYTEST_SHARED_FOLDER" not in os.environ:
    os.environ["PYTEST_SHARED_FOLDER"] = tempfile.mkdtemp(prefix="course-tests-")
    atexit.register(shutil.rmtree, os.environ["PYTEST_SHARED_FOLDER"], ignore_errors=True)

# Workers of xdist share the cores, and what one of them starts has one thread: an operation on two waits for the slower
# one, the longer the more is going on besides.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what runs in the background with Ctrl-C ignored, and every child inherits that: those that are sent one
# would never stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# HYPOTHESIS_PROFILE=nightly tries many more examples.
hypothesis.settings.register_profile("default", max_examples=25, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=500, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real Chromium that reaches nothing but this machine."""
    with browser.chromium() as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects() -> None:
    """Sets aside what exists before the first test of a module.

    Many measurements collect garbage, and a trace of memory looks for tensors among all objects. A process that has run
    other tests holds a million of them.
    """
    gc.collect()
    gc.freeze()
