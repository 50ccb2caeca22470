"""Number formats against torch's own casts, and the forms in which they are shown."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import pytest
import torch

from course_utils.lessons.mixed_precision.number_formats import (
    FORMATS,
    PRESETS,
    number_formats,
    represent,
)
from tests.html_checks import Parsed, content_of

DTYPES = {name: getattr(torch, layout.dtype) for name, layout in FORMATS.items() if layout.dtype}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
every_dtype = pytest.mark.parametrize("name", DTYPES)


def fp32_values(count: int) -> list[float]:
    """Numbers of fp32 of all sizes: a cast from double would round twice in torch."""
    dice = random.Random(0)
    any_bits = (struct.unpack("f", struct.pack("I", dice.getrandbits(32)))[0] for _ in range(count))
    near_one = [math.ldexp(1 + dice.random(), dice.randint(-30, 20)) for _ in range(count)]
    near_one = [struct.unpack("f", struct.pack("f", value))[0] for value in near_one]
    return [value for value in (*any_bits, *near_one) if not math.isnan(value)]


@every_dtype
def test_a_format_has_torchs_range(name: str) -> None:
    layout, info = FORMATS[name], torch.finfo(DTYPES[name])
    assert layout.bits == info.bits
    assert layout.largest == info.max
    assert layout.smallest_normal == info.smallest_normal
    assert layout.epsilon == info.eps
    smallest = torch.tensor(1, dtype=INTEGERS[info.bits // 8]).view(DTYPES[name])
    assert layout.smallest == smallest.double().item()


@every_dtype
def test_rounding_is_torchs(name: str) -> None:
    layout = FORMATS[name]
    ties = [1 + units * layout.epsilon for units in (0.5, 1.5, 2.5)] if name != "fp32" else []
    values = fp32_values(1000) + ties
    stored = torch.tensor(values, dtype=torch.float32).to(DTYPES[name]).double().tolist()
    for value, expected in zip(values, stored, strict=True):
        shown = represent(value, name)
        assert layout.decode(int(shown.exponent + shown.mantissa, 2)) == abs(shown.value)
        assert shown.sign == "01"[math.copysign(1, value) < 0]
        # torch's fp8 e4m3fn saturates since April 2026; before that the cast gave NaN.
        assert shown.value == expected or (math.isnan(expected) and shown.kind == "overflow"), value


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_spacing_is_torchs_nextafter(name: str) -> None:
    dtype = DTYPES[name]
    for value in [0.0, 1.0, -1.0, 0.1, 2.0**-126, 2.0**-140, -(2.0**-133), 1e-45]:
        shown = represent(value, name)
        stored = torch.tensor(shown.value, dtype=dtype)
        outward = torch.tensor(math.copysign(math.inf, value), dtype=dtype)
        assert (torch.nextafter(stored, outward) - stored).abs().item() == shown.spacing, value


@pytest.mark.parametrize(
    ("value", "name", "kind", "stored"),
    [
        (1e-8, "fp16", "underflow", 0.0),
        (3e-8, "fp16", "subnormal", 2.0**-24),
        (2.0**-25, "fp16", "underflow", 0.0),  # exactly half of the smallest: the even neighbour is zero
        (6.103e-5, "fp16", "normal", 2.0**-14),  # rounds up out of the subnormal numbers
        (65519.0, "fp16", "normal", 65504.0),
        (65520.0, "fp16", "overflow", math.inf),
        (465.0, "fp8 e4m3fn", "overflow", 448.0),
        (math.inf, "fp8 e4m3fn", "overflow", 448.0),
        (math.inf, "bf16", "infinite", math.inf),
        (-(10**400), "fp32", "infinite", -math.inf),
        (0.1, "tf32", "normal", 1638 * 2.0**-14),
    ],
)
def test_the_edges(value: float, name: str, kind: str, stored: float) -> None:
    shown = represent(value, name)
    assert shown.kind == kind
    assert shown.value == stored
    assert math.copysign(1, shown.value) == math.copysign(1, stored)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: represent(1.0, "fp12"), r"format must be one of fp32, tf32, .*; got 'fp12'"),
        (lambda: represent(torch.tensor(1.0), "fp16"), r"value must be a number, got tensor\(1.\): .*tensor.item"),
    ],
)
def test_errors_name_the_argument(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# What is shown; what a browser makes of it is in tests/show/test_viewer.py


def test_another_value_joins_the_list() -> None:
    content = content_of(number_formats(0.3)._repr_html_())
    assert content["chosen"] == {"value": "0.3 · as printed"}
    assert len(content["states"]) == len(PRESETS) + 1
    assert len(content_of(number_formats(1.0)._repr_html_())["states"]) == len(PRESETS)


@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0, -0.1, 1e300, 5e-324])
def test_every_value_can_be_shown(value: float) -> None:
    Parsed(number_formats(value)._repr_html_())
    assert len(repr(number_formats(value)).splitlines()) == 1 + len(FORMATS)


def rows_of(value: float) -> dict[str, dict[str, Any]]:
    """What the page draws for a value, format by format."""
    content = content_of(number_formats(value)._repr_html_())
    (state,) = (state for state in content["states"] if state["when"] == content["chosen"])
    return {row["name"]: row for row in state["rows"]}


def test_ticks_are_the_numbers_of_the_format() -> None:
    """Near 1, where the distance doubles, every tick is a number of bf16 and none is missing."""
    near_one = rows_of(1.0)
    values = [FORMATS["bf16"].decode(code) for code in range(2**15)]
    expected = [0.5 + (value - 1) / 0.25 for value in values if 0.875 <= value <= 1.125]
    assert near_one["bf16"]["ticks"] == pytest.approx(expected, abs=0.001)
    assert (near_one["fp32"]["ticks"], near_one["fp32"]["dense"]) == ([0, 1], True)
    assert near_one["bf16"]["mark"] == 0.5
    last = rows_of(448.0)["fp8 e4m3fn"]
    assert max(last["ticks"]) == last["mark"] == 0.5  # nothing beyond the largest number
