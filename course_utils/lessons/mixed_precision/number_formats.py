"""Floating-point formats under a magnifier: the bits of a value, its neighbours, and what does not fit.

The first half is arithmetic on Python numbers and needs neither torch nor a notebook. The second half shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from course_utils.show.viewer import StoredView, field, stored_view, table_html

Kind = Literal["normal", "subnormal", "zero", "underflow", "overflow", "infinite", "nan"]


@dataclass(frozen=True)
class NumberFormat:
    """One binary floating-point format: a sign, an exponent with a bias, and a mantissa with a hidden first bit."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True  # e4m3fn gives the patterns of infinity to numbers and keeps a single NaN
    dtype: str | None = None  # TF32 is no dtype but a way to multiply fp32 numbers

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def lowest_exponent(self) -> int:
        """Exponent of the smallest normal number, and of all subnormal ones."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def largest_code(self) -> int:
        """The bits of the largest number, read as an integer."""
        if self.has_infinity:
            return ((2**self.exponent_bits - 1) << self.mantissa_bits) - 1
        return 2 ** (self.bits - 1) - 2

    @property
    def largest(self) -> float:
        return self.decode(self.largest_code)

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.lowest_exponent)

    @property
    def smallest(self) -> float:
        return math.ldexp(1.0, self.lowest_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return math.ldexp(1.0, -self.mantissa_bits)

    def decode(self, code: int) -> float:
        """The value of a bit pattern without its sign, read as an integer: 0 to ``2**(bits - 1) - 1``.

        Example:
            >>> FORMATS["bf16"].decode(0b0_01111111_0000001)
            1.0078125
        """
        if code > self.largest_code:
            return math.inf if self.has_infinity and code == self.largest_code + 1 else math.nan
        exponent, mantissa = code >> self.mantissa_bits, code & (2**self.mantissa_bits - 1)
        if exponent:
            mantissa += 2**self.mantissa_bits
        return math.ldexp(mantissa, max(exponent, 1) - 1 + self.lowest_exponent - self.mantissa_bits)


FORMATS: Mapping[str, NumberFormat] = {
    each.name: each
    for each in (
        NumberFormat("fp32", 8, 23, dtype="float32"),
        NumberFormat("tf32", 8, 10),
        NumberFormat("bf16", 8, 7, dtype="bfloat16"),
        NumberFormat("fp16", 5, 10, dtype="float16"),
        NumberFormat("fp8 e5m2", 5, 2, dtype="float8_e5m2"),
        NumberFormat("fp8 e4m3fn", 4, 3, has_infinity=False, dtype="float8_e4m3fn"),
    )
}


@dataclass(frozen=True)
class Representation:
    """What a format makes of a value: the nearest of its numbers, the even one of two that are equally near."""

    given: float
    value: float
    sign: str  # bits, as text; so are the next two
    exponent: str
    mantissa: str
    kind: Kind  # subnormal is close to zero, with fewer bits left; underflow became zero, overflow was too large
    spacing: float | None  # to the next number away from zero, or towards it for the largest; None at infinity and NaN

    @property
    def relative_error(self) -> float | None:
        """How far the stored value is from the given one, relative to that. None where that says nothing."""
        if self.given == 0 or not (math.isfinite(self.given) and math.isfinite(self.value)):
            return None
        return abs(self.value - self.given) / abs(self.given)


def represent(value: float, format: str) -> Representation:
    """Store a value in a format, rounding to nearest.

    This is what ``torch.tensor(value).to(dtype)`` does. Too large a value becomes infinity. ``fp8 e4m3fn`` has none:
    there it becomes the largest number, as in torch 2.13 (before a change of April 2026 that cast gave NaN). For
    ``tf32`` it is the nearest number with TF32's bits; hardware may cut the bits off instead of rounding.

    Raises:
        ValueError: if ``value`` is no number, or ``format`` is no key of :data:`FORMATS`.

    Source:
        IEEE 754-2019 (fp16, fp32); https://arxiv.org/abs/2209.05433 v2, 2022 (both fp8 formats);
        https://github.com/pytorch/pytorch/pull/178817, 2026 (e4m3fn saturates).

    Example:
        >>> represent(0.1, "bf16").value
        0.10009765625
        >>> represent(1e-8, "fp16").kind
        'underflow'
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"value must be a number, got {value!r}: pass a float such as 0.1, or tensor.item()")
    layout = FORMATS[format]
    try:
        given = float(value)
    except OverflowError:  # an int beyond every float
        given = math.inf if value > 0 else -math.inf
    code, kind = _encode(abs(given), layout)
    exponent, mantissa = code >> layout.mantissa_bits, code & (2**layout.mantissa_bits - 1)
    return Representation(
        given=given,
        value=math.copysign(layout.decode(code), given),
        sign="1" if math.copysign(1.0, given) < 0 else "0",
        exponent=f"{exponent:0{layout.exponent_bits}b}",
        mantissa=f"{mantissa:0{layout.mantissa_bits}b}",
        kind=kind,
        spacing=_spacing(code, layout),
    )


def _encode(size: float, layout: NumberFormat) -> tuple[int, Kind]:
    """The bit pattern of a number that is not negative, and what became of it."""
    infinite = layout.largest_code + 1 if layout.has_infinity else layout.largest_code
    if math.isnan(size):
        quiet = (2**layout.exponent_bits - 1 << layout.mantissa_bits) | (1 << layout.mantissa_bits - 1)
        return (quiet if layout.has_infinity else layout.largest_code + 1), "nan"
    if math.isinf(size):
        return infinite, "infinite" if layout.has_infinity else "overflow"
    if size == 0:
        return 0, "zero"
    exponent = max(math.frexp(size)[1] - 1, layout.lowest_exponent)
    # round() takes the even one of two that are equally near. A subnormal that rounds up to a normal number, or a
    # mantissa that rounds up to the next power of two, comes out right: the next pattern is the next number.
    units = round(math.ldexp(size, layout.mantissa_bits - exponent))
    code = (exponent - layout.lowest_exponent << layout.mantissa_bits) + units
    if code > layout.largest_code:
        return infinite, "overflow"
    if code == 0:
        return 0, "underflow"
    return code, "normal" if code >> layout.mantissa_bits else "subnormal"


def _spacing(code: int, layout: NumberFormat) -> float | None:
    if code > layout.largest_code:
        return None
    neighbour = code + 1 if code < layout.largest_code else code - 1
    return abs(layout.decode(neighbour) - layout.decode(code))


# Showing


# The picture shows the numbers from 12.5% below the value to 12.5% above it; more ticks than this are drawn as a bar.
_REACH, _MOST_TICKS = 0.125, 80
_HEADS = ("format", "sign, exponent, mantissa", "stored", "spacing", "relative error")
_RANGE_HEADS = ("format", "bits: sign + exponent + mantissa", "largest", "smallest normal", "smallest", "spacing at 1")
_FOOTNOTE = (
    "fp8 e4m3fn ends at 448: larger values become 448 here, as in torch 2.13. The casts of older versions give NaN."
)
_PICTURE = (
    "The numbers that each format has within 12.5 percent of the value. A blue mark is a number, a blue bar is many of "
    "them; the diamond is the one that is stored."
)

PRESETS: Mapping[float, str] = {
    0.1: "one tenth: exact in none of them",
    1.0: "one: the spacing here is called epsilon",
    1.001: "one and a thousandth: lost in bf16",
    0.9995: "a weight of 1 after a step of -0.0005: still 1 in bf16",
    math.pi: "pi",
    2049.0: "a count: fp16 has no odd numbers up here",
    448.0: "the largest number of fp8 e4m3fn",
    600.0: "beyond fp8 e4m3fn",
    65504.0: "the largest number of fp16",
    70000.0: "beyond fp16: overflow",
    1e-3: "a gradient",
    1e-5: "a small gradient: fp16 has fewer bits left",
    1e-7: "a smaller one: next to no bits left in fp16",
    1e-8: "a gradient that fp16 makes zero",
    1e-8 * 65536: "the same gradient, scaled by 65536",
    3e38: "near the end of the 8-bit exponents",
    1e-40: "below the normal numbers of the 8-bit exponents",
}


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    text = f"{value:.7g}"
    return text if abs(value - float(text)) <= 1e-6 * abs(value) else f"{value:.9g}"


def _error(shown: Representation) -> str:
    if shown.kind in ("underflow", "overflow"):
        return "lost: became 0" if shown.kind == "underflow" else "too large"
    error = shown.relative_error
    if error is None:
        return ""
    words = f"{error:.1e}" if error else "exact"
    return f"{words} (subnormal)" if error and shown.kind == "subnormal" else words


def _ticks(value: float, layout: NumberFormat) -> tuple[list[float], bool]:
    """The format's numbers near a value, as shares of the picture's width; of too many, the first and the last."""
    low, high = (1 - _REACH) * abs(value), (1 + _REACH) * abs(value)
    if not math.isfinite(high) or high - low < 1e-300:  # 12.5% of it is no number even in Python
        return [], False
    first, last = (min(_encode(end, layout)[0], layout.largest_code) for end in (low, high))
    first += layout.decode(first) < low
    last -= layout.decode(last) > high
    dense = last - first >= _MOST_TICKS
    codes = (first, last) if dense else range(first, last + 1)
    return [round((layout.decode(code) - low) / (high - low), 5) for code in codes], dense


def _mark(shown: Representation) -> float | None:
    """Where the stored number lies, as a share of the picture's width; None if that is outside of it."""
    if shown.relative_error is None:
        return None
    place = 0.5 + (shown.value / shown.given - 1) / (2 * _REACH)
    return round(place, 5) if 0 <= place <= 1 else None


def _row(value: float, name: str) -> dict[str, Any]:
    shown, (ticks, dense) = represent(value, name), _ticks(value, FORMATS[name])
    return {
        "name": name,
        **{part: getattr(shown, part) for part in ("sign", "exponent", "mantissa")},
        "stored": _number(shown.value),
        "spacing": "" if shown.spacing is None else f"{shown.spacing:.2g}",
        "error": _error(shown),
        "ticks": ticks,
        "dense": dense,
        "mark": _mark(shown),
    }


def _state(value: float) -> dict[str, Any]:
    caption, rows = f"What each format makes of {_number(value)}", [_row(value, name) for name in FORMATS]
    return {"caption": caption, "heads": _HEADS, "rows": rows, "words": _PICTURE, "footnote": _FOOTNOTE}


def _range_table() -> str:
    rows = [
        (
            layout.name,
            f"1 + {layout.exponent_bits} + {layout.mantissa_bits} = {layout.bits}",
            f"{layout.largest:.5g}",
            f"{layout.smallest_normal:.3g}",
            f"{layout.smallest:.3g}",
            f"{layout.epsilon:.2g}",
        )
        for layout in FORMATS.values()
    ]
    return table_html("Number formats: range and precision", _RANGE_HEADS, rows)


def number_formats(value: float = 0.1) -> StoredView:
    """Show the formats: range and precision of each, and what each makes of a value.

    In a page, a list of further values can be chosen from; where no script runs, the tables for the one value remain.

    Example:
        >>> print(str(number_formats(1.001)).splitlines()[3])
        bf16        0 01111111 0000000                  1              0.0078    1.0e-03
    """
    value = represent(value, "fp32").given
    shown = _state(value)
    lines = [f"{'format':<11} {'bits of ' + _number(value):<35} {'stored':<14} {'spacing':<9} error"]
    rows = [
        (row["name"], f"{row['sign']} {row['exponent']} {row['mantissa']}", row["stored"], row["spacing"], row["error"])
        for row in shown["rows"]
    ]
    lines += [f"{name:<11} {bits:<35} {stored:<14} {spacing:<9} {error}" for name, bits, stored, spacing, error in rows]
    fallback = f"{table_html(shown['caption'], _HEADS, rows)}\n<p><small>{_FOOTNOTE}</small></p>"
    presets = PRESETS if value in PRESETS else {value: "as printed", **PRESETS}
    names = {each: f"{_number(each)} · {words}" for each, words in presets.items()}
    states = [{"when": {"value": name}, **_state(each)} for each, name in names.items()]
    form = [field("value", "Another value", names.values())]
    page = stored_view("formats", states, fallback, form, value=names[value])
    return StoredView("\n".join(line.rstrip() for line in lines), f"{_range_table()}\n{page}")
