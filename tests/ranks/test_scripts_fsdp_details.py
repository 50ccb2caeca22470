"""What `fsdp` says of FSDP's start, order, messages and failures, on real ranks."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import nbformat
import pytest
import torch
import yaml
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.materials.h100_step import h100_steps
from course_utils.ranks.cluster import stored_plans
from course_utils.ranks.launch import RankError, run_ranks
from course_utils.records.kinds.rank_results import RankResults
from course_utils.records.lessons import find_lesson
from tests.launches import outputs_of

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
MIXED = "got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor"


@pytest.fixture(autouse=True)
def _in_the_notebooks_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "notebooks")


@pytest.fixture(scope="module")
def calls() -> RankResults:
    program = ROOT / "tests" / "rank_programs" / "fsdp_calls.py"
    return run_ranks(program, ranks=2, timeout_s=240, show_output=False, backend="gloo")


@pytest.mark.timeout(300)
def test_the_order_of_gathers_and_the_init_on_meta_are_as_the_lesson_says() -> None:
    run = run_ranks("scripts/fsdp_details.py", ranks=2, timeout_s=240, show_output=False, backend="gloo")
    found = run[0]

    ways = found["schedules"]
    assert ways["as it is"]["forward"] == "G0 F0 G1 F1 G2 F2 G3 F3"
    assert ways["forward prefetch"]["forward"] == "G0 G1 F0 G2 F1 G3 F2 F3"
    backward = ways["as it is"]["backward"].split()
    assert backward[0] == "G3"  # freed after its forward pass, and gathered again at once
    assert backward.index("G2") < backward.index("R3")
    two = ways["two ahead in backward"]["backward"].split()
    assert two.index("G1") < two.index("B2")
    assert backward.index("G1") > backward.index("B2")
    assert "G" not in ways["no reshard"]["backward"]

    init = found["init"]
    for start in ("meta, one seed for all ranks", "meta, a seed for each rank"):
        assert init[start]["std of qkv"] == pytest.approx(init["one process"]["std of qkv"], rel=0.02)
        assert init[start]["std of the embedding"] == pytest.approx(0.02, rel=0.05)
    assert init["meta, one seed for all ranks"]["all shards equal"]
    assert not init["meta, a seed for each rank"]["all shards equal"]

    assert found["hybrid"]["loss"] == pytest.approx(found["loss"], rel=1e-3)
    assert found["hybrid"]["placements"] == "(Replicate(), Shard(dim=0))"


@pytest.mark.timeout(300)
def test_messages_and_whole_state_dicts_are_as_the_lesson_says(calls: RankResults) -> None:
    found = calls[0]
    says = found["mistakes"]
    for mistake in ("model.forward(x) instead of model(x)", "another method of the model"):
        assert says[mistake].startswith(f"RuntimeError: aten.embedding.default {MIXED}")
    assert says["the same, registered"] == "runs"
    assert f"aten._foreach_norm.Scalar {MIXED}" in says["clipping, root not wrapped"]
    assert "shared with a parameter already managed by another FSDP group" in says["two groups share a weight"]
    assert "FSDP parameters should be materialized from meta device" in says["no to_empty after meta"]
    assert "fully_shard does not support containers" in says["the list of blocks"]

    entries = found["state_dicts"]["entries"]
    assert found["state_dicts"] == {"entries": entries, "same": True, "entries of the dict that was given": entries}
    assert calls[1]["state_dicts"]["entries"] == 0  # whole weights are rank 0's alone


@pytest.mark.timeout(300)
def test_what_raises_nothing_goes_wrong_as_the_lesson_says(calls: RankResults) -> None:
    for rank, found in enumerate(of_rank["silent"] for of_rank in calls):
        evaluated = found["an evaluation, then the optimizer"]
        assert (evaluated["whole after it"], evaluated["missed"]) == (4, 4)  # two embeddings, and the norm's two
        assert evaluated["embedding moved"] == 0
        saved = found["torch.save of state_dict"]
        assert 2 * saved["rows in the file"] == saved["rows"]
        # Each layer's own gradient is 1 or 2, and 0 on the other rank; without the option both layers get the mean.
        ways = found["another layer on each rank"]
        assert ways == {"unused=False": 1.5, "unused=True": (1 + rank) / 2}
        assert "out of bounds for storage of size 0" in found["in place"]["y += x"]
        assert found["in place"]["y + x"] == "runs"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "words"),
    [("is late", "Timed out waiting"), ("skips", "Connection (closed|reset) by peer|Timed out waiting")],
)
def test_the_other_rank_is_named_where_one_does_not_come(how: str, words: str) -> None:
    with pytest.raises(RankError, match=words) as failure:
        run_ranks(
            "scripts/fsdp_failure.py", ranks=2, args=["--how", how], timeout_s=55, show_output=False, backend="gloo"
        )
    assert (failure.value.reason, failure.value.rank) == ("raised", 0)


@pytest.mark.timeout(300)
def test_the_template_replicates_compiles_and_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    def losses(ranks: int, *more: str) -> list[float]:
        program = ("scripts/fsdp_template.py", "--folder", str(tmp_path), *more)
        (output,) = outputs_of((*TORCHRUN, f"--nproc-per-node={ranks}", *program))
        return [float(line.split("loss ")[1].split(",")[0]) for line in output.splitlines() if "loss " in line]

    first, resumed = losses(2, "--replicas", "2", "--compile", "aot_eager"), losses(3, "--resume")
    assert len(first) == 5
    assert first[-1] < first[0]
    assert resumed[0] < first[2]
    assert resumed[0] not in first  # other batches than in the first five steps

    with pytest.raises(pytest.fail.Exception, match="there is no complete checkpoint in"):
        losses(1, "--resume", "--folder", str(tmp_path / "empty"))


def test_the_templates_init_is_the_models_own() -> None:
    template = runpy.run_path("scripts/fsdp_template.py")
    torch.manual_seed(0)
    built, again = template["Model"](), template["Model"]()
    again.init_weights()
    for (name, weight), other in zip(built.blocks.named_parameters(), again.blocks.parameters(), strict=True):
        assert other.std().item() == pytest.approx(weight.std().item(), rel=0.1), name


@pytest.mark.timeout(120)
def test_a_ddp_checkpoint_goes_on_under_fsdp_and_what_the_lesson_says_of_ranks_holds(tmp_path: Path) -> None:
    program = ROOT / "tests" / "rank_programs" / "fsdp_from_ddp.py"
    where = {"variables": {"CHECKPOINT_FOLDER": str(tmp_path)}, "backend": "gloo", "show_output": False}
    run = run_ranks(program, ranks=2, timeout_s=100, **where)
    for found in run:
        assert found["continued"] == pytest.approx(found["expected"], rel=1e-4)
        assert (found["step"], found["decays"], found["empty_batch"]) == (6, [0.1, 0.0], True)
        assert found["stored"] == 4096  # one row cannot be cut, and is padded on the rank that has none
        calls = {how: calls for how, (calls, _) in found["gathered"].items()}
        assert calls["kept"] == 3
        assert calls["checkpointed"] == calls["as it is"]
        assert len({round(gradient, 5) for _, gradient in found["gathered"].values()}) == 1


def test_the_lessons_function_is_nowhere_below_a_stored_plan() -> None:
    cells = nbformat.read(find_lesson("fsdp").path, as_version=4).cells
    (code,) = (cell.source for cell in cells if "def bytes_needed" in cell.source)
    lesson: dict = {}
    exec(code, lesson)
    for plan in stored_plans():
        width, layers = plan.shape.width, plan.shape.layers
        block = 12 * width**2 + 13 * width
        sizes = {"block": block, "root": plan.shape.parameters - layers * block}
        of_one = max(point["activations"] for point in plan.points if (point.strategy, point.ranks) == ("fsdp", 1024))
        for point in plan.points:
            if point.strategy != "fsdp_no_reshard":
                given = {"strategy": point.strategy, "activations": of_one, "gathered": 10, **sizes}
                bound = lesson["bytes_needed"](plan.shape.parameters, point.ranks, **given)
                assert point.peak_bytes < 1.001 * bound, (plan.parameters, point.label)


@pytest.mark.timeout(300)
def test_old_names_still_run_and_agree_with_todays(calls: RankResults) -> None:
    found = calls[0]["calls"]
    for name in ("FULL_SHARD, ModuleWrapPolicy", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "use_orig_params=True"):
        old, new = found[name]["old"], found[name]["new"]
        assert old["loss"] == pytest.approx(new["loss"], rel=1e-3), name
        if name != "NO_SHARD":
            assert old["weights_bytes"] == pytest.approx(new["weights_bytes"], rel=0.02), name


def mib_of_this_process() -> float:
    """DDP's buckets belong to C++, so the process is watched."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096 / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's count of pages")
def test_zero_grad_frees_gradients_but_not_ddps_buckets() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    size, freed = 4096, {}  # one weight of 64 MiB: large enough to be given back to the system
    try:
        for name, options in {"alone": None, "plain": {}, "views": {"gradient_as_bucket_view": True}}.items():
            model: nn.Module = nn.Linear(size, size, bias=False)
            model = model if options is None else DistributedDataParallel(model, **options)
            for _ in range(2):
                model(torch.ones(1, size)).sum().backward()
                before = mib_of_this_process()
                model.zero_grad()
            freed[name] = before - mib_of_this_process()
            del model
    finally:
        torch.distributed.destroy_process_group()
    assert freed["alone"] == pytest.approx(64, abs=12)
    assert freed["plain"] == pytest.approx(64, abs=12)  # the copy; its bucket stays
    assert freed["views"] == pytest.approx(0, abs=12)


def test_the_step_that_the_lesson_quotes_is_the_stored_one() -> None:
    lesson = yaml.safe_load((ROOT / "course_utils/lessons/fsdp/lesson.yml").read_text(encoding="utf-8"))
    (row,) = (row["values"] for row in lesson["published"] if row["id"] == "nanogpt_exposed_h100")
    step, other = (step for step in h100_steps().after if step.number % 2)
    quoted = (step.span_s, step.nccl_s, step.overlapped_s, step.exposed_s, other.overlapped_s, other.exposed_s)
    assert list(row.values()) == pytest.approx([1e3 * seconds for seconds in quoted], abs=1e-3)
