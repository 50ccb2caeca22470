"""The code on the reference pages runs; where it does not, the page and the block are named."""

from __future__ import annotations

import pytest

from authoring.markdown_texts import text_files
from authoring.expressions import EvidenceError
from authoring.lesson_files import load_lessons
from authoring.pages import readme
from authoring.reference_pages import faults, reference_pages

PAGE = """# A reference

```python
import torch

x = torch.ones(3)
```

```text
not Python
```

```python
assert x.sum() == 3
```

```python no-run needs two GPUs
x.to("cuda:1")
```
"""


@pytest.fixture
def page(tmp_path, none_ran):
    path = tmp_path / "book" / "reference" / "pinned_memory.md"
    path.parent.mkdir(parents=True)
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_the_code_on_each_reference_page_runs():
    assert [fault for page in reference_pages() for fault in faults(page)] == []


def test_the_blocks_of_a_page_run_in_order_and_one_that_raises_is_named(page):
    assert faults(page) == []
    page.write_text(PAGE.replace("== 3", "== 4"), encoding="utf-8")
    (fault,) = faults(page)
    assert "pinned_memory.md: a block of code raises AssertionError" in fault
    assert "assert x.sum() == 4\nMend it" in fault
    page.write_text(PAGE.replace(" needs two GPUs", ""), encoding="utf-8")
    with pytest.raises(EvidenceError, match=r'pinned_memory.md: .*"no-run".*the reason'):
        faults(page)


def test_a_reference_page_is_among_the_books_texts_and_to_look_up(page, monkeypatch, tmp_path):
    assert page in text_files(tmp_path)
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    looked_up = readme.table_of_contents(load_lessons()).partition("Look things up")[2]
    assert "- file: book/reference/pinned_memory\n" in looked_up.partition("caption")[0]
