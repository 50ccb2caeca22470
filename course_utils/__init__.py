"""Helpers of the course: measure PyTorch code honestly, keep the results, show them."""

from course_utils.display.prediction import predict
from course_utils.limits import ceilings
from course_utils.machine import environment, scaled
from course_utils.state import fresh
from course_utils.store import recorded
from course_utils.timing import compare, measure, sweep

__all__ = [
    "ceilings",
    "compare",
    "environment",
    "fresh",
    "measure",
    "predict",
    "recorded",
    "scaled",
    "sweep",
]
