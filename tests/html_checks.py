"""What a form for the book must be, whatever it shows: well-formed, with its ids known, in need of no other file."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any


class Parsed(HTMLParser):
    """A piece of HTML and SVG: its ids, and whatever would need another file. Tags must be closed in order."""

    VOID = frozenset({"rect", "line", "path", "br", "input", "meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href"):
                self.outside.append(value)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def content_of(shown: str) -> dict[str, Any]:
    """What a stored explorer gives its script."""
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', shown, flags=re.DOTALL)[1])
