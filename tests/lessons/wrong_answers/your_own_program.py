"""Wrong answers to the exercise of the lesson: one for each hint."""

WRONG = {
    "check_saved_share": {
        "bound": lambda load, compute, workers, handing: load / (load + compute),
        "free_handing": lambda load, compute, workers, handing: 1 - max(compute, load / workers) / (load + compute),
        "one_worker": lambda load, compute, workers, handing: 1 - max(compute + handing, load) / (load + compute),
        "seconds": lambda load, compute, workers, handing: load + compute - max(compute + handing, load / workers),
        "percent": lambda load, compute, n, handing: 100 - 100 * max(compute + handing, load / n) / (load + compute),
        "what_is_left": lambda load, compute, n, handing: max(compute + handing, load / n) / (load + compute),
    },
}
