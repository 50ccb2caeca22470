"""Measurements that somebody typed into a text: warnings of ``make lint``, for lines that are not committed yet.

A number with a unit may be an input, a rule or arithmetic. Only a person can tell, so nothing fails.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

from authoring.markdown_texts import passages, text_files

_TYPED = re.compile(r"(?<![\w.,/-])\d[\d.,]*[\s\u00a0-]?(?:[nmu]?s|µs|[kKMGTP]i?B(?:/s)?|%|times (?:as|the))(?![\w/])")
_FIGURE_OR_CODE = re.compile(r"<!--=.*?<!--/-->|`[^`]*`")
_CITES = re.compile(r"\[\d+(?:, ?\d+)*\](?!\()|https?://")


def typed_numbers(line: str) -> list[str]:
    """Numbers with a unit that are neither filled in nor cited.

    Example:
        >>> [typed_numbers(line) for line in ("Now 3 ms.", "Now 4 ms [1].", "Now <!--= a -->5 ms<!--/-->, not `6 ms`.")]
        [['3 ms'], [], []]
    """
    return [] if _CITES.search(line) else _TYPED.findall(_FIGURE_OR_CODE.sub("", line))


def warnings() -> Iterator[str]:
    changes = subprocess.run(
        ["git", "diff", "-U0", "HEAD"], capture_output=True, text=True, encoding="utf-8", check=False
    )
    added = "\n".join(line for line in changes.stdout.splitlines() if line.startswith("+"))
    for passage in (passage for path in text_files() for passage in passages(path)):
        for line in passage.text.splitlines():
            # In a notebook's file a line is a string of JSON.
            if line in added or json.dumps(line, ensure_ascii=False)[1:-1] in added:
                for number in typed_numbers(line):
                    advice = "take it from a record (<!--= ... -->) or cite its source, unless it is no measurement."
                    yield f"{passage.where}: {number!r} is typed: {advice}"


if __name__ == "__main__":
    for each in warnings():
        print(each)
