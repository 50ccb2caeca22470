"""What `fsdp` has to take along: its template, its page's functions for checkpoints, its calculator."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import nbformat
import pytest
import torch

from course_utils.lesson_notebooks import find_lesson
from course_utils.lessons.fsdp import cases
from course_utils.memory.allocator import simulate_allocator
from course_utils.ranks.launch import run_ranks
from tests.launches import outputs_of

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


@pytest.fixture(autouse=True)
def _in_the_notebooks_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "notebooks")


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


def test_the_templates_init_is_the_models_own() -> None:
    template = runpy.run_path("scripts/fsdp_template.py")
    torch.manual_seed(0)
    built, again = template["Model"](), template["Model"]()
    again.init_weights()
    for (name, weight), other in zip(built.blocks.named_parameters(), again.blocks.parameters(), strict=True):
        assert other.std().item() == pytest.approx(weight.std().item(), rel=0.1), name


@pytest.mark.timeout(120)
def test_a_ddp_checkpoint_goes_on_under_fsdp(tmp_path: Path) -> None:
    program = ROOT / "tests" / "rank_programs" / "fsdp_from_ddp.py"
    for found in run_ranks(program, ranks=2, args=[tmp_path], timeout_s=100, backend="gloo", show_output=False):
        assert found["continued"] == pytest.approx(found["expected"], rel=1e-4)
        assert (found["step"], found["decays"]) == (6, [0.1, 0.0])


KEPT = {"nothing": 188_552, "selective": 63_616, "each block": 8_192}  # bytes a token by a block of Llama 3.1 8B


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("vocabulary", "way", "gpus", "length"),
    [
        (16_032, "selective", 128, 8192),
        (128_256, "each block", 8, 128),  # the root's gradients are most of it
        (256, "each block", 2, 128),  # AdamW's step is
    ],
)
def test_the_lessons_function_is_8_percent_off_at_most(
    vocabulary: int, way: str, gpus: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside Llamas of eight such blocks, simulated."""
    blocks, block, root = 8, 218_112_000, 2 * vocabulary * 4096 + 4096
    shape = {"_VOCABULARY": vocabulary, "_LENGTH": length, "_BLOCKS": blocks}
    for name, size in (shape | {"_WIDTH": 4096, "_HEADS": 32, "_HIDDEN": 14336}).items():
        monkeypatch.setattr(cases, name, size)
    memory = cases.one_of(gpus, way)
    cells = nbformat.read(find_lesson("fsdp").path, as_version=4).cells
    (code,) = (cell.source for cell in cells if "def gib_needed" in cell.source)
    lesson: dict = {}
    exec(code, lesson)
    sizes = (2 * length, blocks, KEPT[way], KEPT["nothing"], vocabulary, block, root)
    needed = lesson["gib_needed"](blocks * block + root, gpus, *sizes)
    assert needed == pytest.approx(memory.last_step.peak_bytes / 2**30, rel=0.08)
    if length == 8192:  # what the reference page says of the allocator
        reserved = simulate_allocator(memory.events).peak_reserved_bytes / memory.last_step.peak_bytes
        assert 1.02 <= round(reserved, 2) <= 1.46
