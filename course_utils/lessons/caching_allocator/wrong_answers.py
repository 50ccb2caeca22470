"""Wrong answers to the exercises of lesson 11: one for each hint."""

MIB = 2**20


def up(size, step):
    return -(-size // step) * step


def forgets_the_small_pool(size):
    size = up(size, 512)
    return 20 * MIB if size < 10 * MIB else up(size, 2 * MIB)


def steps_of_twenty(size):
    return 2 * MIB if size <= MIB else up(size, 20 * MIB)


def large_ones_as_they_are(size):
    size = up(size, 512)
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else size


def does_not_round_first(size):
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else up(size, 2 * MIB)


def one_mebibyte_is_large(size):
    size = up(size, 512)
    if size < MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else up(size, 2 * MIB)


def reserved_counts(stats, requested, cap):
    return stats["reserved_bytes.all.current"] + requested <= cap


def peak_counts(stats, requested, cap):
    return stats["allocated_bytes.all.peak"] + requested <= cap


def only_the_cache(stats, requested, cap):
    return stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"] >= requested


WRONG = {
    "check_by_hand": {
        "the_request": lambda size: size,
        "the_block": lambda size: max(512, up(size, 512)),
        "one_pool": forgets_the_small_pool,
        "always_twenty": steps_of_twenty,
        "exact_when_large": large_ones_as_they_are,
        "rounds_too_late": does_not_round_first,
        "boundary": one_mebibyte_is_large,
    },
    "check_make_it_fit": {
        "nothing_changed": "expandable_segments:False",
        "rounding": "roundup_power2_divisions:4",
        "splitting": "max_split_size_mb:64",
        "collection": "garbage_collection_threshold:0.8",
        "raised_the_cap": "per_process_memory_fraction:0.95",
        "misspelt_truth": "expandable_segments:true",
    },
    "check_can_a_setting_help": {
        "reserved": reserved_counts,
        "peak": peak_counts,
        "cached_alone": only_the_cache,
        "inactive_alone": lambda stats, requested, cap: stats["inactive_split_bytes.all.current"] >= requested,
        "retries": lambda stats, requested, cap: stats["num_alloc_retries"] > 0,
        "turned_round": lambda stats, requested, cap: stats["allocated_bytes.all.current"] + requested > cap,
    },
}
