"""`lightning`: the guard before the import, what is counted, what a Trainer logs, and that nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

from course_utils.lessons.lightning import cases
from course_utils.lessons.lightning.checks import check_settings
from tests.lessons.wrong_answers.lightning import HF, LEAN

GUARD = """
import sys
from course_utils.lessons.lightning import installed
{before}
try:
    installed.require()
except ImportError as error:
    print("\\n".join(error._render_traceback_()))
print("lightning" in sys.modules or "transformers" in sys.modules)
"""


def guarded(folder: Path, before: str = "") -> str:
    """What the guard says where the folder comes before all others."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}){GUARD.format(before=before)}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_compromised_release_is_named_and_never_imported(tmp_path):
    info = tmp_path / "pytorch_lightning-2.6.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pytorch-lightning\nVersion: 2.6.3\n", encoding="utf-8")
    (tmp_path / "lightning.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    said = guarded(tmp_path)
    assert "pytorch-lightning 2.6.3 is a compromised release" in said
    assert "pip uninstall lightning pytorch-lightning" in said
    assert said.endswith("False\n")


def test_without_the_trainers_one_sentence_says_what_to_install(tmp_path):
    said = guarded(tmp_path, "sys.path[:] = [path for path in sys.path if 'site-packages' not in path]")
    assert "lightning (not installed) and transformers (not installed) and accelerate (not installed)" in said
    assert said.endswith("False\n")


def by_hand(net, loader, optimizer, read):
    for batch in loader:
        moved = batch["x"].to("cpu", non_blocking=not read).to("cpu")  # the second asks for nothing: it is there
        loss = net(moved)["loss"].to("cpu")
        loss.backward()
        optimizer.step()
        if read:
            bool(loss.detach().isnan()), float(loss), next(net.parameters()).data.sum().item()


@pytest.mark.parametrize(("read", "waits"), [(False, 0), (True, 3)])
def test_reads_of_what_the_weights_gave_and_blocking_copies_count_and_the_optimizers_counter_does_not(read, waits):
    def fit(net, loader):
        by_hand(net, loader, torch.optim.AdamW(net.parameters()), read)  # reads its step counters, on the CPU

    row = {"loop": "loop", "reads a step": waits, "blocking copies": int(read)}
    assert cases.waits({"loop": fit}, cases.Net) == [row]


def hugging_face(net, loader, **settings):
    args = TrainingArguments(num_train_epochs=1, use_cpu=True, disable_tqdm=True, **settings)
    trainer = Trainer(net, args, loader.collate_fn, loader.dataset)
    trainer.train()
    return trainer.state.log_history


@pytest.mark.parametrize(("is_filtered", "logged"), [(True, "0.0"), (False, "nan")])
def test_after_a_nan_every_weight_is_nan_and_the_log_says_zero(is_filtered, logged):
    net = cases.Net()
    settings = {"logging_steps": 5, "logging_nan_inf_filter": is_filtered}
    with cases.quiet():
        log = hugging_face(net, cases.batches(torch.ones(8, 16), 20, broken=7), **settings)
    assert all(weight.isnan().all() for weight in net.parameters())
    assert [str(entry["loss"]) for entry in log[2:4]] == [logged] * 2
    assert all(str(entry["grad_norm"]) == "nan" for entry in log[2:4])


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with cases.quiet() as folder:
        hugging_face(cases.Net(), cases.batches(torch.ones(8, 16), 2))
        assert any(Path(folder).rglob("*.*"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (({"no_such_argument": 1}, {}, {}), "a Trainer raised TypeError: TrainingArguments.__init__() got an"),
        ((HF, LEAN | {"limit_train_batches": 1}, {"prog_bar": True}), "Lightning reads the loss in each step"),
    ],
)
def test_what_is_refused_and_a_shorter_fit_hides_no_read(given, says):
    assert says in check_settings(lambda: given).words
