"""What a diagnosis promises: planted causes are found, a healthy step is left alone, everything is put back."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, TensorDataset

from course_utils.measure.machine import environment
from course_utils.results.paired import Interval, Verdict
from own_program.diagnosis import diagnose as diagnosing
from own_program.diagnosis import step_changes
from own_program.diagnosis.diagnose import StepError, diagnose
from own_program.diagnosis.diagnosis_card import CHANGES_RESULTS, IMPOSSIBLE, NO_TIME, Diagnosis, Tried
from own_program.diagnosis.state import find
from own_program.diagnosis.step_changes import StepChange

pytestmark = pytest.mark.usefixtures("own_clock")
QUICK_S = 0.3


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    """Threads are no candidates here: on cores that others use, they wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(step_changes, "cores", lambda: 1)
    yield
    torch.set_num_threads(threads)
    torch.set_anomaly_enabled(False)


def layers(count=4, width=32):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))


class Training:
    """A step as a method, with all that can be left behind."""

    def __init__(self, count=4, width=32, **options):
        self.model = layers(count, width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **options)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)
        self.x = torch.randn(16, width)
        self.losses, self.steps, self.average = [], 0, torch.zeros(())
        self.fails_at = None

    def step(self):
        self.optimizer.zero_grad()
        x = torch.nn.functional.dropout(self.x, 0.1) * (1 + 1e-3 * random.random() * np.random.rand())
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.average.mul_(0.9).add_(loss.detach(), alpha=0.1)
        self.steps += 1
        if self.steps == self.fails_at:
            raise OSError("the disk is full")
        return loss

    def state(self):
        return [
            [p.detach().clone() for p in self.model.parameters()],
            [p.grad is None or p.grad.clone() for p in self.model.parameters()],
            [{k: v.clone() for k, v in state.items()} for state in self.optimizer.state.values()],
            [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups],
            [m.training for m in self.model.modules()],
            [p.requires_grad for p in self.model.parameters()],
            self.schedule.state_dict(),
            list(self.losses),
            self.steps,
            self.average.clone(),
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.is_anomaly_enabled(),
            torch.get_num_threads(),
            sorted(vars(self.model)),
            sorted(vars(self.optimizer)),
        ]


def same(before, after):
    pairs = zip(tree_leaves(before), tree_leaves(after), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def changes(diagnosis):
    return [advice.change for advice in diagnosis.plan]


def advised(step, change, budget_s=4.0):
    """A diagnosis that advises a change: on a machine that is busy, one may be too short to tell."""
    for factor in (1, 2, 4):
        diagnosis = diagnose(step, budget_s=factor * budget_s)
        if change in changes(diagnosis):
            return diagnosis
    raise AssertionError(f"{change!r} was not found in {diagnosis}")


def plant(monkeypatch, changes):
    """Let these be all that is tried: name to what puts it in force."""
    several = [StepChange(name, f"do {name}", "It was planted.", "profiler", on) for name, on in changes.items()]
    monkeypatch.setattr(diagnosing, "changes_for", lambda *_: iter(several))


def with_attribute(owner, name, value, work):
    return mock.patch.object(owner, name, value)


# --- planted causes


def test_anomaly_mode_that_was_left_on():
    training = Training(12, 16, fused=True)

    def step():
        with torch.autograd.detect_anomaly():
            return training.step()

    diagnosis = advised(step, "switch anomaly mode off", budget_s=1.0)
    (advice,) = [advice for advice in diagnosis.plan if "anomaly" in advice.change]
    assert advice.known == "tried"
    assert 0.3 < advice.low <= advice.saves <= advice.high < 1
    assert changes(diagnosis)[0] == "switch anomaly mode off"


def test_hooks_that_were_left_on():
    training = Training(8, 16, fused=True)

    def look_for_nan(module, inputs, output):
        for _ in range(20):
            assert not output.isnan().any()

    for module in training.model:
        module.register_forward_hook(look_for_nan)
    change = f"take the hooks off the modules: {look_for_nan.__qualname__}"
    assert advised(training.step, change, budget_s=1.0).plan[0].known == "tried"
    assert all(module._forward_hooks for module in training.model)


def test_an_optimizer_that_loops_over_tensors():
    slow = Training(30, 8, foreach=False)
    diagnosis = advised(slow.step, "pass fused=True to AdamW", budget_s=1.0)
    (advice,) = [advice for advice in diagnosis.plan if advice.known == "tried"]
    assert (advice.change, advice.lesson) == ("pass fused=True to AdamW", "torch_compile")
    assert "AdamW updates 60 tensors, one by one." in advice.because
    assert advice.low < diagnosis.phases["optimizer"]  # two measurements, so the interval says it


def test_a_healthy_step_gets_no_advice_and_what_it_prints_is_not_shown(capsys):
    training = Training(3, 384, fused=True)

    def step():
        loss = training.step()
        print("loss", loss.item())  # noqa: T201
        return loss

    diagnosis = diagnose(step, budget_s=1.0)
    assert diagnosis.plan == []
    assert "Nothing stands out" in diagnosis.card().words
    assert sum(diagnosis.phases.values()) == pytest.approx(1)
    assert capsys.readouterr().out == ""
    assert "Worked on: model and optimizer." in repr(diagnosis)


class Slow(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((32,), index / 256)


def steps_of(loss_of, model, lr=1e-3, retain_graph=None):
    """A step of a loss of a model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, fused=True)

    def step(*batch):
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward(retain_graph=retain_graph)
        optimizer.step()
        return loss

    return step


def learn():
    model = layers(2)
    return steps_of(lambda batch: model(batch).square().mean(), model)


def test_a_loader_that_is_too_slow():
    step = learn()
    slow = diagnose(step, data=DataLoader(Slow(1e-3), batch_size=8), budget_s=1.0)
    (advice,) = slow.plan
    assert (advice.lesson, advice.known) == ("data_loading", "at most")
    assert advice.saves > 0.5
    assert "num_workers=0" in advice.because
    assert slow.step_s > 8e-3  # the wait is part of a step
    assert not diagnose(step, data=[torch.ones(8, 32)] * 4, budget_s=QUICK_S).plan


def test_a_budget_holds_where_there_is_much_to_try_and_is_said_to_be_short(monkeypatch):
    training, sleeps = Training(2, fused=True), {"s": 0.1}

    def step():
        time.sleep(sleeps["s"])
        return training.step()

    plant(monkeypatch, {f"change {i}": lambda work: contextlib.nullcontext() for i in range(20)})
    start = time.perf_counter()
    diagnosis = diagnose(step, budget_s=4.0)
    assert time.perf_counter() - start < 2 * 4.0
    assert [tried.name for tried in diagnosis.tried if tried.verdict == NO_TIME]
    assert "4 s were too short to tell what all changes do: pass budget_s=8." in diagnosis.card().warning
    assert "Nothing stands out" not in repr(diagnosis)


# --- causes that are in the program itself


def test_a_graph_that_reaches_into_earlier_calls():
    """An LSTM that goes on from its last state."""
    model, x, kept = torch.nn.LSTM(8, 16, batch_first=True), torch.randn(2, 5, 8), {"state": None}

    def loss():
        out, kept["state"] = model(x, kept["state"])
        return out.square().mean()

    diagnosis = diagnose(steps_of(loss, model, lr=0.0, retain_graph=True), budget_s=1.0)
    (advice,) = diagnosis.plan
    assert advice.change.startswith("detach what you keep from call to call")
    assert (advice.known, advice.saves) == ("at most", diagnosis.phases["backward pass"])
    seen = re.search(r"grows .* and reaches into earlier calls: (\d+) of the (\d+) operations", advice.because)
    assert 0.8 < int(seen[1]) / int(seen[2]) < 1  # the fewer calls the time allowed, the less


def test_samples_that_are_fetched_one_by_one_from_tensors_in_memory():
    learning, loader = learn(), DataLoader(TensorDataset(torch.randn(256, 32), torch.arange(256)), batch_size=64)
    diagnosis = diagnose(lambda batch: learning(batch[0]), data=loader, budget_s=QUICK_S)
    assert "index the tensors in memory, without a DataLoader" in changes(diagnosis)


# --- what is tried must give the same


def test_a_change_of_the_results_or_one_that_cannot_be_made_is_no_advice(monkeypatch):
    training = Training(2, fused=True)
    # So small a step that three losses do not show a missing one.
    training.optimizer.param_groups[0]["lr"] = 1e-9
    changed = {
        "half": (training, "x", training.x / 2),
        "lazy": (training.optimizer, "step", lambda: None),
        "wrong": (training, "x", torch.ones(3, 5)),
    }
    plant(monkeypatch, {name: functools.partial(with_attribute, *what) for name, what in changed.items()})
    diagnosis = diagnose(training.step, budget_s=QUICK_S)
    assert [tried.verdict for tried in diagnosis.tried] == [CHANGES_RESULTS, CHANGES_RESULTS, IMPOSSIBLE]
    assert diagnosis.tried[0].difference > 1e-3
    assert not [change for change in changes(diagnosis) if change.startswith("do half")]
    assert "Not advised, since what comes out would change by more than tolerance: half and lazy." in repr(diagnosis)


# --- everything is put back


def test_all_is_as_it_was():
    training = Training(foreach=False)

    def places():
        moments = [t for state in training.optimizer.state.values() for t in state.values()]
        return [t.data_ptr() for t in (*training.model.parameters(), *moments)]

    training.step()
    before = training.state(), places()
    diagnose(training.step, budget_s=QUICK_S)
    assert same(before, (training.state(), places()))


def test_all_is_as_it_was_after_an_error_of_the_step():
    training = Training(foreach=False)
    before = training.state()
    training.fails_at = 7
    with pytest.raises(OSError, match="the disk is full") as error:
        diagnose(training.step, budget_s=QUICK_S)
    assert "diagnose() called the step" in error.value.__notes__[0]
    assert same(before, training.state())


def test_ctrl_c_gives_what_is_known_and_puts_all_back():
    training, count = Training(20, foreach=False), itertools.count(1)
    before = training.state()

    def step():
        if next(count) == 60:
            os.kill(os.getpid(), signal.SIGINT)
        return training.step()

    diagnosis = diagnose(step, budget_s=8.0)
    assert diagnosis.interrupted
    assert "Stopped early" in repr(diagnosis)
    assert diagnosis.step_s > 0
    assert same(before, training.state())


def test_names_that_a_step_binds_and_buffers_are_put_back():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    optimizer, x, count = torch.optim.Adam(model.parameters()), torch.randn(2, 3, 8, 8, requires_grad=True), 0
    kept, dice, numbers = torch.Generator().manual_seed(3), random.Random(1), np.random.default_rng(1)

    def step():
        nonlocal count
        count += 1
        optimizer.zero_grad()
        loss = model(x + 0.01 * torch.rand((), generator=kept)).square().mean() * dice.random() * numbers.random()
        loss.backward()
        optimizer.step()
        return loss

    def state():
        return dict(model.state_dict()), x.grad, kept.get_state(), dice.getstate(), numbers.bit_generator.state, count

    model(x).sum().backward()
    before = copy.deepcopy(state())
    diagnose(step, budget_s=QUICK_S)
    assert same(before, state())
    assert not optimizer.state


# --- what it refuses


def test_it_refuses_what_it_cannot_judge():
    learning, numbers = learn(), itertools.count(1)
    with pytest.raises(StepError, match="Let it work on one fixed batch"):
        diagnose(lambda: learning(torch.full((8, 32), float(next(numbers)))), budget_s=QUICK_S)
    with pytest.raises(StepError, match="No parameters were found"):
        diagnose(lambda: 1, budget_s=QUICK_S)


def test_what_is_too_close_to_tell_is_not_called_nothing():
    tried = Tried("change", str(Verdict.UNCLEAR), 0.0, 1.0, Interval(0.7, 1.3, 0.99))
    found = Diagnosis(environment(), find(Training().step), 1.0, 1.0, phases={"optimizer": 0.5}, tried=[tried])
    assert "Too close to tell, of what was tried: change." in found.card().words


# --- on a GPU, as far as one can be played

ON_GPU = """
from tests.played_cuda.torch_on_it import PLAYED, install
install()
import torch
from own_program import diagnose
with PLAYED.playing():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    def step(batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch[0].cuda()), batch[1].cuda())
        loss.backward()
        loss.item()
        optimizer.step()
        return loss
    found = diagnose(step, data=[(torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.long))] * 4, budget_s=4.0)
    assert {p.device.type for p in model.parameters()} == {"cuda"}
assert not optimizer.state
print(*sorted(tried.name for tried in found.tried if tried.difference is not None), sep=", ")
"""


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="the stand-in plays on a CPU build")
def test_what_is_tried_on_a_gpu():
    run = subprocess.run([sys.executable, "-c", ON_GPU], capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "TF32, cudnn.benchmark, fused AdamW, pinned batches"
