"""Wrong answers to the exercises of lesson 01: one for each hint."""


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
    "check_self_time": {"total": total, "all_inside": all_inside, "last_call": last_call},
    "check_gpu_idle": {"counted_twice": counted_twice, "not_clipped": not_clipped, "edges": edges},
    "check_bottlenecks": {
        "busy": [LOADER, "aten::item", "aten::scaled_dot_product_attention"],
        "queue_was_full": [LOADER, "cudaDeviceSynchronize", "clip_gradients"],
        "whole_step": [LOADER, "aten::item", "ProfilerStep#3"],
        "same_place": [LOADER, "aten::item", "cudaStreamSynchronize"],
    },
}
