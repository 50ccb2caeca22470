"""Wrong answers to the exercises of lesson 00: one for each hint."""

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


def fastest(fn, clock):
    durations(fn, clock, 10)
    return min(durations(fn, clock, 50))


def writes_once(buffers):
    """Times the first write into each of two buffers."""

    def relative_cost(allocate, write_a, write_b, clock):
        first, second = buffers(allocate)
        start = clock()
        write_a(first)
        between = clock()
        write_b(second)
        return (clock() - between) / (between - start)

    return relative_cost


def allocates_each_time(allocate, write_a, write_b, clock):
    start = clock()
    write_a(allocate())
    between = clock()
    write_b(allocate())
    return (clock() - between) / (between - start)


def upside_down(allocate, write_a, write_b, clock):
    buffer = allocate()
    write_a(buffer)
    start = clock()
    write_a(buffer)
    between = clock()
    write_b(buffer)
    return (between - start) / (clock() - between)


def returns_a_shape(x, w):
    return ((x @ w) @ w).shape


def returns_the_first_product(x, w):
    hidden = x @ w
    hidden @ w
    return hidden


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
        "mean": mean_after_warm_up,
        "fastest": fastest,
    },
    "check_first_touch": {
        "first_pays": writes_once(lambda allocate: [allocate()] * 2),
        "both_pay": writes_once(lambda allocate: (allocate(), allocate())),
        "allocates_inside": allocates_each_time,
        "upside_down": upside_down,
    },
    "check_dead_result": {
        "all_dead": returns_a_shape,
        "half_dead": returns_the_first_product,
        "reads_value": reads_a_number,
    },
}
