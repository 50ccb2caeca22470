"""Wrong answers to the exercise of `activation_checkpointing`: one for each hint."""

import math


def exactly(peak, with_one, with_all, layers, limit):
    return (peak - limit) / (peak - with_one)


def floored(count):
    return lambda peak, one, every, layers, limit: -1 if limit < every else count(peak, one, every, layers, limit)


WRONG = {
    "check_count": {
        "no_floor": lambda *model: max(0, math.ceil(exactly(*model))),
        "negative": floored(lambda *model: math.ceil(exactly(*model))),
        "rounds_down": floored(lambda *model: max(0, int(exactly(*model)))),
        "not_whole": floored(lambda *model: max(0, exactly(*model))),
        "one_more": floored(lambda *model: max(0, math.floor(exactly(*model)) + 1)),
        "all": floored(lambda peak, one, every, layers, limit: layers if peak > limit else 0),
        "in_proportion": floored(
            lambda peak, one, every, layers, limit: max(0, math.ceil((peak - limit) / (peak / layers)))
        ),
    },
}
