"""The words for what comes out of a claim: what the ledger states, and the four words that readers see."""

from __future__ import annotations

RULED = ("confirmed", "depends", "refuted")
"""What a condition gives. The other verdicts rest on documents and published rows, or wait for a condition."""
BY_OTHERS = ("documented", "published", "documented otherwise", "published otherwise", "depends (published)")
_READERS_WORDS = {
    "Holds": ("confirmed", "documented", "published"),
    "Half": ("depends", "depends (published)"),
    "No": ("refuted", "documented otherwise", "published otherwise"),
    "Open": ("open",),
}
VERDICTS = tuple(verdict for verdicts in _READERS_WORDS.values() for verdict in verdicts)
SIGNS = {"Holds": "✓", "Half": "◐", "No": "✗", "Open": "○"}  # so that nobody has to tell colours apart


def readers_word(verdict: str) -> str:
    return next(word for word, verdicts in _READERS_WORDS.items() if verdict in verdicts)


def signed(verdict: str) -> str:
    """The readers' word with its sign.

    Example:
        >>> signed("refuted")
        '✗ No'
    """
    word = readers_word(verdict)
    return f"{SIGNS[word]} {word}"
