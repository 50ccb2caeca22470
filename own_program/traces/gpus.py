"""What a trace says of its devices: their maker, and what they can."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from own_program.traces.text import printable

# By the device's name, or by the calls that the maker's library is called with.
_MAKERS = {
    "AMD": r"\b(AMD|Radeon|Instinct|gfx\d|MI\d{2,3}|hip[A-Z])",
    "Intel": r"\b(Intel|Arc\b|ze[A-Z]|ur[A-Z])",
    "NVIDIA": r"\b(NVIDIA|Tesla|GeForce|Quadro|GRID|TITAN|[GR]TX|cuda[A-Z]|cu[A-Z]|[ABHPTV]\d{1,3}\b)",
}
# Compute capabilities, for traces that name a GPU and not its version: https://developer.nvidia.com/cuda-gpus
_CAPABILITIES = {
    (12, 0): r"RTX 50\d\d|RTX PRO", (10, 3): r"B300\b", (10, 0): r"B[12]00\b", (9, 0): r"\bG?H\d{2,3}\b",
    (8, 9): r"RTX 40\d\d|\bL(4|20|40S?)\b|\bAda\b", (8, 0): r"\bA(30|100|800)\b",
    (8, 6): r"RTX 30\d\d|RTX A\d{4}|\bA(2|10G?|16|40)\b", (7, 5): r"RTX 20\d\d|GTX 16\d\d|\bT4|(TITAN|Quadro) RTX",
    (7, 0): r"V100|TITAN V", (6, 0): r"P100", (6, 1): r"GTX 10\d\d|\bP(4|6|40)\b|TITAN X", (5, 2): r"\bM(4|40|60)\b",
}  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """A device.

    Attributes:
        name: as its maker calls it; empty where the trace does not say.
        maker: ``NVIDIA``, ``AMD`` or ``Intel``; empty where nothing tells it.
        capability: NVIDIA's compute capability, such as ``(8, 0)``; None for others, and where it is unknown.
    """

    name: str = ""
    maker: str = ""
    capability: tuple[int, int] | None = None


def gpus_of(header: dict[str, Any], devices: Iterable[int], calls: Iterable[str]) -> dict[int, Gpu]:
    """The devices that a trace's header lists, and those that worked in it, by their number.

    The names of calls to a device's library tell the maker where no device is listed by name.

    Example:
        >>> gpus_of({"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}]}, [0], ["cudaLaunchKernel"])
        {0: Gpu(name='Tesla V100-SXM2-16GB', maker='NVIDIA', capability=(7, 0))}
    """
    maker = next(filter(None, (_first(_MAKERS, call) for call in calls)), "")
    found = {device: Gpu(maker=maker) for device in devices}
    listed = header.get("deviceProperties", header.get("computeProperties"))
    for place, told in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(told, dict):
            number = told.get("id")
            found[number if isinstance(number, int) else place] = _gpu(told, maker)
    return found


def _gpu(told: dict[str, Any], maker: str) -> Gpu:
    name = printable(str(told.get("name") or ""))
    maker = _first(_MAKERS, name) or maker
    version = told.get("computeMajor", told.get("major")), told.get("computeMinor", told.get("minor"))
    if not all(isinstance(part, int) for part in version):
        version = _first(_CAPABILITIES, name)
    return Gpu(name, maker, version if maker == "NVIDIA" else None)  # AMD's numbers mean something else


def _first(patterns: dict[Any, str], name: str) -> Any:
    return next((what for what, pattern in patterns.items() if re.search(pattern, name)), None)
