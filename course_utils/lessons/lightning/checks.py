"""Checks of the lesson. All run on the CPU; one of them trains for ten steps with the learner's settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from course_utils.lessons.answers import NotRight, ask, exercise

# Today's form


@exercise
def check_settings(answer: Any) -> str | None:
    """Looks at the arguments that ask for hardware, then trains with the others, and looks at what is done besides."""
    # Lightning is an optional extra: without it, the other check still works.
    import lightning as L  # noqa: N812

    from course_utils.lessons.lightning.lean_fit import hint_for

    settings = ask(answer)
    if not isinstance(settings, tuple) or len(settings) != 2 or not all(isinstance(each, Mapping) for each in settings):
        raise NotRight("Two dictionaries are asked for: return trainer, log")
    trainer, log = settings
    known = inspect.signature(L.Trainer.__init__).parameters
    old = [name for name in trainer if name not in known]
    if set(old) == _OLD:
        return "old_name"
    if old:
        names = ", ".join(old)
        raise NotRight(f"The Trainer of today does not know {names}: see the table of old words, under All numbers.")
    if trainer.get("precision") in (16, "16"):
        return "precision_16"
    if trainer.get("precision") == "16-true":
        return "precision_true"
    if trainer.get("accelerator", "auto") == "auto":
        return "no_accelerator"
    if trainer.get("devices", "auto") == "auto":
        return "no_devices"
    if trainer.get("limit_val_batches") == 0:
        return "never_validated"
    beside = trainer.keys() - _HARDWARE.keys() - _SWITCHES
    if any(trainer[name] != known[name].default for name in beside):
        return "not_asked"
    for name, right in _HARDWARE.items():
        if trainer.get(name) not in right:
            raise NotRight(f"{name}={trainer.get(name)!r} is not what the old call asked for.")
    rest = {name: value for name, value in trainer.items() if name != "devices"}
    try:
        return hint_for(rest, log)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotRight(f"With your settings, Lightning raised {type(error).__name__}: {error}") from error


# The old names of the starting cell: all of them are still there in an answer that nobody has begun.
_OLD = {"gpus", "progress_bar_refresh_rate", "checkpoint_callback", "weights_summary"}
_HARDWARE: Mapping[str, tuple[Any, ...]] = {
    "accelerator": ("gpu", "cuda"),
    "devices": (1, "1", [0], (0,), "0,"),
    "precision": ("16-mixed",),
}
# What the fit judges, and what changes nothing of it. All else was not in the old call: left out, or at its default.
_SWITCHES = {
    "enable_progress_bar",
    "enable_checkpointing",
    "enable_model_summary",
    "logger",
    "num_sanity_val_steps",
    "barebones",
    "callbacks",
    "default_root_dir",
    "log_every_n_steps",
}


# Own time

_REPORTS: list[tuple[dict[str, float], dict[str, str]]] = [
    (
        {"epoch": 10.0, "next batch": 1.0, "batch": 8.9, "optimizer_step": 8.7, "training_step": 1.5, "backward": 2.6},
        dict.fromkeys(("training_step", "backward"), "optimizer_step")  # inner actions first, unlike below
        | {"optimizer_step": "batch", "batch": "epoch", "next batch": "epoch"},
    ),
    (
        {"epoch": 10.0, "next batch": 5.5, "batch": 4.4, "training_step": 3.0, "backward": 1.2},
        {"next batch": "epoch", "batch": "epoch", "training_step": "batch", "backward": "batch"},
    ),
    (
        {"fit": 20.0, "start": 0.5, "epoch": 19.0, "batch": 9.0, "training_step": 4.4, "backward": 4.5},
        {"start": "fit", "epoch": "fit", "batch": "epoch", "training_step": "batch", "backward": "batch"},
    ),
]


# What each idea answers for the three reports.
_ANSWERS: Mapping[str | None, tuple[str, ...]] = {
    None: ("optimizer_step", "next batch", "epoch"),
    "outermost": ("epoch", "epoch", "fit"),
    "leaves": ("backward", "next batch", "backward"),
    "all_inside": ("optimizer_step", "next batch", "backward"),
    "what_is_left": ("epoch", "next batch", "epoch"),
}


@exercise
def check_action(answer: Any) -> str | None:
    """Asks for three reports: the time is in an action around others, in a loader, and between actions."""
    given = tuple(ask(answer, dict(totals), dict(inside)) for totals, inside in _REPORTS)
    for hint, answers in _ANSWERS.items():
        if given == answers:
            return hint
    wrong = next(place for place, right in enumerate(_ANSWERS[None]) if given[place] != right)
    totals, inside = _REPORTS[wrong]
    if given[wrong] not in list(totals):
        raise NotRight(f"Return the name of an action, a key of totals. You return {given[wrong]!r}.")
    raise NotRight(f"For {totals}, inside {inside}, you return {given[wrong]!r}.")
