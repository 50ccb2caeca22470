"""The code on the reference pages runs; where it does not, the page and the block are named."""

from __future__ import annotations

from authoring import calls
from authoring.reference_pages import code_blocks, faults, reference_pages


def test_the_code_on_each_reference_page_runs():
    calls.run(["\n".join(code_blocks(page)) for page in reference_pages()])  # all in one process
    assert [fault for page in reference_pages() for fault in faults(page)] == []
