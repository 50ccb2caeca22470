"""Measurements that somebody typed into a text: warnings of ``make lint``, for what has changed since the last commit.

A number with a unit may be an input, a rule or arithmetic; what was measured is taken from a record (a figure in text)
or cites its source. Only a person can tell, so nothing fails, and what is committed is not asked again.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from authoring.figures_in_text import MARKER
from authoring.markdown_texts import blank, one_line, passages, prose_only, text_files

_ROOT = Path(__file__).resolve().parent.parent
_UNITS = (
    r"[num]s|µs|s|min|h|(?:nano|micro|milli)?seconds?|minutes?|hours?|bytes|[kKMGTP]i?B(?:/s)?|[KMGTP]?FLOP/s|%|x|×|"
    r"times (?:as|the)|percent|(?:samples|tokens|steps) (?:per|a) second"
)
_TYPED = re.compile(rf"(?<![\w.,/-])\d[\d.,]*[\s\u00a0-]?(?:{_UNITS})(?![\w/])")
# A line that cites is not asked, nor the minutes of an exercise or a lesson.
_CITED = re.compile(r"\[\d+(?:, ?\d+)*\](?!\()|https?://|^#+ Exercise|^\*\*Time\*\*")


def typed_numbers(text: str) -> Iterator[tuple[str, str]]:
    r"""Numbers with a unit that are neither filled in nor cited, each with its line.

    Example:
        >>> list(typed_numbers("It took 3 ms.\n\nIt took 4 ms [1], then <!--= a -->5 ms<!--/-->."))
        [('3 ms', 'It took 3 ms.')]
    """
    shown = prose_only(blank(text, MARKER)).splitlines()
    for line, plain in zip(text.splitlines(), shown, strict=True):
        if not _CITED.search(line):
            yield from ((one_line(match[0]), line) for match in _TYPED.finditer(plain))


def warnings(folder: Path = _ROOT) -> Iterator[str]:
    """What stands in a line that the last commit does not have, with its place; nothing where there is no git."""
    for path in text_files(folder):
        command = ["git", "-C", str(folder), "show", f"HEAD:{path.relative_to(folder).as_posix()}"]
        committed = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
        for passage in passages(path, folder) if committed.returncode == 0 else ():
            for number, line in typed_numbers(passage.text):
                if json.dumps(line, ensure_ascii=False)[1:-1] not in committed.stdout and line not in committed.stdout:
                    advice = "take it from a record (<!--= ... -->) or cite its source, unless it is no measurement."
                    yield f"{passage.where}: {number!r} is typed: {advice}"


if __name__ == "__main__":
    for each in warnings():
        print(each)
