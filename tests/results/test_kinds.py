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

from course_utils.measure.devices import Device
from course_utils.results.result_types import RESULT_TYPES
from course_utils.results.ceilings import Ceiling
from course_utils.results.comparison import Comparison
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.table import Table
from course_utils.results.result import NothingToDrawError, Result
from course_utils.show.canvas import WIDTH_IN
from tests.example_results import CPU, GPU, RESULTS, TWO, comparison_of, cuda_comparison_of, ranks_of, sweep_of
from tests.figure_checks import problems_of_texts, visible_texts
from tests.html_checks import Parsed

MEASURED = [name for name, result in RESULTS.items() if isinstance(result, Result)]

# ---- tables


class _Reader(Parsed):
    """Collects tags, attributes, texts and the cells of tables."""

    def __init__(self, markup: str) -> None:
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        super().__init__(markup)

    def handle_starttag(self, tag, attributes):
        super().handle_starttag(tag, attributes)
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


@pytest.mark.parametrize("name", RESULTS)
def test_html_is_plain_text_fits_a_terminal_and_records_give_the_same_result(name):
    result = RESULTS[name]
    markup, shown = result._repr_html_(), repr(result)
    reader = _Reader(markup)
    assert "id" not in reader.attributes
    assert all(re.fullmatch(r"\d\d_\w+\.ipynb", link) for link in reader.outside)  # lessons, beside this one
    assert not any(word in markup for word in (">nan", "nan%", "inf ", "None"))
    assert max(map(len, shown.splitlines())) <= 100
    record = result.to_record()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again == record
    assert type(result).from_record(again).to_record() == record
    assert pickle.loads(pickle.dumps(result)) == result


def test_facts_of_every_kind_have_labels_of_their_own_and_words():
    assert {RESULTS[name].kind for name in MEASURED} == set(RESULT_TYPES)
    for facts in (list(RESULTS[name].facts()) for name in MEASURED):
        assert len({fact.label for fact in facts}) == len(facts) > 0
        assert all(fact.words for fact in facts)


def test_markup_in_labels_and_notes_is_escaped():
    assert "A note with &lt;b&gt;markup&lt;/b&gt;." in RESULTS["two"]._repr_html_()
    assert '<th scope="row">a &lt; b &amp; c</th>' in RESULTS["eight"]._repr_html_()


def test_comparison_shows_the_verdict_and_has_the_numbers_folded():
    two = RESULTS["two"]
    shown = repr(two)
    assert "pinned is 1.82 times as fast as pageable." in shown
    assert "noise ±" in shown
    for part in (
        "baseline again (A/A control)",
        "24 rounds x 8 calls",
        "warm cache",
        "checked: outputs equal within 1e-6",
    ):
        assert part in repr(two.numbers)
        assert part not in shown


def test_columns_appear_with_what_they_hold():
    full = cuda_comparison_of()
    flat = " ".join(repr(full.numbers).split())
    for value in ("64.0 MiB", "2.00 GiB", "900 ms", "GB/s", "calls", "%"):
        assert value in flat
    # What waits for Python is said, and each row has the GPU's own work beside its time.
    waits = "pinned each time waits for the CPU (launch-bound): queued ahead, the GPU needs 3.00 ms of its 6."
    assert waits in " ".join(repr(full).split())
    assert [row.second for row in full.card().rows] == ["2.00 ms", "800 µs", "3.00 ms"]
    cells, without = _Reader(full._repr_html_()).cells, _Reader(RESULTS["two"]._repr_html_()).cells
    extras = ["first call", "pays off after", "extra peak memory", "peak reserved", "host time (enqueue)"]
    for header in (*extras, "device time", "bandwidth", "share of copy", "GPU's own work"):
        assert header in cells
        assert header not in without


def test_what_was_interrupted_says_so_and_an_environment_what_runs_live():
    cut = dataclasses.replace(RESULTS["two"], interrupted=True)
    assert "Interrupted after 24 rounds." in repr(cut)
    assert "let it run to the end" in repr(comparison_of(TWO, rounds=5, interrupted=True))
    assert "recorded runs" in repr(CPU)
    assert "139 GiB" in repr(GPU.numbers)
    empty = Sweep(over="batch", points=(), environment=CPU)
    assert "No point was measured." in repr(empty)
    with pytest.raises(NothingToDrawError, match="no point"):
        empty.plot()
    with pytest.raises(NothingToDrawError, match="no point"):
        empty.explore()


_PRINT_ALL = """
import sys
from tests.example_results import RESULTS
for name, result in RESULTS.items():
    sys.stdout.buffer.write((result._repr_html_() + repr(result)).encode())
    if name.startswith("trace"):
        sys.stdout.buffer.write(result.explore()._repr_html_().encode())
    if name in ("eight", "cuda", "sweep of four", "ceilings", "measurement", "trace"):
        sys.stdout.buffer.write(result.plot()._repr_png_())
assert "matplotlib.pyplot" not in sys.modules  # which would show each figure a second time
"""


def test_identical_in_two_processes(pytestconfig):
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_ALL],
            cwd=pytestconfig.rootpath,
            capture_output=True,
            check=True,
            timeout=240,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 100_000


def test_showing_text_and_html_needs_neither_matplotlib_nor_ipywidgets(pytestconfig):
    code = (
        "import sys; from course_utils.show.prediction import predict; "
        "from course_utils.show.progress import progress; import course_utils.results.result_types; "
        "repr(predict('How many?')); "
        "loaded = {'matplotlib', 'ipywidgets', 'tqdm', 'numpy.random'} & set(sys.modules); assert not loaded, loaded"
    )
    # A bare package, so that torch (which the course itself imports) does not decide the outcome.
    bare = "import sys, types; p = types.ModuleType('course_utils'); p.__path__ = ['course_utils']; "
    bare += "sys.modules['course_utils'] = p; "
    subprocess.run([sys.executable, "-c", bare + code], cwd=pytestconfig.rootpath, check=True, timeout=240)


# ---- figures


def test_what_ran_on_the_cpu_beside_a_gpu_names_the_cpu():
    on_gpu = dataclasses.replace(RESULTS["cuda"], worked_by="gpu")
    on_cpu = dataclasses.replace(on_gpu, worked_by="cpu", clock=Device.clock, ceiling=None)
    swept = Sweep("size", (SweepPoint(1, on_cpu),), on_cpu.environment, worked_by="cpu")
    for result in (on_cpu, swept):
        assert recorded(result).head == "Recorded: Intel Xeon Platinum 8468, 16 cores, 1 Aug 2026"
        for shown in (repr(result), result.plot().alt):
            assert "Intel Xeon Platinum 8468, 16 cores, 8 GiB" in " ".join(shown.split())
            assert "H200" not in shown
    assert "NVIDIA H200" in repr(on_gpu)
    assert recorded(on_gpu).head == "Recorded: H200, 1 Aug 2026"


def recorded(result):
    return dataclasses.replace(result, whose="recorded").card()


@pytest.mark.parametrize(("worked_by", "head"), [("arithmetic", "Worked out"), ("simulation", "Simulated")])
def test_what_no_machine_measured_names_none(worked_by, head):
    for name in ("table of parts", "curves", "reading"):
        result = dataclasses.replace(RESULTS[name], environment=GPU, worked_by=worked_by)
        for whose in ("you", "recorded"):
            card = dataclasses.replace(result, whose=whose).card()
            assert (card.head, card.is_recorded) == (head, whose == "recorded")
            assert [text for text in ("H200", GPU.date, "your machine") if text in f"{card!r}{card.html()}"] == []
            assert GPU.torch in card.provenance
        # What stands alone, without a head, says it in its caption.
        assert f"{head.lower()} · torch {GPU.torch}" in repr(result)
        assert "H200" not in result.plot().alt


def test_only_a_card_with_grey_marks_says_whose_they_are():
    for name, is_marked in {"two": True, "ceilings": True, "table of parts": False, "curves": False}.items():
        behind = dataclasses.replace(RESULTS[name], environment=GPU, worked_by="gpu")
        card = dataclasses.replace(RESULTS[name], behind=behind, whose="you").card()
        assert any(row.behind for row in card.rows) == is_marked
        assert ("grey: H200, 1 Aug 2026, full sizes" in card.provenance) == is_marked
        assert card.head == "You, just now"
        assert CPU.caption in card.provenance


@pytest.mark.parametrize("name", MEASURED)
def test_a_figure_is_a_small_image_with_labelled_axes_and_texts_that_can_be_read(name):
    fig = RESULTS[name].plot()
    png = fig._repr_png_()
    assert len(png) < 60_000
    assert Image.open(BytesIO(png)).size[0] == round(110 * WIDTH_IN)
    labels = [ax.get_xlabel() for ax in fig.axes] + [ax.get_ylabel() for ax in fig.axes]
    assert any("(" in label and ")" in label for label in labels)
    if caption := RESULTS[name].caption:
        assert any(caption in item.get_text() for item, _ in visible_texts(fig))
        assert caption in fig.alt
    assert repr(fig) == f"Figure: {fig.alt}"
    assert problems_of_texts(fig) == []


def test_bars_are_as_long_as_their_values_and_parts_end_where_the_next_begins():
    table = RESULTS["table of parts"]
    for stacked in (False, True):
        (ax,) = table.plot(stacked=stacked).axes
        bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
        columns = [[row[i] / 2**20 for row in table.rows] for i in range(1, 5)]
        assert [width for _, width in bars] == pytest.approx([value for column in columns for value in column])
        below = [[sum(values) for values in zip(*columns[:i], strict=True)] or [0] * 3 for i in range(4)]
        starts = [x if stacked else 0 for column in below for x in column]
        assert [x for x, _ in bars] == pytest.approx(starts)


def test_values_of_many_magnitudes_are_dots_on_a_logarithmic_axis():
    table = RESULTS["table of errors"]
    (ax,) = table.plot().axes
    assert ax.get_xscale() == "log"
    assert not ax.patches
    drawn = sorted(float(x) for line in ax.lines for x in line.get_xdata() if not math.isnan(x))
    assert drawn == pytest.approx(sorted(value for row in table.rows for value in row[1:3] if value > 0))
    texts = [item.get_text() for item, _ in visible_texts(ax.figure)]
    assert texts.count("0") >= 2  # what has no place on the axis is still named


def test_columns_that_cannot_be_drawn_are_named():
    for columns, message in (("ran", "ran.*no numbers.*forward, backward"), (["forward", "other"], "'other'")):
        with pytest.raises(ValueError, match=message):
            RESULTS["table of errors"].plot(columns)
    table = Table(("case", "time", "memory"), (("a", 1.0, 5),), CPU, {"time": "s", "memory": "bytes"})
    assert table.plot().axes[0].get_xlabel() == "time (s)"
    with pytest.raises(ValueError, match="2 units"):
        table.plot(["time", "memory"])
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


def test_what_ranks_reported_is_drawn_as_what_it_is():
    (memory,) = RESULTS["ranks with memory"].plot().axes
    widths = [bar.get_width() * 2**20 for bar in memory.patches]
    assert widths == pytest.approx([4e6] * 3 * 2)  # weights, optimizer state, gradients
    (numbers,) = RESULTS["one rank"].plot().axes
    assert [label.get_text() for label in numbers.get_yticklabels()] == ["rank 0"]
    with pytest.raises(NothingToDrawError, match="no column of numbers"):
        ranks_of(1, left_out=("loss", "step_s", "memory_bytes", "peak_bytes")).plot()


def test_figure_shows_every_sample_and_the_intervals():
    comparison = RESULTS["two"]
    (ax,) = comparison.plot().axes
    assert ax.get_xscale() == "log"
    ends = [tuple(line.get_xdata()) for line in ax.lines]
    for case in comparison:
        assert case.interval.inverse().ends in ends
        # Right is faster: the baseline's own rounds are those of the A/A control.
        timed = comparison.control if case.is_baseline else case.measurement
        pairs = zip(comparison.cases[0].elapsed_s, timed.elapsed_s, strict=True)
        speeds = [base / seconds for base, seconds in pairs]
        assert any(
            line.get_xdata() == pytest.approx(speeds) for line in ax.lines if len(line.get_xdata()) == len(speeds)
        )


def test_figures_keep_their_look_and_leave_the_users_style_alone():
    with matplotlib.rc_context({"figure.facecolor": "black"}):
        fig = RESULTS["two"].plot()
        assert matplotlib.rcParams["figure.facecolor"] == "black"
    assert fig.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_a_sweep_shows_the_rates_and_shares_of_each_case():
    work = {"eager": 2.0e9, "compiled": 1.5e9}

    def with_rates(comparison: Comparison, bytes_of: dict[str, float | None]) -> Comparison:
        cases = tuple(
            dataclasses.replace(case, elapsed_s=(1.0,) * case.rounds, bytes=bytes_of[case.label])
            for case in comparison.cases
        )
        return dataclasses.replace(comparison, cases=cases, ceiling=Ceiling("copy", "B/s", 4e9, (1.0,)))

    sweep = sweep_of(("eager", "compiled"), ("chain", "tiny"))
    chain, tiny = (point.comparison for point in sweep.points)
    points = (SweepPoint("chain", with_rates(chain, work)), SweepPoint("tiny", with_rates(tiny, dict.fromkeys(work))))
    shown = dataclasses.replace(sweep, points=points)
    rates = repr(shown.numbers).split("Rates")[1]
    rows = [line.split() for line in rates.splitlines() if "chain" in line]
    assert rows == [["eager,", "chain", "2.00", "GB/s", "50%"], ["compiled,", "chain", "1.50", "GB/s", "38%"]]
    assert "tiny" not in rates
