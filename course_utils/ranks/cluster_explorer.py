"""Memory per rank to play with: simulated live in JupyterLab, and over plans that were computed ahead in the book.

Both show the same drawing, inline SVG that needs nothing from outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint, GPTShape
from course_utils.records.unrecorded import Unrecorded
from course_utils.show.formats import format_bytes, format_count

if TYPE_CHECKING:
    from ipywidgets import Widget

GIB = 2**30
_LEFT, _WIDTH, _RIGHT, _TOP, _ROW, _BAR = 130, 430, 150, 52, 30, 20
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # of the parts, as in the figures
_INK, _NOTE = "#222", "#555"
_DASHED = 'stroke="#000" stroke-dasharray="4 3"'
# The memory's line passes behind a total, which keeps a white edge.
_TOTAL = f'fill="{_INK}" stroke="#fff" stroke-width="4" paint-order="stroke"'
# JupyterLab gives tables tall lines and no room between columns, and lets them push a widget out of the page.
_STYLE = (
    "<style>.course-cluster-table{overflow-x:auto}.course-cluster-table table{border-collapse:collapse}"
    ".course-cluster-table caption{text-align:left}"
    ".course-cluster-table :is(caption,th,td){line-height:1.3;padding:3px 7px;white-space:nowrap}"
    ".course-cluster-table :is(th,td){text-align:right}"
    ".course-cluster-table :is(tbody th,:is(th,td):nth-child(n+8)){text-align:left}"
    ".course-cluster-explorer .widget-html-content{min-width:0}</style>"
)
_MEMORIES = (0, 16, 24, 40, 80, 141)
_TOO_MUCH = "does not fit"
SHAPES: Mapping[str, GPTShape] = {
    "0.12 billion": GPTShape(width=768, layers=12, heads=12, vocabulary=50257, context=1024),
    "1.3 billion": GPTShape(width=2048, layers=24, heads=16, vocabulary=50257, context=2048),
    "6.6 billion": GPTShape(width=4096, layers=32, heads=32, vocabulary=32000, context=2048),
    "13 billion": GPTShape(width=5120, layers=40, heads=40, vocabulary=32000, context=2048),
    "65 billion": GPTShape(width=8192, layers=80, heads=64, vocabulary=32000, context=2048),
}


@dataclass(frozen=True)
class _Row:
    """One bar: what is drawn of a point."""

    label: str
    views: tuple[str, str]
    bars: tuple[int, ...]
    titles: tuple[str, ...]
    peak: str
    cells: str

    @classmethod
    def of(cls, point: ClusterPoint, trust: str) -> _Row:
        sizes = tuple(point.at_peak[part] for part in CLUSTER_PARTS)
        cells = [format_bytes(point[part]) for part in (*CLUSTER_PARTS, "peak")] + [point.peak_phase, trust]
        return cls(
            label=point.label,
            views=(_across(point.ranks), f"{point.strategy} on every number of ranks"),
            bars=sizes,
            titles=tuple(f"{part}: {format_bytes(size)}" for part, size in zip(CLUSTER_PARTS, sizes, strict=True)),
            peak=format_bytes(point.peak_bytes),
            cells=f'<th scope="row">{html.escape(point.label)}</th>'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells),
        )


def _across(ranks: int) -> str:
    return f"every strategy on {ranks} rank{'s' if ranks > 1 else ''}"


def _height(rows: int) -> int:
    return _TOP + rows * _ROW + 10


def _drawn(rows: Sequence[_Row], memory_bytes: int) -> str:
    """Bars, totals and the memory's line. The script in ``_SCRIPT`` builds the same."""
    scale = _WIDTH / max(memory_bytes, *(sum(row.bars) for row in rows))
    parts, totals = [], []
    for number, row in enumerate(rows):
        y, x = _TOP + number * _ROW, float(_LEFT)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end" fill="{_INK}">{row.label}</text>')
        for size, colour, title in zip(row.bars, _COLOURS, row.titles, strict=True):
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{size * scale:.1f}" height="{_BAR}" fill="{colour}">'
                f"<title>{title}</title></rect>"
            )
            x += size * scale
        words = row.peak + (f", {_TOO_MUCH}" if 0 < memory_bytes < sum(row.bars) else "")
        totals.append(f'<text x="{x + 6:.1f}" y="{y + 15}" {_TOTAL}>{words}</text>')
    if memory_bytes:
        at = _LEFT + memory_bytes * scale
        parts.append(f'<path d="M{at:.1f} {_TOP - 6}V{_TOP + len(rows) * _ROW - 6}" {_DASHED} />')
    return "".join(parts + totals)


def _legend() -> str:
    parts, x = [], _LEFT
    for part, colour in zip(CLUSTER_PARTS, _COLOURS, strict=True):
        parts.append(f'<rect x="{x}" y="8" width="14" height="11" fill="{colour}" />')
        parts.append(f'<text x="{x + 19}" y="18" fill="{_INK}">{part}</text>')
        x += 40 + 7 * len(part)
    return "".join(parts)


def _line_words(memory_bytes: int) -> str:
    return f"dashed: the {format_bytes(memory_bytes)} of a device" if memory_bytes else ""


def _svg(rows: Sequence[_Row], memory_bytes: int, mark: str = "") -> str:
    width = _LEFT + _WIDTH + _RIGHT
    words = "A bar for each row: what the memory of the fullest rank is made of at its peak. The table has the numbers."
    ids = [f' id="{mark}-{part}"' if mark else "" for part in ("svg", "line")]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg"{ids[0]} viewBox="0 0 {width} {_height(len(rows))}" width="{width}" '
        f'style="max-width:100%;height:auto" role="img" aria-label="{words}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff" /><g>{_legend()}<text{ids[1]} x="{_LEFT}" y="38" '
        f'fill="{_NOTE}">{_line_words(memory_bytes)}</text></g><g>{_drawn(rows, memory_bytes)}</g></svg>'
    )


def _table(rows: Sequence[_Row], mark: str = "") -> str:
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in ("", *CLUSTER_PARTS, "peak", "at its peak", "the prediction is")
    )
    body = "".join(f"<tr>{row.cells}</tr>" for row in rows)
    identity = f' id="{mark}-rows"' if mark else ""
    return (
        f'{_STYLE}<div class="course-cluster-table"><table>\n'
        "<caption>Each part at its own largest; the peak is the most at one time</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody{identity}>{body}</tbody>\n</table></div>"
    )


def _rows(plan: ClusterPlan) -> list[_Row]:
    return [_Row.of(point, plan.trust(point)) for point in plan.points]


# The book


@dataclass(frozen=True)
class ClusterFrames:
    """Plans to choose from in a page without a kernel. Made by :func:`cluster_frames`.

    Attributes:
        plans: the plans.
        name: what the ids in the page begin with.
        memory_bytes: a device's memory, which is chosen first; 0 for none.
    """

    plans: tuple[ClusterPlan, ...]
    name: str
    memory_bytes: int

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self.plans))

    def _choices(self) -> tuple[dict[str, list[str]], list[list[str]]]:
        """The settings in which the plans differ, each with its values (models by size), and each plan's values."""
        told = [
            {
                "model": f"{format_count(plan.shape.parameters)} parameters",
                "sequences on a rank": str(plan.parameters["batch"]),
                "tokens in a sequence": str(plan.parameters["length"]),
                "precision": plan.parameters["precision"],
                "checkpointing": "yes" if plan.parameters["checkpointing"] else "no",
                "AdamW": plan.parameters["optimizer"],
                "gradients are views of buckets": "yes" if plan.parameters["gradient_as_bucket_view"] else "no",
                "backend": plan.parameters["backend"],
            }
            for plan in self.plans
        ]
        values = {key: list(dict.fromkeys(one[key] for one in told)) for key in told[0]}
        sizes = {one["model"]: plan.shape.parameters for one, plan in zip(told, self.plans, strict=True)}
        values["model"].sort(key=sizes.__getitem__)
        several = {key: found for key, found in values.items() if len(found) > 1}
        return several, [[one[key] for key in several] for one in told]

    def _repr_html_(self) -> str:
        mark, plan = f"cluster-{self.name}", self.plans[0]
        several, told = self._choices()
        if len({tuple(one) for one in told}) < len(told):
            raise ValueError("two of the plans have the same settings: put their ranks and strategies into one plan")
        rows = _rows(plan)
        shown = [row for row in rows if row.views[0] == rows[0].views[0]]
        selects = [
            _select(f"{mark}-setting-{n}", key, found, found.index(told[0][n]))
            for n, (key, found) in enumerate(several.items())
        ]
        memories = [f"{size} GiB" if size else "none" for size in self._memories()]
        chosen = self._memories().index(self.memory_bytes // GIB)
        selects.append(_select(f"{mark}-bars", "bars", self._views(0)))
        selects.append(_select(f"{mark}-memory", "memory of a device", memories, chosen))
        data = {
            "plans": [
                {"told": one, "views": self._views(n), "rows": [dataclasses.asdict(row) for row in _rows(plan)]}
                for n, (one, plan) in enumerate(zip(told, self.plans, strict=True))
            ],
            "settings": len(several),
            "memories": [[size * GIB, _line_words(size * GIB)] for size in self._memories()],
            "colours": _COLOURS,
        }
        script = _SCRIPT.replace("NAME", json.dumps(mark)).replace("TOO_MUCH", json.dumps(_TOO_MUCH))
        for key, number in (
            ("LEFT", _LEFT),
            ("WIDTH", _WIDTH),
            ("TOP", _TOP),
            ("ROW", _ROW),
            ("BAR", _BAR),
            ("DASHED", _DASHED),
            ("TOTAL", _TOTAL),
        ):
            script = script.replace(f"@{key}", str(number))
        script = script.replace("DATA", json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
        notes = "".join(f"<br>{html.escape(note)}" for note in plan.notes)
        return (
            f'<div id="{mark}"><p id="{mark}-form" hidden>{" ".join(selects)}</p>\n<p id="{mark}-none" hidden>This one '
            "was not computed ahead: choose another, or simulate it in JupyterLab.</p>\n"
            f"{_svg(shown, self.memory_bytes, mark)}\n{_table(shown, mark)}\n"
            f"<p><small>Simulated, on the rank that holds most.{notes}<br>{html.escape(plan.environment.caption)}"
            f"</small></p></div>\n{script}"
        )

    def _memories(self) -> list[int]:
        return sorted({*_MEMORIES, self.memory_bytes // GIB})

    def _views(self, number: int) -> list[str]:
        """What a plan's bars can be: every strategy on so many ranks, then one strategy on every number of ranks."""
        plan = self.plans[number]
        rows = _rows(plan)
        return list(dict.fromkeys(row.views[0] for row in rows)) + (
            list(dict.fromkeys(row.views[1] for row in rows)) if len(plan.ranks) > 1 else []
        )


def _select(identity: str, label: str, values: Sequence[str], chosen: int = 0) -> str:
    options = "".join(
        f'<option value="{n}"{" selected" if n == chosen else ""}>{html.escape(value)}</option>'
        for n, value in enumerate(values)
    )
    return (
        f'<label for="{identity}">{html.escape(label)}: </label>'
        f'<select id="{identity}" style="max-width:100%">{options}</select>'
    )


_SCRIPT = """<script>
(function () {
  var name = NAME, data = DATA;
  var part = function (key) { return document.getElementById(name + "-" + key); };
  if (!part("bars")) { return; }
  var text = function (node) { return node.options[node.selectedIndex].textContent; };
  var find = function () {
    return data.plans.filter(function (plan) {
      return plan.told.every(function (value, n) { return text(part("setting-" + n)) === value; });
    })[0];
  };
  var chosen = function (plan) {
    var view = text(part("bars"));
    return plan.rows.filter(function (row) {
      return row.views.indexOf(view) >= 0;
    });
  };
  var draw = function (rows, memory) {
    var sum = function (row) { return row.bars.reduce(function (a, b) { return a + b; }, 0); };
    var scale = @WIDTH / Math.max.apply(null, [memory].concat(rows.map(sum))), out = [], totals = [];
    rows.forEach(function (row, n) {
      var y = @TOP + n * @ROW, x = @LEFT;
      out.push('<text x="' + (@LEFT - 8) + '" y="' + (y + 15) + '" text-anchor="end" fill="#222">' + row.label
        + "</text>");
      row.bars.forEach(function (size, k) {
        out.push('<rect x="' + x.toFixed(1) + '" y="' + y + '" width="' + (size * scale).toFixed(1)
          + '" height="@BAR" fill="' + data.colours[k] + '"><title>' + row.titles[k] + "</title></rect>");
        x += size * scale;
      });
      totals.push('<text x="' + (x + 6).toFixed(1) + '" y="' + (y + 15) + '" @TOTAL>' + row.peak
        + (memory > 0 && memory < sum(row) ? ", " + TOO_MUCH : "") + "</text>");
    });
    if (memory) {
      out.push('<path d="M' + (@LEFT + memory * scale).toFixed(1) + " " + (@TOP - 6) + "V"
        + (@TOP + rows.length * @ROW - 6) + '" @DASHED />');
    }
    return out.concat(totals).join("");
  };
  var show = function () {
    var plan = find(), svg = part("svg"), memory = data.memories[part("memory").selectedIndex];
    part("none").hidden = Boolean(plan);
    if (!plan) { return; }
    var view = text(part("bars")), box = svg.getAttribute("viewBox").split(" ");
    part("bars").innerHTML = plan.views.map(function (words, n) {
      return '<option value="' + n + '">' + words + "</option>";
    }).join("");
    part("bars").selectedIndex = Math.max(0, plan.views.indexOf(view));
    var rows = chosen(plan);
    box[3] = String(@TOP + rows.length * @ROW + 10);
    svg.setAttribute("viewBox", box.join(" "));
    svg.querySelectorAll(":scope > g")[1].innerHTML = draw(rows, memory[0]);
    part("line").textContent = memory[1];
    part("rows").innerHTML = rows.map(function (row) { return "<tr>" + row.cells + "</tr>"; }).join("");
  };
  Array.prototype.forEach.call(part("form").querySelectorAll("select"), function (node) {
    node.addEventListener("input", show);
  });
  show();
  part("form").hidden = false;
}());
</script>"""


def cluster_frames(
    plans: Sequence[ClusterPlan | Unrecorded] | ClusterPlan | Unrecorded,
    *,
    name: str = "frames",
    memory_bytes: int = 80 * GIB,
) -> ClusterFrames | Unrecorded:
    """Show plans that were computed ahead in a page without a kernel, such as the book. All it needs is in the page.

    A list to choose from appears for each setting in which the plans differ (model, batch, length, precision...), and
    one for strategies and ranks. Where scripts are not allowed, such as on GitHub, the first plan's first number of
    ranks remains.

    Args:
        plans: the plans; no two with the same settings. The first one is shown first.
        name: letters, digits and dashes; two of these on a page need two names.
        memory_bytes: a device's memory, to be drawn as a line at first, in whole GiB; 0 for none.

    Returns:
        An object that shows itself. If a plan is not recorded yet, that which says so.

    Raises:
        ValueError: if there is no plan, the name is none, or the memory is negative.
    """
    given = (plans,) if isinstance(plans, ClusterPlan | Unrecorded) else tuple(plans)
    for plan in given:
        if isinstance(plan, Unrecorded):
            return plan
    plans = tuple(plan for plan in given if isinstance(plan, ClusterPlan))
    if not plans:
        raise ValueError("cluster_frames() needs a plan: pass one, or a list of them")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"name must be small letters, digits and dashes, got {name!r}")
    if memory_bytes < 0:
        raise ValueError(f"memory_bytes is the memory of one device, or 0, got {memory_bytes}")
    return ClusterFrames(plans, name, memory_bytes // GIB * GIB)


# JupyterLab


def cluster_explorer(
    shape: GPTShape | str = "1.3 billion",
    *,
    strategies: Sequence[str] = ("ddp", "zero1", "zero2", "fsdp"),
    ranks: int = 8,
    batch: int = 1,
    length: int | None = None,
) -> Widget:
    """A form for JupyterLab: choose model, strategies, ranks, batch and sequence, and see what a rank needs.

    What was not simulated before is simulated now, in a process of its own; a bar appears as soon as it is known, and a
    new choice ends what is still running for the old one.

    Args:
        shape: the model, or a key of ``SHAPES``.
        strategies: those that are shown first.
        ranks: how many there are first.
        batch: sequences on each rank, first.
        length: tokens of a sequence, first; by default the model's context.

    Returns:
        An ipywidgets box.

    Raises:
        ValueError: if something makes no sense.
    """
    import ipywidgets

    from course_utils.ranks.cluster import NOTES, STRATEGIES, points_of, settings_of

    if isinstance(shape, str) and shape not in SHAPES:
        raise ValueError(f"there is no model {shape!r}; there are: {', '.join(SHAPES)}; or pass a GPTShape")
    shapes = dict(SHAPES)
    first = shape if isinstance(shape, str) else f"{format_count(shape.parameters)}, as given"
    if not isinstance(shape, str):
        shapes = {first: shape, **shapes}
    length = shapes[first].context if length is None else length
    settings_of(shapes[first], strategies=strategies, ranks=ranks, batch=batch, length=length)  # says what is wrong

    def laid(label: str, width: str = "auto") -> dict[str, Any]:
        return {
            "description": label,
            "style": {"description_width": "initial"},
            "layout": ipywidgets.Layout(width=width, max_width="100%", margin="2px 1.4em 2px 0"),
        }

    def choice(label: str, values: Sequence[int], given: int) -> Any:
        options = sorted({*values, given})
        return ipywidgets.Dropdown(options=[(str(value), value) for value in options], value=given, **laid(label))

    knobs = {
        "model": ipywidgets.Dropdown(options=list(shapes), value=first, **laid("parameters")),
        "ranks": choice("ranks", [2**n for n in range(11)], ranks),
        "batch": choice("sequences on a rank", (1, 2, 4, 8, 16, 32), batch),
        "length": choice("tokens in a sequence", (512, 1024, 2048, 4096, 8192), length),
        "precision": ipywidgets.Dropdown(options=("bf16", "fp32"), value="bf16", **laid("precision")),
        "checkpointing": ipywidgets.Checkbox(value=False, indent=False, **laid("checkpointing")),
    }
    shown_strategies = {
        name: ipywidgets.Checkbox(value=name in strategies, indent=False, tooltip=words, **laid(name))
        for name, words in STRATEGIES.items()
    }
    memory = ipywidgets.Dropdown(
        options=[(f"{size} GiB" if size else "none", size * GIB) for size in _MEMORIES],
        value=80 * GIB,
        **laid("memory of a device"),
    )
    shown, message = ipywidgets.HTML(layout=ipywidgets.Layout(max_width="100%")), ipywidgets.HTML()
    known: dict[str, _Row] = {}
    notes = f"<small>{'<br>'.join(map(html.escape, NOTES))}</small>"
    lock = threading.Lock()
    simulating = threading.Lock()  # one at a time: each is a process that needs a core
    now = {"asked": 0}

    def asked() -> list[dict[str, Any]]:
        model = shapes[knobs["model"].value]
        model = dataclasses.replace(model, context=max(model.context, knobs["length"].value))
        return settings_of(
            model,
            strategies=[name for name, box in shown_strategies.items() if box.value],
            **{key: knobs[key].value for key in ("ranks", "batch", "length", "precision", "checkpointing")},
        )

    def key_of(point: dict[str, Any]) -> str:
        return json.dumps(point, sort_keys=True)

    def draw(points: Sequence[dict[str, Any]], end: str = "") -> None:
        rows = [known[key_of(point)] for point in points if key_of(point) in known]
        left = len(points) - len(rows)
        # Room for all of them from the start: what stands below does not move with each bar.
        shown.layout.min_height = f"{_height(len(points)) + 28 * len(points) + 60}px" if left and not end else "0"
        message.value = html.escape(end or (f"simulating, {left} to go …" if left else "")) or "&nbsp;"
        shown.value = f"{_svg(rows, memory.value)}\n{_table(rows)}\n{notes}" if rows else ""

    def work(number: int, points: list[dict[str, Any]]) -> None:
        def wanted() -> bool:
            return number == now["asked"]

        with simulating:
            missing = [point for point in points if key_of(point) not in known]
            try:
                if not wanted():
                    return
                with contextlib.closing(points_of(missing, wanted)) as found:
                    for asked_for, (point, trust) in zip(missing, found, strict=False):
                        with lock:
                            known[key_of(asked_for)] = _Row.of(point, trust)
                            if wanted():
                                draw(points)
            except (RuntimeError, OSError, ValueError) as error:  # ValueError: a damaged record of the measured points
                with lock:
                    if wanted():
                        draw(points, end=f"{error}")

    def simulate(_: Any = None) -> None:
        with lock:
            now["asked"] += 1
            try:
                points = asked()
            except ValueError as error:
                message.value, shown.value, shown.layout.min_height = html.escape(f"{error}."), "", "0"
                return
            draw(points)
            if all(key_of(point) in known for point in points):
                return
            thread = threading.Thread(target=work, args=(now["asked"], points), daemon=True)
        thread.start()

    def redraw(_: Any) -> None:
        with lock, contextlib.suppress(ValueError):
            draw(asked())

    for knob in (*knobs.values(), *shown_strategies.values()):
        knob.observe(simulate, "value")
    memory.observe(redraw, "value")
    simulate()
    wrap = ipywidgets.Layout(flex_flow="row wrap")
    box = ipywidgets.VBox(
        [
            ipywidgets.HBox([*knobs.values(), memory], layout=wrap),
            ipywidgets.HBox(list(shown_strategies.values()), layout=wrap),
            message,
            shown,
        ],
        layout=ipywidgets.Layout(max_width="100%"),
    )
    box.add_class("course-cluster-explorer")
    return box
