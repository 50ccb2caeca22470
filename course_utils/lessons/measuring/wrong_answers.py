"""Wrong answers to the exercises of the lesson: one for each hint."""

import statistics


def times_a_call(*, waits_before=False, waits_after=False):
    def time_one_call(fn, synchronize, clock):
        if waits_before:
            synchronize()
        start = clock()
        fn()
        if waits_after:
            synchronize()
        return clock() - start

    return time_one_call


def durations(fn, clock, calls):
    seconds = []
    for _ in range(calls):
        start = clock()
        fn()
        seconds.append(clock() - start)
    return seconds


def counts_all(fn, clock):
    return statistics.fmean(durations(fn, clock, 20))


def warms_up_once(fn, clock):
    fn()
    return statistics.fmean(durations(fn, clock, 20))


def mean_after_warm_up(fn, clock):
    durations(fn, clock, 10)
    return statistics.fmean(durations(fn, clock, 20))


def never_warms_up(fn, clock):
    return statistics.median(durations(fn, clock, 50))


def fastest(fn, clock):
    durations(fn, clock, 20)
    return min(durations(fn, clock, 50))


def returns_a_shape(x, w):
    return ((x @ w) @ w).shape


def returns_the_first_product(x, w):
    hidden = x @ w
    hidden @ w
    return hidden


def returns_one_row(x, w):
    return ((x @ w) @ w)[0]


def reads_a_number(x, w):
    return ((x @ w) @ w).sum().item()


WRONG = {
    "check_missing_wait": {
        "no_wait": times_a_call(),
        "waits_too_early": times_a_call(waits_before=True),
        "leftovers": times_a_call(waits_after=True),
    },
    "check_first_call": {
        "counts_first_calls": counts_all,
        "one_warm_up": warms_up_once,
        "outvoted": never_warms_up,
        "mean": mean_after_warm_up,
        "fastest": fastest,
    },
    "check_dead_result": {
        "all_dead": returns_a_shape,
        "half_dead": returns_the_first_product,
        "part_dead": returns_one_row,
        "reads_value": reads_a_number,
    },
}
