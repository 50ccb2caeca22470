"""Plumbing that lessons share: pages of memory."""

from __future__ import annotations

import mmap
import os

import pytest
import torch

from course_utils.materials.pages import page_faults

posix = pytest.mark.skipif(os.name != "posix", reason="Windows counts no page faults")


@posix
def test_touching_fresh_memory_faults_once_a_page_and_touching_it_again_does_not():
    size = 8 * 2**20
    # Without huge pages, one fault a page; with them, far fewer, but never none.
    region = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    first = page_faults(lambda: region.fill_(1))
    again = page_faults(lambda: region.fill_(2))
    assert 4 <= first <= size // mmap.PAGESIZE + 200
    assert again < first / 2
