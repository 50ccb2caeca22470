"""The caching allocator step by step: with knobs for every option in JupyterLab, and as frames in the book.

Both show the same drawing, inline SVG that needs nothing from outside.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_utils.memory.allocator import (
    DEFAULT_LARGE_SEGMENT_BYTES,
    AllocatorOptions,
    AllocatorRun,
    Event,
    options_of,
    simulate_allocator,
)
from course_utils.memory.allocator_figures import LOOKS, MIB, WORDS, rows_of
from course_utils.show.formats import format_bytes

if TYPE_CHECKING:
    from ipywidgets import Widget

_LEFT, _WIDTH, _ROW, _BOX = 180, 500, 26, 19
_CURVE_TOP, _CURVE_HEIGHT = 56, 74
_MOST_ROWS = 12
_INK, _NOTE, _LINE, _RESERVED = "#222222", "#555555", "#BBBBBB", "#D55E00"
# The looks of blocks, once instead of at each of them: frames stay small.
_STYLE = "".join(
    f".allocator-{state[:2]}{{fill:{look[0]};stroke:#444;stroke-width:.8{dashes}}}"
    for (state, look), dashes in zip(LOOKS.items(), ("", "", ";stroke-dasharray:3 2"), strict=True)
)
_STYLE += ".allocator-now{stroke:#000;stroke-width:2.5}"
# A letter of the labels is about this wide.
_LETTER = 6.6
# More frames than this, over all cases together, make a page slow.
MOST_FRAMES = 240
# Below 1, which PyTorch refuses.
MOST_THRESHOLD = math.nextafter(1, 0)


@dataclass(frozen=True)
class _Scale:
    """What stays the same from frame to frame, so that a drawing does not jump."""

    bytes_of: Mapping[str, int]
    rows_of: Mapping[str, int]
    most: int

    @property
    def height(self) -> int:
        rows = sum(max(1, min(count, _MOST_ROWS)) for count in self.rows_of.values())
        return _CURVE_TOP + _CURVE_HEIGHT + 34 + rows * _ROW + 26 * len(self.rows_of)


def _scale(run: AllocatorRun, states: Iterable[int]) -> _Scale:
    sizes, counts = {"small": 0, "large": 0}, {"small": 0, "large": 0}
    for after in states:
        state = run.state(after)
        for pool in sizes:
            rows = rows_of(state, pool)
            counts[pool] = max(counts[pool], len(rows))
            for _, segments in rows:
                sizes[pool] = max(sizes[pool], *(int(offset) + segment.bytes for offset, segment in segments))
    used = [pool for pool in ("small", "large") if counts[pool]] or ["large"]
    limits = [limit for limit in (run.cap_bytes, run.device_bytes) if limit is not None]
    most = max(run.peak_reserved_bytes, run.start.reserved_bytes, *run.allocated_bytes, 1)
    if limits and min(limits) <= 2 * most:
        most = max(most, min(limits))
    return _Scale({pool: max(sizes[pool], 1) for pool in used}, {pool: counts[pool] for pool in used}, most)


def _text(x: float, y: float, words: str, **attributes: str) -> str:
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:g}" y="{y:g}"{given}>{html.escape(words)}</text>'


def _curves(run: AllocatorRun, scale: _Scale) -> str:
    """Reserved and allocated memory over all events: the same in every frame."""
    bottom, step = _CURVE_TOP + _CURVE_HEIGHT, _WIDTH / max(len(run), 1)

    def path(values: list[int], closed: bool) -> str:
        heights = [bottom - _CURVE_HEIGHT * value / scale.most for value in values]
        parts = [f"M{_LEFT:g} {bottom if closed else heights[0]:.1f}"]
        if closed:
            parts.append(f"V{heights[0]:.1f}")
        parts += [f"H{_LEFT + step * n:.1f}V{y:.1f}" for n, y in enumerate(heights) if n]
        return "".join(parts) + (f"V{bottom}z" if closed else "")

    reserved = path([run.start.reserved_bytes, *run.reserved_bytes], False)
    allocated = path([run.start.allocated_bytes, *run.allocated_bytes], True)
    limits = [limit for limit in (run.cap_bytes, run.device_bytes) if limit is not None]
    line = ""
    if limits and min(limits) <= scale.most:
        y = bottom - _CURVE_HEIGHT * min(limits) / scale.most
        line = f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="#000" stroke-dasharray="2 3" />' + _text(
            _LEFT - 6, y + 4, f"limit {format_bytes(min(limits))}", text_anchor="end", fill=_NOTE
        )
    return (
        f'<path d="{allocated}" fill="#0072B2" fill-opacity="0.35" stroke="none" />'
        f'<path d="{reserved}" fill="none" stroke="{_RESERVED}" stroke-width="2" />{line}'
        f'<path d="M{_LEFT} {bottom}h{_WIDTH}" stroke="{_LINE}" />'
        + _text(_LEFT - 6, bottom + 4, "0", text_anchor="end", fill=_NOTE)
        + _text(_LEFT, _CURVE_TOP - 12, "reserved (line) and allocated (area) over the events", fill=_NOTE)
    )


def _frame(run: AllocatorRun, after: int, scale: _Scale) -> str:
    """What changes from event to event: the cursor and the blocks."""
    state = run.state(after)
    touched = getattr(run.events[after - 1], "id", None) if after else None
    x = _LEFT + _WIDTH * after / max(len(run), 1)
    parts = [
        f'<path d="M{x:.1f} {_CURVE_TOP - 4}v{_CURVE_HEIGHT + 8}" stroke="{_INK}" stroke-width="1.5" />',
    ]
    y = _CURVE_TOP + _CURVE_HEIGHT + 34
    for pool, most in scale.rows_of.items():
        rows = rows_of(state, pool)
        left_out = len(rows) - _MOST_ROWS
        more = f", {left_out} more not drawn" if left_out > 0 else ""
        whole = format_bytes(scale.bytes_of[pool])
        parts.append(_text(_LEFT, y - 5, f"{pool} pool (the width is {whole}){more}", fill=_NOTE))
        for number, (label, segments) in enumerate(rows[:_MOST_ROWS]):
            top = y + number * _ROW
            parts.append(_text(_LEFT - 6, top + 14, label, text_anchor="end", fill=_INK))
            last = max(offset + segment.bytes for offset, segment in segments)
            if sum(segment.bytes for _, segment in segments) < last:
                width = _WIDTH * last / scale.bytes_of[pool]
                parts.append(
                    f'<path d="M{_LEFT} {top + _BOX / 2:g}h{width:.1f}" stroke="{_NOTE}" stroke-dasharray="1 3" />'
                )
            for offset, segment in segments:
                for block in segment.blocks:
                    begin = _LEFT + _WIDTH * (offset + block.address - segment.address) / scale.bytes_of[pool]
                    width = _WIDTH * block.bytes / scale.bytes_of[pool]
                    parts.append(_block(begin, top, width, block, block.id is not None and block.id == touched))
        y += max(1, min(most, _MOST_ROWS)) * _ROW + 26
    return "".join(parts)


def _block(x: float, y: float, width: float, block: Any, touched: bool) -> str:
    kind = f"allocator-{block.state[:2]}" + (" allocator-now" if touched else "")
    parts = [
        f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(width, 0.6):.1f}" height="{_BOX}">'
        f"<title>{html.escape(_block_words(block))}</title></rect>"
    ]
    if block.state == "awaiting free":
        lines = "".join(f"M{x + k:.1f} {y + _BOX}l6 -{_BOX}" for k in range(2, max(2, int(width) - 6), 8))
        parts.append(f'<path d="{lines}" stroke="#000" stroke-opacity="0.45" />' if lines else "")
    label = "" if block.id is None else str(block.id)
    if label and len(label) * _LETTER + 6 < width:
        ink = LOOKS[block.state][2]
        parts.append(_text(round(x + width / 2, 1), y + 14, label, text_anchor="middle", fill=ink))
    return "".join(parts)


def _block_words(block: Any) -> str:
    size = format_bytes(block.bytes)
    if block.state == "free":
        return f"{size}, cached"
    return f"{block.id}: {size}, asked for {format_bytes(block.requested_bytes)}, {WORDS[block.state]}"


def _legend() -> str:
    parts, x = [], 8
    for state, words in WORDS.items():
        parts.append(f'<rect class="allocator-{state[:2]}" x="{x}" y="2" width="18" height="11" />')
        parts.append(_text(x + 24, 12, words, fill=_INK))
        x += 44 + int(len(words) * _LETTER)
    return "".join(parts)


def _svg(height: int, fixed: str, moving: str, mark: str = "") -> str:
    width = _LEFT + _WIDTH + 14
    words = (
        "Above, reserved and allocated memory over the events. Below, a row for each segment with its blocks: blue is "
        "allocated, orange waits for another stream, white with a dashed edge is cached."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg"{mark} viewBox="0 0 {width} {height}" width="{width}" '
        f'style="max-width:100%;height:auto" role="img" aria-label="{words}" font-family="sans-serif" font-size="12">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff" /><g>{fixed}</g><g>{moving}</g></svg>'
    )


def _line(run: AllocatorRun, after: int) -> str:
    """Event, what it did, and the numbers after it, as text."""
    if after == 0:
        return "Before the first event."
    words = run.words(after - 1)
    return f"Event {after} of {len(run)}: {words}"


def _numbers(run: AllocatorRun, after: int) -> str:
    index = after - 1
    reserved = run.reserved_bytes[index] if after else run.start.reserved_bytes
    allocated = run.allocated_bytes[index] if after else run.start.allocated_bytes
    calls = (run.device_allocs[index], run.device_frees[index], run.retries[index]) if after else (0, 0, 0)
    return (
        f"reserved {format_bytes(reserved)}, allocated {format_bytes(allocated)}, cached or waiting "
        f"{format_bytes(reserved - allocated)}; calls that take memory from the device: {calls[0]}, that give it back: "
        f"{calls[1]}, retries: {calls[2]}"
    )


# The book


@dataclass(frozen=True)
class AllocatorFrames:
    """Runs of the simulated allocator, to step through in a page without a kernel. Made by :func:`allocator_frames`.

    Attributes:
        runs: the runs, by what they are called.
        name: what the ids in the page begin with.
    """

    runs: Mapping[str, AllocatorRun]
    name: str

    def __repr__(self) -> str:
        return "\n\n".join(f"{label}\n{run!r}" for label, run in self.runs.items())

    def _repr_html_(self) -> str:
        cases = []
        for run in self.runs.values():
            moments = range(len(run) + 1)
            scale = _scale(run, moments)
            cases.append(
                {
                    "height": scale.height,
                    "fixed": _legend() + _curves(run, scale),
                    "frames": [
                        [_frame(run, after, scale), _line(run, after), _numbers(run, after)] for after in moments
                    ],
                    "end": "" if run.out_of_memory is None else run.out_of_memory.message,
                }
            )
        first = cases[0]
        last = len(first["frames"]) - 1
        mark = f"allocator-{self.name}"
        options = "".join(f'<option value="{n}">{html.escape(label)}</option>' for n, label in enumerate(self.runs))
        data = json.dumps(cases, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        script = _SCRIPT.replace("NAME", json.dumps(mark)).replace("DATA", data)
        choice = (
            f'<label for="{mark}-case">Allocator: </label><select id="{mark}-case" style="max-width:100%">{options}'
            "</select> "
        )
        signs = (("back", "one event back", "◀"), ("next", "one event on", "▶"), ("play", "play", "play"))
        buttons = "".join(
            f'<button type="button" id="{mark}-{key}" aria-label="{said}">{sign}</button> ' for key, said, sign in signs
        )
        drawing, words, numbers = first["frames"][-1]
        picture = _svg(first["height"], first["fixed"], drawing, f' id="{mark}-svg"')
        return (
            f'<div id="{mark}"><p id="{mark}-form" hidden>{choice}{buttons}'
            f'<input type="range" id="{mark}-at" min="0" max="{last}" value="{last}" step="1" aria-label="event" '
            'style="vertical-align:middle;width:16em;max-width:100%"></p>\n'
            f'<p id="{mark}-words" aria-live="polite" style="min-height:3em">{html.escape(words)}</p>\n{picture}\n'
            f'<p id="{mark}-numbers">{html.escape(numbers)}</p>\n'
            f'<p id="{mark}-end">{html.escape(first["end"])}</p></div>\n{script}'
        )


_SCRIPT = """<script>
(function () {
  var name = NAME, cases = DATA;
  var part = function (key) { return document.getElementById(name + "-" + key); };
  if (!part("at")) { return; }
  var svg = part("svg"), timer = null, top = svg.querySelectorAll(":scope > g");
  var current = function () { return cases[Number(part("case").value)]; };
  var show = function () {
    var frame = current().frames[Number(part("at").value)];
    top[1].innerHTML = frame[0];
    part("words").textContent = frame[1];
    part("numbers").textContent = frame[2];
    part("end").textContent = Number(part("at").value) === current().frames.length - 1 ? current().end : "";
  };
  var choose = function () {
    var box = svg.getAttribute("viewBox").split(" ");
    box[3] = String(current().height);
    svg.setAttribute("viewBox", box.join(" "));
    top[0].innerHTML = current().fixed;
    part("at").max = String(current().frames.length - 1);
    show();
  };
  var stop = function () { clearInterval(timer); timer = null; part("play").textContent = "play"; };
  var step = function (by) {
    var at = part("at"), next = Number(at.value) + by;
    if (next < 0 || next > Number(at.max)) { stop(); return; }
    at.value = String(next);
    show();
  };
  part("at").addEventListener("input", function () { stop(); show(); });
  part("case").addEventListener("input", function () { stop(); choose(); });
  part("back").addEventListener("click", function () { stop(); step(-1); });
  part("next").addEventListener("click", function () { stop(); step(1); });
  part("play").addEventListener("click", function () {
    if (timer) { stop(); return; }
    if (part("at").value === part("at").max) { part("at").value = "0"; show(); }
    part("play").textContent = "pause";
    timer = setInterval(function () { step(1); }, 700);
  });
  part("at").value = "0";
  show();
  part("form").hidden = false;
}());
</script>"""


def allocator_frames(runs: Mapping[str, AllocatorRun] | AllocatorRun, *, name: str = "frames") -> AllocatorFrames:
    """Show runs event by event in a page without a kernel, such as the book. All that it needs is in the page.

    Where scripts are not allowed, such as on GitHub, the last moment of the first run remains, in words and drawn.

    Args:
        runs: the runs to choose from, by what they are called; or one run.
        name: letters, digits and dashes; two of these on a page need two names.

    Returns:
        An object that shows itself.

    Raises:
        ValueError: if there is no run, the name is none, or there are more events than a page can hold.

    Example:
        >>> from course_utils.memory.allocator import Allocate, simulate_allocator
        >>> run = simulate_allocator([Allocate("a", 3 * 2**20)])
        >>> "<svg" in allocator_frames({"default": run})._repr_html_()
        True
    """
    if isinstance(runs, AllocatorRun):
        runs = {run_label(runs): runs}
    if not runs:
        raise ValueError("allocator_frames() needs a run: pass one, or a dictionary of them")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"name must be small letters, digits and dashes, got {name!r}")
    frames = sum(len(run) + 1 for run in runs.values())
    if frames > MOST_FRAMES:
        raise ValueError(
            f"{frames} frames are too many for a page: show at most {MOST_FRAMES} events, all runs together"
        )
    return AllocatorFrames(dict(runs), name)


def run_label(run: AllocatorRun) -> str:
    """A run's options in a few words."""
    return run.options.text or "default options"


# JupyterLab


def allocator_explorer(
    events: Iterable[Event],
    *,
    options: AllocatorOptions | str | None = None,
    cap_bytes: int | None = None,
    device_bytes: int | None = None,
) -> Widget:
    """A form for JupyterLab: step through events, play, scrub, and turn every knob of the allocator.

    Args:
        events: as for :func:`course_utils.simulate_allocator`.
        options: what the knobs show first.
        cap_bytes: the first limit; the knob counts in MiB and rounds up. By default what per_process_memory_fraction
            allows of the device.
        device_bytes: the device's memory; fixed.

    Returns:
        An ipywidgets box.

    Raises:
        ValueError: if an event or an option makes no sense.

    Example:
        >>> from course_utils.memory.allocator import Allocate
        >>> type(allocator_explorer([Allocate("a", 3 * 2**20)])).__name__
        'VBox'
    """
    import ipywidgets

    events = tuple(events)
    options = options_of(options)
    first = simulate_allocator(events, options=options, cap_bytes=cap_bytes, device_bytes=device_bytes)
    # The share of the device that the options may set is a limit like any other: its knob says so.
    knobs = _knobs(ipywidgets, options, first.cap_bytes)
    play = ipywidgets.Play(value=0, min=0, max=len(events), step=1, interval=600)
    at = ipywidgets.IntSlider(
        value=0, min=0, max=len(events), description="event", layout=ipywidgets.Layout(width="32em", max_width="100%")
    )
    ipywidgets.jslink((play, "value"), (at, "value"))
    back, on = (
        ipywidgets.Button(description=sign, tooltip=words, layout=ipywidgets.Layout(width="3.5em"))
        for sign, words in (("◀", "one event back"), ("▶", "one event on"))
    )
    shown, message = ipywidgets.HTML(), ipywidgets.HTML()
    now: dict[str, Any] = {}

    def show(_: Any = None) -> None:
        run, after = now["run"], min(at.value, len(now["run"]))
        drawing = _svg(now["scale"].height, now["fixed"], _frame(run, after, now["scale"]))
        failed = run.out_of_memory if after == len(run) else None
        end = "" if failed is None else f"<p>{html.escape(failed.message)}</p>"
        shown.value = (
            f'<p style="min-height:3em">{html.escape(_line(run, after))}</p>{drawing}'
            f"<p>{html.escape(_numbers(run, after))}</p>{end}"
        )

    def simulate(_: Any = None) -> None:
        try:
            chosen, cap = _settings_of(knobs)
            run = simulate_allocator(events, options=chosen, cap_bytes=cap, device_bytes=device_bytes)
        except ValueError as error:
            message.value = html.escape(f"{error}. Still shown: {now['run'].options.text or '(defaults)'}.")
            return
        scale = _scale(run, _moments(len(run)))
        now.update(run=run, scale=scale, fixed=_legend() + _curves(run, scale))
        message.value = f"<code>PYTORCH_ALLOC_CONF={html.escape(chosen.text) or '(defaults)'}</code>"
        show()

    def step(by: int) -> Callable[[Any], None]:
        def move(_: Any) -> None:
            at.value = max(at.min, min(at.max, at.value + by))

        return move

    for knob in knobs.values():
        knob.observe(simulate, "value")
    at.observe(show, "value")
    back.on_click(step(-1))
    on.on_click(step(1))
    simulate()
    wrap = ipywidgets.Layout(flex_flow="row wrap")
    box = ipywidgets.VBox(
        [
            ipywidgets.HBox(list(knobs.values()), layout=wrap),
            message,
            ipywidgets.HBox([play, back, on, at], layout=wrap),
            shown,
        ],
        layout=ipywidgets.Layout(max_width="100%"),
    )
    box.add_class("course-allocator-explorer")
    return box


def _moments(count: int) -> range:
    """Moments to take the drawing's scale from: all of a short run, some of a long one."""
    return range(0, count + 1, max(1, count // 300))


def _choices(values: Iterable[int], given: int, none: str = "none") -> list[tuple[str, int]]:
    return [(none if value == 0 else f"{value}", value) for value in dict.fromkeys((*values, given))]


def _knobs(ipywidgets: Any, options: AllocatorOptions, cap_bytes: int | None) -> dict[str, Any]:
    """One widget for each option, with PyTorch's names."""

    def laid(label: str) -> dict[str, Any]:
        return {
            "description": label,
            "style": {"description_width": "initial"},
            "layout": ipywidgets.Layout(width="auto", max_width="100%", margin="2px 1.4em 2px 0"),
        }

    def mebibytes(label: str, values: Iterable[int], given: int | None, none: str = "none") -> Any:
        given = 0 if given is None else given // MIB
        return ipywidgets.Dropdown(options=_choices(values, given, none), value=given, **laid(label))

    divisions = options.roundup_power2_divisions
    per_size = len(set(divisions)) > 1
    rounding: list[tuple[str, Any]] = _choices((0, 1, 2, 4, 8, 16), 0 if per_size else divisions[0])
    if per_size:
        rounding.append(("as given", divisions))
    return {
        "expandable_segments": ipywidgets.Checkbox(
            value=options.expandable_segments, indent=False, **laid("expandable_segments")
        ),
        "max_split_size_mb": mebibytes("max_split_size_mb", (0, 20, 32, 64, 128), options.max_split_size_bytes),
        "max_non_split_rounding_mb": mebibytes(
            "max_non_split_rounding_mb", (0, 20, 32, 64), options.max_non_split_rounding_bytes, "default"
        ),
        "roundup_power2_divisions": ipywidgets.Dropdown(
            options=rounding, value=divisions if per_size else divisions[0], **laid("roundup_power2_divisions")
        ),
        "garbage_collection_threshold": ipywidgets.BoundedFloatText(
            value=options.garbage_collection_threshold,
            min=0,
            max=MOST_THRESHOLD,
            step=0.1,
            **(
                laid("garbage_collection_threshold")
                | {"layout": ipywidgets.Layout(width="19em", margin="2px 1.4em 2px 0")}
            ),
        ),
        "large_segment_size_mb": mebibytes(
            "large_segment_size_mb", (12, DEFAULT_LARGE_SEGMENT_BYTES // MIB, 32, 64), options.large_segment_bytes
        ),
        "cap": ipywidgets.BoundedIntText(
            value=0 if cap_bytes is None else max(1, -(-cap_bytes // MIB)),
            min=0,
            max=max(2**20, 0 if cap_bytes is None else -(-cap_bytes // MIB)),
            step=10,
            **(laid("limit in MiB (0: none)") | {"layout": ipywidgets.Layout(width="16em")}),
        ),
    }


def _settings_of(knobs: Mapping[str, Any]) -> tuple[AllocatorOptions, int | None]:
    largest = knobs["max_split_size_mb"].value
    divisions = knobs["roundup_power2_divisions"].value
    options = AllocatorOptions(
        expandable_segments=knobs["expandable_segments"].value,
        max_split_size_bytes=largest * MIB or None,
        max_non_split_rounding_bytes=knobs["max_non_split_rounding_mb"].value * MIB or None,
        roundup_power2_divisions=divisions,
        garbage_collection_threshold=knobs["garbage_collection_threshold"].value,
        large_segment_bytes=knobs["large_segment_size_mb"].value * MIB,
    )
    return options, knobs["cap"].value * MIB or None
