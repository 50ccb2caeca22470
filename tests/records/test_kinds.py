"""Every kind of result: as text, as HTML, as a figure and as a record."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys
from html.parser import HTMLParser
from io import BytesIO

import pytest

from course_utils.records.kinds import RESULT_TYPES
from course_utils.records.kinds.ceilings import Ceiling
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from course_utils.records.kinds.table import Table
from course_utils.records.result import NothingToDrawError
from tests.example_results import CPU, GPU, RESULTS, TWO, comparison_of, cuda_comparison_of, ranks_of, sweep_of
from tests.figure_checks import problems_of_texts, visible_texts

# ---- tables


class _Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def _read(markup: str) -> _Reader:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", RESULTS)
def test_html_is_plain_and_complete_and_text_fits_a_terminal(name):
    reader = _read(RESULTS[name]._repr_html_())
    assert set(reader.tags) <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p", "br"}
    assert reader.attributes <= {"scope"}
    assert reader.tags.count("table") == reader.tags.count("caption") >= 1
    assert "nan" not in reader.text
    assert "inf " not in reader.text
    assert "None" not in reader.text
    shown = repr(RESULTS[name])
    assert max(map(len, shown.splitlines())) <= 110
    assert all(line == line.rstrip() for line in shown.splitlines())


@pytest.mark.parametrize("name", RESULTS)
def test_records_give_the_same_result_and_results_are_frozen(name):
    result = RESULTS[name]
    record = result.to_record()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again == record
    assert RESULT_TYPES[result.kind].from_record(again).to_record() == record
    assert pickle.loads(pickle.dumps(result)) == result
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.name = "other"


def test_there_is_an_example_of_every_kind():
    assert {result.kind for result in RESULTS.values()} == set(RESULT_TYPES)


@pytest.mark.parametrize("name", RESULTS)
def test_readings_and_findings_have_labels_of_their_own_and_words(name):
    result = RESULTS[name]
    readings, findings = list(result.readings()), list(result.findings())
    assert len({reading.label for reading in readings}) == len(readings)
    assert len({finding.label for finding in findings}) == len(findings)
    assert all(reading.words for reading in readings)
    assert all(finding.words for finding in findings)
    assert bool(readings) == bool(findings) == (result.kind != "environment")


def test_markup_in_labels_and_notes_is_escaped():
    shown = RESULTS["two"]._repr_html_()
    assert "A note with &lt;b&gt;markup&lt;/b&gt;." in shown
    assert "matmul &lt;512&gt;" in RESULTS["measurement"]._repr_html_()
    assert "a < b & c" in _read(RESULTS["eight"]._repr_html_()).text


def test_comparison_shows_the_verdict_before_the_numbers():
    shown = repr(RESULTS["two"])
    row = next(line for line in shown.splitlines() if line.startswith("pinned "))
    assert row.index("FASTER") < row.index("ms")
    assert "baseline again (A/A control)" in shown
    assert "noise floor: ±" in shown
    assert "24 rounds x 8 calls" in shown
    assert "warm cache" in shown
    assert "checked: outputs equal within 1e-6" in shown
    assert CPU.caption in shown
    assert "99% intervals: pinned" in shown


def test_columns_appear_with_what_they_hold():
    plain, full = repr(RESULTS["two"]), repr(cuda_comparison_of())
    flat = " ".join(full.split())
    for value in ("64.0 MiB", "2.00 GiB", "900 ms", "GB/s", "calls", "%"):
        assert value in flat
    assert "launch-bound" in flat
    assert "pinned each time is launch-bound" in flat
    headers = [cell for row in _read(cuda_comparison_of()._repr_html_()).rows for cell in row]
    extras = ["first call", "pays off after", "extra peak memory", "peak reserved", "host time (enqueue)"]
    extras += ["device time", "bandwidth", "share of copy"]
    none = [cell for row in _read(RESULTS["two"]._repr_html_()).rows for cell in row]
    for header in extras:
        assert header in headers
        assert header not in none
    assert "launch-bound" not in plain


def test_what_was_interrupted_or_not_checked_says_so():
    assert "Interrupted after 5 of 24 rounds." in repr(RESULTS["few rounds"])
    assert "Interrupted" not in repr(RESULTS["two"])
    assert "checked: not" not in repr(comparison_of(TWO, agreement="not checked"))


def test_environment_says_what_runs_live():
    assert "recorded runs" in repr(CPU)
    assert "139 GiB" in repr(GPU)
    assert "none" in repr(CPU)


def test_empty_sweep_is_shown():
    empty = Sweep(over="batch", points=(), environment=CPU)
    assert "none was measured" in repr(empty)
    assert "none was measured" in empty._repr_html_()
    with pytest.raises(ValueError, match="no point"):
        empty.plot()


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
        "from course_utils.show.progress import progress; import course_utils.records.kinds; "
        "repr(predict('How many?')); "
        "loaded = {'matplotlib', 'ipywidgets', 'tqdm', 'numpy.random'} & set(sys.modules); assert not loaded, loaded"
    )
    # A bare package, so that torch (which the course itself imports) does not decide the outcome.
    bare = "import sys, types; p = types.ModuleType('course_utils'); p.__path__ = ['course_utils']; "
    bare += "sys.modules['course_utils'] = p; "
    subprocess.run([sys.executable, "-c", bare + code], cwd=pytestconfig.rootpath, check=True, timeout=240)


# ---- figures


@pytest.mark.parametrize("name", [name for name, result in RESULTS.items() if result.kind != "environment"])
def test_a_figure_is_a_small_image_with_labelled_axes_and_texts_that_can_be_read(name):
    from PIL import Image

    fig = RESULTS[name].plot()
    png = fig._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert len(png) < 60_000
    image = Image.open(BytesIO(png)).convert("RGB")
    assert image.size[0] == 880
    assert image.getpixel((2, 2)) == (255, 255, 255)
    labels = [ax.get_xlabel() for ax in fig.axes] + [ax.get_ylabel() for ax in fig.axes]
    # What a program calls its loss has no unit.
    assert name == "ranks" or any("(" in label and ")" in label for label in labels)
    environment = getattr(RESULTS[name], "environment", None)
    shown = {item.get_text() for item, _ in visible_texts(fig)}
    if environment is not None:
        assert any(environment.caption in text for text in shown)
        assert environment.caption in fig.alt
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
    shown = [item.get_text() for item, _ in visible_texts(ax.figure)]
    assert shown.count("0") >= 2  # what has no place on the axis is still named


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
    assert curves.plot(log_y=True).axes[0].get_yscale() == "log"
    assert "recipe 3 are not finite" in repr(curves)


def test_what_ranks_reported_is_drawn_as_what_it_is():
    run = RESULTS["ranks"]
    (curves,) = run.plot().axes
    assert [line.get_label() for line in curves.lines] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert list(curves.lines[2].get_ydata()) == run[2]["loss"]
    assert run.plot(log_y=True).axes[0].get_yscale() == "log"
    (times,) = run.plot("step_s").axes
    assert times.get_ylabel() == "step (ms)"
    assert list(times.lines[0].get_ydata()) == pytest.approx([1e3 * t for t in run[0]["step_s"]])
    (memory,) = RESULTS["ranks with memory"].plot().axes
    widths = [bar.get_width() * 2**20 for bar in memory.patches]
    assert widths == pytest.approx([4e6] * 3 * 2)  # weights, optimizer state, gradients
    for name in ("step_s", "memory_bytes", "peak_bytes"):
        assert problems_of_texts(run.plot(name)) == []
    with pytest.raises(ValueError, match="'checksum' cannot be drawn"):
        run.plot("checksum")
    with pytest.raises(NothingToDrawError, match="there are: checksum"):
        ranks_of(1, left_out=("loss", "step_s", "memory_bytes", "peak_bytes")).plot()


def test_figure_shows_every_sample_and_the_intervals():
    comparison = RESULTS["two"]
    left, right = comparison.plot().axes
    spans = [tuple(line.get_xdata()) for line in right.lines]
    case = comparison["pinned"]
    assert case.decision_interval.ends in spans
    assert case.interval.ends in spans
    assert left.get_xscale() == "log"
    even = tuple(1e-3 + 1e-6 * i for i in range(24))
    cases = (Measurement("a", even), Measurement("b", even))
    assert Comparison(cases, cases[0], CPU).plot().axes[0].get_xscale() == "linear"
    drawn = sorted(x for line in left.lines if line.get_marker() == "o" for x in line.get_xdata())
    expected = sorted(1e3 * t for m in (*comparison.cases, comparison.control) for t in m.elapsed_s)
    assert drawn == pytest.approx(expected)
    low, high = left.get_xlim()
    assert low < drawn[0]
    assert drawn[-1] < high


def test_sweep_draws_rates_and_the_ceiling_where_there_is_one():
    comparison = cuda_comparison_of()
    sweep = Sweep(over="streams", points=(SweepPoint(1, comparison), SweepPoint(2, comparison)), environment=GPU)
    upper = sweep.plot().axes[0]
    assert upper.get_ylabel() == "rate (GB/s)" or upper.get_ylabel() == "rate (GB/s, log scale)"
    ceiling = comparison.ceiling.value / 1e9
    assert any(list(line.get_ydata()) == pytest.approx([ceiling] * 2) for line in upper.lines)
    assert RESULTS["sweep of two"].plot().axes[0].get_ylabel().startswith("time per call (")


def test_drawing_into_given_axes_returns_their_figure():
    from matplotlib.figure import Figure

    for name in ("two", "sweep of two", "measurement", "trace"):
        host = Figure()
        ax = host.add_subplot()
        assert RESULTS[name].plot(ax=ax) is host
        assert ax.lines
    with pytest.raises(ValueError, match="several units"):
        RESULTS["ceilings"].plot(ax=Figure().add_subplot())


def test_figures_keep_their_look_and_leave_the_users_style_alone():
    import matplotlib

    before = matplotlib.rcParams["figure.facecolor"]
    try:
        matplotlib.rcParams["figure.facecolor"] = "black"
        fig = RESULTS["two"].plot()
        assert matplotlib.rcParams["figure.facecolor"] == "black"
    finally:
        matplotlib.rcParams["figure.facecolor"] = before
    assert fig.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_a_sweep_of_two_cases_shows_the_rates_and_shares_of_both():
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
    rows = [line.split() for line in repr(shown).split("Rates")[1].splitlines() if line.strip().startswith("chain")]
    assert rows == [["chain", "2.00", "GB/s", "1.50", "GB/s", "50%", "38%"]]
    assert "tiny" not in repr(shown).split("Rates")[1].split("compiled:")[0]
