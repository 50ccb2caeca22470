"""The code on the reference pages runs; where it does not, the page and the block are named."""

from __future__ import annotations

import pytest

from authoring import calls
from authoring.expressions import EvidenceError
from authoring.reference_pages import code_blocks, faults, reference_pages

PAGE = """# A reference

```python
import math
x = math.sqrt(9)
```

```text
not Python
```

```python
assert x == 3
```

```python no-run needs two GPUs
x.to("cuda:1")
```
"""


def test_the_code_on_each_reference_page_runs():
    calls.run(["\n".join(code_blocks(page)) for page in reference_pages()])  # all in one process
    assert [fault for page in reference_pages() for fault in faults(page)] == []


def test_the_blocks_of_a_page_run_in_order_and_one_that_raises_is_named(tmp_path, none_ran):
    page = tmp_path / "pinned_memory.md"
    page.write_text(PAGE, encoding="utf-8")
    assert faults(page) == []
    page.write_text(PAGE.replace("== 3", "== 4"), encoding="utf-8")
    (fault,) = faults(page)
    assert "pinned_memory.md: a block of code raises AssertionError" in fault
    assert "assert x == 4\nMend it" in fault
    page.write_text(PAGE.replace(" needs two GPUs", ""), encoding="utf-8")
    with pytest.raises(EvidenceError, match=r'pinned_memory.md: .*"python no-run" and the reason'):
        faults(page)
