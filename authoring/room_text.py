"""What of a lesson's text is for a room: no exercises, no solutions, no lists of sources, no links into the course."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

NOT_FOR_A_ROOM = ("Exercises", "Solutions", "Sources", "Next", "Next lesson")
"""Headings whose text is left out, with everything under them."""

# Code is matched, too, so that an index and a call in it are not taken for a link.
_CODE_OR_RELATIVE_LINK = re.compile(r"(`+[^`]+`+)|(?<!!)\[([^\[\]]*)\]\((?!https?:|mailto:)[^()\s]*\)")


def lines_with_fences(markdown: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a fenced block of code (its fences included)."""
    fence = ""
    for line in markdown.split("\n"):
        mark = re.match(r"\s*(```|~~~)", line)
        yield line, bool(fence or mark)
        if mark:
            fence = "" if fence == mark[1] else fence or mark[1]


def heading_of(line: str) -> tuple[int, str] | None:
    """Level and words of a line that is a heading, or None."""
    match = re.fullmatch(r"(#{1,6}) +(.+?)\s*#*", line)
    return (len(match[1]), match[2]) if match else None


def excerpt(markdown: str, dropped: Collection[str] = NOT_FOR_A_ROOM) -> str:
    """A cell's text without what is not for a room.

    A heading that is dropped takes with it all that stands under it, up to the next heading of its level. Links that
    lead to another file of the course become plain text: on a slide and in a demo they would lead nowhere.
    """
    kept = [
        line if is_code else _CODE_OR_RELATIVE_LINK.sub(lambda match: match[1] or match[2], line)
        for line, is_code, is_left_out in _sorted(markdown, dropped)
        if not is_left_out
    ]
    return "\n".join(kept).strip()


def ends_left_out(markdown: str) -> bool:
    """Whether `excerpt` leaves out the end of a text. Then what follows the text is not for a room either."""
    return [is_left_out for *_, is_left_out in _sorted(markdown, NOT_FOR_A_ROOM)][-1]


def _sorted(markdown: str, dropped: Collection[str]) -> Iterator[tuple[str, bool, bool]]:
    """Each line, whether it is code, and whether it is left out."""
    dropping = 0  # the level of the heading that is being dropped
    for line, is_code in lines_with_fences(markdown):
        level, words = (not is_code and heading_of(line)) or (0, "")
        if level and (not dropping or level <= dropping):
            dropping = level if words in dropped else 0
        yield line, is_code, bool(dropping)


def verdict_alone(markdown: str) -> str:
    r"""The heading of a verdict and its verdict lines, without the reasons: a room has these in the talk.

    Example:
        >>> print(verdict_alone("## Verdict\n\n**T8 · once: refuted.** It is called\noften.\n\nMore."))
        ## Verdict
        <BLANKLINE>
        **T8 · once: refuted.**
    """
    lines = re.findall(r"^\*\*[A-Z]+\d+[^*\n]* · .+?\*\*", markdown, flags=re.MULTILINE)
    return "\n\n".join([markdown.split("\n", 1)[0], *lines]) if lines else markdown


def opening(markdown: str, up_to: str) -> str:
    """The text before the first line that begins with ``up_to``."""
    return re.split(rf"^{re.escape(up_to)}", markdown, maxsplit=1, flags=re.MULTILINE)[0].strip()
