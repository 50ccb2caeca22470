"""A snapshot drawn: what was reserved and what was in use, over time."""

from __future__ import annotations

from matplotlib.figure import Figure

from course_utils.show.canvas import legend, styled, titled_figure
from course_utils.show.colours import BLUE, ORANGE
from course_utils.show.formats import axis_unit, format_bytes
from own_program.snapshots.history import DeviceHistory

_IN_USE, _RESERVED = BLUE, ORANGE


@styled
def timeline_figure(device: DeviceHistory) -> Figure:
    """Draw a device's memory over the seconds of a recording, or over its entries where no times are recorded."""
    most = max(device.history.reserved_bytes)
    scale, unit = axis_unit("bytes", most)
    times = device.history.times_us
    across = [time / 1e6 for time in times] if times[-1] else list(range(len(times)))
    fig = titled_figure(f"GPU {device.device}: memory in use and reserved", 2.6)
    axes = fig.subplots()
    used = axes.fill_between(across, [n / scale for n in device.allocated_bytes], step="post", color=_IN_USE, alpha=0.6)
    (line,) = axes.step(across, [n / scale for n in device.history.reserved_bytes], where="post", color=_RESERVED)
    axes.set(xlabel="seconds" if times[-1] else "entries of the history", ylabel=unit, ylim=(0, None))
    legend(fig, [used, line], ["in use by tensors", "reserved"], 2)
    peak = format_bytes(device.allocated_bytes[device.peak])
    fig.alt = f"Memory of GPU {device.device}: up to {peak} in use, and {format_bytes(most)} reserved."
    return fig
