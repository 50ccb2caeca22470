"""Wrong answers to the exercise of `caching_allocator`: one for each hint."""


def reserved_counts(stats, requested, cap):
    return stats["reserved_bytes.all.current"] + requested <= cap


def blocks_count(stats, requested, cap):
    return stats["allocated_bytes.all.current"] + requested <= cap


def peak_counts(stats, requested, cap):
    return stats["allocated_bytes.all.peak"] + requested <= cap


def only_the_cache(stats, requested, cap):
    return stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"] >= requested


WRONG = {
    "check_can_a_setting_help": {
        "allocated": blocks_count,
        "reserved": reserved_counts,
        "peak": peak_counts,
        "cached_alone": only_the_cache,
        "inactive_alone": lambda stats, requested, cap: stats["inactive_split_bytes.all.current"] >= requested,
        "turned_round": lambda stats, requested, cap: stats["requested_bytes.all.current"] + requested > cap,
    },
}
