"""The reference pages, ``book/reference/<slug>.md``: what to look up beside a lesson; their code is run by a test.

The blocks of a page that begin with ```` ```python ```` run in order in one namespace. One that cannot run everywhere
says why: ```` ```python no-run needs two GPUs ````.
"""

from __future__ import annotations

import re
from pathlib import Path

from authoring import calls
from authoring.expressions import EvidenceError

_ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)


def reference_pages() -> list[Path]:
    return sorted((_ROOT / "book" / "reference").glob("*.md"))


def code_blocks(page: Path) -> list[str]:
    blocks = []
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        mark, _, reason = block["mark"].strip().partition(" ")
        if not mark:
            blocks.append(block["code"])
        elif not (mark == "no-run" and reason):
            raise EvidenceError(f'{page.name}: "{block["mark"]}": write "python", or "python no-run" and the reason.')
    return blocks


def faults(page: Path) -> list[str]:
    """What is wrong with the code on a page: the first block that raises, and its error."""
    blocks = code_blocks(page)
    if not calls.run(["\n".join(blocks)])[0].how.startswith("raises"):
        return []
    ends = calls.run(["\n".join(blocks[: count + 1]) for count in range(len(blocks))])
    failed, ended = next((code, ended) for code, ended in zip(blocks, ends, strict=True) if "raises" in ended.how)
    return [f"{page.name}: a block of code {ended.how}.\n{failed}Mend it, or mark it ```python no-run and the reason."]
