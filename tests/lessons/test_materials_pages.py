"""Plumbing that lessons share: pages of memory."""

from __future__ import annotations

import mmap
import os

import pytest
import torch

from course_utils.materials.pages import can_lock, lock_pages, page_faults

posix = pytest.mark.skipif(os.name != "posix", reason="Windows counts no page faults and has no mlock()")


@posix
def test_touching_fresh_memory_faults_once_a_page_and_touching_it_again_does_not():
    size = 8 * 2**20
    # Without huge pages, one fault a page; with them, far fewer, but never none.
    region = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    first = page_faults(lambda: region.fill_(1))
    again = page_faults(lambda: region.fill_(2))
    assert 4 <= first <= size // mmap.PAGESIZE + 200
    assert again < first / 2


@posix
def test_locking_makes_pages_present():
    size = 64 * mmap.PAGESIZE
    if not can_lock(size):
        pytest.skip(f"this process may not lock {size} bytes")
    region = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    assert lock_pages(region) is region
    assert page_faults(lambda: region.fill_(1)) < 16


@posix
def test_a_lock_that_is_refused_says_where_the_limit_is():
    class NotMapped:
        """Memory that this process does not have: locking it fails on every system, for every user."""

        nbytes = 2**20

        def data_ptr(self):
            return 2**46

    with pytest.raises(OSError, match=r"may not lock 1048576 bytes; see `ulimit -l`"):
        lock_pages(NotMapped())
