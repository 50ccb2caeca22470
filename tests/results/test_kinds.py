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
from io import BytesIO

import matplotlib
import pytest
from PIL import Image

from course_utils.results.ceilings import Ceiling
from course_utils.results.comparison import Comparison
from course_utils.results.result import NothingToDrawError, Result
from course_utils.results.store import RESULT_TYPES
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.table import Table
from course_utils.show.canvas import WIDTH_IN
from tests.example_results import CPU, GPU, RESULTS, TWO, comparison_of, cuda_comparison_of, sweep_of
from tests.figure_checks import problems_of_texts, visible_texts
from tests.html_checks import Parsed

MEASURED = [name for name, result in RESULTS.items() if isinstance(result, Result)]
DRAWN = [name for name in MEASURED if RESULTS[name].kind in ("comparison", "table", "curves", "memory_trace")]


@pytest.mark.parametrize("name", RESULTS)
def test_html_is_plain_text_fits_a_terminal_and_records_give_the_same_result(name: str):
    result = RESULTS[name]
    markup, shown = result._repr_html_(), repr(result)
    parsed = Parsed(markup)
    assert parsed.ids == []
    assert all(re.fullmatch(r"\d\d_\w+\.ipynb", link) for link in parsed.outside)  # lessons, beside this one
    assert not any(word in markup for word in (">nan", "nan%", "inf ", "None"))
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


def test_markup_in_labels_and_notes_is_escaped():
    assert "A note with &lt;b&gt;markup&lt;/b&gt;." in RESULTS["two"]._repr_html_()
    assert '<th scope="row">a &lt; b &amp; c</th>' in RESULTS["eight"]._repr_html_()


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
    waits = "pinned each time waits for the CPU (launch-bound): queued ahead, the GPU needs 3.00 ms of its 6."
    assert waits in " ".join(repr(full).split())
    assert [row.second for row in full.card().rows] == ["2.00 ms", "800 µs", "3.00 ms"]
    extras = ["first call", "pays off after", "extra peak memory", "peak reserved", "host time (enqueue)"]
    for header in (*extras, "device time", "bandwidth", "share of copy", "GPU's own work"):
        assert f'<th scope="col">{header.replace(chr(39), "&#x27;")}</th>' in full._repr_html_()
        assert header not in repr(RESULTS["two"].numbers)


def test_what_was_interrupted_says_so_and_an_environment_what_runs_live():
    assert "Interrupted after 24 rounds." in repr(dataclasses.replace(RESULTS["two"], interrupted=True))
    assert "let it run to the end" in repr(comparison_of(TWO, rounds=5, interrupted=True))
    assert "recorded runs" in repr(CPU)
    assert "139 GiB" in repr(GPU.numbers)
    empty = Sweep(over="batch", points=(), environment=CPU)
    assert "No point was measured." in repr(empty)
    with pytest.raises(NothingToDrawError, match="'sweep' has no figure"):
        empty.plot()


_PRINT_ALL = """
import sys
from tests.example_results import RESULTS
for name, result in RESULTS.items():
    sys.stdout.buffer.write((result._repr_html_() + repr(result)).encode())
    if name in ("eight", "table of parts", "trace"):
        sys.stdout.buffer.write(result.plot()._repr_png_())
assert "matplotlib.pyplot" not in sys.modules  # which would show each figure a second time
"""


def test_identical_in_two_processes(pytestconfig: pytest.Config):
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_ALL],
            cwd=pytestconfig.rootpath,
            capture_output=True,
            check=True,
            timeout=240,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(pytestconfig.rootpath)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 100_000


def test_showing_text_and_html_needs_neither_matplotlib_nor_widgets(pytestconfig: pytest.Config):
    code = (
        "import sys; from course_utils.show.prediction import predict; import course_utils.show.progress; "
        "import course_utils.results.store; repr(predict('How many?')); "
        "loaded = {'matplotlib', 'ipywidgets', 'tqdm', 'numpy.random'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], cwd=pytestconfig.rootpath, check=True, timeout=240)


# Whose they are


def recorded(result: Result):
    return dataclasses.replace(result, whose="recorded").card()


def test_what_ran_on_the_cpu_beside_a_gpu_names_the_cpu():
    on_gpu = dataclasses.replace(RESULTS["cuda"], worked_by="gpu")
    on_cpu = dataclasses.replace(on_gpu, worked_by="cpu", ceiling=None)
    swept = Sweep("size", (SweepPoint(1, on_cpu),), on_cpu.environment, worked_by="cpu")
    for result in (on_cpu, swept):
        assert recorded(result).head == "Recorded: Intel Xeon Platinum 8468, 16 cores, 1 Aug 2026"
        assert "Intel Xeon Platinum 8468, 16 cores, 8 GiB" in " ".join(repr(result).split())
        assert "H200" not in repr(result)
    assert "H200" not in on_cpu.plot().alt
    assert recorded(on_gpu).head == "Recorded: H200, 1 Aug 2026"


@pytest.mark.parametrize(("worked_by", "head"), [("arithmetic", "Worked out"), ("simulation", "Simulated")])
def test_what_no_machine_measured_names_none(worked_by: str, head: str):
    for name in ("table of parts", "curves", "reading"):
        result = dataclasses.replace(RESULTS[name], environment=GPU, worked_by=worked_by)
        for whose in ("you", "recorded"):
            card = dataclasses.replace(result, whose=whose).card()
            assert (card.head, card.is_recorded) == (head, whose == "recorded")
            assert [text for text in ("H200", GPU.date, "your machine") if text in f"{card!r}{card.html()}"] == []
            assert GPU.torch in card.provenance
        # What stands alone, without a head, says it in its caption.
        assert f"{head.lower()} · torch {GPU.torch}" in repr(result)


def test_only_a_card_with_grey_marks_says_whose_they_are():
    for name, is_marked in {"two": True, "table of parts": False, "curves": False}.items():
        behind = dataclasses.replace(RESULTS[name], environment=GPU, worked_by="gpu")
        card = dataclasses.replace(RESULTS[name], behind=behind, whose="you").card()
        assert any(row.behind for row in card.rows) == is_marked
        assert ("grey: H200, 1 Aug 2026, full sizes" in card.provenance) == is_marked
        assert card.head == "You, just now"
        assert CPU.caption in card.provenance


# Figures


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_a_small_image_with_labelled_axes_and_texts_that_can_be_read(name: str):
    fig = RESULTS[name].plot()
    png = fig._repr_png_()
    assert len(png) < 60_000
    assert Image.open(BytesIO(png)).size[0] == round(110 * WIDTH_IN)
    labels = [ax.get_xlabel() for ax in fig.axes] + [ax.get_ylabel() for ax in fig.axes]
    assert any(labels)
    caption = RESULTS[name].caption
    assert any(caption in item.get_text() for item, _ in visible_texts(fig))
    assert caption in fig.alt
    assert repr(fig) == f"Figure: {fig.alt}"
    assert problems_of_texts(fig) == []


def test_bars_are_as_long_as_their_values_and_parts_end_where_the_next_begins():
    table = RESULTS["table of parts"]
    columns = [[row[i] / 2**20 for row in table.rows] for i in range(1, 5)]
    (ax,) = table.plot(table.columns[1:], stacked=True).axes
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([value for column in columns for value in column])
    below = [[sum(values) for values in zip(*columns[:i], strict=True)] or [0] * 3 for i in range(4)]
    assert [bar.get_x() for bar in ax.patches] == pytest.approx([x for column in below for x in column])
    (ax,) = table.plot("gradients").axes
    assert [bar.get_width() for bar in ax.patches] == pytest.approx(columns[1])


def test_columns_that_cannot_be_drawn_are_named():
    for columns, message in (("ran", "ran.*no numbers.*forward, backward"), (["forward", "other"], "'other'")):
        with pytest.raises(ValueError, match=message):
            RESULTS["table of errors"].plot(columns)
    table = Table(("case", "time", "memory"), (("a", 1.0, 5),), CPU, {"time": "s", "memory": "bytes"})
    assert table.plot().axes[0].get_xlabel() == "time (s)"
    with pytest.raises(ValueError, match="2 units"):
        table.plot(["time", "memory"], stacked=True)
    with pytest.raises(ValueError, match="no column of numbers"):
        Table(("case", "word"), (("a", "b"),), CPU).plot()


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


def test_figures_keep_their_look_and_leave_the_users_style_alone():
    with matplotlib.rc_context({"figure.facecolor": "black"}):
        fig = RESULTS["two"].plot()
        assert matplotlib.rcParams["figure.facecolor"] == "black"
    assert fig.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_a_sweep_shows_the_rates_and_shares_of_each_case():
    def with_rates(comparison: Comparison, bytes_of: dict[str, float | None]) -> Comparison:
        cases = tuple(
            dataclasses.replace(case, elapsed_s=(1.0,) * case.rounds, bytes=bytes_of[case.label])
            for case in comparison.cases
        )
        return dataclasses.replace(comparison, cases=cases, ceiling=Ceiling("copy", "B/s", 4e9, (1.0,)))

    work = {"eager": 2.0e9, "compiled": 1.5e9}
    sweep = sweep_of(("eager", "compiled"), ("chain", "tiny"))
    chain, tiny = (point.comparison for point in sweep.points)
    points = (SweepPoint("chain", with_rates(chain, work)), SweepPoint("tiny", with_rates(tiny, dict.fromkeys(work))))
    rates = repr(dataclasses.replace(sweep, points=points).numbers).split("Rates")[1]
    rows = [line.split() for line in rates.splitlines() if "chain" in line]
    assert rows == [["eager,", "chain", "2.00", "GB/s", "50%"], ["compiled,", "chain", "1.50", "GB/s", "38%"]]
    assert "tiny" not in rates
