"""Wrong answers to the exercises of the lesson: one for each hint."""

MIB = 2**20


def up(size, step):
    return -(-size // step) * step


def rule(*, small=2 * MIB, is_small=lambda size: size <= MIB, rounds=True, large=lambda size: up(size, 2 * MIB)):
    """What is taken for a request, by the allocator's rule with something changed."""

    def taken(size):
        size = up(size, 512) if rounds else size
        if is_small(size):
            return small
        return 20 * MIB if size < 10 * MIB else large(size)

    return taken


def reserved_counts(stats, requested, cap):
    return stats["reserved_bytes.all.current"] + requested <= cap


def blocks_count(stats, requested, cap):
    return stats["allocated_bytes.all.current"] + requested <= cap


def peak_counts(stats, requested, cap):
    return stats["allocated_bytes.all.peak"] + requested <= cap


def only_the_cache(stats, requested, cap):
    return stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"] >= requested


WRONG = {
    "check_by_hand": {
        "the_request": lambda size: size,
        "the_block": lambda size: max(512, up(size, 512)),
        "one_pool": rule(small=20 * MIB),
        "always_twenty": lambda size: 2 * MIB if size <= MIB else up(size, 20 * MIB),
        "exact_when_large": rule(large=lambda size: size),
        "rounds_too_late": rule(rounds=False),
        "boundary": rule(is_small=lambda size: size < MIB),
    },
    "check_can_a_setting_help": {
        "allocated": blocks_count,
        "reserved": reserved_counts,
        "peak": peak_counts,
        "cached_alone": only_the_cache,
        "inactive_alone": lambda stats, requested, cap: stats["inactive_split_bytes.all.current"] >= requested,
        "retries": lambda stats, requested, cap: stats["num_alloc_retries"] > 0,
        "turned_round": lambda stats, requested, cap: stats["requested_bytes.all.current"] + requested > cap,
    },
}
