"""`reproducible_runs`: its code to paste, its cases and exercises; facts about torch are in its lesson.yml."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from course_utils.lessons.reproducible_runs import cases
from course_utils.lessons.reproducible_runs.checks import check_noise
from course_utils.measure.fresh import RandomState, Switches
from course_utils.records.lessons import find_lesson

ROOT = Path(__file__).parents[2]
NOTEBOOK = find_lesson("reproducible_runs").path


@pytest.fixture(autouse=True)
def _as_before():
    before = RandomState.now()
    with Switches.kept():
        torch.set_num_threads(1)
        yield
    before.restore()


def _pasted() -> dict[str, Any]:
    """The lesson's code to paste."""
    pasted: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", [])
        # The last of them uses the others, so it does not stand alone.
        if "standalone" in tags or ("def assert_resumes" in "".join(cell["source"]) and cell["cell_type"] == "code"):
            exec("".join(cell["source"]), pasted)
    return pasted


PASTED = _pasted()


def _next_numbers() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(1).item()]


def test_the_pasted_state_passes_through_torch_load_and_brings_the_numbers_back():
    PASTED["seed_everything"](3)
    _next_numbers()
    file = io.BytesIO()
    torch.save(PASTED["random_state"](), file)
    expected = _next_numbers()
    file.seek(0)
    PASTED["set_random_state"](torch.load(file))
    assert _next_numbers() == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_pasted_batches_begin_anywhere_and_draw_nothing(workers: int):
    data = torch.arange(10)
    torch.manual_seed(0)
    whole = [batch.tolist() for batch in PASTED["batches"](data, 4, epoch=1)]
    rest = [batch.tolist() for batch in PASTED["batches"](data, 4, epoch=1, done=1, num_workers=workers)]
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert rest == whole[1:]
    assert sorted(row for batch in whole for row in batch) == data.tolist()
    assert whole != [batch.tolist() for batch in PASTED["batches"](data, 4, epoch=2)]
    assert torch.equal(drawn, torch.rand(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_the_fingerprint_sees_one_bit_and_takes_any_dtype(dtype: torch.dtype):
    model = nn.Sequential(nn.Linear(4, 4).to(dtype), nn.BatchNorm1d(4))
    model[0].weight = nn.Parameter(model[0].weight.detach().t())  # not contiguous
    before = PASTED["fingerprint"](model)
    assert PASTED["fingerprint"](model) == before
    model[0].weight.data[1, 2] *= 1.01
    assert PASTED["fingerprint"](model) != before


# A program that shows whether a training resumes


def _example() -> tuple[Any, Any]:
    """`build` and `train`, as the text has them."""
    text = next(
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        if "def build" in "".join(cell["source"])
    )
    names = dict(PASTED)
    exec(re.search(r"```python\n(.*?)\nassert_resumes", text, re.DOTALL)[1], names)
    return names["build"], names["train"]


def test_the_pasted_check_passes_a_training_that_resumes(tmp_path: Path):
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    PASTED["assert_resumes"](*_example(), 8, tmp_path / "checkpoint.pt")
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("left_out", ["optimizer", "scheduler", "random numbers", "position"])
def test_the_pasted_check_raises_where_something_is_left_out(
    left_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    build, train = _example()
    names = dict(PASTED)
    assert_resumes = type(_example)(PASTED["assert_resumes"].__wrapped__.__code__, names)
    if left_out == "random numbers":
        names["set_random_state"] = lambda state: None
    if (part := build().get(left_out)) is not None:
        monkeypatch.setattr(type(part), "load_state_dict", lambda part, state: None)
    starts = iter([0, 8, 0 if left_out == "position" else 8])

    def eight_steps(parts: dict[str, Any], *_: int) -> None:
        start = next(starts)
        train(parts, start, start + 8)

    with pytest.raises(AssertionError):
        assert_resumes(build, eight_steps, 8, tmp_path / "checkpoint.pt")


# Answers to exercise 2


def _kept_global(seed: int, epoch: int, index: int) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(int(f"{seed}{epoch:04}{index:08}"))
        return torch.randn(4)


def _a_cache_of_global_draws() -> Any:
    seen: dict[Any, Any] = {}
    return lambda *place: seen.setdefault(place, np.random.normal(size=4))


def _moves_numpys(seed: int, epoch: int, index: int) -> Any:
    np.random.seed([seed, epoch, index])
    return np.random.normal(size=4)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (_kept_global, None),
        (lambda *place: [random.Random(str(place)).gauss(0, 1) for _ in range(4)], None),
        (lambda *place: np.random.default_rng(abs(hash(place))).normal(size=4), None),
        (lambda seed, epoch, index: np.random.default_rng((seed << 64) + (epoch << 32) + index).normal(size=4), None),
        (lambda *place: np.random.normal(size=4), "order"),
        (_a_cache_of_global_draws(), "global"),
        (_moves_numpys, "global"),
        (lambda *place: np.random.default_rng(abs(hash(str(place)))).normal(size=4), "hash"),
        (lambda *place: np.random.default_rng(abs(hash(tuple(map(str, place))))).normal(size=4), "hash"),
        (lambda seed, epoch, index: np.random.default_rng(100 * seed + 10 * epoch + index).normal(size=4), "collides"),
        (lambda seed, epoch, index: np.random.default_rng(int(f"{seed}{epoch}{index}")).normal(size=4), "collides"),
        (lambda seed, epoch, index: np.random.default_rng(seed * epoch * index).normal(size=4), "collides"),
        (lambda seed, epoch, index: np.random.default_rng([epoch, index]).normal(size=4), "collides"),
    ],
)
def test_what_the_noise_check_says(answer: Any, hint: str | None):
    before = random.getstate()
    feedback = check_noise(answer)
    assert (feedback.hint, feedback.outcome) == (hint, "not yet" if hint else "right"), feedback
    assert random.getstate() == before


# What the text says


def test_every_remedy_ends_its_cause():
    rows = {row["cause"]: row for row in cases.causes()}
    assert {row["with it"] for row in rows.values()} == {"same"}
    # A race and another CPU's kernels are this machine's; the order of files is the disk's.
    for cause in ("no seed", "order of a set", "2 workers for 1", "a look at a loader"):
        assert rows[cause]["left alone"] == "differs", cause


def test_a_resumed_run_is_equal_to_the_bit_only_with_everything():
    def checkpoint(training: cases.Training) -> dict[str, Any]:
        parts = {part: getattr(training, part).state_dict() for part in ("model", "optimizer", "scheduler")}
        return parts | {"position": [training.epoch, training.batch], "random": PASTED["random_state"]()}

    def restore(training: cases.Training, state: dict[str, Any]) -> None:
        for part in ("model", "optimizer", "scheduler"):
            getattr(training, part).load_state_dict(state[part])
        training.epoch, training.batch = state["position"]
        PASTED["set_random_state"](state["random"])

    first, *rest = cases.resumed(checkpoint, restore)
    assert first == {"left out": "nothing", "first other loss": "none", "weights equal": 1.0}
    assert all(row["first other loss"] != "none" and row["weights equal"] < 1 for row in rest)


class _Random(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_holds_no_workers_random_numbers(workers: int):
    loader = iter(PASTED["batches"](_Random(), 2, epoch=0, num_workers=workers))
    next(loader)
    state = PASTED["random_state"]()
    rest = torch.cat(list(loader))
    PASTED["set_random_state"](state)
    resumed = torch.cat(list(PASTED["batches"](_Random(), 2, epoch=0, done=1, num_workers=workers)))
    assert torch.equal(rest, resumed) == (workers == 0)


def test_the_three_steps_that_are_timed_give_the_same_loss_to_the_bit():
    losses = []
    for options in ((False,), (True,), (True, False)):
        with Switches.kept():
            torch.manual_seed(0)
            step = cases.training_step(*options)
            losses.append([step().item() for _ in range(3)])
    assert losses[0] == losses[1] == losses[2]
    assert torch.utils.deterministic.fill_uninitialized_memory


# The image


def test_the_image_installs_what_is_pinned_with_a_python_that_the_course_supports():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "-r requirements.txt -c constraints.txt" in text
    (version,) = re.findall(r"^FROM python:3\.(\d+)-slim$", text, re.MULTILINE)
    supported = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert int(supported[1]) <= int(version) < int(supported[2])
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
