"""The check of the lesson: ten steps of two Trainers with the learner's settings, and what they did besides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import ModelSummary, ProgressBar
from transformers import Trainer, TrainingArguments

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.lessons.lightning.cases import Copies, Module, Net, Reads, batches, quiet

_STEPS = 10


@exercise
def check_settings(answer: Any) -> str | None:
    given = ask(answer)
    if not isinstance(given, tuple) or len(given) != 3 or not all(isinstance(each, Mapping) for each in given):
        raise NotRight("Three dictionaries are asked for: return hugging_face, lightning, log")
    try:
        return _hugging_face(given[0]) or _lightning(*given[1:])
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotRight(f"With your settings, a Trainer raised {type(error).__name__}: {error}") from error


def _hugging_face(settings: Mapping[str, Any]) -> str | None:
    net, loader = Net(), batches(torch.ones(8, 16), _STEPS)
    with quiet() as folder, Copies() as copies, Reads(net) as reads:
        args = TrainingArguments(**dict(settings) | {"output_dir": folder, "use_cpu": True, "num_train_epochs": 1})
        trainer = Trainer(net, args, train_dataset=loader.dataset, data_collator=loader.collate_fn)
        trainer.train()
        is_written = any(path.is_file() for path in Path(folder).rglob("*"))
    if args.logging_nan_inf_filter:
        return "filtered"
    if copies.count >= _STEPS:
        return "copies"
    if (logged := [entry["step"] for entry in trainer.state.log_history if "loss" in entry]) != [_STEPS]:
        return "logs_early" if logged else "hf_not_logged"
    return "hf_left_on" if is_written or not args.disable_tqdm or reads.count >= _STEPS else None


def _lightning(settings: Mapping[str, Any], log: Mapping[str, Any]) -> str | None:
    module, loader = Module(Net(), log), batches(torch.ones(8, 16), _STEPS)
    with quiet() as folder, Reads(module) as reads:
        trainer = L.Trainer(**{"max_epochs": 1} | dict(settings) | {"accelerator": "cpu", "default_root_dir": folder})
        trainer.fit(module, loader)
        is_written = any(path.is_file() for path in Path(folder).rglob("*"))
    if "loss" not in trainer.callback_metrics:
        return "nothing_logged"
    is_drawn = any(isinstance(each, ModelSummary | ProgressBar) for each in trainer.callbacks)
    validates_first = trainer.num_sanity_val_steps and trainer.limit_val_batches
    if is_written or is_drawn or trainer.loggers or validates_first:
        return "left_on"
    return "waits" if reads.count >= trainer.global_step else None  # some values are read once, when the epoch ends
