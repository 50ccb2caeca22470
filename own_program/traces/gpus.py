"""What a trace says of its devices: their maker, and what they can."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# By the device's name, or by the calls that the maker's library is called with. NVIDIA's numbers alone come last.
_MAKERS = (
    ("AMD", r"\b(AMD|Radeon|Instinct|gfx\d|MI\d{2,3}|hip[A-Z])"),
    ("Intel", r"\b(Intel|Arc\b|ze[A-Z]|ur[A-Z])"),
    (
        "NVIDIA",
        r"\b(NVIDIA|Tesla|GeForce|Quadro|GRID|TITAN|[GR]TX|cuda[A-Z]|cu[A-Z]|G?[ABHPTV]\d{1,3}\b|V100|L\d{1,2}S?\b)",
    ),
)
_CAPABILITIES = (
    ((12, 0), r"RTX 50\d\d|RTX PRO \d"), ((10, 3), r"\bG?B300\b"), ((10, 0), r"\bG?B[12]00\b"),
    ((9, 0), r"\bG?H\d{2,3}\b"), ((8, 9), r"RTX 40\d\d|\bL(4|20|40S?)\b|\bAda\b"), ((8, 0), r"\bA(30|100|800)\b"),
    ((8, 6), r"RTX 30\d\d|RTX A\d{4}|\bA(2|10G?|16|40)\b"), ((7, 5), r"RTX 20\d\d|GTX 16\d\d|\bT4|(TITAN|Quadro) RTX"),
    ((7, 0), r"V100|TITAN V"), ((6, 0), r"P100"), ((6, 1), r"GTX 10\d\d|\bP(4|6|40)\b|TITAN X"),
    ((5, 2), r"\bM(4|6|40|60)\b|GTX 9\d\d"), ((3, 7), r"\bK80\b"),
)  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """A device.

    Attributes:
        name: as its maker calls it; empty where the trace does not say.
        maker: ``NVIDIA``, ``AMD`` or ``Intel``; empty where nothing tells it.
        capability: NVIDIA's compute capability, such as ``(8, 0)``; None for others, and where it is unknown.
        memory: its bytes, or None.
    """

    name: str = ""
    maker: str = ""
    capability: tuple[int, int] | None = None
    memory: int | None = None


def gpus_of(header: dict[str, Any], devices: Iterable[int], calls: Iterable[str]) -> dict[int, Gpu]:
    """The devices that a trace lists, and those that worked in it, by their number.

    Args:
        header: what stands beside the events.
        devices: the numbers of those that worked.
        calls: names of calls to a device's library, which tell the maker where no device is listed by name.
    """
    maker = next(filter(None, map(maker_of, calls)), "")
    found = {device: Gpu(maker=maker) for device in devices}
    listed = header.get("deviceProperties", header.get("computeProperties"))
    for place, told in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(told, dict):
            number = told.get("id")
            found[number if isinstance(number, int) else place] = _gpu(told, maker)
    return found


def _gpu(told: dict[str, Any], maker: str) -> Gpu:
    name, memory = told.get("name"), told.get("totalGlobalMem", told.get("totalMemory"))
    name = name if isinstance(name, str) else ""
    maker = maker_of(name) or maker
    capability = None
    if maker == "NVIDIA":  # AMD's numbers mean something else
        major, minor = told.get("computeMajor"), told.get("computeMinor")
        known = next((version for version, pattern in _CAPABILITIES if re.search(pattern, name)), None)
        capability = (major, minor) if isinstance(major, int) and isinstance(minor, int) else known
    return Gpu(name, maker, capability, memory if isinstance(memory, int) else None)


def maker_of(name: str) -> str:
    """Whose device has this name, or whose library this call; empty where the name does not tell.

    Example:
        >>> maker_of("Tesla V100-SXM2-16GB"), maker_of("hipLaunchKernel"), maker_of("Graphics Device")
        ('NVIDIA', 'AMD', '')
    """
    return next((maker for maker, pattern in _MAKERS if re.search(pattern, name)), "")
