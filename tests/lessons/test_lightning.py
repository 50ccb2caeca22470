"""Lesson 22: the guard before the import, what the profilers lose, today's words, and that nothing is left behind."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import TQDMProgressBar

from course_utils.lessons.lightning import cases, flags, profilers
from course_utils.ranks.launch import run_ranks

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
GUARD = """
import sys
from course_utils.lessons.lightning import installed
{before}
try:
    installed.require()
except ImportError as error:
    print("\\n".join(error._render_traceback_()))
print("lightning" in sys.modules)
"""


def guarded(folder: Path, before: str = "") -> str:
    """What the guard says where the folder comes before all others."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}){GUARD.format(before=before)}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def distribution(folder: Path, name: str, version: str) -> None:
    """The metadata of a release, with a module that fails if it is imported."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (folder / "lightning.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")


@pytest.mark.parametrize("name", ["lightning", "pytorch-lightning"])
@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_a_compromised_release_is_named_and_never_imported(tmp_path, name, version):
    distribution(tmp_path, name, version)
    said = guarded(tmp_path)
    assert f"{name} {version} is a compromised release" in said
    assert "pip uninstall lightning pytorch-lightning" in said
    assert said.endswith("False\n")


def test_another_series_is_named_with_what_to_install(tmp_path):
    distribution(tmp_path, "lightning", "2.4.0")
    assert '2.4.0. In an environment of its own: pip install "lightning>=2.6.6,<2.7"' in guarded(tmp_path)


def test_without_lightning_one_sentence_says_what_to_install(tmp_path):
    hide = "sys.path[:] = [path for path in sys.path if 'site-packages' not in path]"
    said = guarded(tmp_path, hide)
    assert 'Lightning is not installed. To run this lesson: pip install "lightning>=2.6.6,<2.7"' in said
    assert said.endswith("False\n")


def test_what_is_installed_here_passes(tmp_path):
    assert guarded(tmp_path) == "False\n"


def test_the_form_of_today_is_taken_by_the_trainer():
    """Each argument of the table's right column, where it is one of the Trainer's: it exists."""
    known = inspect.signature(L.Trainer.__init__).parameters
    names = {"TQDMProgressBar": TQDMProgressBar, "DeviceStatsMonitor": L.pytorch.callbacks.DeviceStatsMonitor}
    tried = 0
    for _, _, today in flags.ARGUMENTS:
        if "=" in today.split("(")[0] and "," not in today.split("=")[0]:
            written = today.split(", or ")[0]
            assert eval(f"dict({written})", names).keys() <= known.keys(), today
            tried += 1
    assert tried > 12


def test_old_words_end_as_the_lesson_says():
    ends = {row["written"]: row["what happens"] for row in flags.old_words()}
    assert ends["gpus=8"] == "TypeError: got an unexpected keyword argument 'gpus'"
    assert "bf16-mixed" not in ends["profile=True"]
    assert ends["precision=16"].startswith("warns: ")
    assert ends["profiler=True"].startswith("AttributeError")
    assert ends["def training_epoch_end"].startswith("NotImplementedError")
    assert ends["def training_step_end"] == "never called, and nothing says so"


class Net(L.LightningModule):
    def __init__(self, log=None):
        super().__init__()
        self.layer, self.options = torch.nn.Linear(4, 1), log

    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        if self.options is not None:
            self.log("loss", loss, **self.options)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def by_trainer(module, batches, **settings):
    L.Trainer(accelerator="cpu", max_epochs=1, **settings).fit(module, batches)


def test_waits_are_counted_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lean = lambda module, batches: by_trainer(module, batches, **cases.LEAN)  # noqa: E731
    ways = {
        "no log": (lean, None),
        "log": (lean, {}),
        "in the bar": (lean, {"prog_bar": True}),
        "defaults": (lambda module, batches: by_trainer(module, batches, callbacks=[cases.TextBar()]), {}),
    }
    rows = {row["loop"]: row for row in cases.asked(ways, Net, torch.ones(2, 4))}
    assert rows["no log"]["waits a step"] == rows["log"]["waits a step"] == 0
    assert rows["in the bar"]["waits a step"] >= 1
    assert rows["log"]["operations a step"] > rows["no log"]["operations a step"]
    assert rows["defaults"]["files"]
    assert not rows["log"]["files"]
    assert not list(tmp_path.iterdir())


def test_a_check_tells_other_weights():
    check = cases.same_weights()
    weights = [torch.ones(2)]
    assert check(None, (1, weights))
    assert check(None, (1, [torch.ones(2)]))
    assert check(None, (5, [torch.zeros(2)]))
    assert not check(None, (1, [torch.zeros(2)]))


def test_the_advanced_profiler_loses_the_optimizer_and_pytorch_knows_the_layer():
    rows = {row["planted"]: row for row in profilers.seen_by_profilers()}
    assert rows["a slow loader"]["simple"].endswith("train_dataloader_next")
    assert rows["a slow loader"]["advanced"] == "decode_image"
    assert rows["a slow optimizer"]["advanced"] == "not in the report"
    assert rows["a slow layer"]["pytorch"] == "[pl][module]_Layer: second"
    assert rows["a memory spike"]["pytorch"] == "not in the report"
    assert rows["a memory spike"]["pytorch, with memory"] == "aten::empty"


@pytest.mark.slow
def test_two_ranks_train_as_ddp_does_and_what_changes_unasked():
    options = {"threads_per_rank": 1, "backend": "gloo", "show_output": False}
    ranks = run_ranks(NOTEBOOKS / "scripts" / "lightning_ddp.py", ranks=2, **options)
    for rank in range(2):
        assert ranks[rank]["same_as_shuffled"]
        assert not ranks[rank]["same_as_in_order"]
        assert ranks[rank]["a_step"]["DDP by hand"] == {"all-reduces": 1, "broadcasts": 0, "waits": 0}
        assert ranks[rank]["a_step"]["Trainer"] == {"all-reduces": 1, "broadcasts": 1, "waits": 1}
    assert sorted(ranks[0]["validated"] + ranks[1]["validated"]) == [0, 0, 1, 4, 9, 16]
    assert ranks[0]["logged"]["sync_dist=True"] != ranks[0]["mean"]
