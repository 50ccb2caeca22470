"""`lightning`: the guard before the import, what the profilers lose, today's words, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import TQDMProgressBar

from course_utils.lessons.lightning import cases, flags, profilers
from course_utils.lessons.lightning.checks import check_action, check_settings
from course_utils.lessons.lightning.wrong_answers import with_these
from course_utils.ranks.launch import run_ranks
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

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


# Exercises


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "ddp"},
        {"accumulate_grad_batches": 4},
        {"limit_train_batches": 1},
        {"max_steps": 1},
        {"max_epochs": -1},  # it would never end
        {"fast_dev_run": True},
    ],
)
def test_what_the_old_call_did_not_ask_for_is_refused(more):
    assert check_settings(with_these(**more)).hint == "not_asked"


@pytest.mark.parametrize(
    "other",
    [
        {"accelerator": "cuda", "devices": [0]},
        {"strategy": "auto", "accumulate_grad_batches": 1},
        {"enable_progress_bar": True, "callbacks": [TQDMProgressBar(refresh_rate=0)]},
    ],
)
def test_todays_form_in_other_words_is_right(other):
    assert check_settings(with_these(**other)).outcome == "right"


def test_a_bar_that_is_drawn_is_seen():
    drawn = with_these(enable_progress_bar=True, callbacks=[TQDMProgressBar(refresh_rate=20)])
    assert check_settings(drawn).hint == "left_on"


def test_old_words_are_named_and_so_is_what_is_no_action():
    assert "know gpus, weights_summary:" in check_settings(with_these(gpus=1, weights_summary=None)).words
    assert "You return 3.0" in check_action(lambda totals, inside: 3.0).words


# The code to paste


def pasted():
    """The cell to paste, as a module's names, and the snippet under it that calls it."""
    cells = read_notebook(find_lesson("lightning").path)["cells"]
    place = next(number for number, cell in enumerate(cells) if "standalone" in cell["metadata"].get("tags", []))
    names = {}
    exec(cells[place]["source"], names)
    return names, cells[place + 1]["source"].split("```python\n")[1].split("```")[0]


def test_the_cell_to_paste_leaves_the_start_out(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    asked = []

    def run(steps):
        asked.append(steps)
        now[0] += 7 + steps * (0.25 if len(asked) < 4 else 0.5)

    names, _ = pasted()
    assert names["seconds_a_step"](run) == (0.5, 0.25, 0.5)
    assert asked == [10] + [110, 10] * 5


@pytest.mark.parametrize("settings", ["", "barebones=True", "accumulate_grad_batches=3"])
def test_the_snippet_to_paste_runs_and_leaves_nothing_behind(settings, tmp_path):
    """With its numbers of steps made smaller, and a loader shorter than they are."""
    names, snippet = pasted()
    timed = names["seconds_a_step"]
    written = []
    batches = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=4)
    names |= {
        "tempfile": tempfile,
        "MyModule": Net,
        "loader": batches,
        "print": lambda *rows: written.extend(rows),
    }
    names["seconds_a_step"] = lambda run: timed(run, few=1, many=4, rounds=3)
    names["plain"] = lambda steps: None
    with cases.quiet(), contextlib.chdir(tmp_path):
        exec(
            snippet.replace("default_root_dir", f"{settings}, default_root_dir" if settings else "default_root_dir"),
            names,
        )
    for middle, low, high in written:
        assert low <= middle <= high
    assert len(written) == 2
    assert not list(tmp_path.iterdir())


def test_the_advanced_profiler_loses_the_optimizer_and_pytorch_knows_the_layer():
    rows = {row["planted"]: row for row in profilers.seen_by_profilers()}
    assert rows["a slow loader"]["simple"] == "train_dataloader_next"
    assert rows["a slow loader"]["advanced"] == "decode_image"
    assert rows["a slow optimizer"]["advanced"] == "not in the report"
    assert rows["a slow layer"]["pytorch"] == "_Layer: second"
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
