"""What of a lesson's text is for a room: no exercise, no solution, no links into the course."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from authoring.course_texts import ANCHOR

NOT_FOR_A_ROOM = ("Exercise", "Next")
"""Headings whose text is left out, with everything under them."""

# Code is matched, too, so that an index and a call in it are not taken for a link.
_CODE_OR_RELATIVE_LINK = re.compile(r"(`+[^`]+`+)|(?<!!)\[([^\[\]]*)\]\((?!https?:|mailto:)[^()\s]*\)")
_LEADS_ON = re.compile(r"^Next: \[|\]\(\.\./book/reference/")
_MARKDOWN = MarkdownIt().enable("table")


class TextBlock(NamedTuple):
    text: str
    level: int
    heading: str
    is_code: bool


def blocks(markdown: str) -> Iterator[TextBlock]:
    lines = markdown.split("\n")
    tokens = _MARKDOWN.parse(markdown)
    for token, inner in zip_longest(tokens, tokens[1:]):
        if token.level == 0 and token.map:
            text = "\n".join(lines[slice(*token.map)]).rstrip()
            level, words = (int(token.tag[1]), inner.content) if token.type == "heading_open" else (0, "")
            yield TextBlock(text, level, words, token.type == "fence")


def headings_above(cells: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The last heading above each cell, or in it, by the cell's id."""
    found, heading = {}, ""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            heading = ([heading] + [block.heading for block in blocks(cell["source"]) if block.level])[-1]
        found[cell["id"]] = heading
    return found


def _sorted(markdown: str, dropped: Collection[str]) -> Iterator[tuple[TextBlock, bool]]:
    """Each block, and whether it is left out."""
    dropping = 0  # the level of the heading that is being dropped
    for block in blocks(markdown):
        if block.level and (not dropping or block.level <= dropping):
            dropping = block.level if block.heading.partition(" · ")[0] in dropped else 0
        yield block, bool(dropping)


def excerpt(markdown: str, dropped: Collection[str] = NOT_FOR_A_ROOM) -> str:
    """A cell's text without what is not for a room.

    A heading that is dropped takes with it all that stands under it, up to the next heading of its level. Links that
    lead to another file of the course become plain text: on a slide and in a demo they would lead nowhere.
    """
    markdown = re.sub(ANCHOR, "", markdown)
    return "\n\n".join(
        block.text if block.is_code else _CODE_OR_RELATIVE_LINK.sub(lambda match: match[1] or match[2], block.text)
        for block, is_left_out in _sorted(markdown, dropped)
        if not (is_left_out or _LEADS_ON.search(block.text))
    )


def ends_left_out(markdown: str) -> bool:
    """Whether `excerpt` leaves out the end of a text. Then what follows the text is not for a room either."""
    return any([is_left_out for _, is_left_out in _sorted(markdown, NOT_FOR_A_ROOM)][-1:])


def opening(markdown: str) -> str:
    """The text of a lesson's first cell before what a reader needs."""
    return re.split(r"^\*\*You need", markdown, maxsplit=1, flags=re.MULTILINE)[0].strip()
