"""Number formats against torch's own casts, and the forms in which they are shown."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_utils.lessons.mixed_precision import number_formats as module
from course_utils.lessons.mixed_precision.number_formats import (
    FORMATS,
    PRESETS,
    number_format_explorer,
    number_formats,
    represent,
)
from tests.html_checks import Parsed

DTYPES = {name: getattr(torch, layout.dtype) for name, layout in FORMATS.items() if layout.dtype}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
every_dtype = pytest.mark.parametrize("name", DTYPES)


def torch_bits(value: float, name: str) -> str:
    """The bits that torch stores, as text."""
    stored = torch.tensor(value, dtype=torch.float32).to(DTYPES[name])
    code = stored.view(INTEGERS[stored.element_size()]).item()
    bits = 8 * stored.element_size()
    return f"{code & (2**bits - 1):0{bits}b}"


def fp32_values(count: int) -> list[float]:
    """Numbers of fp32 of all sizes: a cast from double would round twice in torch."""
    dice = random.Random(0)
    made = (struct.unpack("f", struct.pack("I", dice.getrandbits(32)))[0] for _ in range(count))
    near_one = [math.ldexp(1 + dice.random(), dice.randint(-30, 20)) for _ in range(count)]
    near_one = [struct.unpack("f", struct.pack("f", value))[0] for value in near_one]
    return [value for value in (*made, *near_one) if not math.isnan(value)]


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
def test_every_pattern_of_a_short_format_decodes_as_in_torch(name: str) -> None:
    layout = FORMATS[name]
    codes = range(2 ** (layout.bits - 1)) if layout.bits <= 16 else random.Random(1).sample(range(2**31), 5000)
    integers = torch.tensor(list(codes), dtype=torch.int64).to(INTEGERS[layout.bits // 8])
    expected = integers.view(DTYPES[name]).double().tolist()
    for code, value in zip(codes, expected, strict=True):
        ours = layout.decode(code)
        assert ours == value or (math.isnan(ours) and math.isnan(value)), code


@every_dtype
def test_rounding_is_torchs(name: str) -> None:
    for value in fp32_values(3000):
        shown = represent(value, name)
        bits = shown.sign + shown.exponent + shown.mantissa
        if shown.kind == "overflow" and not FORMATS[name].has_infinity:
            # torch saturates since April 2026; before that the cast gave NaN.
            assert torch_bits(value, name)[1:] in ("1111110", "1111111")
        else:
            assert bits == torch_bits(value, name), value


@every_dtype
def test_ties_go_to_the_even_number(name: str) -> None:
    step = FORMATS[name].epsilon
    for units in (0.5, 1.5, 2.5):
        value = 1 + units * step
        if name != "fp32":  # half of fp32's spacing is no fp32 number to hand to torch
            assert represent(value, name).value == torch.tensor(value).to(DTYPES[name]).item()
        assert represent(value, name).value == 1 + round(units) * step


def test_tf32_is_fp32_with_a_shorter_mantissa() -> None:
    for value in fp32_values(2000):
        shown = represent(value, "tf32")
        if shown.kind == "overflow":
            continue
        # Round the 32 bits of fp32 to the 19 of TF32 by integer arithmetic: half to even.
        code = struct.unpack("I", struct.pack("f", abs(value)))[0]
        kept, rest = code >> 13, code & 0x1FFF
        kept += rest > 0x1000 or (rest == 0x1000 and kept & 1)
        assert shown.exponent + shown.mantissa == f"{kept:018b}", value


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_neighbours_are_torchs_nextafter(name: str) -> None:
    dtype = DTYPES[name]
    for value in [0.0, -0.0, 1.0, -1.0, 0.1, 2.0**-126, 2.0**-140, -(2.0**-133), FORMATS[name].largest, 1e-45]:
        shown = represent(value, name)
        stored = torch.tensor(shown.value, dtype=dtype)
        for side, ours in ((math.inf, shown.above), (-math.inf, shown.below)):
            assert torch.nextafter(stored, torch.tensor(side, dtype=dtype)).item() == ours, (value, side)


@every_dtype
def test_neighbours_are_the_next_patterns(name: str) -> None:
    layout = FORMATS[name]
    codes = [*range(1, 40), layout.largest_code - 1, 3 << layout.mantissa_bits]
    for code in codes:
        below, value, above = (layout.decode(code + step) for step in (-1, 0, 1))
        up, down = represent(value, name), represent(-value, name)
        assert (up.below, up.value, up.above) == (below, value, above)
        assert (down.above, down.value, down.below) == (-below, -value, -above)
        assert up.spacing == down.spacing == above - value


@pytest.mark.parametrize(
    ("value", "name", "kind", "stored"),
    [
        (1e-8, "fp16", "underflow", 0.0),
        (-1e-8, "fp16", "underflow", -0.0),
        (3e-8, "fp16", "subnormal", 2.0**-24),
        (2.0**-25, "fp16", "underflow", 0.0),  # exactly half of the smallest: the even neighbour is zero
        (2.0**-14, "fp16", "normal", 2.0**-14),
        (6.1e-5, "fp16", "subnormal", 1023.0 * 2**-24),
        (6.103e-5, "fp16", "normal", 2.0**-14),  # rounds up out of the subnormal numbers
        (65519.0, "fp16", "normal", 65504.0),
        (65520.0, "fp16", "overflow", math.inf),
        (-70000.0, "fp16", "overflow", -math.inf),
        (463.0, "fp8 e4m3fn", "normal", 448.0),
        (465.0, "fp8 e4m3fn", "overflow", 448.0),
        (-1e9, "fp8 e4m3fn", "overflow", -448.0),
        (math.inf, "fp8 e4m3fn", "overflow", 448.0),
        (math.inf, "bf16", "infinite", math.inf),
        (0.0, "bf16", "zero", 0.0),
        pytest.param(10**400, "fp32", "infinite", math.inf, id="an integer beyond double"),
        (5e-324, "fp32", "underflow", 0.0),
        (1e-40, "bf16", "subnormal", 2.0**-133),
    ],
)
def test_the_edges(value: float, name: str, kind: str, stored: float) -> None:
    shown = represent(value, name)
    assert shown.kind == kind
    assert shown.value == stored
    assert math.copysign(1, shown.value) == math.copysign(1, stored)


@pytest.mark.parametrize("name", FORMATS)
def test_nan_and_the_ends_have_no_spacing_beyond(name: str) -> None:
    shown = represent(math.nan, name)
    assert math.isnan(shown.value)
    assert (shown.kind, shown.below, shown.above, shown.spacing) == ("nan", None, None, None)
    if name in DTYPES:
        assert math.isnan(torch.tensor(math.nan).to(DTYPES[name]).item())
    largest = represent(FORMATS[name].largest, name)
    assert largest.above == (math.inf if FORMATS[name].has_infinity else None)
    assert largest.spacing == largest.value - largest.below
    assert represent(math.inf, name).spacing == (None if FORMATS[name].has_infinity else largest.spacing)


def test_relative_error_is_bounded_by_half_the_spacing() -> None:
    for name, layout in FORMATS.items():
        for value in (0.1, 1 / 3, math.pi, 0.77):
            assert represent(value, name).relative_error <= layout.epsilon / 2
    assert represent(0.0, "bf16").relative_error is None
    assert represent(1e-8, "fp16").relative_error == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: represent(1.0, "fp12"), r"format must be one of fp32, tf32, .*; got 'fp12'"),
        (lambda: represent("1", "fp16"), r"value must be a number, got '1'"),
        (lambda: represent(True, "fp16"), r"value must be a number, got True"),
        (lambda: represent(torch.tensor(1.0), "fp16"), r"value must be a number, got tensor\(1.\): .*tensor.item"),
        (lambda: number_formats("0.1"), r"value must be a number"),
        (lambda: number_format_explorer(None), r"value must be a number, got None"),
        (lambda: FORMATS["fp16"].decode(2**15), r"code must be from 0 to 32767 in fp16, got 32768"),
    ],
)
def test_errors_name_the_argument(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# The forms


def test_the_books_form_is_self_contained_and_has_fixed_ids() -> None:
    text = number_formats()._repr_html_()
    parsed = Parsed(text)
    assert parsed.outside == []
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert len(set(parsed.ids)) == len(parsed.ids) > 30
    assert all(name.startswith("number-formats-") for name in parsed.ids)
    assert len(text) < 60_000


def test_the_books_form_is_the_same_in_every_process() -> None:
    code = (
        "from course_utils.lessons.mixed_precision import number_formats as formats; "
        "print(formats.number_formats()._repr_html_())"
    )
    root = Path(module.__file__).resolve().parents[2]
    said = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, encoding="utf-8"
        ).stdout
        for _ in range(2)
    ]
    assert said[0] == said[1] == number_formats()._repr_html_() + "\n"


def test_without_scripts_the_tables_remain() -> None:
    text = re.sub(r"<script>.*?</script>", "", number_formats(1e-8)._repr_html_(), flags=re.DOTALL)
    assert 'id="number-formats-form" hidden' in text  # a list that could change nothing is not shown
    plain = re.sub(r"<[^>]+>", " ", re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL))
    for name, layout in FORMATS.items():
        shown = represent(1e-8, name)
        assert f"1 + {layout.exponent_bits} + {layout.mantissa_bits}" in plain
        assert shown.exponent in plain
    assert plain.count("lost: became 0") == 3
    assert "The casts of older versions give NaN" in plain


def test_the_data_in_the_page_are_those_of_the_tables() -> None:
    text = number_formats(math.pi)._repr_html_()
    data = json.loads(re.search(r"var data = (\[.*?\]);\n", text)[1])
    assert [entry["value"] for entry in data] == [module._number(value) for value, _ in PRESETS]
    for entry, (value, _) in zip(data, PRESETS, strict=True):
        assert [row["fields"] for row in entry["rows"]] == [
            list(module._fields(represent(value, name))) for name in FORMATS
        ]


def test_another_value_joins_the_list() -> None:
    text = number_formats(0.3)._repr_html_()
    assert '<option value="0" selected>0.3 · as printed</option>' in text
    assert text.count("<option") == len(PRESETS) + 1
    assert number_formats(1.0)._repr_html_().count("<option") == len(PRESETS)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -0.1, 3.4e38, 1e-45, 1e300, 5e-324])
def test_every_value_can_be_shown(value: float) -> None:
    Parsed(number_formats(value)._repr_html_())
    assert len(repr(number_formats(value)).splitlines()) == 1 + len(FORMATS)


def test_ticks_are_the_numbers_of_the_format() -> None:
    """Near 1, where the distance doubles, every tick is a number of bf16 and none is missing."""
    layout = FORMATS["bf16"]
    ticks = {x + k * step for x, step, count in module._runs(1.0, layout) for k in range(count)}
    values = [layout.decode(code) for code in range(2**15)]
    expected = [module._WIDTH * (0.5 + (v - 1) / (2 * module._REACH)) for v in values if 0.875 <= v <= 1.125]
    assert len(ticks) == len(expected)
    assert sorted(ticks) == pytest.approx(expected, abs=0.2)
    assert module._runs(1e-8, FORMATS["fp16"]) == []
    assert all(count == 0 for *_, count in module._runs(1.0, FORMATS["fp32"]))


def test_the_widget_shows_what_is_typed() -> None:
    box = number_format_explorer(0.1)
    row, message, shown = box.children
    entry, smaller, larger, choice = row.children
    assert "0.1000977" in shown.value
    entry.value = "1e-8"
    assert shown.value.count("lost: became 0") == 3
    assert message.value == ""
    before = shown.value
    entry.value = "<b>"
    assert "is not a number" in message.value
    assert "<b>" not in message.value
    assert shown.value == before
    entry.value = "0,5"
    assert message.value == ""
    assert shown.value.count("exact") == len(FORMATS)
    before = shown.value
    entry.value = "70,000"
    assert "Type 70000 or 70.000" in message.value
    assert shown.value == before
    entry.value = "0,125"
    assert message.value == ""
    assert "fp32" in shown.value != before
    entry.value = "0.5"
    larger.click()
    assert entry.value == "1.0"
    smaller.click()
    smaller.click()
    assert entry.value == "0.25"
    choice.value = 70000.0
    assert entry.value == "70000.0"
    assert shown.value.count("infinity") == 2
    assert "id=" not in shown.value  # a page may hold it twice


@pytest.mark.browser
def test_the_books_form_works_from_a_file(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    page_file = tmp_path / "page.html"
    page_file.write_text(f"<!doctype html><meta charset=utf-8>{number_formats()._repr_html_()}", encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(page_file.as_uri())
        assert page.locator("#number-formats-choice").is_visible()
        for index, (value, _) in enumerate(PRESETS):
            page.select_option("#number-formats-choice", str(index))
            for row, name in enumerate(FORMATS):
                texts = [page.locator(f"#number-formats-{part}-{row}").text_content() for part in module._PARTS]
                assert texts == list(module._fields(represent(value, name))), (value, name)
        browser.close()
    assert errors == []
