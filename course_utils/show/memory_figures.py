"""Memory over time as a picture to zoom into, which works in a page without a kernel."""

from __future__ import annotations

import hashlib
import html as html_module
import itertools
import json
import math
from collections.abc import Sequence

import numpy as np

from course_utils.records.kinds.memory_trace import MemoryTrace
from course_utils.records.memory_pictures import (
    INK,
    KIND_COLOURS,
    NOTE,
    PEAK,
    counted,
    description,
    stacking,
    unit_of,
)
from course_utils.show.canvas import plain_number
from course_utils.show.formats import format_bytes, format_seconds

# The picture to zoom into

_W, _H, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 380, 64, 12, 44, 46
_PLOT_W, _PLOT_H = _W - _LEFT - _RIGHT, _H - _TOP - _BOTTOM
_COLUMNS = 348  # of the picture that is there before the script draws: two points wide


class MemoryExplorer:
    """A trace to zoom into. Shows itself; made by `MemoryTrace.explore`.

    Attributes:
        trace: the trace.
    """

    def __init__(self, trace: MemoryTrace) -> None:
        self.trace = trace

    def __repr__(self) -> str:
        return repr(self.trace)

    def _repr_html_(self) -> str:
        return f"{_explorer(self.trace)}\n{self.trace._repr_html_()}"


def _ticks(highest: float, count: int = 5) -> list[float]:
    """Round values from 0 up to ``highest``. The script in ``_SCRIPT`` finds the same."""
    rough = highest / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [i * step for i in range(int(highest / step + 1e-9) + 1)]


def _outline(values: Sequence[int], columns: Sequence[tuple[int, int]], moments: int, highest: float) -> str:
    """The area under a line of steps, as an SVG path."""
    parts, last = [], None
    for start, moment in columns:
        x = _LEFT + start * _PLOT_W / moments
        y = round(_TOP + _PLOT_H * (1 - values[moment] / highest), 1)
        if y != last:
            parts.append(f"H{x:.1f}V{y:g}")
            last = y
    return f"M{_LEFT} {_TOP + _PLOT_H}{''.join(parts)}H{_LEFT + _PLOT_W}V{_TOP + _PLOT_H}Z"


def _columns(trace: MemoryTrace) -> list[tuple[int, int]]:
    """What the picture shows at first: where each of its columns starts, and its highest moment."""
    stretches = min(_COLUMNS, trace.moments)
    ends = [round(i * trace.moments / stretches) for i in range(stretches + 1)]
    totals = trace.totals_bytes
    return [(a, max(range(a, b), key=totals.__getitem__)) for a, b in itertools.pairwise(ends) if a < b]


def _explorer(trace: MemoryTrace) -> str:
    escape = html_module.escape
    blocks = stacking(trace)
    texts = list(dict.fromkeys(part for b in blocks for part in (b.module, b.line, b.op)))
    number = {part: i for i, part in enumerate(texts)}
    kinds = list(trace.by_kind())
    scale, unit = unit_of(max(trace.peak_bytes, trace.peak_reserved_bytes or 0))
    data = {
        "times": list(trace.times_us),
        "kinds": kinds,
        "colours": [KIND_COLOURS[kind] for kind in kinds],
        "texts": texts,
        "blocks": [
            [b.size_bytes, b.born, b.died, kinds.index(b.kind), number[b.module], number[b.line], number[b.op], b.count]
            for b in blocks
        ],
        "reserved": list(trace.reserved_bytes),
        "phases": [[phase.name, phase.first, phase.last] for phase in trace.phases],
        "peak": trace.peak_moment,
        "scale": scale,
        "unit": unit,
    }
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # Two pictures on one page need different ids, and the same trace the same ones in every process.
    mark = "memory-trace-" + hashlib.sha256(f"{trace.label}\n{packed}".encode()).hexdigest()[:10]
    script = _SCRIPT
    for name, value in (
        ("MARK", json.dumps(mark)),
        ("PLOT_W", _PLOT_W),
        ("PLOT_H", _PLOT_H),
        ("LEFT", _LEFT),
        ("TOP", _TOP),
        ("DATA", packed.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")),
    ):
        script = script.replace(f"@{name}@", str(value))
    words = escape(description(trace))
    buttons = "".join(
        f'<button type="button" data-do="{do}">{label}</button> '
        for do, label in (
            ("all", "Whole call"),
            ("peak", "Around the peak"),
            ("in", "Zoom in"),
            ("out", "Zoom out"),
            ("left", "Earlier"),
            ("right", "Later"),
        )
    )
    return (
        f'<div id="{mark}" style="max-width:{_W}px">\n'
        f'<p id="{mark}-controls" hidden>{buttons}</p>\n'
        f"{_picture(trace, kinds, mark, words)}\n"
        f'<p id="{mark}-says" aria-live="polite" style="min-height:3em" hidden>Point at a block to see what it is. '
        "Drag to zoom in, double-click to see the whole call; with the picture focused, the arrow keys step through "
        "the call.</p>\n"
        f"</div>\n{script}"
    )


def _picture(trace: MemoryTrace, kinds: Sequence[str], mark: str, words: str) -> str:
    """The picture as it is before the script draws, or where no script runs."""
    highest = 1.1 * max(trace.peak_bytes, trace.peak_reserved_bytes or 0) or 1.0
    scale, unit = unit_of(max(trace.peak_bytes, trace.peak_reserved_bytes or 0))
    columns, moments, floor = _columns(trace), trace.moments, _TOP + _PLOT_H
    by_kind = trace.by_kind()
    sums = list(itertools.accumulate((np.asarray(by_kind[kind]) for kind in kinds), np.add))
    # The highest first: what is painted later hides all but the topmost strip of it.
    areas = "".join(
        f'<path d="{_outline(total, columns, moments, highest)}" fill="{KIND_COLOURS[kind]}" />'
        for kind, total in reversed(list(zip(kinds, sums, strict=True)))
    )
    if trace.reserved_bytes:
        line = _outline(trace.reserved_bytes, columns, moments, highest)
        areas += f'<path d="{line}" fill="none" stroke="{INK}" stroke-dasharray="5 3" />'
    grid = []
    for value in _ticks(highest / scale):
        y = round(floor - _PLOT_H * value * scale / highest, 1)
        grid.append(
            f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _PLOT_W}" y2="{y}" stroke="#e6e6e6" />'
            f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end" fill="{INK}">{plain_number(value)}</text>'
        )
    phases = []
    for phase in trace.phases:
        x, end = (_LEFT + at * _PLOT_W / moments for at in (phase.first, phase.last + 1))
        phases.append(f'<rect x="{x:.1f}" y="24" width="{end - x:.1f}" height="16" fill="#e8e8e8" stroke="#fff" />')
        if end - x > 7 * len(phase.name):
            phases.append(f'<text x="{(x + end) / 2:.1f}" y="36" text-anchor="middle" fill="{INK}">{phase.name}</text>')
    x = _LEFT + (trace.peak_moment + 0.5) * _PLOT_W / moments
    y = floor - _PLOT_H * trace.peak_bytes / highest
    anchor, off = ("end", -8) if x > _LEFT + 0.6 * _PLOT_W else ("start", 8)
    peak = (
        f'<path d="M{x:.1f} {y:.1f}l-5 -8h10z" fill="{PEAK}" /><text x="{x + off:.1f}" y="{y - 3:.1f}" '
        f'text-anchor="{anchor}" font-weight="bold" fill="{PEAK}">peak {format_bytes(trace.peak_bytes)}</text>'
    )
    legend, at = [], _LEFT
    for kind in reversed(kinds):
        legend.append(
            f'<rect x="{at}" y="6" width="12" height="12" fill="{KIND_COLOURS[kind]}" />'
            f'<text x="{at + 16}" y="16" fill="{INK}">{kind}</text>'
        )
        at += 28 + 7 * len(kind)
    took = format_seconds(trace.times_us[-1] / 1e6)
    return (
        f'<svg id="{mark}-picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {_H}" width="{_W}" '
        f'tabindex="0" style="max-width:100%;height:auto;touch-action:pan-y" role="img" aria-label="{words}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff" />{"".join(legend)}'
        f'<text x="14" y="{_TOP + _PLOT_H / 2:g}" text-anchor="middle" fill="{INK}" '
        f'transform="rotate(-90 14 {_TOP + _PLOT_H / 2:g})">memory ({unit})</text>'
        f'<g id="{mark}-drawn">{"".join(grid)}{areas}{"".join(phases)}{peak}'
        f'<text x="{_LEFT}" y="{floor + 18}" fill="{NOTE}">event 0, 0 s</text>'
        f'<text x="{_LEFT + _PLOT_W}" y="{floor + 18}" text-anchor="end" fill="{NOTE}">'
        f"event {moments - 1}, {took}</text></g>"
        f'<g id="{mark}-pointed"></g>'
        f'<text x="{_LEFT + _PLOT_W / 2:g}" y="{_H - 8}" text-anchor="middle" fill="{INK}">{counted(trace)}, '
        f"each equally wide · {html_module.escape(trace.environment.caption)}</text></svg>"
    )


_SCRIPT = """<script>
(function () {
  var mark = @MARK@, data = @DATA@;
  var part = function (name) { return document.getElementById(mark + "-" + name); };
  var picture = part("picture"), drawn = part("drawn"), pointed = part("pointed"), says = part("says");
  if (!picture) { return; }
  var blocks = data.blocks, moments = data.times.length, floor = @TOP@ + @PLOT_H@;
  var from = 0, to = moments, highest = 1, cursor = -1, start = null;
  var bytes = function (count) {
    var units = ["B", "KiB", "MiB", "GiB", "TiB"], i = 0;
    while (count >= 1023.5 && i < 4) { count /= 1024; i += 1; }
    return count.toFixed(i === 0 || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2) + " " + units[i];
  };
  var seconds = function (us) { return us >= 1e6 ? (us / 1e6).toFixed(2) + " s" : (us / 1e3).toFixed(2) + " ms"; };
  var sums = data.kinds.map(function () { return new Float64Array(moments + 1); });
  blocks.forEach(function (b) { sums[b[3]][b[1]] += b[0]; sums[b[3]][b[2]] -= b[0]; });
  sums.forEach(function (sum) { for (var i = 1; i < moments; i++) { sum[i] += sum[i - 1]; } });
  sums.forEach(function (sum, k) { if (k) { for (var i = 0; i < moments; i++) { sum[i] += sums[k - 1][i]; } } });
  var totals = sums.length ? sums[sums.length - 1] : new Float64Array(moments + 1);
  var X = function (moment) { return @LEFT@ + (moment - from) * @PLOT_W@ / (to - from); };
  var Y = function (value) { return floor - @PLOT_H@ * value / highest; };
  var clear = function (node) { while (node.firstChild) { node.removeChild(node.firstChild); } };
  var put = function (where, name, attributes, words) {
    var node = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.keys(attributes).forEach(function (key) { node.setAttribute(key, attributes[key]); });
    if (words !== undefined) { node.textContent = words; }
    where.appendChild(node);
  };
  var columns = function () {
    var count = Math.min(to - from, @PLOT_W@), found = [], i, k, a, b, best;
    for (i = 0; i < count; i++) {
      a = from + Math.round(i * (to - from) / count); b = from + Math.round((i + 1) * (to - from) / count);
      for (best = a, k = a; k < b; k++) { if (totals[k] > totals[best]) { best = k; } }
      if (b > a) { found.push([a, best]); }
    }
    return found;
  };
  var under = function (values, at) {
    var path = "M@LEFT@ " + floor, last = null;
    at.forEach(function (c) {
      var y = Y(values[c[1]]).toFixed(1);
      if (y !== last) { path += "H" + X(c[0]).toFixed(1) + "V" + y; last = y; }
    });
    return path + "H" + (@LEFT@ + @PLOT_W@) + "V" + floor + "Z";
  };
  var draw = function () {
    var at = columns(), top = 0, i, rough, power, step, value;
    at.forEach(function (c) { top = Math.max(top, totals[c[1]], data.reserved.length ? data.reserved[c[1]] : 0); });
    highest = 1.1 * top || 1;
    clear(drawn);
    rough = highest / data.scale / 5; power = Math.pow(10, Math.floor(Math.log10(rough)));
    step = [1, 2, 2.5, 5, 10].filter(function (f) { return f * power >= rough * 0.999; })[0] * power;
    for (i = 0; i <= Math.floor(highest / data.scale / step + 1e-9); i++) {
      value = i * step;
      put(drawn, "line", {x1: @LEFT@, x2: @LEFT@ + @PLOT_W@, y1: Y(value * data.scale), y2: Y(value * data.scale),
        stroke: "#e6e6e6"});
      put(drawn, "text", {x: @LEFT@ - 6, y: Y(value * data.scale) + 4, "text-anchor": "end", fill: "#222222"},
        String(Number(value.toPrecision(3))));
    }
    for (i = sums.length - 1; i >= 0; i--) { put(drawn, "path", {d: under(sums[i], at), fill: data.colours[i]}); }
    if (data.reserved.length) {
      put(drawn, "path", {d: under(data.reserved, at), fill: "none", stroke: "#222222", "stroke-dasharray": "5 3"});
    }
    data.phases.forEach(function (p) {
      var a = Math.max(from, p[1]), b = Math.min(to, p[2] + 1);
      if (a >= b) { return; }
      put(drawn, "rect", {x: X(a), y: 24, width: X(b) - X(a), height: 16, fill: "#e8e8e8", stroke: "#fff"});
      if (X(b) - X(a) > 7 * p[0].length) {
        put(drawn, "text", {x: (X(a) + X(b)) / 2, y: 36, "text-anchor": "middle", fill: "#222222"}, p[0]);
      }
    });
    if (data.peak >= from && data.peak < to) {
      var x = X(data.peak + 0.5), y = Y(totals[data.peak]), right = x > @LEFT@ + 0.6 * @PLOT_W@;
      put(drawn, "path", {d: "M" + x + " " + y + "l-5 -8h10z", fill: "#111111"});
      put(drawn, "text", {x: x + (right ? -8 : 8), y: y - 3, "text-anchor": right ? "end" : "start",
        "font-weight": "bold", fill: "#111111"}, "peak " + bytes(totals[data.peak]));
    }
    put(drawn, "text", {x: @LEFT@, y: floor + 18, fill: "#555555"}, "event " + from + ", " + seconds(data.times[from]));
    put(drawn, "text", {x: @LEFT@ + @PLOT_W@, y: floor + 18, "text-anchor": "end", fill: "#555555"},
      "event " + (to - 1) + ", " + seconds(data.times[to - 1]));
    clear(pointed);
  };
  var shape = function (index) {
    var b = blocks[index], first = Math.max(b[1], from), last = Math.min(b[2], to);
    var lower = new Float64Array(moments + 1), i, there, back = "", path;
    for (i = 0; i < index; i++) { lower[blocks[i][1]] += blocks[i][0]; lower[blocks[i][2]] -= blocks[i][0]; }
    for (i = 1; i < moments; i++) { lower[i] += lower[i - 1]; }
    path = "M" + X(first).toFixed(1) + " " + Y(lower[first]).toFixed(1);
    for (i = first; i < last; i++) {
      path += "V" + Y(lower[i]).toFixed(1) + "H" + X(i + 1).toFixed(1);
      there = "L" + X(i + 1).toFixed(1) + " " + Y(lower[i] + b[0]).toFixed(1);
      back = there + "H" + X(i).toFixed(1) + back;
    }
    return path + back + "Z";
  };
  var name = function (index) {
    var b = blocks[index], module = data.texts[b[4]], line = data.texts[b[5]], op = data.texts[b[6]];
    var words = bytes(b[0]) + (b[7] > 1 ? " in " + b[7] + " blocks" : "") + " of " + data.kinds[b[3]];
    if (module) { words += " · " + module; }
    if (op) { words += " · " + op; }
    if (line) { words += " · " + line; }
    words += " · from " + (b[1] ? "event " + b[1] : "before the call") + " to ";
    return words + (b[2] < moments ? "event " + b[2] : "after the call");
  };
  var show = function (moment, value) {
    var found = -1, sum = 0, i, b;
    for (i = 0; i < blocks.length; i++) {
      b = blocks[i];
      if (b[1] <= moment && moment < b[2]) {
        if (value === null ? (found < 0 || b[0] > blocks[found][0]) : (found < 0 && sum + b[0] > value)) { found = i; }
        sum += b[0];
      }
    }
    clear(pointed);
    put(pointed, "line", {x1: X(moment + 0.5), x2: X(moment + 0.5), y1: @TOP@, y2: floor, stroke: "#111111",
      "stroke-opacity": 0.5});
    if (found >= 0) {
      put(pointed, "path", {d: shape(found), fill: "#000000", "fill-opacity": 0.35, stroke: "#ffffff"});
    }
    says.textContent = "Event " + moment + " (" + seconds(data.times[moment]) + "): " + bytes(totals[moment])
      + (data.reserved.length ? ", " + bytes(data.reserved[moment]) + " reserved" : "") + ". "
      + (found < 0 ? "" : (value === null ? "The largest block: " : "") + name(found) + ".");
  };
  var zoom = function (a, b) {
    var width = Math.max(Math.min(8, moments), Math.round(b - a));
    from = Math.max(0, Math.min(Math.round(a), moments - width));
    to = Math.min(moments, from + width);
    draw();
  };
  var place = function (event) {
    var box = picture.getBoundingClientRect(), factor = 760 / box.width;
    var x = (event.clientX - box.left) * factor, y = (event.clientY - box.top) * factor;
    var moment = Math.floor(from + (x - @LEFT@) * (to - from) / @PLOT_W@);
    return {moment: Math.max(from, Math.min(to - 1, moment)), value: (floor - y) / @PLOT_H@ * highest, x: x};
  };
  picture.addEventListener("pointermove", function (event) {
    var at = place(event);
    cursor = at.moment;
    show(at.moment, Math.max(0, at.value));
    if (start !== null) {
      put(pointed, "rect", {x: Math.min(start.x, at.x), width: Math.abs(at.x - start.x), y: @TOP@, height: @PLOT_H@,
        fill: "#0072B2", "fill-opacity": 0.25});
    }
  });
  picture.addEventListener("pointerdown", function (event) {
    start = place(event);
    event.preventDefault();
    picture.focus();
  });
  window.addEventListener("pointerup", function (event) {
    if (start === null) { return; }
    var at = place(event), begin = start;
    start = null;
    if (Math.abs(at.x - begin.x) > 6) {
      zoom(Math.min(begin.moment, at.moment), Math.max(begin.moment, at.moment) + 1);
    }
  });
  var act = function (what) {
    var width = to - from, middle = cursor >= from && cursor < to ? cursor : (from + to) / 2;
    if (what === "all") { zoom(0, moments); }
    if (what === "peak") { zoom(data.peak - moments / 20, data.peak + moments / 20); show(data.peak, null); }
    if (what === "in") { zoom(middle - width / 4, middle + width / 4); }
    if (what === "out") { zoom(middle - width, middle + width); }
    if (what === "left") { zoom(from - width / 2, to - width / 2); }
    if (what === "right") { zoom(from + width / 2, to + width / 2); }
  };
  picture.addEventListener("dblclick", function () { act("all"); });
  picture.addEventListener("keydown", function (event) {
    var step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (step) {
      cursor = Math.max(0, Math.min(moments - 1, (cursor < 0 ? from : cursor) + step));
      if (cursor < from || cursor >= to) { zoom(cursor - (to - from) / 2, cursor + (to - from) / 2); }
      show(cursor, null);
    }
    if (event.key === "+") { act("in"); }
    if (event.key === "-") { act("out"); }
    if (event.key === "Escape") { act("all"); }
    if (step || event.key === "+" || event.key === "-") { event.preventDefault(); }
  });
  part("controls").addEventListener("click", function (event) {
    if (event.target.dataset.do) { act(event.target.dataset.do); }
  });
  part("controls").hidden = false;
  says.hidden = false;
  draw();
}());
</script>"""
