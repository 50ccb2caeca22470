"""Floating-point formats under a magnifier: the bits of a value, its neighbours, and what does not fit.

The first half is arithmetic on Python numbers and needs neither torch nor a notebook. The second half shows it: as a
form for JupyterLab, and as one piece of HTML for the book, with everything that it needs inside.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ipywidgets import Widget

Kind = Literal["normal", "subnormal", "zero", "underflow", "overflow", "infinite", "nan"]


@dataclass(frozen=True)
class NumberFormat:
    """One binary floating-point format: a sign, an exponent with a bias, and a mantissa with a hidden first bit.

    Attributes:
        name: as people write it, for example ``bf16``.
        exponent_bits: number of bits of the exponent.
        mantissa_bits: bits that are stored after the binary point.
        has_infinity: False for e4m3fn, which gives the patterns of infinity to numbers and keeps a single NaN.
        dtype: name of the torch dtype; None for TF32, which is no dtype but a way to multiply fp32 numbers.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True
    dtype: str | None = None

    @property
    def bits(self) -> int:
        """Bits in all."""
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
        """The largest number."""
        return self.decode(self.largest_code)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all its mantissa bits in use."""
        return math.ldexp(1.0, self.lowest_exponent)

    @property
    def smallest(self) -> float:
        """The smallest positive number, which is subnormal."""
        return math.ldexp(1.0, self.lowest_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return math.ldexp(1.0, -self.mantissa_bits)

    def decode(self, code: int) -> float:
        """The value of a bit pattern without its sign.

        Args:
            code: the exponent's and the mantissa's bits, read as an integer: 0 to ``2**(bits - 1) - 1``.

        Returns:
            The value; infinity or NaN for the patterns that mean that.

        Raises:
            ValueError: if ``code`` does not fit.

        Example:
            >>> FORMATS["bf16"].decode(0b0_01111111_0000001)
            1.0078125
        """
        if not 0 <= code < 2 ** (self.bits - 1):
            raise ValueError(f"code must be from 0 to {2 ** (self.bits - 1) - 1} in {self.name}, got {code!r}")
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
    """What a format makes of a value.

    Attributes:
        format: the format.
        given: the value that was asked for.
        value: what is stored: the nearest number of the format, the even one of two that are equally near.
        sign: one bit, as text.
        exponent: its bits, as text.
        mantissa: its bits, as text.
        kind: ``normal``; ``subnormal`` (close to zero, with fewer bits left); ``zero``; ``underflow`` (became zero);
            ``overflow`` (was too large); ``infinite``; ``nan``.
        below: the next smaller number; None if there is none.
        above: the next larger number; None if there is none.
    """

    format: NumberFormat
    given: float
    value: float
    sign: str
    exponent: str
    mantissa: str
    kind: Kind
    below: float | None
    above: float | None

    @property
    def spacing(self) -> float | None:
        """Distance to the next number away from zero, or towards zero for the largest. None at infinity and NaN."""
        if not math.isfinite(self.value):
            return None
        outward, inward = (self.above, self.below) if self.sign == "0" else (self.below, self.above)
        neighbour = outward if outward is not None and math.isfinite(outward) else inward
        return None if neighbour is None else abs(neighbour - self.value)

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

    Args:
        value: any real number, infinity or NaN.
        format: a key of :data:`FORMATS`: ``fp32``, ``tf32``, ``bf16``, ``fp16``, ``fp8 e5m2`` or ``fp8 e4m3fn``.

    Returns:
        Bits, stored value and neighbours.

    Raises:
        ValueError: if ``value`` is no number, or ``format`` is not known.

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
    except OverflowError:  # an integer beyond every format here
        given = math.inf if value > 0 else -math.inf
    negative = math.copysign(1.0, given) < 0
    code, kind = _encode(abs(given), layout)
    sign = -1.0 if negative else 1.0
    stored = sign * layout.decode(code)
    if kind == "nan":
        below = above = None
    else:
        inward, outward = _at(code - 1, layout), _at(code + 1, layout)
        below, above = (inward, outward) if not negative else (_negated(outward), _negated(inward))
    field, mantissa = code >> layout.mantissa_bits, code & (2**layout.mantissa_bits - 1)
    return Representation(
        format=layout,
        given=given,
        value=stored,
        sign="1" if negative else "0",
        exponent=f"{field:0{layout.exponent_bits}b}",
        mantissa=f"{mantissa:0{layout.mantissa_bits}b}",
        kind=kind,
        below=below,
        above=above,
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


def _at(code: int, layout: NumberFormat) -> float | None:
    """The number with the next pattern; below zero the numbers are those above it, with a minus."""
    if code < 0:
        return -layout.smallest
    value = layout.decode(code) if code < 2 ** (layout.bits - 1) else math.nan
    return None if math.isnan(value) else value


def _negated(value: float | None) -> float | None:
    return None if value is None else -value


# Showing


# Okabe and Ito's colours, pale enough for black digits; the parts are also set apart by spaces.
_SIGN, _EXPONENT, _MANTISSA = "#F5CBA7", "#CFE3F3", "#D9EAD3"
_BLUE, _ORANGE, _NOTE = "#0072B2", "#D55E00", "#555555"
# The picture shows the numbers from 12.5% below the value to 12.5% above it.
_REACH = 0.125
_LEFT, _WIDTH, _ROW, _TOP = 84, 520, 26, 30
_NOTHING = "no number near the value"
_FOOTNOTE = (
    "fp8 e4m3fn ends at 448: larger values become 448 here, as in torch 2.13. The casts of older versions give NaN."
)
# A comma before three digits: 70 thousand, or 70? After a leading zero it can only be a decimal comma.
_TWO_READINGS = re.compile(r"[-+]?[1-9]\d*,\d{3}")
# More ticks than this are drawn as a bar: they would touch.
_MOST_TICKS = 80

PRESETS: Sequence[tuple[float, str]] = (
    (0.1, "one tenth: exact in none of them"),
    (1.0, "one: the spacing here is called epsilon"),
    (1.001, "one and a thousandth: lost in bf16"),
    (0.9995, "a weight of 1 after a step of -0.0005: still 1 in bf16"),
    (math.pi, "pi"),
    (2049.0, "a count: fp16 has no odd numbers up here"),
    (448.0, "the largest number of fp8 e4m3fn"),
    (600.0, "beyond fp8 e4m3fn"),
    (65504.0, "the largest number of fp16"),
    (70000.0, "beyond fp16: overflow"),
    (1e-3, "a gradient"),
    (1e-5, "a small gradient: fp16 has fewer bits left"),
    (1e-7, "a smaller one: next to no bits left in fp16"),
    (1e-8, "a gradient that fp16 makes zero"),
    (1e-8 * 65536, "the same gradient, scaled by 65536"),
    (3e38, "near the end of the 8-bit exponents"),
    (1e-40, "below the normal numbers of the 8-bit exponents"),
)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    text = f"{value:.7g}"
    return text if float(text) == value or abs(value - float(text)) < 1e-6 * abs(value) else f"{value:.9g}"


def _error(shown: Representation) -> str:
    if shown.kind == "underflow":
        return "lost: became 0"
    if shown.kind == "overflow":
        return "too large"
    error = shown.relative_error
    if error is None:
        return ""
    if error == 0:
        return "exact"
    return f"{error:.1e}" + (" (subnormal)" if shown.kind == "subnormal" else "")


def _spacing(shown: Representation) -> str:
    return "" if shown.spacing is None else f"{shown.spacing:.2g}"


@dataclass(frozen=True)
class NumberFormats:
    """All formats, and what each makes of one value. Made by :func:`number_formats`; shows itself.

    Attributes:
        value: the value.
    """

    value: float

    def __repr__(self) -> str:
        lines = [f"{'format':<11} {'bits of ' + _number(self.value):<35} {'stored':<14} {'spacing':<9} error"]
        for shown in self._rows():
            bits = f"{shown.sign} {shown.exponent} {shown.mantissa}"
            lines.append(
                f"{shown.format.name:<11} {bits:<35} {_number(shown.value):<14} {_spacing(shown):<9} {_error(shown)}"
            )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        return "\n".join((_range_table(), _book_form(self.value)))

    def _rows(self) -> list[Representation]:
        return [represent(self.value, name) for name in FORMATS]


def number_formats(value: float = 0.1) -> NumberFormats:
    """Show the formats: range and precision of each, and what each makes of a value.

    In a page without a kernel, such as the book, a list of further values can be chosen from; all that it needs is in
    the page. Where scripts are not allowed, such as on GitHub, the tables remain, for the one value.

    Args:
        value: any real number.

    Returns:
        Tables and a picture; they show themselves.

    Raises:
        ValueError: if ``value`` is no number.

    Example:
        >>> print(str(number_formats(1.001)).splitlines()[3])
        bf16        0 01111111 0000000                  1              0.0078    1.0e-03
    """
    represent(value, "fp32")
    return NumberFormats(float(value))


def number_format_explorer(value: float = 0.1) -> Widget:
    """A form for JupyterLab: type a value, and see what each format makes of it.

    Args:
        value: what it shows first.

    Returns:
        An ipywidgets box.

    Raises:
        ValueError: if ``value`` is no number.

    Example:
        >>> type(number_format_explorer(1e-8)).__name__
        'VBox'
    """
    import ipywidgets

    represent(value, "fp32")
    entry = ipywidgets.Text(value=f"{value:g}", description="value", continuous_update=False)
    entry.tooltip = "a number, such as 1e-8"
    choices = [("or choose one", None), *((f"{_number(number)} · {words}", number) for number, words in PRESETS)]
    choice = ipywidgets.Dropdown(options=choices, layout=ipywidgets.Layout(width="30em", max_width="100%"))
    smaller, larger = (
        ipywidgets.Button(description=words, layout=ipywidgets.Layout(width="5em")) for words in ("÷ 2", "× 2")
    )
    shown, message = ipywidgets.HTML(), ipywidgets.HTML()

    def read() -> float | None:
        typed = entry.value.strip()
        if _TWO_READINGS.fullmatch(typed):
            one, other = typed.replace(",", ""), typed.replace(",", ".")
            message.value = html.escape(f"{typed!r} can be read in two ways. Type {one} or {other}.")
            return None
        try:
            number = float(typed.replace(",", "."))
        except ValueError:
            message.value = html.escape(f"{entry.value!r} is not a number. Type digits, for example 0.1 or 1e-8.")
            return None
        message.value = ""
        return number

    def show(_: Any = None) -> None:
        number = read()
        if number is not None:
            shown.value = f"{_value_table(number)}\n{_picture(number)}\n{_footnote()}"

    def choose(change: Mapping[str, Any]) -> None:
        if change["new"] is not None:
            entry.value = f"{change['new']!r}"

    def times(factor: float) -> None:
        number = read()
        if number is not None:
            entry.value = repr(number * factor)

    entry.observe(show, "value")
    choice.observe(choose, "value")
    smaller.on_click(lambda _: times(0.5))
    larger.on_click(lambda _: times(2.0))
    show()
    row = ipywidgets.HBox([entry, smaller, larger, choice], layout=ipywidgets.Layout(flex_flow="row wrap"))
    box = ipywidgets.VBox([row, message, shown], layout=ipywidgets.Layout(max_width="100%"))
    box.add_class("course-number-formats")
    return box


def _range_table() -> str:
    rows = []
    for layout in FORMATS.values():
        cells = (
            f"1 + {layout.exponent_bits} + {layout.mantissa_bits} = {layout.bits}",
            f"{layout.largest:.5g}",
            f"{layout.smallest_normal:.3g}",
            f"{layout.smallest:.3g}",
            f"{layout.epsilon:.2g}",
        )
        rows.append(f'<tr><th scope="row">{layout.name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    heads = ("format", "bits: sign + exponent + mantissa", "largest", "smallest normal", "smallest", "spacing at 1")
    return _table("Number formats: range and precision", heads, rows)


def _table(caption: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return (
        f"<table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody>\n</table>"
    )


_HEADS = ("format", "sign, exponent, mantissa", "stored", "spacing", "relative error")
_PARTS = ("sign", "exponent", "mantissa", "stored", "spacing", "error")


def _fields(shown: Representation) -> tuple[str, ...]:
    """What a row of the table holds, in the order of ``_PARTS``."""
    return shown.sign, shown.exponent, shown.mantissa, _number(shown.value), _spacing(shown), _error(shown)


def _value_table(value: float, identified: bool = False) -> str:
    """A row of coloured bits for each format. With ids a script can fill it anew."""
    rows = []
    for index, name in enumerate(FORMATS):
        fields = dict(zip(_PARTS, _fields(represent(value, name)), strict=True))
        marks = {part: f' id="number-formats-{part}-{index}"' if identified else "" for part in _PARTS}
        bits = " ".join(
            f'<span{marks[part]} style="background:{colour};color:#000">{fields[part]}</span>'
            for part, colour in (("sign", _SIGN), ("exponent", _EXPONENT), ("mantissa", _MANTISSA))
        )
        cells = "".join(f"<td{marks[part]}>{fields[part]}</td>" for part in _PARTS[3:])
        cells = f'<td style="text-align:left"><code style="white-space:nowrap">{bits}</code></td>{cells}'
        rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    caption = f"What each format makes of {_number(value)}"
    if identified:
        caption = f'What each format makes of <span id="number-formats-value">{_number(value)}</span>'
    return _table(caption, _HEADS, rows)


def _runs(value: float, layout: NumberFormat) -> list[tuple[float, float, int]]:
    """The format's numbers near a value, as (first, distance, count) in points of the picture.

    The distance changes where a power of two is crossed, so there are at most two runs; a run that is too dense to be
    drawn has the count 0 and stands for a bar of that width.
    """
    size = abs(value)
    low, high = (1 - _REACH) * size, (1 + _REACH) * size
    if not math.isfinite(high) or size < 1e-300:  # zero, or so small that 12.5% of it is no number even in Python
        return []
    scale = _WIDTH / (high - low)
    power = math.ldexp(1.0, math.frexp(high)[1] - 1)  # the only power of two that can lie between low and high
    cuts = [(low, power), (power, high)] if low < power else [(low, high)]
    runs: list[tuple[float, float, int]] = []
    for start, end in cuts:
        start, end = min(start, layout.largest * 1.0000001), min(end, layout.largest * 1.0000001)
        exponent = max(math.frexp(start)[1] - 1, layout.lowest_exponent)
        step = math.ldexp(1.0, exponent - layout.mantissa_bits)
        first, last = math.ceil(start / step), math.floor(end / step)
        if end <= start or last < first or (last == first == 0):
            continue
        x = (first * step - low) * scale
        if last - first + 1 > _MOST_TICKS:
            runs.append((round(x, 1), round((last - first) * step * scale, 1), 0))
        else:
            runs.append((round(x, 1), round(step * scale, 3), last - first + 1))
    return runs


def _path(runs: Sequence[tuple[float, float, int]], y: int) -> str:
    """Ticks and bars as an SVG path. The script in ``_SCRIPT`` builds the same."""
    parts = []
    for x, distance, count in runs:
        if count == 0:
            parts.append(f"M{_LEFT + x:.1f} {y - 7}h{distance:.1f}v14h-{distance:.1f}z")
        else:
            parts += [f"M{_LEFT + x + k * distance:.1f} {y - 7}h1.2v14h-1.2z" for k in range(count)]
    return "".join(parts)


def _mark(value: float, layout: NumberFormat) -> float | None:
    """Where the stored number lies in the picture; None if that is outside of it."""
    stored = represent(value, layout.name).value
    if not (math.isfinite(stored) and math.isfinite(value)) or value == 0:
        return None
    x = _WIDTH * (0.5 + (abs(stored) / abs(value) - 1) / (2 * _REACH))
    return round(x, 1) if 0 <= x <= _WIDTH else None


def _picture(value: float, identified: bool = False) -> str:
    """The numbers of each format near a value, on one line each: inline SVG on a white card."""
    middle, height = _LEFT + _WIDTH // 2, _TOP + _ROW * len(FORMATS) + 24
    parts = []
    for index, (name, layout) in enumerate(FORMATS.items()):
        y = _TOP + _ROW * index + _ROW // 2
        marks = [f' id="number-formats-{what}-{index}"' if identified else "" for what in ("ticks", "mark", "none")]
        at, runs = _mark(value, layout), _runs(value, layout)
        shown = f"translate({_LEFT + at:.1f} {y})" if at is not None else "translate(-99 0)"
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#222">{name}</text>'
            f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="#ddd" />'
            f'<path{marks[0]} d="{_path(runs, y)}" fill="{_BLUE}" />'
            f'<path{marks[1]} d="M0 -9l6 9l-6 9l-6 -9z" transform="{shown}" fill="none" stroke="{_ORANGE}" '
            'stroke-width="2" />'
            f'<text{marks[2]} x="{_LEFT + 6}" y="{y + 4}" fill="{_NOTE}">{"" if runs else _NOTHING}</text>'
        )
    bottom = height - 24
    ends = ((_LEFT, "start", "-12.5%"), (_LEFT + _WIDTH, "end", "+12.5%"), (middle, "middle", "the value"))
    labels = "".join(
        f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}" fill="{_NOTE}">{text}</text>'
        for x, anchor, text in ends
    )
    words = (
        "The numbers that each format has within 12.5 percent of the value. A blue mark is a number, a blue bar is "
        "many of them; the diamond is the one that is stored."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 16} {height}" '
        f'width="{_LEFT + _WIDTH + 16}" style="max-width:100%;height:auto" role="img" aria-label="{words}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff" />'
        f'<text x="{_LEFT}" y="16" fill="{_NOTE}">Each mark is a number that the format has; '
        "the diamond is the one that is stored</text>"
        f'<line x1="{middle}" y1="{_TOP - 6}" x2="{middle}" y2="{bottom}" stroke="{_ORANGE}" stroke-dasharray="3 3" />'
        f"{''.join(parts)}{labels}</svg>"
    )


def _footnote() -> str:
    return f"<p><small>{_FOOTNOTE}</small></p>"


_SCRIPT = """<script>
(function () {
  var data = DATA;
  var part = function (name) { return document.getElementById("number-formats-" + name); };
  var choice = part("choice");
  if (!choice) { return; }
  var path = function (runs, y) {
    return runs.map(function (run) {
      var x = LEFT + run[0], parts = [], k;
      if (run[2] === 0) {
        return "M" + x.toFixed(1) + " " + (y - 7) + "h" + run[1].toFixed(1) + "v14h-" + run[1].toFixed(1) + "z";
      }
      for (k = 0; k < run[2]; k++) { parts.push("M" + (x + k * run[1]).toFixed(1) + " " + (y - 7) + "h1.2v14h-1.2z"); }
      return parts.join("");
    }).join("");
  };
  var show = function () {
    var entry = data[Number(choice.value)];
    part("value").textContent = entry.value;
    entry.rows.forEach(function (row, index) {
      var y = TOP + ROW * index + ROW / 2;
      PARTS.forEach(function (name, k) { part(name + "-" + index).textContent = row.fields[k]; });
      part("ticks-" + index).setAttribute("d", path(row.runs, y));
      part("none-" + index).textContent = row.runs.length ? "" : NOTHING;
      part("mark-" + index).setAttribute("transform",
        row.mark === null ? "translate(-99 0)" : "translate(" + (LEFT + row.mark).toFixed(1) + " " + y + ")");
    });
  };
  choice.addEventListener("input", show);
  part("form").hidden = false;
}());
</script>"""


def _book_form(value: float) -> str:
    """Table, picture, and a list to choose other values from, with all data inside."""
    presets = [(value, "as printed")] if value not in [number for number, _ in PRESETS] else []
    presets += [(number, words) for number, words in PRESETS]
    start = [number for number, _ in presets].index(value)
    data = []
    for number, _ in presets:
        rows = [
            {
                "fields": _fields(represent(number, name)),
                "runs": _runs(number, layout),
                "mark": _mark(number, layout),
            }
            for name, layout in FORMATS.items()
        ]
        data.append({"value": _number(number), "rows": rows})
    options = []
    for index, (number, words) in enumerate(presets):
        chosen = " selected" if index == start else ""
        options.append(f'<option value="{index}"{chosen}>{_number(number)} · {html.escape(words)}</option>')
    script = _SCRIPT.replace("DATA", json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))
    for name, number in (("LEFT", _LEFT), ("TOP", _TOP), ("ROW", _ROW)):
        script = script.replace(name, str(number))
    script = script.replace("PARTS", json.dumps(_PARTS)).replace("NOTHING", json.dumps(_NOTHING))
    return (
        '<p id="number-formats-form" hidden><label for="number-formats-choice">Another value: </label>'
        f'<select id="number-formats-choice" style="max-width:100%">{"".join(options)}</select></p>\n'
        f"{_value_table(value, identified=True)}\n{_picture(value, identified=True)}\n{_footnote()}\n{script}"
    )
