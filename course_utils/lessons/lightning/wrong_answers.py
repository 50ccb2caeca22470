"""Wrong answers to the exercises of the lesson: one for each hint."""

_TODAY = {
    "accelerator": "gpu",
    "devices": 1,
    "precision": "16-mixed",
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "logger": False,
    "num_sanity_val_steps": 0,
}


def with_these(**changed):
    return lambda: (_TODAY | changed, {})


def without(name):
    return lambda: ({key: value for key, value in _TODAY.items() if key != name}, {})


def barebones():
    return {**{key: _TODAY[key] for key in ("accelerator", "devices", "precision")}, "barebones": True}, {}


def outermost(totals, inside):
    return max(totals, key=totals.get)


def leaves(totals, inside):
    return max((action for action in totals if action not in inside.values()), key=totals.get)


def all_inside(totals, inside):
    own = dict(totals)
    for action in totals:
        outer = inside.get(action)
        while outer:
            own[outer] -= totals[action]
            outer = inside.get(outer)
    return max(own, key=own.get)


def what_is_left(totals, inside):
    for action, outer in inside.items():
        totals[outer] -= totals[action]
    return max(totals, key=totals.get)


WRONG = {
    "check_settings": {
        "old_name": with_these(gpus=1, progress_bar_refresh_rate=0, checkpoint_callback=False, weights_summary=None),
        "precision_16": with_these(precision=16),
        "precision_true": with_these(precision="16-true"),
        "no_accelerator": without("accelerator"),
        "no_devices": without("devices"),
        "never_validated": with_these(limit_val_batches=0),
        "not_asked": with_these(strategy="ddp"),
        "left_on": without("num_sanity_val_steps"),
        "nothing_logged": barebones,
        "waits": lambda: (_TODAY, {"prog_bar": True}),
    },
    "check_action": {"outermost": outermost, "leaves": leaves, "all_inside": all_inside, "what_is_left": what_is_left},
}
