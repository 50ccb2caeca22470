"""Drawing of the lesson: which tensors of a training step have 16 bits, and which have 32."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE, ORANGE_INK, PALE_BLUE, Pen


def mixed_precision_step() -> ResultFigure:
    """Draw one training step under autocast: fp32 weights, 16-bit products, and what a gradient scaler does."""
    width, height = 8.0, 4.7
    pen = Pen(width, height)
    upper, lower, tall = 2.72, 0.52, 0.8  # the boxes' lower edges, and their height
    for y, h in ((2.55, 2.03), (0.12, 2.28)):
        pen.area(0.12, y, 7.76, h)
    names = ((4.36, "32 bits"), (0.3, "16 bits, only during forward and backward"))
    for y, name in names:
        pen.write(0.24, y, name, size=10.5, weight="bold")

    for x, w, text in ((0.3, 1.5, "weights"), (2.45, 1.5, "loss"), (4.45, 1.5, "gradients"), (6.5, 1.24, "moments")):
        pen.box(x, upper, w, tall, text)
    for x, text in ((0.3, "weights,\ncast"), (2.45, "products,\nactivations"), (4.45, "gradients")):
        pen.box(x, lower, 1.5, tall, text, PALE_BLUE)

    bottom, top, middle = upper - 0.05, lower + tall + 0.04, 2.0
    pen.arrow((1.05, bottom), (1.05, top), BLUE)
    pen.write(1.17, middle, "autocast: once\nfor each forward", BLUE_INK)
    pen.arrow((1.84, lower + tall / 2), (2.42, lower + tall / 2), BLUE)
    pen.arrow((3.2, top), (3.2, bottom), BLUE)
    pen.write(3.1, 1.62, "the loss; on CUDA", BLUE_INK, ha="right")
    pen.write(3.1, 1.42, "softmax, norms", BLUE_INK, ha="right")
    # The way back, dashed: the backward pass.
    pen.arrow((3.85, bottom), (4.85, top), ORANGE, "--")
    pen.write(3.86, 1.62, "loss x scale,\nbackward", ORANGE_INK, ha="center")
    pen.arrow((5.5, top), (5.5, bottom), ORANGE, "--")
    pen.write(5.62, middle, "cast back, 1 / scale;", ORANGE_INK)
    pen.write(5.62, middle - 0.2, "a step with inf or NaN", ORANGE_INK)
    pen.write(5.62, middle - 0.4, "is left out", ORANGE_INK)
    pen.arrow((5.99, upper + tall / 2), (6.46, upper + tall / 2), ORANGE, "--")
    # The optimizer's step goes back to the weights, over the top.
    over = upper + tall + 0.22
    pen.ax.plot([7.12, 7.12, 1.05], [upper + tall + 0.04, over, over], color=EDGE, lw=2)
    pen.arrow((1.05, over), (1.05, upper + tall + 0.02), EDGE, width=2)
    words = "optimizer: small steps, added to weights that have the bits for them"
    pen.write(7.12, over + 0.06, words, NOTE, va="bottom", ha="right")
    return pen.described(
        "One training step. Weights, loss, gradients and the optimizer's moments have 32 bits. Autocast casts the "
        "weights to 16 bits once for each forward pass; products and activations have 16 bits, the loss 32, on CUDA "
        "softmax and norms, too. The loss is multiplied by a scale before the backward pass, whose gradients have 16 "
        "bits. They are cast back and divided by the scale; a step with inf or NaN is left out. The optimizer adds "
        "small steps to the 32-bit weights."
    )
