"""Ten steps of training with a learner's settings, and what the Trainer did besides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import ModelSummary
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import Tensor

from course_utils.lessons.lightning.cases import Asked, Batches, quiet

_STEPS = 10


class _Module(BoringModel):
    def __init__(self, log: Mapping[str, Any]) -> None:
        super().__init__()
        self.options, self.order = dict(log), ""

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        self.order += "t"
        loss = self.step(batch)
        self.log("loss", loss, **self.options)
        return loss

    def validation_step(self, batch: Tensor, _: int) -> None:
        self.order += "v"


def hint_for(settings: Mapping[str, Any], log: Mapping[str, Any]) -> str | None:
    """What ``Trainer(**settings)``, on the CPU, and ``self.log("loss", loss, **log)`` still do: a key of hints.yml.

    Raises:
        TypeError, ValueError: as Lightning does, for settings that it does not take.

    Example:
        >>> hint_for({"enable_checkpointing": True}, {})
        'left_on'
    """
    batches, module = Batches(torch.ones(2, 32), _STEPS), _Module(log)
    with quiet() as folder:
        trainer = L.Trainer(**{"max_epochs": 1} | dict(settings) | {"accelerator": "cpu", "default_root_dir": folder})
        with Asked() as asked:
            trainer.fit(module, batches, batches)
        is_written = any(path.is_file() for path in Path(folder).rglob("*"))
    if "loss" not in trainer.callback_metrics:
        return "nothing_logged"
    has_summary = any(isinstance(callback, ModelSummary) for callback in trainer.callbacks)
    bar = trainer.progress_bar_callback
    is_drawn = bar is not None and not getattr(bar, "is_disabled", False)  # a bar with refresh_rate=0 draws nothing
    if is_written or has_summary or is_drawn or trainer.loggers or module.order.startswith("v"):
        return "left_on"
    # Some values are read once, when the epoch ends.
    return "waits" if asked.counts["aten::_local_scalar_dense"] >= _STEPS else None
