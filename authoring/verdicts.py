"""The words for what comes out of a claim: their order, their signs and what they mean. They stand here alone."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

# What a rule may give. "documented" rests on a cited source, and "open" is what remains when no rule holds.
RuledWord = Literal["confirmed", "depends", "refuted", "outdated API"]
VerdictWord = Literal[RuledWord, "documented", "published", "depends (published)", "open"]
RULED: tuple[str, ...] = get_args(RuledWord)
# A bare "documented" beside a claim reads as approval, so what a source contradicts is shown in other words.
OTHERWISE = {"documented": "documented otherwise", "published": "published otherwise"}
# A claim of several parts holds only if all of them do: the first of these that a part has is the claim's.
_WEAKEST_FIRST = (
    *("refuted", "outdated API", "depends", "depends (published)", *OTHERWISE.values()),
    *("open", "documented", "published", "confirmed"),
)


class Wording(NamedTuple):
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
    "documented otherwise": Wording("§", "It is not measured here: a cited source says something else."),
    "published": Wording("◇", "No record of ours decides it. Others measured it, and their numbers bear it out."),
    "published otherwise": Wording("◇", "No record of ours decides it. Others measured it, and found the contrary."),
    "depends (published)": Wording(
        "◇",
        "No record of ours decides it. Others measured it, and it depends, or they do not agree: the rows say on what.",
    ),
    "open": Wording("○", "Nobody is known to have measured it: the entry says what would settle it."),
}


def weakest(verdicts: set[str]) -> str:
    """What follows for a whole from the verdicts on its parts."""
    return next(verdict for verdict in _WEAKEST_FIRST if verdict in verdicts)
