"""The reference pages, ``book/reference/<slug>.md``: what to look up beside a lesson; their code is run by a test.

The blocks of a page that begin with ```` ```python ```` run in order in one namespace. One that cannot run everywhere
says why: ```` ```python no-run needs two GPUs ````.
"""

from __future__ import annotations

import re
from pathlib import Path

from authoring import calls
from authoring.evidence import EvidenceError

_ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)


def reference_pages(root: Path = _ROOT) -> list[Path]:
    """The reference pages, sorted; ``root`` is the repository's."""
    return sorted((root / "book" / "reference").glob("*.md"))


def code_blocks(page: Path) -> list[str]:
    """The blocks of Python on a page that are to run.

    Raises:
        EvidenceError: if a block's mark is none, or gives no reason.
    """
    blocks = []
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        mark, _, reason = block["mark"].strip().partition(" ")
        if mark and not (mark == "no-run" and reason.strip()):
            raise EvidenceError(
                f'{page.name}: a block of code is marked "{block["mark"].strip()}". Write "python", or '
                '"python no-run" and the reason why it cannot run.'
            )
        if not mark:
            blocks.append(block["code"])
    return blocks


def faults(page: Path) -> list[str]:
    """What is wrong with the code on a page: the first block that raises, and its error."""
    blocks = code_blocks(page)
    if not blocks or not calls.run(["\n".join(blocks)])[0].how.startswith("raises"):
        return []
    upto = ["\n".join(blocks[: count + 1]) for count in range(len(blocks))]
    failed = next(index for index, ended in enumerate(calls.run(upto)) if ended.how.startswith("raises"))
    return [
        f"{page.name}: a block of code {calls.run(upto)[failed].how}.\n{blocks[failed]}"
        "Mend it, or mark it ```python no-run and the reason."
    ]
