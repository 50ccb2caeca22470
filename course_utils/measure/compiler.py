"""The C++ compiler of this machine. Apart from the machine's other properties, since it needs no torch to be read."""

from __future__ import annotations

import os
import shutil
import sys


def compiler() -> str | None:
    """The C++ compiler that torch.compile would use, if there is one."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or default)
