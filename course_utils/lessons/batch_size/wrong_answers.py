"""Wrong answers to the exercises of the lesson: one for each hint."""

import math


def line(peaks):
    (small, low), (large, high) = sorted(peaks.items())
    per_sample = (high - low) / (large - small)
    return per_sample, low - small * per_sample


def without_fixed_part(peaks, limit):
    return int(limit / line(peaks)[0])


def exactly(peaks, limit):
    per_sample, fixed = line(peaks)
    return (limit - fixed) / per_sample


def without_the_gap(peaks, limit):
    (small, low), (_, high) = sorted(peaks.items())
    per_sample = high - low
    return int((limit - (low - small * per_sample)) / per_sample)


WRONG = {
    "check_largest_batch": {
        "in_proportion": lambda peaks, limit: limit * max(peaks) // peaks[max(peaks)],
        "no_fixed_part": without_fixed_part,
        "no_gap": without_the_gap,
        "below": lambda peaks, limit: int(exactly(peaks, limit - 1)),
        "rounds": lambda peaks, limit: round(exactly(peaks, limit)),
        "rounds_up": lambda peaks, limit: math.ceil(exactly(peaks, limit)),
        "not_whole": exactly,
    },
    "check_fastest": {
        "by_speed": lambda speeds, samples: max(speeds, key=speeds.get),
        "by_samples": lambda speeds, samples: min(samples, key=samples.get),
        "by_steps": lambda speeds, samples: min(samples, key=lambda batch: samples[batch] / batch),
        "product": lambda speeds, samples: min(samples, key=lambda batch: samples[batch] * speeds[batch]),
        "upside_down": lambda speeds, samples: max(speeds, key=lambda batch: samples[batch] / speeds[batch]),
    },
}
