"""Every kind of result: as text, as HTML, as a figure and as a record."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import re
import subprocess
import sys

import pytest

from course_utils.results.result import Result
from course_utils.results.store import RESULT_TYPES
from tests.example_results import GPU, RESULTS, cuda_comparison_of
from tests.figure_checks import problems_of_texts, visible_texts
from tests.html_checks import Parsed

MEASURED = [name for name, result in RESULTS.items() if isinstance(result, Result)]
DRAWN = ["eight", "table of parts", "curves", "trace"]


@pytest.mark.parametrize("name", RESULTS)
def test_html_is_plain_text_fits_a_terminal_and_records_give_the_same_result(name: str):
    result = RESULTS[name]
    markup, shown = result._repr_html_(), repr(result)
    parsed = Parsed(markup)
    assert parsed.ids == []
    assert all(re.fullmatch(r"\d\d_\w+\.ipynb", link) for link in parsed.outside)  # lessons, beside this one
    assert not any(word in markup for word in (">nan", "nan%", "inf ", "None", "<b>markup", "<long>"))
    assert max(map(len, shown.splitlines())) <= 100
    record = result.to_record()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again == record
    assert type(result).from_record(again).to_record() == record
    assert pickle.loads(pickle.dumps(result)) == result


def test_facts_of_every_kind_have_labels_of_their_own_and_words():
    assert {RESULTS[name].kind for name in MEASURED} == set(RESULT_TYPES)
    for name in MEASURED:
        facts = [*RESULTS[name].facts()]
        assert len({fact.label for fact in facts}) == len(facts)
        assert all(fact.words for fact in facts)


def test_comparison_shows_the_verdict_and_has_the_numbers_folded():
    two = RESULTS["two"]
    shown = repr(two)
    assert "pinned is 1.82 times as fast as pageable." in shown
    assert "noise ±" in shown
    hidden = ("baseline again (A/A control)", "24 rounds x 8 calls", "warm cache", "outputs equal within 1e-6")
    assert all(part in repr(two.numbers) and part not in shown for part in hidden)


def test_columns_appear_with_what_they_hold():
    full = cuda_comparison_of()
    flat = " ".join(repr(full.numbers).split())
    for value in ("64.0 MiB", "2.00 GiB", "900 ms", "GB/s", "calls", "%"):
        assert value in flat
    # What waits for Python is said, and each row has the GPU's own work beside its time.
    assert "pinned each time waits for the CPU (launch-bound)" in " ".join(repr(full).split())
    assert [row.second for row in full.card().rows] == ["2.00 ms", "800 µs", "3.00 ms"]
    for header in ("first call", "pays off after", "peak reserved", "device time", "share of copy", "GPU's own work"):
        assert f'<th scope="col">{header.replace(chr(39), "&#x27;")}</th>' in full._repr_html_()
        assert header not in repr(RESULTS["two"].numbers)


_PRINT_ALL = """
import sys
from course_utils.show.prediction import predict
from tests.example_results import RESULTS
shown = "".join(result._repr_html_() + repr(result) for result in RESULTS.values())
sys.stdout.buffer.write((shown + repr(predict("How many?"))).encode())
loaded = {"matplotlib", "ipywidgets"} & set(sys.modules)
assert not loaded, loaded
"""


def test_text_and_html_are_the_same_in_two_processes_and_need_neither_matplotlib_nor_widgets(
    pytestconfig: pytest.Config,
):
    root = str(pytestconfig.rootpath)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_ALL],
            stdout=subprocess.PIPE,
            check=True,
            timeout=240,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": root},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 100_000


# Whose they are


def recorded(result: Result):
    return dataclasses.replace(result, whose="recorded").card()


def test_what_ran_on_the_cpu_beside_a_gpu_names_the_cpu():
    on_gpu = dataclasses.replace(RESULTS["cuda"], worked_by="gpu")
    on_cpu = dataclasses.replace(on_gpu, worked_by="cpu", ceiling=None)
    assert recorded(on_cpu).head == "Recorded: Intel Xeon Platinum 8468, 16 cores, 1 Aug 2026"
    assert "H200" not in repr(on_cpu) + on_cpu.plot().alt
    assert recorded(on_gpu).head == "Recorded: H200, 1 Aug 2026"


@pytest.mark.parametrize(("worked_by", "head"), [("arithmetic", "Worked out"), ("simulation", "Simulated")])
def test_what_no_machine_measured_names_none(worked_by: str, head: str):
    for name in ("table of parts", "curves", "reading"):
        result = dataclasses.replace(RESULTS[name], environment=GPU, worked_by=worked_by)
        card = recorded(result)
        assert (card.head, card.is_recorded) == (head, True)
        assert [text for text in ("H200", GPU.date, "your machine") if text in f"{card!r}{card.html()}"] == []
        assert f"{head.lower()} · torch {GPU.torch}" in repr(result)


# Figures


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_a_small_image_with_labelled_axes_and_texts_that_can_be_read(name: str):
    fig = RESULTS[name].plot()
    png = fig._repr_png_()
    assert len(png) < 60_000
    labels = [ax.get_xlabel() for ax in fig.axes] + [ax.get_ylabel() for ax in fig.axes]
    assert any(labels)
    caption = RESULTS[name].caption
    assert any(caption in item.get_text() for item, _ in visible_texts(fig))
    assert caption in fig.alt
    assert problems_of_texts(fig) == []


def test_bars_are_as_long_as_their_values_and_parts_end_where_the_next_begins():
    table = RESULTS["table of parts"]
    columns = [[row[i] / 2**20 for row in table.rows] for i in range(1, 5)]
    (ax,) = table.plot(table.columns[1:], stacked=True).axes
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([value for column in columns for value in column])
    below = [[sum(values) for values in zip(*columns[:i], strict=True)] or [0] * 3 for i in range(4)]
    assert [bar.get_x() for bar in ax.patches] == pytest.approx([x for column in below for x in column])


def test_curves_are_told_apart_by_colour_and_dash_and_break_where_they_are_not_finite():
    curves = RESULTS["curves"]
    (ax,) = curves.plot().axes
    styles = [(line.get_color(), str(line._dash_pattern)) for line in ax.lines]
    assert len({colour for colour, _ in styles}) == len({dash for _, dash in styles}) == len(styles) == 5
    for line, curve in zip(ax.lines, curves, strict=True):
        assert list(line.get_xdata()) == list(curve.x)
        assert [None if math.isnan(y) else y for y in line.get_ydata()] == list(curve.y)
    assert "recipe 3 are not finite" in repr(curves)


def test_a_figure_of_a_comparison_shows_every_round_and_the_intervals():
    comparison = RESULTS["two"]
    (ax,) = comparison.plot().axes
    assert ax.get_xscale() == "log"
    lines = [list(line.get_xdata()) for line in ax.lines]
    for case in comparison:
        assert [*case.interval.inverse().ends] in lines
        # Right is faster: the baseline's own rounds are those of the A/A control.
        timed = comparison.control if case.is_baseline else case.measurement
        pairs = zip(comparison.cases[0].elapsed_s, timed.elapsed_s, strict=True)
        assert pytest.approx([base / seconds for base, seconds in pairs]) in lines
