"""What needs a GPU: records of lessons, then the tests in ``tests/gpu``, each result kept as soon as it is there.

    python -m benchmarks.gpu_run                       # all lessons, the deciding ones first, then all tests
    python -m benchmarks.gpu_run 04 10 --output OUT    # these lessons alone, then the tests

On a CPU it rehearses: smaller sizes, and the tests are skipped.

The same command goes on where it was stopped: current records in ``OUT/records``, and tests that passed, are left out.
``cp -r OUT/records/. course_utils/records/`` keeps the records. Where there are no Jupyter and no network, bring its
wheels: ``pip install --no-index --no-deps --target FOLDER *.whl``, and ``PYTHONPATH=FOLDER``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from course_utils.commands import recording
from course_utils.lesson_notebooks import Lesson, find_lesson, find_lessons
from course_utils.results.environment import Environment

ROOT = Path(__file__).resolve().parents[1]
OUTPUT, TESTS = ROOT / "benchmarks" / "results" / "gpu", ROOT / "tests" / "gpu"  # OUTPUT is ignored by git
CELL_LIMIT_S = 240
# Lent time may end at any moment: what lessons lead with, or say is prepared, comes first, by what it decides.
FIRST = ("flash_attention", "torch_compile", "launch_bound", "on_device_tensors", "host_device_syncs", "data_loading")
FIRST += ("mixed_precision", "packing", "activation_checkpointing", "in_place_operations", "gradient_accumulation")
FIRST += ("batch_size", "pinned_memory", "measuring", "your_own_program", "profiler", "ddp", "fsdp")
FIRST += ("capstone", "planning_a_cluster", "reproducible_runs", "lightning", "initialization", "loading_large_models")
# A hung test ends alone, not with all the others; no cache of pytest's in a folder that travels.
PYTEST = ("-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "--timeout=150")
NOTHING_COLLECTED = 5


def record(lessons: list[Lesson], output: Path, here: Environment) -> Iterator[str]:
    """Record lessons below ``output``; gives the names of those that fail, with the traceback in a file beside."""
    root = output / "records"
    for outcome in recording.record_lessons(lessons, root, here, repeat=False, reference=True, timeout_s=CELL_LIMIT_S):
        print(f"{outcome.lesson}: {outcome.state}, {outcome.message}", flush=True)
        if not outcome.record:
            (output / f"{outcome.lesson}.txt").write_text(f"{outcome.message}\n{outcome.traceback}", encoding="utf-8")
            yield outcome.lesson


def test(output: Path) -> Iterator[str]:
    """Run the files of tests that have not passed yet; gives the names of those that fail."""
    # If the clocks are wrong, so is everything after them.
    for path in sorted(TESTS.glob("test_*.py"), key=lambda path: ("clocks" not in path.stem, path)):
        passed, printed = output / f"{path.stem}.passed.txt", output / f"{path.stem}.txt"
        if passed.exists():
            continue
        with printed.open("wb") as log:
            ran = subprocess.run([sys.executable, *PYTEST, str(path)], cwd=ROOT, stdout=log, stderr=log, check=False)
        if ran.returncode in (0, NOTHING_COLLECTED):
            printed.replace(passed)
        else:
            yield path.stem
        print(f"{path.stem}: {'passed' if passed.exists() else 'FAILED'}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="number, name or file; default: all")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="OUT", help="default: benchmarks/results/gpu")
    options = parser.parse_args(arguments)
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    everything = sorted(find_lessons(), key=lambda lesson: [*FIRST, lesson.slug].index(lesson.slug))
    lessons = [find_lesson(name) for name in options.lessons] or everything
    failed = [*record(lessons, output, recording.environment_here()), *test(output)]
    print(f"Failed, with its reason in {output}: {', '.join(failed)}" if failed else f"All is in {output}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
