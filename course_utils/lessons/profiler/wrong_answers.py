"""Wrong answers to the exercises of the lesson: one for each hint."""


def length(event):
    return event[2] - event[1]


def inside(event, events):
    return [other for other in events if other != event and event[1] <= other[1] and other[2] <= event[2]]


def total(events):
    times = {}
    for event in events:
        times[event[0]] = times.get(event[0], 0) + length(event)
    return times


def all_inside(events):
    times = {}
    for event in events:
        own = length(event) - sum(length(other) for other in inside(event, events))
        times[event[0]] = times.get(event[0], 0) + own
    return times


def same_span(events):
    def strictly_inside(outer):
        return [e for e in events if outer[1] <= e[1] and e[2] <= outer[2] and e[1:] != outer[1:]]

    times = {}
    for event in events:
        deeper = [other for each in strictly_inside(event) for other in strictly_inside(each)]
        own = length(event) - sum(length(other) for other in strictly_inside(event) if other not in deeper)
        times[event[0]] = times.get(event[0], 0) + own
    return times


def last_call(events):
    times = {}
    for event in events:
        children = [
            each for each in inside(event, events) if not any(each in inside(o, events) for o in inside(event, events))
        ]
        times[event[0]] = length(event) - sum(map(length, children))
    return times


def counted_twice(kernels, start, end):
    return end - start - sum(min(last, end) - max(first, start) for first, last in kernels)


def not_clipped(kernels, start, end):
    busy, until = 0, -1e9
    for first, last in sorted(kernels):
        busy += max(0, last - max(first, until))
        until = max(until, last)
    return end - start - busy


def edges(kernels, start, end):
    idle, until = 0, None
    for first, last in sorted(kernels):
        if until is not None:
            idle += max(0, first - until)
        until = last if until is None else max(until, last)
    return idle


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

WRONG = {
    "check_self_time": {"total": total, "all_inside": all_inside, "last_call": last_call, "same_span": same_span},
    "check_gpu_idle": {"counted_twice": counted_twice, "not_clipped": not_clipped, "edges": edges},
    "check_bottlenecks": {
        "before_the_gap": [LOADER, "aten::item", "clip_gradients"],
        "queue_was_full": [LOADER, "cudaEventSynchronize", "clip_gradients"],
        "busy": [LOADER, "print", "backward"],
        "whole_step": [LOADER, "print", "ProfilerStep#3"],
    },
}
