"""The words for what comes out of a claim: their order, their signs and what they mean. They stand here alone."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

# What a rule may give. "documented" rests on a cited source, and "open" is what remains when no rule holds.
RuledWord = Literal["confirmed", "depends", "refuted", "outdated API"]
VerdictWord = Literal[RuledWord, "documented", "open"]
RULED: tuple[str, ...] = get_args(RuledWord)
VERDICTS: tuple[str, ...] = get_args(VerdictWord)
# A bare "documented" beside a claim reads as approval, so what a source contradicts is shown in other words.
DOCUMENTED_OTHERWISE = "documented otherwise"
# A claim of several parts holds only if all of them do: the first of these that a part has is the claim's.
_WEAKEST_FIRST = ("refuted", "outdated API", "depends", "documented", "open", "confirmed")


class Wording(NamedTuple):
    """How readers see a verdict."""

    sign: str  # stands beside the word, so that nobody has to tell colours apart
    meaning: str


WORDINGS = {
    "confirmed": Wording(
        "✓",
        "What was measured or run bears it out, most of it clearly, and none of it says otherwise.",
    ),
    "depends": Wording(
        "◐",
        "It holds under a condition, in some cases or on some machines: the entry says which.",
    ),
    "refuted": Wording("✗", "What was measured or run contradicts it."),
    "outdated API": Wording("↻", "It was right for a call that has changed or gone."),
    "documented": Wording("§", "It is not measured here: a cited source says so."),
    DOCUMENTED_OTHERWISE: Wording("§", "It is not measured here: a cited source says something else."),
    "open": Wording("○", "Nothing decides it yet: the entry says what it waits for."),
}


def weakest(verdicts: set[str]) -> str:
    """What follows for a whole from the verdicts on its parts."""
    return next(verdict for verdict in _WEAKEST_FIRST if verdict in verdicts)
