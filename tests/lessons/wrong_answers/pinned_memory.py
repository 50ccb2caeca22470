"""Wrong answers to the exercise of `pinned_memory`: one for each hint."""

WRONG = {
    "check_step_times": {
        "transfer_twice": lambda w, f, c, p, t: (f + c + t + w, max(f + p, t + w), max(f + p, t, w)),
        "all_in_a_row": lambda w, f, c, p, t: (f + c + w, f + p + t + w, max(f + p, t, w)),
        "thread_forgotten": lambda w, f, c, p, t: (f + c + w, t + w, max(t, w)),
        "still_in_turn": lambda w, f, c, p, t: (f + c + w, max(f + p, t + w), max(f + p, t + w)),
    },
}
