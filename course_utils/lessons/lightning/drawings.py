"""Drawing of the lesson: what the Trainer does around the lines of a step that are yours."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure, styled, titled_figure
from course_utils.show.shapes import BLUE_INK, INK, NOTE, ORANGE_INK

# In the order of lightning/pytorch/loops/training_epoch_loop.py, `advance`: what, whose it is, when it waits for a GPU.
_STEP = [
    ("on several ranks: ask rank 0 whether to stop", "Trainer", "waits"),
    ("next batch", "yours", ""),
    ("batch to the device, with hooks before and after", "Trainer", ""),
    ("on_train_batch_start: callbacks, module, strategy", "Trainer", ""),
    ("training_step", "yours", ""),
    ("zero_grad", "yours", ""),
    ("backward, with hooks before and after", "yours", ""),
    ("clip the gradients, if asked", "Trainer", ""),
    ("optimizer step", "yours", "waits, with a float16 scaler"),
    ("on_train_batch_end: callbacks, among them the bar", "Trainer", "waits, if it shows a logged value"),
    ("collect what self.log was given", "Trainer", "waits, if prog_bar=True"),
    ("hand it to the logger, each 50 steps", "Trainer", "waits"),
]


@styled
def around_your_step() -> ResultFigure:
    """Sketch one training step of the Trainer from top to bottom: yours in colour, the Trainer's in grey."""
    fig = titled_figure("Five lines are yours. The Trainer adds the rest.", 3.6, "From the source, 2.6.6.")
    axes = fig.subplots()
    for row, (what, whose, waits) in enumerate(_STEP):
        is_yours = whose == "yours"
        axes.barh(-row, 1.9, 0.78, left=0, color="#BFD9EA" if is_yours else "#E4E4E4", lw=0)
        axes.text(0.03, -row, what, va="center", fontsize=9, color=BLUE_INK if is_yours else INK)
        axes.text(1.94, -row, waits, va="center", fontsize=9, color=ORANGE_INK)
    axes.text(1.94, 1, "for a GPU:", va="center", fontsize=9, color=NOTE)
    axes.set(xlim=(0, 3.1), ylim=(-len(_STEP) + 0.4, 1.5))
    axes.axis("off")
    lines = [f"{what} ({whose}{', ' + waits if waits else ''})" for what, whose, waits in _STEP]
    fig.alt = "One step from top to bottom, and what in it waits for a GPU: " + "; ".join(lines) + "."
    return fig
