"""Wrong answers to the exercise of `pinned_memory`: one for each hint."""

WRONG = {
    "transfer_twice": lambda w, c, p, t: (c + t + w, max(p, t + w)),
    "all_in_a_row": lambda w, c, p, t: (c + w, p + t + w),
    "thread_forgotten": lambda w, c, p, t: (c + w, t + w),
}
