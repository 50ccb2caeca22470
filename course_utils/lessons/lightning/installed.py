"""Lightning is an optional extra, and two of its releases steal passwords: look before the import, which runs them."""

from __future__ import annotations

import re
from importlib import metadata

# Security advisory GHSA-w37p-236h-pfx3 of 2026-04-30: their code ran on `import lightning`.
COMPROMISED = ("2.6.2", "2.6.3")
INSTALL = 'pip install "lightning>=2.6.6,<2.7"'


class LightningNeededError(ImportError):
    """Lightning cannot be used here: in a notebook, the sentence is shown alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def problem() -> str | None:
    """Why this lesson cannot run here and what to do, from the installed package's metadata; None if it can.

    Nothing of Lightning is imported.
    """
    versions = {name: _version(name) for name in ("lightning", "pytorch-lightning")}
    for name, version in versions.items():
        if version in COMPROMISED:
            return (
                f"{name} {version} is a compromised release: as soon as it is imported, it runs a program that steals "
                f"credentials. Do not import it. Change every password and token that this computer holds, then: "
                f"pip uninstall lightning pytorch-lightning, and {INSTALL}."
            )
    version = versions["lightning"]
    if version is None:
        return f"Lightning is not installed. To run this lesson: {INSTALL}, then restart the kernel. {_MEANWHILE}"
    if not re.match(r"2\.6\.([6-9]|[1-9]\d)", version):
        here = f"This lesson is about Lightning 2.6; here is {version}."
        return f"{here} In an environment of its own: {INSTALL}. {_MEANWHILE}"
    return None


_MEANWHILE = "Until then, read it: every recorded result is in it."


def require() -> None:
    """Raise :class:`LightningNeededError`, with one sentence, where Lightning is missing or must not be imported."""
    if (sentence := problem()) is not None:
        raise LightningNeededError(sentence)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
