"""Numbers with units, for people: three significant digits, the same text on every machine."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

_SECONDS = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_DECIMAL = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
_UNIT = re.compile(r"(?<=\d) (?=(?:[nµm]?s|[KMGTP]?i?B|[kMGTP]?FLOP)\b)")
_BINARY = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))


def three_digits(value: float) -> str:
    """Three significant digits without an exponent; whole numbers from 100 up."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}" if abs(rounded) < 1000 else f"{value:.0f}"


def _scaled(value: float, units: tuple[tuple[float, str], ...], step: float) -> tuple[str, str]:
    """The number and the unit in which it lies between 1 and ``step`` after rounding, where there is such a unit."""
    for scale, name in units:
        shown = value / scale
        if max(abs(float(f"{shown:.3g}")), round(abs(shown))) < step:
            return three_digits(shown), name
    scale, name = units[-1]
    return three_digits(value / scale), name


def axis_unit(unit: str | None, typical: float) -> tuple[float, str]:
    """What an axis counts in, and its name: ``(0.001, 'ms')`` for a typical value of 0.002 s."""
    if unit == "percent":
        return 0.01, "%"
    if unit in ("B/s", "FLOP/s"):
        steps = tuple((scale, prefix + unit) for scale, prefix in _DECIMAL)
    else:
        steps = {"bytes": _BINARY, "s": _SECONDS}.get(unit or "")
    if steps is None:
        return 1.0, unit if unit in ("relative", "ratio") else ""
    return next((step for step in reversed(steps) if typical >= step[0]), steps[0])


def format_seconds(seconds: float | None) -> str:
    """A time with three significant digits: ``12.3 µs``."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds == 0:
        return "0 s"
    return " ".join(_scaled(seconds, _SECONDS, 1000))


def format_bytes(count: float | None) -> str:
    """An amount of memory, with binary prefixes: 1 GiB is 1024^3 bytes."""
    if count is None or not math.isfinite(count):
        return "–"
    if abs(count) < 1024:
        return f"{count:.0f} B"
    return " ".join(_scaled(count, _BINARY, 1024))


def format_size(count: float) -> str:
    """An amount of memory that somebody chose, without digits that say nothing: ``16 MiB``, ``1.5 GiB``."""
    scale, name = next(step for step in reversed(_BINARY) if count >= step[0] or step == _BINARY[0])
    return f"{count / scale:.4g} {name}"


def format_count(count: int) -> str:
    """A large number of things, such as parameters: ``6.58 billion``."""
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if float(f"{count:.3g}") >= scale:
            return f"{three_digits(count / scale)} {word}"
    return str(count)


def format_rate(per_second: float | None, unit: str) -> str:
    """A rate, with decimal prefixes, as data sheets have them: 1 GB/s is 10^9 bytes a second."""
    if per_second is None or not math.isfinite(per_second):
        return "–"
    number, prefix = _scaled(per_second, _DECIMAL, 1000)
    joined = prefix + unit if unit in ("B/s", "FLOP/s") else f"{prefix} {unit}".strip()
    return f"{number} {joined}"


def _ratio_decimals(ratio: float) -> int:
    if abs(ratio - 1) < 0.0195:  # three significant digits would hide how far it is from 1
        return 3
    if ratio <= 0:
        return 3
    return 0 if ratio >= 9.995 else max(2, 2 - math.floor(math.log10(float(f"{ratio:.3g}"))))


def format_ratio(ratio: float) -> str:
    """A ratio of two times, with enough digits to tell it from 1: ``1.004``, ``1.83``, ``12``, ``100,157``."""
    if not math.isfinite(ratio):
        return "–"
    return VALUE_FORMATS["count"](ratio) if ratio >= 1e4 else f"{ratio:.{_ratio_decimals(ratio)}f}"


def format_times(ratio: float, tight: bool = False) -> str:
    """A ratio of two times in words, the number never below 1: ``1.64 times as fast`` for 0.61.

    ``tight`` is for cells and ticks: ``1.64× as fast``.
    """
    way, number = ("fast", 1 / ratio) if ratio < 1 else ("long", ratio)
    return f"{format_ratio(number)}{'×' if tight else ' times'} as {way}"


def format_noise(factor: float) -> str:
    """How far equal things strayed from each other: ``noise ±1.4%`` for 1.014."""
    if not math.isfinite(factor):
        return "noise unknown"
    if factor >= 100:
        return "noise swamps everything"
    return f"noise: a factor of {format_ratio(factor)}" if factor >= 2 else f"noise ±{format_percent(factor - 1)}"


class Range(Protocol):
    """Anything with two ends, such as an interval."""

    low: float
    high: float


def format_interval(interval: Range) -> str:
    """An interval of a ratio as ``low to high``, both ends with the same number of decimals where they are alike."""
    low, high = interval.low, interval.high
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    if low <= 0 or high > 3 * low:
        return f"{format_ratio(low)} to {format_ratio(high)}"
    decimals = max(_ratio_decimals(low), _ratio_decimals(high))
    return f"{low:.{decimals}f} to {high:.{decimals}f}"


def format_percent(fraction: float) -> str:
    """A fraction as a percentage with two significant digits: ``0.42%``."""
    return f"{float(f'{100 * fraction:.2g}'):g}%" if abs(fraction) < 0.995 else f"{100 * fraction:.0f}%"


VALUE_FORMATS: dict[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "s": format_seconds,
    "B/s": lambda value: format_rate(value, "B/s"),
    "FLOP/s": lambda value: format_rate(value, "FLOP/s"),
    "relative": lambda value: "0" if value == 0 else f"{value:.1e}",
    "ratio": format_ratio,
    "percent": format_percent,
    "count": "{:,.0f}".format,
}


def value_text(value: Any, unit: str | None = None) -> str:
    """Any plain value as text: a number with its unit, a key of `VALUE_FORMATS`."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit is not None:
        return VALUE_FORMATS[unit](value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain_number(value: float, _: Any = None) -> str:
    """A number for a tick or a sentence: no exponent, and thousands apart."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def unbroken(text: str) -> str:
    """Words in which no line ends between a number and its unit."""
    return _UNIT.sub("\u00a0", text)


def listed(words: Iterable[str]) -> str:
    """Words as a list in a sentence: ``a, b and c``."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def short_name(name: str) -> str:
    """The name of a kernel without what a template was given, or that of a function of Python's.

    Example:
        >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)")
        'at::native::vectorized_elementwise_kernel'
    """
    if ".py(" in name:  # a function of Python's, with its line
        return name if len(name) <= 70 else "…" + name[-69:]
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    plain = plain.partition("<")[0].partition("(")[0] or name
    return plain if len(plain) <= 70 else plain[:69] + "…"
