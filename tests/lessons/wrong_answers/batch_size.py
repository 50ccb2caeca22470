"""Wrong answers to the exercise of `batch_size`: one for each hint."""


def fitting(needed, peaks, limit):
    (small, low), (large, high) = sorted(peaks.items())
    return [batch for batch in needed if low + (batch - small) * (high - low) / (large - small) <= limit]


def in_proportion(needed, per_s, peaks, limit):
    fits = [batch for batch in needed if peaks[max(peaks)] * batch / max(peaks) <= limit]
    return min(fits, key=lambda batch: needed[batch] / per_s[batch])


WRONG = {
    "check_first": {
        "largest": lambda needed, per_s, peaks, limit: max(fitting(needed, peaks, limit)),
        "by_speed": lambda needed, per_s, peaks, limit: max(fitting(needed, peaks, limit), key=per_s.get),
        "by_samples": lambda needed, per_s, peaks, limit: min(fitting(needed, peaks, limit), key=needed.get),
        "too_large": lambda needed, per_s, peaks, limit: min(needed, key=lambda batch: needed[batch] / per_s[batch]),
        "in_proportion": in_proportion,
    },
}
