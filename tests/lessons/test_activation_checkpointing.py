"""`activation_checkpointing`: what its wrapper does in people's variants, and that its arithmetic holds."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from authoring.lesson_files import load_lessons
from course_utils.lessons.activation_checkpointing import cases, checks, real_sizes
from course_utils.materials.models import GPT
from course_utils.materials.step_memory import worked_out
from course_utils.records import store
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

CELLS = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson("activation_checkpointing").path)["cells"]}
SCOPE: dict[str, Any] = {}
exec(CELLS["recompute"], SCOPE)
recompute = SCOPE["recompute"]
for cell in ("variants", "paste"):
    exec(CELLS[cell], SCOPE)


class Scaled(nn.Module):
    """A block with dropout that takes a keyword and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 16))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> tuple[torch.Tensor, dict[str, float]]:
        return self.layers(x) * scale, {"scale": scale}


def blocks() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Scaled() for _ in range(3))


def gradients(model: nn.ModuleList, around: Any = contextlib.nullcontext) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    x = torch.ones(4, 16)
    with around():
        for block in model:
            x, _ = block(x, scale=2.0)
    x.float().square().sum().backward()
    return [weight.grad for weight in model.parameters()]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("count", [0, 2, None])
def test_gradients_are_the_same_to_the_bit(count, training, autocast):
    def around() -> Any:
        return torch.autocast("cpu", torch.bfloat16, enabled=autocast)

    plain, wrapped = blocks().train(training), blocks().train(training)
    recompute(wrapped, count)
    assert cases.same_gradients(gradients(plain, around), gradients(wrapped, around))
    assert list(wrapped.state_dict()) == list(plain.state_dict())


def test_the_whole_model_compiles_in_one_graph():
    wrapped = blocks().eval()
    recompute(wrapped)

    def run(x: torch.Tensor) -> torch.Tensor:
        for block in wrapped:
            x, _ = block(x)
        return x

    torch.compile(run, fullgraph=True, backend="aot_eager")(torch.ones(4, 16)).sum().backward()
    assert wrapped[0].layers[0].weight.grad is not None


def test_the_line_of_the_first_blocks_holds_and_the_last_ones_peak_higher():
    rows = {row["recomputed"]: row for row in cases.peaks_by_count(recompute, (0, 1, 6, 11))}
    for label in ("6 of 12", "11 of 12"):
        row = rows[label]
        assert row["the first"] == pytest.approx(row["by the line"], rel=1e-3)
        assert row["the last"] > row["the first"]


def test_the_line_ends_at_the_peak_of_all_blocks_at_a_gpus_sizes():
    """Why it fails at 11 of 12 in the H200's record: worked out without a GPU, it does so, too."""

    def peak(count: int) -> int:
        def build() -> Any:
            model = GPT(256, 1024, 1024, cases.LAYERS, 16)
            recompute(model.blocks, count)
            tokens = torch.zeros(4, 1024, dtype=torch.int64)

            def step() -> None:
                model.zero_grad()
                cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

            return model, None, step

        memory = worked_out(build, steps=1)
        return memory.peak_bytes - memory.at_peak["weights"]

    none, one, six, eleven, every = map(peak, (0, 1, 6, 11, 12))
    assert six == none - 6 * (none - one)
    assert eleven == every > 1.5 * (none - 11 * (none - one))
    recorded = store.recorded("activation_checkpointing/count", machine="nvidia-h200")
    assert recorded["11 of 12"]["the first"] == recorded["12 of 12"]["the first"] == pytest.approx(every, rel=0.02)


def test_single_blocks_are_best_at_12_and_pairs_from_48_on():
    rows = {row.pop("model"): row for row in real_sizes.peaks_by_depth()}
    best = {depth: min(row, key=row.get) for depth, row in rows.items()}
    assert best == {"12 blocks": "segments of 1", "48 blocks": "segments of 2", "80 blocks": "segments of 2"}
    whole = worked_out(lambda: real_sizes._gpt_step(1024, 12, 16, segment=4, words=256, batch=64))
    assert whole.peak_bytes == rows["12 blocks"]["segments of 4"]


def flops_of_gpt(change: Any) -> int:
    step = cases.training_step(change, layers=2, optimizer=False)
    with FlopCounterMode(display=False, custom_mapping=cases._ATTENTION_FLOPS) as counter:
        step()
    return counter.get_total_flops()


def test_attention_is_counted_and_computed_again_unless_it_is_listed():
    def keeping(*ops: Any) -> int:
        context_fn = partial(create_selective_checkpoint_contexts, [*SCOPE["products"], *ops])
        return flops_of_gpt(lambda model: recompute(model.blocks, context_fn=context_fn))

    everything = flops_of_gpt(lambda model: None)
    assert keeping(*SCOPE["attention"]) == everything < keeping()


def test_the_selective_policy_computes_less_again_and_gives_the_same_gradients():
    def selective(model: Any) -> None:
        recompute(model.blocks, context_fn=SCOPE["selective"])

    def of(change: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return cases.training_step(change, layers=2, optimizer=False)()

    assert cases.same_gradients(of(lambda model: None), of(selective))
    each = flops_of_gpt(lambda model: recompute(model.blocks))
    assert flops_of_gpt(lambda model: None) < flops_of_gpt(selective) < each < 4 / 3 * flops_of_gpt(lambda model: None)


def test_pasted_gradients_compare_a_model_before_and_after_and_leave_none_behind():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))

    def compute_loss() -> torch.Tensor:
        return model(torch.ones(2, 4)).square().sum()

    before = SCOPE["gradients"](model, compute_loss)
    assert all(weight.grad is None for weight in model.parameters())
    recompute(model[:2])
    torch.testing.assert_close(SCOPE["gradients"](model, compute_loss), before, rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(before | {"0.weight": None}, before)


def test_published_peaks_are_those_of_the_row():
    (row,) = (row for lesson in load_lessons() for row in lesson.published if row.id == "enzo_a800_segments")
    assert set(real_sizes.PUBLISHED_GIB.values()) < set(row.values.values())
    published = row.values["short_none_gib"] * 2**30
    assert real_sizes.worked_out_bytes(512, None) == pytest.approx(published, rel=0.01)


def policy_with_cudas_names(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    return op in SCOPE["products"] | SCOPE["attention"] | {torch.ops.aten.bmm.default}


def with_an_input_that_needs_a_gradient(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x if x.requires_grad else x.requires_grad_(), use_reentrant=True)


def by_keyword(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x=x, use_reentrant=False, determinism_check="default")


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (checks.check_policy, policy_with_cudas_names),
        (checks.check_repair, with_an_input_that_needs_a_gradient),
        (checks.check_repair, by_keyword),
    ],
)
def test_right_answers_of_another_form_are_right(check, answer):
    assert check(answer).outcome == "right"


def test_a_seed_set_inside_the_function_is_not_right():
    def seeded(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def run(x: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(3)
            return block(x)

        return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)

    feedback = checks.check_repair(seeded)
    assert feedback.outcome == "not yet"
    assert "you set the seed" in str(feedback)
