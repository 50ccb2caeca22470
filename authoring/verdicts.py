"""The words for what comes out of a claim: what a rule gives, and the four words that readers see."""

from __future__ import annotations

from typing import Literal, get_args

# What a rule may give. "documented" rests on a cited source, and "open" is what remains when no rule holds.
RuledWord = Literal["confirmed", "depends", "refuted", "outdated API"]
_Otherwise = Literal["documented otherwise", "published otherwise"]
VerdictWord = Literal[RuledWord, "documented", "published", _Otherwise, "depends (published)", "open"]
RULED: tuple[str, ...] = get_args(RuledWord)
OTHERWISE = dict(zip(("documented", "published"), get_args(_Otherwise), strict=True))
# All of them, the weakest first: the first of these that a part has is the claim's.
VERDICTS = (
    *("refuted", "outdated API", "depends", "depends (published)", *OTHERWISE.values()),
    *("open", "documented", "published", "confirmed"),
)
_READERS_WORDS = {
    "Holds": ("confirmed", "documented", "published"),
    "Half": ("depends", "depends (published)"),
    "No": ("refuted", "outdated API", *OTHERWISE.values()),
    "Open": ("open",),
}
SIGNS = {"Holds": "✓", "Half": "◐", "No": "✗", "Open": "○"}  # so that nobody has to tell colours apart
_BY_OTHERS = {*OTHERWISE, *OTHERWISE.values(), "depends (published)"}


def readers_word(verdict: str) -> str:
    """The word that readers see for a verdict."""
    return next(word for word, verdicts in _READERS_WORDS.items() if verdict in verdicts)


def signed(verdict: str) -> str:
    """That word with its sign.

    Example:
        >>> signed("outdated API")
        '✗ No'
    """
    return f"{SIGNS[readers_word(verdict)]} {readers_word(verdict)}"


def is_by_others(verdict: str) -> bool:
    """Whether documents or published rows gave it."""
    return verdict in _BY_OTHERS
