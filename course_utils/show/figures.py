"""Results as figures: every sample visible, ratios with intervals, and the machine and date under each.

Everything is laid out in inches from measured text, so that long labels neither overlap nor leave the figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from course_utils.records.kinds.ceilings import Ceiling, Ceilings
from course_utils.records.kinds.comparison import CONTROL_LABEL, Case, Comparison
from course_utils.records.kinds.measurement import Measurement, rounds_and_calls
from course_utils.records.kinds.sweep import Sweep
from course_utils.records.paired import Interval, Verdict
from course_utils.records.verdicts import headline, sweep_summary, verdict_sentence, verdict_words
from course_utils.show.canvas import (
    LEGEND_X,
    LINE_IN,
    MARGIN_IN,
    WIDTH_IN,
    axes_in,
    case_colour,
    draw_footer,
    fit,
    footer_lines,
    new_figure,
    plain_number,
    ratio_ticks,
    scale_axis,
    span,
    styled,
    text_in,
    text_width_in,
)
from course_utils.show.formats import format_percent, format_seconds, seconds_unit

# Okabe and Ito's palette, which colour-blind people can tell apart. Words carry the verdict as well.
_VERDICT_COLOUR = {
    Verdict.FASTER: "#009E73",
    Verdict.SLOWER: "#D55E00",
    Verdict.SAME: "#0072B2",
    Verdict.UNCLEAR: "#777777",
}
_VERDICT_INK = {  # the same hues, dark enough for text on white
    Verdict.FASTER: "#00694D",
    Verdict.SLOWER: "#A34800",
    Verdict.SAME: "#005A8C",
    Verdict.UNCLEAR: "#555555",
}
_BASELINE = "#444444"
_NOISE = "#C9C9C9"
_PRACTICAL = "#F0E442"
_VERDICT_MARKER = {Verdict.FASTER: "v", Verdict.SLOWER: "^", Verdict.SAME: "s", Verdict.UNCLEAR: "o"}
_GOLDEN = (math.sqrt(5) - 1) / 2


def _jitter(n: int) -> list[float]:
    """Offsets between -1 and 1 that never fall on top of each other: multiples of the golden ratio."""
    return [2 * ((i * _GOLDEN) % 1) - 1 for i in range(n)]


def _alpha(n: int) -> float:
    return min(0.75, max(0.2, 12 / n))


def _strip(ax: Axes, y: float, values: Sequence[float], colour: str, half: float = 0.3) -> None:
    """Every sample of one row, over a line at the median that sticks out above and below them."""
    ordered = sorted(values)
    n = len(ordered)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    offsets = [y + half * o for o in _jitter(n)]
    ax.plot(values, offsets, "o", ms=4, mew=0, color=colour, alpha=_alpha(n), zorder=2)
    ax.plot([median, median], [y - 0.43, y + 0.43], color="#111111", lw=1.5, solid_capstyle="butt", zorder=1.5)


def _ratio_row(ax: Axes, y: float, case: Case, colour: str) -> None:
    """The median ratio of one row as a tick, with its 95% (thick) and 99% (thin) interval.

    A tick rather than a dot: good intervals are narrow, and a dot would hide them.
    """
    interval, decides = case.interval, case.decision_interval
    if decides.bounded:
        ax.plot([decides.low, decides.high], [y, y], color=colour, lw=1.8, solid_capstyle="butt", zorder=3)
    if interval.bounded:
        ax.plot([interval.low, interval.high], [y, y], color=colour, lw=9, alpha=0.75, solid_capstyle="butt", zorder=4)
    style = "-" if decides.bounded else (0, (1, 1))
    ax.plot([case.ratio] * 2, [y - 0.3, y + 0.3], color=colour, lw=2.2, ls=style, solid_capstyle="butt", zorder=5)


def _ratio_axis(ax: Axes, comparison: Comparison, count: int) -> None:
    """Bands, limits and ticks of the ratio panel."""
    cases = list(comparison)
    ends = [1.0, 1 + 2 * comparison.practical, 1 - 2 * comparison.practical]
    for case in cases:
        ends.append(case.ratio)
        if case.decision_interval.bounded:
            ends += [case.decision_interval.low, case.decision_interval.high]
    floor = comparison.noise_floor
    if math.isfinite(floor):
        ends += [floor, 1 / floor]
        ax.axvspan(1 / floor, floor, color=_NOISE, lw=0, alpha=0.55, zorder=0)
    practical = comparison.practical
    ax.axvspan(1 / (1 + practical), 1 + practical, color=_PRACTICAL, lw=0, alpha=0.7, zorder=0.5)
    ax.axvline(1.0, color="#333333", lw=0.8, zorder=1)
    # Ticks such as 0.0001 are long: fewer of them where there are many decades.
    count = 3 if span(ends) > 1000 else count
    scale_axis(ax, "x", ends, log=span(ends) > 3, count=count, log_ticks=ratio_ticks)


def _ratio_legend(comparison: Comparison) -> tuple[list[Any], list[str]]:
    handles: list[Any] = []
    labels: list[str] = []
    if comparison.noise.bounded:
        handles += [
            Line2D([], [], color="#333333", lw=6, solid_capstyle="butt"),
            Line2D([], [], color="#333333", lw=1.5),
            Patch(facecolor=_NOISE, alpha=0.55),
        ]
        labels += ["95% interval", "99% (decides)", f"noise: A/A control, ±{_floor_percent(comparison)}"]
    handles.append(Patch(facecolor=_PRACTICAL, alpha=0.7))
    labels.append(f"±{format_percent(comparison.practical)} does not matter")
    return handles, labels


def _floor_percent(comparison: Comparison) -> str:
    return format_percent(comparison.noise_floor - 1)


def _short_verdict(case: Case) -> tuple[str, str]:
    """The verdict's word, and a few more under it."""
    if case.is_baseline:
        return "", ""
    word, _, rest = verdict_words(case).partition(": ")
    return word, "" if case.verdict is Verdict.UNCLEAR else rest


def _title(comparison: Comparison) -> str:
    others = [case for case in comparison if not case.is_baseline]
    if len(others) == 1:
        return headline(others[0])
    return f"{comparison.name or 'Comparison'}: {len(others)} cases against {comparison.baseline}"


def _comparison_alt(comparison: Comparison) -> str:
    parts = [f"{case.label} {format_seconds(case.median_s)}, {verdict_sentence(case)}" for case in comparison]
    noise = f" The A/A control strayed by {_floor_percent(comparison)}." if comparison.noise.bounded else ""
    return (
        f"Time per call of {len(parts)} cases, every sample as a dot, and the time relative to {comparison.baseline} "
        f"with intervals. {'; '.join(parts)}.{noise} {comparison.environment.caption}."
    )


def _row_colour(case: Case) -> str:
    return _BASELINE if case.is_baseline else _VERDICT_COLOUR[case.verdict]


def _ratio_label(ax: Axes) -> None:
    ax.set_xlabel("relative time (1 = baseline)")


def _comparison_into(ax: Axes, comparison: Comparison) -> Figure:
    """The ratio panel alone, in axes that somebody else placed."""
    cases = [case for case in comparison if not case.is_baseline]
    _ratio_axis(ax, comparison, count=5)
    for y, case in enumerate(cases):
        _ratio_row(ax, y, case, _row_colour(case))
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.set_yticks(range(len(cases)), ["\n".join(fit(case.label, 1.6, 9.5)) for case in cases])
    _ratio_label(ax)
    return ax.get_figure(root=True)


@styled
def comparison_figure(comparison: Comparison, ax: Axes | None) -> Figure:
    """Draw it; see its `plot`."""
    if ax is not None:
        return _comparison_into(ax, comparison)
    cases = list(comparison)
    control = cases[0]  # its ratios are those of the A/A control
    names = [*comparison.labels, CONTROL_LABEL]
    samples = [case.measurement.elapsed_s for case in cases] + [comparison.control.elapsed_s]
    scale, unit = seconds_unit(comparison.cases[0].median_s)

    label_size, verdict_size = 10.0, 10.0
    label_lines = [fit(name, 1.75, label_size) for name in comparison.labels]
    label_lines.append([part.strip() for part in CONTROL_LABEL.replace("(", "\n(").splitlines()])
    label_in = max(text_width_in(line, label_size) for lines in label_lines for line in lines) + 0.12
    verdicts = [_short_verdict(case) for case in cases]
    verdict_in = max(
        [text_width_in(word, verdict_size, "bold") for word, _ in verdicts]
        + [text_width_in(rest, 9.0) for _, rest in verdicts]
    )
    verdict_in += 0.12
    row_in = max(0.44, 0.17 * max(map(len, label_lines)) + 0.12)
    title_lines = fit(_title(comparison), WIDTH_IN - 2 * MARGIN_IN, 12, "bold", max_lines=2)
    unclear = [f"{c.label}: {verdict_sentence(c)}." for c in cases if c.verdict is Verdict.UNCLEAR]
    footer = footer_lines(
        *unclear[:3],
        comparison.how
        + (
            f" · interrupted after {comparison.rounds} of {comparison.planned_rounds}" if comparison.interrupted else ""
        ),
        comparison.environment.caption,
    )
    rows = len(names)
    bottom_in = MARGIN_IN + len(footer) * LINE_IN + 0.36 + 0.58
    top_in = 0.12 + 0.24 * len(title_lines) + 0.28
    height = bottom_in + rows * row_in + top_in
    fig = new_figure(height)

    room = WIDTH_IN - 2 * MARGIN_IN - label_in - verdict_in - 0.3
    left_in, right_in = 0.5 * room, 0.5 * room
    left = axes_in(fig, MARGIN_IN + label_in, bottom_in, left_in, rows * row_in)
    right = axes_in(fig, MARGIN_IN + label_in + left_in + 0.3, bottom_in, right_in, rows * row_in)

    flat = [t / scale for row in samples for t in row]
    log = span(flat) > 10
    scale_axis(left, "x", flat, log=log, count=3 if span(flat) > 1000 else 5)
    for y, row in enumerate(samples):
        colour = _row_colour(cases[y]) if y < len(cases) else _BASELINE
        _strip(left, y, [t / scale for t in row], colour)
    left.set_xlabel(f"time per call ({unit}{', log scale' if log else ''})")

    _ratio_axis(right, comparison, count=5)
    for y, case in enumerate(cases):
        if not case.is_baseline:
            _ratio_row(right, y, case, _row_colour(case))
    right.plot([1, 1], [-0.3, 0.3], color=_BASELINE, lw=2.2, solid_capstyle="butt", zorder=5)
    _ratio_row(right, rows - 1, control, _BASELINE)
    _ratio_label(right)
    for panel in (left, right):
        panel.set_ylim(rows - 0.5, -0.5)
        panel.spines["left"].set_visible(False)
        panel.grid(axis="x", color="#E6E6E6", lw=0.7)
        panel.set_axisbelow(True)
        for y in range(1, rows):
            panel.axhline(y - 0.5, color="#EEEEEE", lw=0.7, zorder=0)
        panel.tick_params(axis="y", length=0)
        panel.set_yticks([])
    left.set_yticks(range(rows), ["\n".join(lines) for lines in label_lines], fontsize=label_size)
    left.set_title("every sample; line: median", loc="left", fontsize=10)
    right.set_title("← faster", loc="left", fontsize=10)
    right.set_title("slower →", loc="right", fontsize=10)

    x = WIDTH_IN - MARGIN_IN - verdict_in + 0.12
    for y, ((word, rest), case) in enumerate(zip(verdicts, cases, strict=True)):
        middle = bottom_in + (rows - y - 0.5) * row_in
        ink = _VERDICT_INK[case.verdict]
        text_in(
            fig, x, middle + (0.09 if rest else 0), word, fontsize=verdict_size, weight="bold", color=ink, va="center"
        )
        if rest:
            text_in(fig, x, middle - 0.09, rest, fontsize=9, color=ink, va="center")
    for i, line in enumerate(title_lines):
        text_in(fig, MARGIN_IN, height - 0.12 - 0.24 * i, line, fontsize=12, weight="bold", va="top")
    handles, labels = _ratio_legend(comparison)
    fig.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(LEGEND_X, (bottom_in - 0.58 - 0.36) / height),
        ncols=len(handles),
        frameon=False,
        handlelength=1.4,
        columnspacing=1.2,
        borderaxespad=0.1,
    )
    draw_footer(fig, footer)
    fig.alt = _comparison_alt(comparison)
    return fig


def _sweep_positions(sweep: Sweep) -> tuple[list[float], bool, bool]:
    """Where each value goes on the x axis; whether that axis is numeric, and whether it is logarithmic."""
    values = sweep.values
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        positions = [float(value) for value in values]
        return positions, True, min(positions) > 0 and span(positions) >= 8
    return [float(i) for i in range(len(values))], False, False


def _is_ordered(sweep: Sweep) -> bool:
    """Whether a line from point to point means something: between two names there is nothing."""
    return _sweep_positions(sweep)[1]


def _beside(sweep: Sweep, positions: list[float], index: int) -> list[float]:
    """Where a case stands at each position: over names the cases stand side by side, so that none hides another."""
    if _is_ordered(sweep):
        return positions
    cases = len(sweep.points[0].comparison.labels)
    return [x + 0.12 * (index - (cases - 1) / 2) for x in positions]


def _sweep_x(ax: Axes, sweep: Sweep, labels: bool) -> list[float]:
    positions, numeric, log = _sweep_positions(sweep)
    if log:
        ax.set_xscale("log")
        pad = max(span(positions) ** 0.04, 1.05)
        ax.set_xlim(min(positions) / pad, max(positions) * pad)
    else:
        room = 0.06 * (max(positions) - min(positions)) or 0.5
        room = room if numeric else 0.5  # a slot of equal width for every name
        ax.set_xlim(min(positions) - room, max(positions) + room)
    shown = list(zip(positions, sweep.values, strict=True))
    if numeric and len(shown) > 9:
        shown = shown[:: math.ceil(len(shown) / 9)]
    names = [plain_number(p) if numeric and p >= 1 else str(v) for p, v in shown]
    if not numeric:
        names = ["\n".join(fit(name, 6.5 / len(shown), 9.5)) for name in names]
    ax.xaxis.set_major_locator(FixedLocator([p for p, _ in shown]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels(names if labels else [])
    return positions


def _sweep_work(sweep: Sweep) -> tuple[str | None, Ceiling | None]:
    """The kind of work that rates are drawn for, if every case has it and there is a ceiling to compare with."""
    ceiling = next((p.comparison.ceiling for p in sweep.points if p.comparison.ceiling is not None), None)
    of = ceiling.limits if ceiling else None
    known = of and all(getattr(m, of) is not None for p in sweep.points for m in p.comparison.cases)
    return (of, ceiling) if known else (None, None)


def _sweep_alt(sweep: Sweep) -> str:
    parts = []
    for point in sweep.points:
        found = "; ".join(
            f"{case.label} {Verdict.UNCLEAR if case.verdict is Verdict.UNCLEAR else verdict_words(case)}"
            for case in point.comparison
            if not case.is_baseline
        )
        parts.append(f"{sweep.over} {point.value}: {found}")
    return f"Time per call and relative time over {sweep.over}. {'. '.join(parts)}. {sweep.environment.caption}."


_RATE_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def _rate_unit(typical: float, unit: str) -> tuple[float, str]:
    scale, prefix = next(((s, p) for s, p in _RATE_SCALES if typical >= s), _RATE_SCALES[-1])
    return scale, prefix + unit


@styled
def sweep_figure(sweep: Sweep, ax: Axes | None) -> Figure:
    """Draw it; see its `plot`."""
    if not sweep.points:
        raise ValueError("this sweep holds no point: nothing was measured that could be drawn")
    labels = sweep.points[0].comparison.labels
    of, ceiling = _sweep_work(sweep)
    samples = {
        label: [
            [getattr(p.comparison[label].measurement, of) / t for t in p.comparison[label].measurement.elapsed_s]
            if of
            else list(p.comparison[label].measurement.elapsed_s)
            for p in sweep.points
        ]
        for label in labels
    }
    flat = [value for series in samples.values() for point in series for value in point]
    typical = sorted(flat)[len(flat) // 2]
    if of and ceiling is not None:
        scale, unit = _rate_unit(typical, ceiling.unit)
        what = "rate"
    else:
        scale, unit = seconds_unit(typical)
        what = "time per call"

    if ax is not None:
        _sweep_top(ax, sweep, samples, scale, unit, what, ceiling)
        ax.set_xlabel(sweep.over)
        ax.legend(frameon=False)
        return ax.get_figure(root=True)

    title = f"{sweep.name or 'Sweep'}: {what} over {sweep.over}"
    if len(labels) == 2:
        title = sweep_summary(sweep, labels[1])
    title_lines = fit(title, WIDTH_IN - 2 * MARGIN_IN, 12, "bold", max_lines=2)
    footer = footer_lines(sweep.points[0].comparison.how, sweep.environment.caption)
    x_lines = max(
        (len(fit(str(v), 6.5 / len(sweep.points), 9.5)) for v in sweep.values if not isinstance(v, int | float)),
        default=1,
    )
    legend_rows = math.ceil((len(labels) + (ceiling is not None and of is not None)) / 3) + 1
    bottom_in = MARGIN_IN + len(footer) * LINE_IN + 0.32 + 0.22 + 0.17 * x_lines + 0.28
    top_in = 0.12 + 0.24 * len(title_lines) + 0.22 * (legend_rows - 1) + 0.12
    upper_in, lower_in, gap_in = 2.1, 1.7, 0.22
    height = bottom_in + lower_in + gap_in + upper_in + top_in
    fig = new_figure(height)
    left_in = 0.95
    width_in = WIDTH_IN - left_in - 0.25
    upper = axes_in(fig, left_in, bottom_in + lower_in + gap_in, width_in, upper_in)
    lower = axes_in(fig, left_in, bottom_in, width_in, lower_in)

    _sweep_top(upper, sweep, samples, scale, unit, what, ceiling)
    upper.set_xticklabels([])
    _sweep_ratios(lower, sweep)

    for i, line in enumerate(title_lines):
        text_in(fig, MARGIN_IN, height - 0.12 - 0.24 * i, line, fontsize=12, weight="bold", va="top")
    names = ["\n".join(fit(label, 2.0, 9.5, max_lines=1)) for label in labels]
    handles = [Line2D([], [], color=case_colour(i), lw=2, marker="o" if i else "D", ms=4) for i in range(len(labels))]
    if ceiling is not None and of:
        handles.append(Line2D([], [], color="#000000", lw=1.2, ls="--"))
        names.append(f"ceiling: {ceiling.name}")
    fig.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(LEGEND_X, (height - 0.12 - 0.24 * len(title_lines)) / height),
        ncols=3,
        frameon=False,
        handlelength=1.6,
        borderaxespad=0.1,
    )
    marks = [
        Line2D([], [], ls="", marker=_VERDICT_MARKER[v], color="#333333", mfc="white" if v is Verdict.UNCLEAR else None)
        for v in Verdict
    ]
    marks += [Patch(facecolor=_NOISE, alpha=0.55), Patch(facecolor=_PRACTICAL, alpha=0.7)]
    practical = format_percent(sweep.points[0].comparison.practical)
    fig.legend(
        marks,
        [*(v.value for v in Verdict), "noise (A/A)", f"±{practical} does not matter"],
        loc="lower left",
        bbox_to_anchor=(LEGEND_X, (MARGIN_IN + len(footer) * LINE_IN + 0.02) / height),
        ncols=6,
        frameon=False,
        handlelength=1.2,
        handletextpad=0.4,
        columnspacing=1.0,
        borderaxespad=0.1,
    )
    draw_footer(fig, footer)
    fig.alt = _sweep_alt(sweep)
    return fig


def _sweep_top(
    ax: Axes,
    sweep: Sweep,
    samples: dict[str, list[list[float]]],
    scale: float,
    unit: str,
    what: str,
    ceiling: Ceiling | None,
) -> None:
    """Medians over the parameter, every sample faintly, and the interval of each median as a band."""
    from course_utils.records.paired import median_interval

    positions = _sweep_x(ax, sweep, labels=True)
    values = [v / scale for series in samples.values() for point in series for v in point]
    if what == "rate" and ceiling is not None:
        values.append(ceiling.value / scale)
        ax.axhline(ceiling.value / scale, color="#000000", lw=1.2, ls="--", zorder=1)
    for i, (label, series) in enumerate(samples.items()):
        colour, beside = case_colour(i), _beside(sweep, positions, i)
        for x, point in zip(beside, series, strict=True):
            ax.plot([x] * len(point), [v / scale for v in point], "o", ms=4, mew=0, color=colour, alpha=0.35, zorder=2)
        medians = [sorted(point)[len(point) // 2] / scale for point in series]
        bands = [median_interval(point, 0.95) for point in series]
        if all(band.bounded for band in bands) and _is_ordered(sweep):
            ax.fill_between(
                positions,
                [band.low / scale for band in bands],
                [band.high / scale for band in bands],
                color=colour,
                alpha=0.25,
                lw=0,
                zorder=2.5,
            )
        line = "-" if _is_ordered(sweep) else "none"
        ax.plot(beside, medians, ls=line, marker="o" if i else "D", ms=4, color=colour, lw=1.8, label=label, zorder=3)
    log = span(values) > 10
    scale_axis(ax, "y", values, log=log, count=6)
    ax.set_ylabel(f"{what} ({unit}{', log scale' if log else ''})")
    ax.grid(color="#E6E6E6", lw=0.7)


def _sweep_ratios(ax: Axes, sweep: Sweep) -> None:
    """The ratio to the baseline over the parameter, with the noise band of each point."""
    positions = _sweep_x(ax, sweep, labels=True)
    ends = [1.0]
    floors = [point.comparison.noise_floor for point in sweep.points]
    practical = sweep.points[0].comparison.practical
    if all(math.isfinite(floor) for floor in floors):
        if _is_ordered(sweep):
            ax.fill_between(positions, [1 / f for f in floors], floors, color=_NOISE, alpha=0.55, lw=0, zorder=0)
        else:
            heights = [f - 1 / f for f in floors]
            ax.bar(positions, heights, 0.8, [1 / f for f in floors], color=_NOISE, alpha=0.55, lw=0, zorder=0)
        ends += [*floors, *(1 / f for f in floors)]
    ax.axhspan(1 / (1 + practical), 1 + practical, color=_PRACTICAL, alpha=0.7, lw=0, zorder=0.5)
    ax.axhline(1.0, color="#333333", lw=0.8, zorder=1)
    for i, label in enumerate(sweep.points[0].comparison.labels):
        if i == 0:
            continue
        cases = [point.comparison[label] for point in sweep.points]
        colour = case_colour(i)
        if _is_ordered(sweep):
            ax.plot(positions, [case.ratio for case in cases], "-", color=colour, lw=1.2, alpha=0.7, zorder=2)
        for x, case in zip(_beside(sweep, positions, i), cases, strict=True):
            interval: Interval = case.interval
            ends.append(case.ratio)
            if interval.bounded:
                ax.plot([x, x], [interval.low, interval.high], color=colour, lw=3, solid_capstyle="butt", zorder=3)
                ends += [interval.low, interval.high]
            face = "white" if case.verdict is Verdict.UNCLEAR else colour
            ax.plot([x], [case.ratio], _VERDICT_MARKER[case.verdict], ms=7, color=colour, mfc=face, zorder=4)
    log = span(ends) > 3
    scale_axis(ax, "y", ends, log=log, count=6, pad=0.1, log_ticks=ratio_ticks)
    ax.set_ylabel("relative time\n(1 = baseline)")
    ax.set_xlabel(sweep.over)
    ax.grid(color="#E6E6E6", lw=0.7)
    ax.set_axisbelow(True)


@styled
def ceilings_figure(ceilings: Ceilings, ax: Axes | None) -> Figure:
    """Draw it; see its `plot`."""
    groups: dict[str, list[Ceiling]] = {}
    for entry in ceilings.entries:
        groups.setdefault(entry.unit, []).append(entry)
    if not groups:
        raise ValueError("these ceilings hold no entry: nothing was measured that could be drawn")
    if ax is not None:
        if len(groups) > 1:
            raise ValueError("ceilings of several units need several axes: call plot() without ax")
        _ceiling_group(ax, *next(iter(groups.items())))
        return ax.get_figure(root=True)
    names = [entry.name for entry in ceilings.entries]
    lines = {name: fit(name, 2.0, 10) for name in names}
    label_in = max(text_width_in(line, 10) for parts in lines.values() for line in parts) + 0.12
    value_in = max(text_width_in(entry.in_words(), 10, "bold") for entry in ceilings.entries) + 0.15
    row_in = max(0.36, 0.17 * max(map(len, lines.values())) + 0.1)
    footer = footer_lines(
        "Every sample is a dot; the bar is the limit: the best rate, the median latency.", ceilings.environment.caption
    )
    axis_in = 0.62
    bottom_in = MARGIN_IN + len(footer) * LINE_IN + 0.08
    height = bottom_in + sum(len(group) * row_in + axis_in for group in groups.values()) + 0.45
    fig = new_figure(height)
    top = height - 0.45
    width_in = WIDTH_IN - 2 * MARGIN_IN - label_in - value_in
    for unit, group in groups.items():
        inches = len(group) * row_in
        panel = axes_in(fig, MARGIN_IN + label_in, top - inches, width_in, inches)
        _ceiling_group(panel, unit, group)
        for y, entry in enumerate(group):
            text_in(
                fig,
                WIDTH_IN - MARGIN_IN,
                top - (y + 0.5) * row_in,
                entry.in_words(),
                fontsize=10,
                weight="bold",
                ha="right",
                va="center",
            )
        top -= inches + axis_in
    text_in(
        fig,
        MARGIN_IN,
        height - 0.12,
        fit(f"What {ceilings.environment.device_name} can do at best", WIDTH_IN - 0.3, 12, "bold", 1)[0],
        fontsize=12,
        weight="bold",
        va="top",
    )
    draw_footer(fig, footer)
    fig.alt = (
        f"Limits of {ceilings.environment.device_name}: "
        + "; ".join(f"{entry.name} {entry.in_words()}" for entry in ceilings.entries)
        + f". {ceilings.environment.caption}."
    )
    return fig


def _ceiling_group(ax: Axes, unit: str, group: Sequence[Ceiling]) -> None:
    """The ceilings of one unit: a bar up to the limit, and every sample."""
    typical = sorted(entry.value for entry in group)[len(group) // 2]
    scale, name = seconds_unit(typical) if unit == "s" else _rate_unit(typical, unit)
    rows = [[value / scale for value in entry.samples] for entry in group]
    log = span([value for row in rows for value in row]) > 20
    for y, (row, entry) in enumerate(zip(rows, group, strict=True)):
        if not log:
            ax.barh(y, entry.value / scale, height=0.62, color="#56B4E9", alpha=0.35, lw=0, zorder=1)
        offsets = [y + 0.22 * o for o in _jitter(len(row))]
        ax.plot(row, offsets, "o", ms=4.5, mew=0, color="#0072B2", alpha=_alpha(len(row)), zorder=2)
        ax.plot([entry.value / scale] * 2, [y - 0.36, y + 0.36], color="#111111", lw=2, zorder=3)
    scale_axis(ax, "x", [v for row in rows for v in row], log=log, count=6)
    if not log:
        ax.set_xlim(0, max(v for row in rows for v in row) * 1.04)
    ax.set_ylim(len(group) - 0.5, -0.5)
    ax.set_yticks(range(len(group)), ["\n".join(fit(entry.name, 2.0, 10)) for entry in group], fontsize=10)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    kind = {"B/s": "bandwidth", "FLOP/s": "compute rate", "s": "latency"}.get(unit, "rate")
    ax.set_xlabel(f"{kind} ({name}{', log scale' if log else ''})")
    ax.grid(axis="x", color="#E6E6E6", lw=0.7)
    ax.set_axisbelow(True)


@styled
def measurement_figure(measurement: Measurement, ax: Axes | None) -> Figure:
    """Draw it; see its `plot`."""
    m = measurement
    scale, unit = seconds_unit(m.median_s)
    before = ([m.first_call_s] if m.first_call_s is not None else []) + list(m.warmup_s)
    values = [value / scale for value in (*before, *m.elapsed_s)]
    log = span(values) > 10
    start = -len(before)
    if ax is None:
        footer = footer_lines(
            rounds_and_calls([m]),
            m.environment.caption if m.environment else "",
        )
        bottom_in = MARGIN_IN + len(footer) * LINE_IN + 0.62
        title = f"{m.label}: {format_seconds(m.median_s)} per call"
        if m.interval_s.bounded:
            title += f" (95% interval {format_seconds(m.interval_s.low)} to {format_seconds(m.interval_s.high)})"
        title_lines = fit(title, WIDTH_IN - 2 * MARGIN_IN, 12, "bold", max_lines=2)
        top_in = 0.2 + 0.24 * len(title_lines) + 0.28
        height = bottom_in + 2.3 + top_in
        fig = new_figure(height)
        order = axes_in(fig, 0.95, bottom_in, 4.9, 2.3)
        counts = axes_in(fig, 6.0, bottom_in, WIDTH_IN - 6.0 - 0.25, 2.3)
    else:
        order = ax
    if m.first_call_s is not None:
        order.plot([start], [m.first_call_s / scale], "D", color="#D55E00", ms=8, label="first call", zorder=4)
    if before:
        order.plot(
            range(start, 0), [v / scale for v in before], "o-", color="#E69F00", ms=5, lw=1, label="warm-up", zorder=3
        )
    measured = [v / scale for v in m.elapsed_s]
    order.plot(range(m.rounds), measured, "o", color="#0072B2", ms=4.5, mew=0, alpha=0.7, label="measured", zorder=3)
    order.axhline(m.median_s / scale, color="#111111", lw=1.2, zorder=2, label="median")
    scale_axis(order, "y", values, log=log, count=6)
    order.set_xlim(start - 1, m.rounds)
    order.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    order.set_xlabel("round (below 0: warm-up)" if before else "round")
    order.set_ylabel(f"time per call ({unit}{', log scale' if log else ''})")
    order.grid(axis="y", color="#E6E6E6", lw=0.7)
    order.set_axisbelow(True)
    if ax is not None:
        order.legend(frameon=False)
        return order.get_figure(root=True)

    low, high = order.get_ylim()
    forward = math.log if log else float
    backward = math.exp if log else float
    edges = [backward(forward(low) + i / 40 * (forward(high) - forward(low))) for i in range(41)] if log else 40
    counts.hist(
        measured,
        bins=edges,
        range=None if log else (low, high),
        orientation="horizontal",
        color="#0072B2",
        alpha=0.75,
    )
    if log:
        counts.set_yscale("log")
    counts.set_ylim(low, high)
    counts.axhline(m.median_s / scale, color="#111111", lw=1.2)
    counts.yaxis.set_major_locator(NullLocator())
    counts.yaxis.set_minor_locator(NullLocator())
    counts.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    counts.set_xlabel("rounds (count)")
    handles, names = order.get_legend_handles_labels()
    fig.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(LEGEND_X, (height - 0.12 - 0.24 * len(title_lines)) / height),
        ncols=4,
        frameon=False,
        borderaxespad=0.1,
    )
    for i, line in enumerate(title_lines):
        text_in(fig, MARGIN_IN, height - 0.12 - 0.24 * i, line, fontsize=12, weight="bold", va="top")
    draw_footer(fig, footer)
    first = f" The first call took {format_seconds(m.first_call_s)}." if m.first_call_s is not None else ""
    where = f" {m.environment.caption}." if m.environment else ""
    fig.alt = (
        f"Time per call of {m.label} in {m.rounds} rounds: median {format_seconds(m.median_s)}, from "
        f"{format_seconds(min(m.elapsed_s))} to {format_seconds(max(m.elapsed_s))}.{first}{where}"
    )
    return fig
