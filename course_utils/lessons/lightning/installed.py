"""The Trainers are an optional extra, and two releases of Lightning steal passwords: look before the import."""

import re
from importlib import metadata

COMPROMISED = ("2.6.2", "2.6.3")  # advisory GHSA-w37p-236h-pfx3, 2026-04-30: their code ran on `import lightning`
NAMES = ("lightning", "transformers", "accelerate")
SERIES = r"lightning 2\.6\.([6-9]|\d\d)|transformers 5\.(2[4-9]|[3-9]\d)|accelerate 1\.(1[5-9]|[2-9]\d)"
INSTALL = 'pip install "lightning>=2.6.6,<2.7" "transformers>=5.24,<6" "accelerate>=1.15,<2"'


class TrainersNeededError(ImportError):
    """The lesson cannot run here: in a notebook, the sentence is shown alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def require() -> None:
    """Raise, with one sentence, where a Trainer is missing or must not be imported; nothing of it is imported."""
    found = {str(each.name).lower(): each.version for each in reversed([*metadata.distributions()])}  # first wins
    for name in ("lightning", "pytorch-lightning"):
        if found.get(name) in COMPROMISED:
            raise TrainersNeededError(
                f"{name} {found[name]} is a compromised release: as soon as it is imported, it runs a program that "
                "steals credentials. Do not import it. Change every password and token that this computer holds, then: "
                f"pip uninstall lightning pytorch-lightning, and {INSTALL}."
            )
    if wrong := [name for name in NAMES if not re.match(SERIES, f"{name} {found.get(name)}")]:
        here = " and ".join(f"{name} ({found.get(name, 'not installed')})" for name in wrong)
        raise TrainersNeededError(
            f"This lesson needs other releases of {here}. In an environment of its own: {INSTALL}, then restart the "
            "kernel. Until then, read it: every recorded result is in it."
        )
