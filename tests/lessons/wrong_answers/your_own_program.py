"""Wrong answers to the exercise of the lesson: one for each hint."""

WRONG = {
    "check_saved_share": {
        "bound": lambda load, compute, workers: load / (load + compute),
        "no_overlap": lambda load, compute, workers: 1 - (compute + load / workers) / (load + compute),
        "one_worker": lambda load, compute, workers: 1 - max(compute, load) / (load + compute),
        "seconds": lambda load, compute, workers: load + compute - max(compute, load / workers),
        "percent": lambda load, compute, workers: 100 * (1 - max(compute, load / workers) / (load + compute)),
        "what_is_left": lambda load, compute, workers: max(compute, load / workers) / (load + compute),
    },
}
