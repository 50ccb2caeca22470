"""Wrong answers to the exercises of the lesson: one for each hint."""


def of_a_step(plan):
    return [entry for entry in plan if entry["of"] == "a step"]


def most(plan, what):
    return max(plan, key=lambda entry: entry[what] or 0)["change"]


def lacks(events, begins="ProfilerStep#", work=("kernel", "gpu_memcpy", "gpu_memset")):
    missing = set()
    if not any(event["name"].startswith(begins) for event in events):
        missing.add("steps")
    if not any(event.get("cat") in work for event in events):
        missing.add("kernels")
    return missing


WRONG = {
    "check_surest": {
        "first": lambda plan: plan[0]["change"],
        "another_thing": lambda plan: most(plan, "low"),
        "largest": lambda plan: most(plan, "saves"),
        "a_bound": lambda plan: most(of_a_step(plan), "saves"),
        "not_its_low_end": lambda plan: most([e for e in of_a_step(plan) if e["known"] == "tried"], "saves"),
    },
    "check_saved_share": {
        "bound": lambda load, compute, workers: load / (load + compute),
        "no_overlap": lambda load, compute, workers: 1 - (compute + load / workers) / (load + compute),
        "one_worker": lambda load, compute, workers: 1 - max(compute, load) / (load + compute),
        "seconds": lambda load, compute, workers: load + compute - max(compute, load / workers),
        "percent": lambda load, compute, workers: 100 * (1 - max(compute, load / workers) / (load + compute)),
        "what_is_left": lambda load, compute, workers: max(compute, load / workers) / (load + compute),
    },
    "check_missing": {
        "exact_name": lambda events: {
            what
            for what, there in (
                ("steps", any(event["name"] == "ProfilerStep" for event in events)),
                ("kernels", any(event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") for event in events)),
            )
            if not there
        },
        "named_so": lambda events: {
            what
            for what, there in (
                ("steps", any("ProfilerStep" in event["name"] for event in events)),
                ("kernels", "kernels" not in lacks(events)),
            )
            if not there
        },
        "kernels_alone": lambda events: lacks(events, work=("kernel",)),
        "launches": lambda events: lacks(events, work=("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")),
        "annotations": lambda events: lacks(events, work=("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")),
        "what_is_there": lambda events: {"steps", "kernels"} - lacks(events),
    },
}
