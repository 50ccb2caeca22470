"""What of a lesson's text is for a classroom: no anchors, and no links into the course."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from markdown_it import MarkdownIt

from authoring.markdown_texts import ANCHOR

# Code is matched, too, so that an index and a call in it are not taken for a link.
_CODE_OR_RELATIVE_LINK = re.compile(r"(`+[^`]+`+)|(?<!!)\[([^\[\]]*)\]\((?!https?:|mailto:)[^()\s]*\)")
_LEADS_ON = re.compile(r"^Next: \[|\]\(\.\./book/reference/")
_MARKDOWN = MarkdownIt().enable("table")


class TextBlock(NamedTuple):
    text: str
    level: int  # of a heading; 0 for other text
    heading: str
    is_code: bool


def blocks(markdown: str) -> Iterator[TextBlock]:
    """The headings, paragraphs, lists, tables and code of a text."""
    lines = markdown.split("\n")
    tokens = _MARKDOWN.parse(markdown)
    for token, inner in zip_longest(tokens, tokens[1:]):
        if token.level == 0 and token.map:
            text = "\n".join(lines[slice(*token.map)]).rstrip()
            level, words = (int(token.tag[1]), inner.content) if token.type == "heading_open" else (0, "")
            yield TextBlock(text, level, words, token.type == "fence")


def excerpt(markdown: str) -> str:
    """A cell's text as a classroom sees it.

    Links that lead to another file of the course become plain text, and what says no more than where to go on is left
    out: on a slide and in a demo they would lead nowhere.
    """
    return "\n\n".join(
        block.text if block.is_code else _CODE_OR_RELATIVE_LINK.sub(lambda match: match[1] or match[2], block.text)
        for block in blocks(re.sub(ANCHOR, "", markdown))
        if not _LEADS_ON.search(block.text)
    )


def opening(markdown: str) -> str:
    return re.split(r"^\*\*You need", markdown, maxsplit=1, flags=re.MULTILINE)[0].strip()
