"""What a diagnosis promises: planted causes are found, a healthy step is left alone, everything is put back."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
import time as process_clock
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from course_utils.measure.compiler import compiler
from course_utils.measure.devices import Device
from course_utils.measure.machine import environment
from course_utils.results.paired import Interval, Verdict
from own_program.diagnosis import contents, loading
from own_program.diagnosis import diagnose as diagnosing
from own_program.diagnosis import trials as step_trials
from own_program.diagnosis.bench import Bench
from own_program.diagnosis.diagnose import StepError, diagnose
from own_program.diagnosis.diagnosis_card import CHANGES_RESULTS, IMPOSSIBLE, NO_TIME, Diagnosis, Tried
from own_program.diagnosis.phases import replayed
from own_program.diagnosis.state import Snapshot, find
from own_program.diagnosis.step_changes import COMPILE, Trial, Work

pytestmark = pytest.mark.usefixtures("own_clock")
QUICK_S = 0.5


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    """Threads are no candidates here: on cores that others use, they wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(step_trials, "cores", lambda: 1)
    yield
    torch.set_num_threads(threads)
    torch.set_anomaly_enabled(False)


def layers(count=4, width=32):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))


class Training:
    """A step as a method, with all that can be left behind."""

    def __init__(self, count=4, width=32, make=torch.optim.AdamW, **options):
        self.model = layers(count, width)
        self.optimizer = make(self.model.parameters(), lr=1e-3, **options)
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
    several = [Trial(name, f"do {name}", "It was planted.", "profiler", on) for name, on in changes.items()]
    monkeypatch.setattr(diagnosing, "trials", lambda *_: iter(several))


def with_attribute(owner, name, value, work):
    return mock.patch.object(owner, name, value)


# --- planted causes


def test_anomaly_mode_that_was_left_on():
    training = Training(12, 16, fused=True)

    def step():
        with torch.autograd.detect_anomaly():
            return training.step()

    diagnosis = advised(step, "switch anomaly mode off")
    (advice,) = [advice for advice in diagnosis.plan if "anomaly" in advice.change]
    assert advice.known == "tried"
    assert 0.3 < advice.low <= advice.saves <= advice.high < 1
    assert changes(diagnosis)[0] == "switch anomaly mode off"
    # The same without it is healthy.
    assert "anomaly" not in repr(diagnose(training.step, budget_s=QUICK_S))


def test_hooks_that_were_left_on_and_those_that_change_results():
    training = Training(8, 16, fused=True)

    def look_for_nan(module, inputs, output):
        for _ in range(20):
            assert not output.isnan().any()

    for module in training.model:
        module.register_forward_hook(look_for_nan)
    before = [dict(module._forward_hooks) for module in training.model]
    diagnosis = advised(training.step, f"take the hooks off the modules: {look_for_nan.__qualname__}")
    assert diagnosis.plan[0].known == "tried"
    assert [dict(module._forward_hooks) for module in training.model] == before
    # A hook that the loss needs is no candidate for leaving out, and PyTorch's own are none at all.
    needed = Training(2, 16)
    needed.model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert not [advice for advice in diagnose(needed.step, budget_s=QUICK_S).plan if "hooks" in advice.change]
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(needed.model[1])
    assert len(step_trials._hooks(find(needed.step))) == 1


def test_an_optimizer_that_loops_over_tensors():
    slow = Training(60, 8, foreach=False)
    diagnosis = advised(slow.step, "pass fused=True to AdamW")
    (advice,) = [advice for advice in diagnosis.plan if advice.known == "tried"]
    assert (advice.change, advice.lesson) == ("pass fused=True to AdamW", "torch_compile")
    assert "AdamW updates 120 tensors, one by one." in advice.because
    assert advice.low < diagnosis.phases["optimizer"]  # two measurements, so the interval says it
    # And with what it advises, there is nothing left to say.
    fast = Training(60, 8, fused=True)
    assert not [advice for advice in diagnose(fast.step, budget_s=QUICK_S).plan if advice.known == "tried"]


def test_small_gains_are_tried_on_top_of_a_large_one(monkeypatch):
    training, sleeps = Training(2, fused=True), {"small": 4e-3, "large": 40e-3, "both": 30e-3}

    def step():
        loss = training.step()
        time.sleep(sum(sleeps.values()))
        return loss

    def without(*names):
        return lambda work: mock.patch.dict(sleeps, dict.fromkeys(names, 0.0))

    plant(monkeypatch, {"small": without("small"), "large": without("large", "both"), "useless": without()})
    diagnosis = advised(step, "do small", budget_s=8.0)
    large, small = sorted((a for a in diagnosis.plan if a.known == "tried"), key=lambda advice: -advice.saves)
    assert (large.change, small.change) == ("do large", "do small")
    assert small.because.endswith("Tried on top of: large.")
    # Of the step as it is, not of what the large one leaves.
    assert 0.5 * 4 / 74 < small.saves < 1.5 * 4 / 74
    assert sum(sleeps.values()) == pytest.approx(74e-3)


def test_a_healthy_step_gets_no_advice():
    training = Training(3, 384, fused=True)
    diagnosis = diagnose(training.step, budget_s=2.0)
    assert diagnosis.plan == []
    assert "Nothing stands out" in diagnosis.card().words


class Slow(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((32,), index / 256)


def steps_of(loss_of, *modules, make=torch.optim.SGD, **options):
    """A step of a loss of modules."""
    options = options or {"lr": 1e-3, "fused": True}
    optimizer = make([p for module in modules for p in module.parameters()], **options)

    def step(*batch):
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step


def learn():
    model = layers(2)
    return steps_of(lambda batch: model(batch).square().mean(), model)


def test_a_loader_that_is_too_slow():
    step = learn()
    slow = diagnose(step, data=DataLoader(Slow(1e-3), batch_size=8), budget_s=2.0)
    (advice,) = slow.plan
    assert (advice.lesson, advice.known) == ("data_loading", "at most")
    assert advice.saves > 0.5
    assert "num_workers=0" in advice.because
    assert slow.step_s > 8e-3  # the wait is part of a step
    assert not diagnose(step, data=[torch.ones(8, 32)] * 4, budget_s=QUICK_S).plan


class Reading(Slow):
    """It takes longer where a process first needs it."""

    def __init__(self, seconds, first_s):
        self.seconds, self.first_s = seconds, first_s

    def __getitem__(self, index):
        process_clock.sleep(self.first_s + self.seconds)
        self.first_s = 0.0
        return torch.zeros(32)


@pytest.mark.parametrize(
    ("dataset", "persistent", "is_named"),
    [(Reading(0.0, 0.3), False, True), (Reading(0.0, 0.3), True, False), (Reading(0.1, 0.0), False, False)],
)
def test_workers_that_start_anew_with_each_pass(monkeypatch, dataset, persistent, is_named):
    monkeypatch.setattr(loading, "time", process_clock)  # workers have clocks of their own
    loader = DataLoader(dataset, 1, sampler=range(12), num_workers=2, persistent_workers=persistent)
    plan = diagnose(learn(), data=loader, budget_s=8.0).plan
    found = [advice for advice in plan if "persistent_workers=True" in advice.change]
    assert len(found) == is_named
    for advice in found:
        assert advice.saves > 0.5
        assert re.match(r"Workers start anew .*: its first batch takes \d+ ms, the others .*s each\.", advice.because)


@pytest.mark.parametrize(("every", "is_named"), [(1, True), (100, False)])
def test_garbage_that_is_collected_in_each_step(every, is_named):
    training, kept = Training(2, fused=True), [[number] for number in range(100_000)]

    def step():
        loss = training.step()
        if training.steps % every == 0:
            gc.collect()
        return loss

    found = changes(diagnose(step, budget_s=1.0))
    assert ("leave gc.collect() out of the step, or call it seldom" in found) == is_named * bool(kept)
    assert "do what follows the optimizer's step less often" not in found  # said once


def test_a_loader_inside_of_the_step():
    learning, batches = learn(), iter(DataLoader(Slow(1e-3), batch_size=8))
    diagnosis = diagnose(lambda: learning(next(batches)), budget_s=1.0)
    assert diagnosis.phases["waiting for data"] > 0.5
    assert changes(diagnosis) == ["load batches in workers of the DataLoader"]
    timed = [tried for tried in diagnosis.tried if tried.ratio]
    assert all(tried.difference == 0 for tried in timed)  # tried on one batch


def test_what_a_step_does_besides():
    training = Training(2, fused=True)

    def step():
        time.sleep(4e-3)
        loss = training.model(training.x).square().mean()
        loss.backward()
        time.sleep(8e-3)
        training.optimizer.step()
        training.optimizer.zero_grad()
        time.sleep(6e-3)
        return loss

    diagnosis = diagnose(step, budget_s=QUICK_S)
    entries = {advice.change: advice.saves for advice in diagnosis.plan if advice.known == "at most"}
    between, after, before = sorted(entries, key=lambda change: -entries[change])
    assert between == "do less between the backward pass and the optimizer's step"
    assert after == "do what follows the optimizer's step less often"
    assert before == "prepare batches before the step needs them"
    assert 0.15 < entries[before] < sum(entries.values()) < 1


def test_parameters_that_no_optimizer_updates():
    model, head, x = layers(12, 64), torch.nn.Linear(64, 8), torch.randn(64, 64)
    step = steps_of(lambda: head(model(x)).square().mean(), head)
    diagnosis = advised(step, "run model under torch.no_grad(), or freeze what is trained nowhere")
    (advice,) = [advice for advice in diagnosis.plan if advice.known == "tried"]
    assert advice.lesson == "no_grad"
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@pytest.mark.parametrize("part", [50, 0])
def test_weights_in_float64_are_noticed(part):
    model, x = layers(2), torch.randn(8, 32)
    model[1].to(torch.float64 if part else torch.float32)
    step = steps_of(lambda: model[1](model[0](x).to(model[1].weight.dtype)).square().mean(), model)
    found = [advice for advice in diagnose(step, budget_s=QUICK_S).plan if "float32" in advice.change]
    assert len(found) == bool(part)
    for advice in found:
        assert advice.because.startswith(f"{part}% of the 2.11 thousand weights")
        assert advice.change == "train in float32: model.float(), and inputs of that type"
        assert (advice.lesson, advice.saves) == ("mixed_precision", None)


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
    # Of a longer step something is named all the same.
    sleeps["s"] = 0.3
    plant(monkeypatch, {"quick": lambda work: mock.patch.dict(sleeps, s=0.15)})
    assert "do quick" in changes(diagnose(step, budget_s=12.0))


# --- causes that are in the program itself


def hidden_state(detach):
    """An LSTM that goes on from its last state."""
    model, x, kept = torch.nn.LSTM(8, 16, batch_first=True), torch.randn(2, 5, 8), {"state": None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)

    def step():
        out, state = model(x, kept["state"])
        kept["state"] = tuple(part.detach() for part in state) if detach else state
        out.square().mean().backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_graph_that_reaches_into_earlier_calls():
    diagnosis = diagnose(hidden_state(detach=False), budget_s=1.0)
    (advice,) = diagnosis.plan
    assert advice.change.startswith("detach what you keep from call to call")
    assert (advice.known, advice.saves) == ("at most", diagnosis.phases["backward pass"])
    seen = re.search(r"grows .* and reaches into earlier calls: (\d+) of the (\d+) operations", advice.because)
    assert 0.8 < int(seen[1]) / int(seen[2]) < 1  # the fewer calls the time allowed, the less
    assert "Its calls do more and more." in diagnosis.card().words
    assert not diagnose(hidden_state(detach=True), budget_s=1.0).grows


def growing(what):
    model, kept, dice = layers(2), [], random.Random(0)

    def loss():
        kept.append(torch.ones(32))
        time.sleep(len(kept) * 1e-3 * (what == "time"))
        rows = {"batch": len(kept), "lengths that differ": dice.choice((8, 64))}.get(what, 8)
        several = kept if what == "list" else []
        return model(torch.ones(rows, 32)).square().mean() + 0 * sum(each.mean() for each in several)

    return steps_of(loss, model)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("batch", r"numbers were written in its first call, and [\d,]+ in a later one"),
        ("list", r"operators ran in its first call, and \d+ in a later one"),
        ("time", r"Calls took .* at first and .* calls on"),
        ("lengths that differ", ""),
        ("nothing", ""),
    ],
)
def test_work_that_grows_from_call_to_call(what, words):
    diagnosis = diagnose(growing(what), budget_s=1.0)
    found = [advice.because for advice in diagnosis.plan if "grows" in advice.change]
    assert diagnosis.grows == bool(words)
    assert len(found) == bool(words)
    assert not words or re.search(words, found[0])
    assert "Nothing stands out" not in diagnosis.card().words or not words


def flushes():
    return bool((torch.full((8,), 1e-39) * 1.0).count_nonzero() == 0)


@pytest.mark.skipif(not contents._flushes(), reason="this processor does not flush denormal numbers")
@pytest.mark.parametrize("scale", [1e-39, 1.0])
def test_denormal_numbers_are_flushed_in_a_thread_of_their_own(scale):
    training = Training(2, fused=True)
    with torch.no_grad():
        training.model[0].weight.mul_(scale)
    training.optimizer.param_groups[0]["lr"] = 0.0  # or they grow

    def step():
        time.sleep(0.0 if flushes() else 5e-3)  # as a processor that is slow with them
        return training.step()

    change = "call torch.set_flush_denormal(True) where the program begins"
    if scale == 1.0:
        assert "denormal numbers flushed" not in [each.name for each in diagnose(step, budget_s=QUICK_S).tried]
        return
    (advice,) = (advice for advice in advised(step, change).plan if advice.change == change)
    assert advice.known == "tried"
    assert re.match(r"Of the numbers in .*, \d+% are denormal", advice.because)
    assert not flushes()


def looking_up(rows, make):
    table, head = torch.nn.Embedding(rows, 16), torch.nn.Linear(16, 4)
    return steps_of(lambda: head(table(torch.arange(32))).square().mean(), table, head, make=make, lr=1e-3)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_embedding_of_which_few_rows_get_a_gradient(make):
    how = "" if make is torch.optim.SGD else ", and update it with torch.optim.SparseAdam"
    diagnosis = advised(looking_up(30_000, make), change := f"pass sparse=True to table{how}", budget_s=2.0)
    (advice,) = (advice for advice in diagnosis.plan if advice.change == change)
    assert advice.known == "tried"
    assert advice.because.startswith("Of its 30,000 rows 32 get a gradient")
    assert "sparse" not in repr(diagnose(looking_up(40, make), budget_s=QUICK_S).plan)


class Keeping(torch.nn.Linear):
    """It adds to what it gave before, so that its calls depend on each other."""

    before = 0.0

    def forward(self, row):
        self.before = 0.5 * self.before + super().forward(row)
        return self.before


def fed_back(layer, x):
    outs = [layer(x[:1])]
    for _ in x[1:]:
        outs.append(layer(outs[-1]))
    return torch.cat(outs)


def sampled(layer, x):
    out, outs = x[:1], []
    for _ in x:
        outs.append(layer(out))
        out = torch.full((1, 16), float(outs[-1].sum().tanh()))  # by way of Python
    return torch.cat(outs)


def kept_from_before(layer, x):
    layer.before = 0.0
    return torch.cat([layer(row[None] * 2) for row in x])


LOOPS = {
    "rows": (lambda layer, x: torch.stack([layer(row) for row in x]), "tried"),
    "slices": (lambda layer, x: torch.cat([layer(x[i : i + 1]) for i in range(len(x))]), "tried"),
    "steps in time": (lambda layer, x: torch.stack([layer(x.view(8, 4, 16)[:, t]) for t in (0, 1, 2, 3) * 5]), ""),
    "hidden rows": (lambda layer, x: torch.stack([layer(row) for row in x * layer.weight.mean()]), "tried"),
    "made anew": (lambda layer, x: torch.cat([layer(row[None] * 2) for row in x]), "seen"),
    "once": (lambda layer, x: layer(x), ""),
    "chunks": (lambda layer, x: torch.cat([layer(part) for part in x.chunk(8)]), ""),
    "one input": (lambda layer, x: torch.cat([layer(x[:1]) for _ in x]), ""),
    "fed back": (fed_back, ""),
    "sampled": (sampled, ""),
    "kept from before": (kept_from_before, ""),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_module_that_is_called_on_row_after_row(kind):
    forward, known = LOOPS[kind]
    layer, x = (Keeping if kind == "kept from before" else torch.nn.Linear)(16, 16), torch.randn(32, 16)
    step, change = steps_of(lambda: forward(layer, x).square().mean(), layer), "call layer once on all 32 rows"
    if known == "tried":
        (advice,) = (each for each in advised(step, change, budget_s=1.0).plan if each.change == change)
        assert advice.known == "tried"
        assert "called 32 times in a forward pass" in advice.because
        return
    diagnosis = diagnose(step, budget_s=QUICK_S)
    assert (change in changes(diagnosis)) == (known == "seen")
    assert "at once" not in repr(diagnosis.tried)


class InMemory(Dataset):
    """Rows of tensors in memory; with noise, no index gives the same."""

    def __init__(self, noise):
        self.x, self.labels, self.noise = np.random.rand(256, 32).astype(np.float32), torch.arange(256), noise

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return self.x[index] + self.noise * random.random(), int(self.labels[index])


@pytest.mark.parametrize(
    ("dataset", "is_named"),
    [
        (TensorDataset(torch.randn(256, 32), torch.arange(256)), True),
        (Subset(TensorDataset(torch.randn(512, 32), torch.arange(512)), range(100, 356)), True),
        (InMemory(noise=0.0), True),
        (InMemory(noise=0.1), False),
    ],
)
def test_samples_that_are_fetched_one_by_one_from_tensors_in_memory(dataset, is_named):
    learning = learn()
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
    diagnosis = diagnose(lambda batch: learning(batch[0]), data=loader, budget_s=QUICK_S)
    found = [advice for advice in diagnosis.plan if advice.change.startswith("index the tensors in memory")]
    assert len(found) == is_named
    if is_named:
        (advice,) = found
        assert advice.known == "tried"
        assert 0 < advice.low <= advice.saves <= advice.high < diagnosis.phases["waiting for data"]


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


@pytest.mark.parametrize("returned", [None, 7, torch.zeros(3)], ids=str)
def test_whatever_a_step_returns_the_loss_of_its_backward_pass_is_compared(monkeypatch, returned):
    training = Training(2, fused=True)
    xs = {"half": training.x / 2, "almost": training.x * (1 + 1e-5)}
    plant(monkeypatch, {name: functools.partial(with_attribute, training, "x", x) for name, x in xs.items()})
    half, almost = diagnose(lambda: (training.step(), returned)[1], budget_s=QUICK_S).tried
    assert half.verdict == CHANGES_RESULTS
    assert 0 < almost.difference < 1e-3


def test_without_a_loss_the_weights_are_compared(monkeypatch):
    training = Training(2, fused=True)

    def step():
        training.optimizer.zero_grad()
        outputs = training.model(training.x)
        outputs.backward(torch.ones_like(outputs))
        training.optimizer.step()

    xs = {"turned": -training.x, "none": training.x}
    plant(monkeypatch, {name: functools.partial(with_attribute, training, "x", x) for name, x in xs.items()})
    turned, none = diagnose(step, budget_s=QUICK_S).tried
    assert (turned.verdict, none.difference) == (CHANGES_RESULTS, 0.0)


def test_a_bias_whose_gradient_is_rounding_does_not_hide_a_change():
    """A bias before a normalization: AdamW makes steps of the learning rate out of what is noise."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
    x = torch.randn(8, 3, 16, 16)
    step = steps_of(lambda: model(x).square().mean(), model, make=torch.optim.AdamW, lr=1e-3)
    tried = {each.name: each for each in diagnose(step, budget_s=1.0).tried}
    assert 0 <= tried["channels_last"].difference < 1e-3


@pytest.mark.skipif(compiler() is None, reason="torch.compile finds no C++ compiler")
def test_a_compiled_model_draws_what_dropout_draws_without():
    training = Training(1, 8, fused=True)
    training.model.append(torch.nn.Dropout(0.5))
    found = find(training.step)
    bench = Bench(Work(training.step), found, Device(), Snapshot(found))
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    try:
        plain, compiled = bench.steps(), bench.steps([step_trials._compile(found)])
    finally:
        bench.close()
    assert graphs["unique_graphs"] > before  # a Sequential is compiled, too
    assert plain.difference(compiled) < 1e-5


class Branching(torch.nn.Linear):
    """Its graph breaks where Python asks for a value."""

    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else -super().forward(x)


@pytest.mark.skipif(compiler() is None, reason="torch.compile finds no C++ compiler")
def test_compiling_ends_in_time_and_is_silent(caplog):
    training, log = Training(1, 8, fused=True), logging.getLogger("torch._dynamo")
    training.model.append(Branching(8, 8))
    found, level = find(training.step), log.level

    def step():
        logging.getLogger("own").warning("the step's own")
        return training.step()

    work = Work(step, compile_until=0.0)
    bench = Bench(work, found, Device(), Snapshot(found))
    log.addHandler(caplog.handler)
    try:
        with pytest.raises(Exception, match="compiling takes too long"):
            bench.steps([step_trials._compile(found)])
    finally:
        bench.close()
        log.removeHandler(caplog.handler)
    assert work.gave_up
    assert {record.name for record in caplog.records if record.levelno >= logging.WARNING} == {"own"}
    assert log.level == level


def test_a_compiler_that_is_given_up_leaves_it_open_what_it_saves(monkeypatch):
    training, limits = Training(2, fused=True), []

    @contextlib.contextmanager
    def slow(work):
        limits.append(work.compile_until - time.perf_counter())
        work.gave_up = True
        raise TimeoutError
        yield

    plant(monkeypatch, {COMPILE: slow})
    monkeypatch.setattr(diagnosing, "_LEAST_FOR_COMPILING_S", 0.0)
    late = diagnose(training.step, budget_s=QUICK_S)
    monkeypatch.setattr(diagnosing, "_LEFT_FOR_COMPILING_S", -100.0)
    given_up = diagnose(training.step, budget_s=QUICK_S)
    assert len(limits) == 1
    assert 0 < limits[0] <= QUICK_S / 2
    assert any("Compiling was given up after" in note for note in given_up.notes)
    for diagnosis in (late, given_up):
        assert [(tried.name, tried.verdict) for tried in diagnosis.tried] == [(COMPILE, NO_TIME)]
        assert "pass budget_s=1." in diagnosis.card().warning


# --- everything is put back


@pytest.mark.parametrize("steps_before", [0, 3])
def test_all_is_as_it_was(steps_before):
    training = Training(foreach=False)
    for _ in range(steps_before):
        training.step()

    def places():
        moments = [t for state in training.optimizer.state.values() for t in state.values()]
        return [t.data_ptr() for t in (*training.model.parameters(), *moments)]

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


@pytest.mark.parametrize("calls", [2, 60, 400])
def test_ctrl_c_gives_what_is_known_and_puts_all_back(calls):
    training, count = Training(20, foreach=False), itertools.count(1)
    before = training.state()

    def step():
        if next(count) == calls:
            os.kill(os.getpid(), signal.SIGINT)
        return training.step()

    if calls == 2:  # nothing is known yet
        with pytest.raises(KeyboardInterrupt):
            diagnose(step, budget_s=8.0)
    else:
        diagnosis = diagnose(step, budget_s=8.0)
        assert diagnosis.interrupted
        assert "Stopped early" in repr(diagnosis)
        assert diagnosis.step_s > 0
    assert same(before, training.state())


def test_names_that_a_step_binds_and_weights_in_another_layout_are_put_back():
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
    diagnosis = diagnose(step, budget_s=QUICK_S)
    assert "channels_last" in [tried.name for tried in diagnosis.tried]
    assert same(before, state())
    assert model[0].weight.is_contiguous()
    assert not optimizer.state


# --- what is found


def test_two_models_of_one_class_are_told_apart():
    assert find(learn(), [layers(1), layers(2)]).models.keys() == {"Sequential", "Sequential 2"}


def test_an_iterator_that_is_made_meanwhile_ends():
    loader = DataLoader(list(range(6)), batch_size=2)
    old = iter(loader)
    with replayed():
        first = next(old)
        assert torch.equal(first, next(old))
        assert len(list(loader)) == 3
    assert not torch.equal(first, next(old))


# --- what it refuses


def accumulating():
    training = Training(2)

    def step():
        loss = training.model(training.x).square().mean()
        loss.backward()
        training.steps += 1
        if training.steps % 4 == 0:
            training.optimizer.step()
            training.optimizer.zero_grad()
        return loss

    return step


def other_data():
    learning, batches = learn(), itertools.count(1)
    return lambda: learning(torch.full((8, 32), float(next(batches))))


def not_a_number():
    training = Training(2)
    training.x *= float("nan")
    return training.step


def no_backward():
    model = layers(1)
    return lambda: model(torch.ones(2, 32)).sum()


def few_batches():
    learning, batches = learn(), iter([torch.ones(8, 32)] * 3)
    return lambda: learning(next(batches))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda: lambda: 1, "No parameters were found"),
        (lambda: layers(1), "pass the function"),
        (lambda: lambda batch: batch, "must take nothing"),
        (accumulating, "different work in each call (0 and 1 optimizer steps)"),
        (other_data, "Let it work on one fixed batch"),
        (not_a_number, "The loss is nan in call 1"),
        (no_backward, "ran no backward pass"),
        (few_batches, "ran out of data in its call 4"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_it_refuses_what_it_cannot_judge(step, words):
    with pytest.raises(StepError, match=re.escape(words)):
        diagnose(step(), budget_s=QUICK_S)


@pytest.mark.parametrize(
    "argument",
    [{"budget_s": 0}, {"budget_s": "long"}, {"tolerance": -1}, {"model": {}}, {"optimizer": layers(1)}, {"data": 7}],
    ids=str,
)
def test_it_refuses_arguments_that_make_no_sense(argument):
    with pytest.raises(StepError, match=next(iter(argument))):
        diagnose(Training().step, **argument)


def test_one_rank_of_several_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(StepError, match="does not support several ranks"):
        diagnose(Training().step)


def said(tried=(), **known):
    return Diagnosis(environment(), find(Training().step), 1.0, step_s=1.0, tried=[*tried], **known).card().words


UNCLEAR = Tried("change", str(Verdict.UNCLEAR), 0.0, 1.0, Interval(0.7, 1.3, 0.99))
USELESS = Tried("other", str(Verdict.SAME), 0.0, 1.0, Interval(0.99, 1.01, 0.99))


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"tried": [USELESS]}, "Nothing stands out. Looked for: loops. Tried, and not clearly shorter: other."),
        ({"notes": ["torch.compile was not tried: why."]}, "No change was tried. torch.compile was not tried. The"),
        ({}, "The largest part is optimizer (50%). A trace tells what is inside: lesson "),
        ({"interrupted": True}, "not known yet. The largest part is optimizer (50%). Let diagnose() run to its end."),
        (
            {"tried": [Tried("late", NO_TIME)], "needed_s": 2.0},
            "is not known yet. The largest part is optimizer (50%).",
        ),
        ({"tried": [Tried("late", NO_TIME, first=0.5)]}, "In a few steps it was 2.00 times as fast with this: late."),
        ({"tried": [UNCLEAR], "busy": "Others ran."}, "Too close to tell, of what was tried: change. The largest part"),
    ],
    ids=str,
)
def test_what_is_said_where_nothing_is_advised(known, words):
    text = said(**known, looked=["loops"], phases={"backward pass": 0.4, "optimizer": 0.5})
    assert words in text
    unsure = known.get("interrupted") or known.get("tried", [USELESS]) != [USELESS]
    assert ("Nothing stands out" in text) != bool(unsure)


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
    found = diagnose(step, data=[(torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.long))] * 4, budget_s=12.0)
    assert {p.device.type for p in model.parameters()} == {"cuda"}
assert not optimizer.state
print(*sorted(tried.name for tried in found.tried if tried.difference is not None), sep=", ")
"""


def test_what_is_tried_on_a_gpu():
    run = subprocess.run([sys.executable, "-c", ON_GPU], capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "TF32, channels_last, cudnn.benchmark, fused AdamW, pinned batches"


# --- how it shows itself


def test_the_card_says_where_how_and_what_it_worked_on(capsys):
    training = Training(2)

    def step():
        loss = training.step()
        print("loss", loss.item())  # noqa: T201
        return loss

    diagnosis = diagnose(step, budget_s=QUICK_S)
    assert capsys.readouterr().out == ""
    text = repr(diagnosis)
    assert "thrown away" in text
    assert "Worked on: model and optimizer." in text
    assert f"torch {torch.__version__}" in text
    assert sum(diagnosis.phases.values()) == pytest.approx(1)
