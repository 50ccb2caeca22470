"""The run on a GPU, rehearsed on a CPU: results are there as they come, and the same command goes on."""

from __future__ import annotations

import pytest

from benchmarks import gpu_run
from course_utils.results import store
from tests.sandbox import SET_UP, Sandbox, comparing, here, sandbox

__all__ = ["sandbox"]


def test_what_is_done_is_kept_what_fails_is_named_and_the_same_command_goes_on(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, tests = sandbox.root / "out", sandbox.root / "tests"
    tests.mkdir()
    (tests / "test_good.py").write_text("def test_it():\n    pass\n")
    (tests / "test_wrong.py").write_text("def test_it():\n    assert 1 == 2\n")
    monkeypatch.setattr(gpu_run, "TESTS", tests)
    monkeypatch.setattr(gpu_run.recording, "environment_here", here)
    sandbox.notebook("04_pinned_memory", SET_UP, comparing("pinned_memory/loops"))
    sandbox.notebook("02_profiler", "def inner():\n    return 1 / 0\n\ninner()")

    assert gpu_run.main(["--output", str(output)]) == 1
    printed = capsys.readouterr().out
    assert printed.index("pinned_memory: ") < printed.index("profiler: ")  # what lessons lead with comes first
    assert f"Failed, with its reason in {output}: profiler, test_wrong" in printed
    (path,) = output.glob("records/*/[!.]*.json")
    assert store.load_lesson(path).result("pinned_memory/loops")["40000"].ratio > 1
    assert "inner()" in (output / "profiler.txt").read_text()
    assert "assert 1 == 2" in (output / "test_wrong.txt").read_text()

    kept = [file.read_bytes() for file in (path, output / "test_good.passed.txt")]
    (tests / "test_wrong.py").unlink()
    assert gpu_run.main(["pinned_memory", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "pinned_memory: skipped, already recorded" in printed
    assert "test_good" not in printed
    assert kept == [file.read_bytes() for file in (path, output / "test_good.passed.txt")]
