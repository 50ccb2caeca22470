"""Old arguments and hooks of Lightning, run on the installed release: what each does now, and what to write instead."""

from __future__ import annotations

import textwrap
import warnings
from typing import Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from course_utils.lessons.lightning.cases import LEAN, Batches, quiet

# (argument, value, what to write today)
ARGUMENTS: list[tuple[str, Any, str]] = [
    ("gpus", 8, 'accelerator="gpu", devices=8'),
    ("distributed_backend", "ddp", 'strategy="ddp"'),
    ("accelerator", "ddp", 'strategy="ddp"'),
    ("strategy", "dp", 'strategy="ddp"'),
    ("num_processes", 2, 'accelerator="cpu", devices=2'),
    ("tpu_cores", 8, 'accelerator="tpu", devices=8'),
    ("auto_select_gpus", True, 'devices="auto"'),
    ("precision", 16, 'precision="16-mixed"'),
    ("amp_backend", "apex", 'precision="16-mixed"'),
    ("profile", True, 'profiler="simple"'),
    ("profiler", True, 'profiler="simple"'),
    ("progress_bar_refresh_rate", 20, "callbacks=[TQDMProgressBar(refresh_rate=20)]"),
    ("weights_summary", None, "enable_model_summary=False"),
    ("checkpoint_callback", False, "enable_checkpointing=False"),
    ("resume_from_checkpoint", "last.ckpt", 'trainer.fit(..., ckpt_path="last.ckpt")'),
    ("auto_scale_batch_size", True, "Tuner(trainer).scale_batch_size(...)"),
    ("auto_lr_find", True, "Tuner(trainer).lr_find(...)"),
    ("replace_sampler_ddp", False, "use_distributed_sampler=False"),
    ("terminate_on_nan", True, "detect_anomaly=True, or a check of your own"),
    ("track_grad_norm", 2, "on_before_optimizer_step with grad_norm(...)"),
    ("flush_logs_every_n_steps", 100, "CSVLogger(..., flush_logs_every_n_steps=100)"),
    ("log_gpu_memory", "all", "callbacks=[DeviceStatsMonitor()]"),
]
HOOKS: list[tuple[str, str]] = [
    ("training_epoch_end", "on_train_epoch_end, and keep the outputs yourself"),
    ("validation_epoch_end", "on_validation_epoch_end, likewise"),
    ("training_step_end", "training_step, or on_train_batch_end"),
    ("on_epoch_start", "on_train_epoch_start"),
]


def old_words() -> list[dict[str, Any]]:
    """Rows: each old argument and hook, today's form, and what becomes of it; a plain TypeError comes last."""
    return sorted(_old_arguments() + _old_hooks(), key=lambda row: row["what happens"].startswith("TypeError"))


def _old_arguments() -> list[dict[str, Any]]:
    rows = []
    for name, value, today in ARGUMENTS:
        options = {"accelerator": "cpu", **LEAN, name: value}
        ending = _outcome(lambda options=options: _fit(BoringModel(), **options))
        rows.append({"written": f"{name}={value!r}", "today": today, "what happens": ending})
    return rows


def _old_hooks() -> list[dict[str, Any]]:
    rows = []
    for name, today in HOOKS:
        called: list[str] = []
        module = type("Old", (BoringModel,), {name: lambda self, *args, called=called: called.append("called")})()
        ending = _outcome(lambda module=module: _fit(module, accelerator="cpu", **LEAN))
        if ending == "works":
            ending = "is called" if called else "never called, and nothing says so"
        rows.append({"written": f"def {name}", "today": today, "what happens": ending})
    return rows


def _outcome(action: Any) -> str:
    """How a call ends: works, the last of its warnings that speaks of it, or its error; in one short line."""
    with quiet(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            action()
        except Exception as error:
            return _line(f"{type(error).__name__}: {error}")
    ours = [str(each.message) for each in caught if "Trainer(" in str(each.message)]
    return _line(f"warns: {ours[-1]}") if ours else "works"


def _line(text: str) -> str:
    sentence = text.replace("Trainer.__init__() ", "").split(". ")[0]  # a list of names may follow, in any order
    return textwrap.shorten(sentence, 150, placeholder=" ...")


def _fit(module: L.LightningModule, **options: Any) -> None:
    batches = Batches(torch.ones(2, 32), 1)
    L.Trainer(max_epochs=1, **options).fit(module, batches, batches)
