"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the choice that comes closest, or nothing.

    Example:
        >>> did_you_mean("recrod", ["check", "record"])
        " (did you mean 'record'?)"
    """
    close = difflib.get_close_matches(str(name), list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
