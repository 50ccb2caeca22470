"""Wrong answers to the exercise of `planning_a_cluster`, besides the formulas that its check foresees."""

from course_utils.lessons.planning_a_cluster.checks import WAYS


def never_none(parameters, own, memory, foreach):
    return WAYS[None](parameters, own if own < memory else 0, memory, foreach)


WRONG = {"never_none": never_none}
