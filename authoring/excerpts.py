"""What of a lesson's text is for a room: no exercises, no solutions, no lists of sources, no links into the course."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

NOT_FOR_A_ROOM = ("Exercises", "Solutions", "Sources", "Next", "Next lesson")
"""Headings whose text is left out, with everything under them."""

_HEADING = re.compile(r"(#{1,6}) +(.+?)\s*#*")
# Older lessons set the headings of the verdict's parts in bold.
_BOLD_HEADING = re.compile(r"\*\*(Recap|Sources|Next)\*\*.*")
_BOLD_LEVEL = 3
# Code is matched, too, so that an index and a call in it are not taken for a link.
_CODE_OR_RELATIVE_LINK = re.compile(r"(`+[^`]+`+)|(?<!!)\[([^\[\]]*)\]\((?!https?:|mailto:)[^()\s]*\)")
_FENCE = re.compile(r"\s*(```|~~~)")


def lines_with_fences(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yields each line, and whether it belongs to a fenced block of code (its fences included)."""
    fence = ""
    for line in markdown.split("\n"):
        found = _FENCE.match(line)
        inside = bool(fence) or found is not None
        if found:
            fence = "" if fence == found[1] else fence or found[1]
        yield line, inside


def excerpt(markdown: str, dropped: Collection[str] = NOT_FOR_A_ROOM) -> str:
    r"""Returns a cell's text without what is not for a room.

    A heading that is dropped takes with it all that stands under it, up to the next heading of its level. Links that
    lead to another file of the course become plain text: on a slide and in a demo they would lead nowhere.

    Args:
        markdown: the source of a Markdown cell.
        dropped: headings to leave out, without their ``#``.

    Example:
        >>> print(excerpt("## Verdict\n\nIt *depends*.\n\n### Sources\n\n- one\n\n## Solutions"))
        ## Verdict
        <BLANKLINE>
        It *depends*.
    """
    kept = [
        line if is_code else _CODE_OR_RELATIVE_LINK.sub(lambda found: found[1] or found[2], line)
        for line, is_code, left in _sorted(markdown, dropped)
        if not left
    ]
    return "\n".join(kept).strip()


def ends_left_out(markdown: str, dropped: Collection[str] = NOT_FOR_A_ROOM) -> bool:
    r"""Whether `excerpt` leaves out the end of a text. Then what follows the text is not for a room either.

    Example:
        >>> ends_left_out("## Verdict\n\n## Solutions\n\n### Exercise 1"), ends_left_out("## Verdict")
        (True, False)
    """
    return [left for *_, left in _sorted(markdown, dropped)][-1]


def _sorted(markdown: str, dropped: Collection[str]) -> Iterator[tuple[str, bool, bool]]:
    """Yields each line, whether it is code, and whether it is left out."""
    dropping = 0  # the level of the heading that is being dropped
    for line, is_code in lines_with_fences(markdown):
        heading = None if is_code else heading_of(line)
        if heading:
            level, words = heading
            if not dropping or level <= dropping:
                dropping = level if words in dropped else 0
        yield line, is_code, bool(dropping)


def heading_of(line: str) -> tuple[int, str] | None:
    """Returns level and words of a line that is a heading, or None.

    Example:
        >>> heading_of("### Recap"), heading_of("**Recap**"), heading_of("It recaps.")
        ((3, 'Recap'), (3, 'Recap'), None)
    """
    found = _HEADING.fullmatch(line)
    if found:
        return len(found[1]), found[2]
    bold = _BOLD_HEADING.fullmatch(line)
    return (_BOLD_LEVEL, bold[1]) if bold else None


def verdict_alone(markdown: str) -> str:
    r"""Returns the heading of a verdict and its verdict lines, without the reasons: a room has these in the talk.

    Example:
        >>> print(verdict_alone("## Verdict\n\n**T8 · once: refuted.** It is called\noften.\n\nMore."))
        ## Verdict
        <BLANKLINE>
        **T8 · once: refuted.**
    """
    lines = re.findall(r"^\*\*[A-Z]+\d+[^*\n]* · .+?\*\*", markdown, flags=re.MULTILINE)
    return "\n\n".join([markdown.split("\n", 1)[0], *lines]) if lines else markdown


def opening(markdown: str, up_to: str) -> str:
    r"""Returns the text before the first line that begins with ``up_to``.

    Example:
        >>> opening("# A\n\n*Why?*\n\n**You need** a GPU.", "**You need**")
        '# A\n\n*Why?*'
    """
    return re.split(rf"^{re.escape(up_to)}", markdown, maxsplit=1, flags=re.MULTILINE)[0].strip()


@dataclass(frozen=True)
class Question:
    """What a cell asks the reader to predict.

    Attributes:
        words: the question; what only a run can fill in is three dots.
        unit: the unit of the answer, as `predict` is given it; empty if there is none.
    """

    words: str
    unit: str = ""

    @property
    def direction(self) -> str:
        """``times as fast`` or ``times as long``, if the question asks for one of them."""
        found = re.search(r"times (?:as (fast|long)|(fast)er)", self.words)
        return f"times as {found[1] or found[2]}" if found else ""


def asked(source: str) -> Question | None:
    """Returns the question of a code cell that asks for a prediction, or None.

    Example:
        >>> asked('predict("How many times as fast?", low=1)')
        Question(words='How many times as fast?', unit='')
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    named = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "predict" and node.args:
            first = node.args[0]
            first = named.get(first.id, first) if isinstance(first, ast.Name) else first
            parts = first.values if isinstance(first, ast.JoinedStr) else [first]
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            units = [keyword.value for keyword in node.keywords if keyword.arg == "unit"]
            return Question(words, str(ast.literal_eval(units[0])) if units else "")
    return None
