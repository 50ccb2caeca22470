"""The command line: what it says, what it returns, and what it makes of machines that lack something."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.commands import cli, machine_check, recording
from course_utils.lesson_notebooks import find_lessons, question
from own_program import command
from tests.sandbox import ROOT, SET_UP, Sandbox, comparing, sandbox
from tests.sandbox import here as sandbox_here

__all__ = ["sandbox"]

# The process that asks torch is real, and one for all tests: torch says the same each time.
ask_torch = functools.cache(recording.ask_torch)


@pytest.fixture(autouse=True)
def _torch_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ask_torch", ask_torch)


@pytest.fixture
def box(sandbox: Sandbox) -> Sandbox:
    sandbox.notebook("00_alpha", SET_UP, comparing("alpha/loops"))
    sandbox.notebook("04_beta", SET_UP, comparing("beta/loops"), comparing("beta/copy"), needs="cuda")
    return sandbox


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["record", "alhpa"], "There is no lesson 'alhpa' (did you mean '00_alpha'?). The lessons are: 00_alpha,"),
        (["recrod"], "invalid choice: 'recrod'"),
    ],
)
def test_wrong_use_is_answered_with_what_there_is(box, capsys, arguments, message):
    assert command.main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_the_command_line_itself_starts_without_torch_and_the_drawing_libraries():
    code = (
        'import sys, own_program.command as c; c.main(["--help"]); '
        "print([name for name in ('torch', 'matplotlib', 'ipywidgets', 'nbclient', 'jinja2') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


# course check


def test_check_describes_this_machine_and_what_each_lesson_asks(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["check"]) == 0
    printed = capsys.readouterr().out
    shown, here = " ".join(printed.split()), sandbox_here()
    assert f"This machine: {here.title}\n" in printed
    assert f"torch {here.torch}" in printed
    for name in (f"name in records {here.machine}", "C++ compiler", "CUDA GPU"):
        assert name in shown
    for lesson in find_lessons():
        asked = re.escape(" ".join(question(lesson).split()))
        assert re.search(rf"{lesson.name} {asked} \d+ minutes, (?:the text )?runs live", shown), lesson.name
    assert max(map(len, printed.splitlines())) <= 100


def test_check_says_what_experiments_lack_here(box, monkeypatch):
    copy_and_overlap = f"{comparing('beta/copy')}\n{comparing('beta/overlap')}"
    box.notebook("04_beta", SET_UP, comparing("beta/loops"), copy_and_overlap, needs="cuda")
    monkeypatch.setattr(recording, "satisfied", lambda here: {"compiler"})
    shown = machine_check.look().lessons
    assert shown == {"00_alpha": ["runs live"], "04_beta": ["runs live; 2 experiments need a CUDA GPU"]}


def test_a_torch_that_does_not_start_is_a_finding_with_advice(box):
    shadow = box.root / "shadow"
    shadow.mkdir()
    (shadow / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    run = box.course("check", PYTHONPATH=os.pathsep.join([str(shadow), str(ROOT)]))
    printed = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 1
    assert "broken torch torch does not start: ImportError: libtorch_cpu.so: cannot open shared object" in printed
    assert "Delete the folder .venv and run `make lab`" in printed
    assert "does not run: torch is broken" in printed
    assert "Traceback" not in printed


def program(folder: Path, name: str, text: str) -> None:
    """A stand-in for a program of another machine."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="writes POSIX shell scripts")
@pytest.mark.parametrize(
    ("hidden", "advice"),
    [(False, "this torch is built for CPUs. Delete the folder .venv, set TORCH_INDEX_URL"), (True, "Unset it.")],
)
def test_a_gpu_that_torch_does_not_use_comes_with_the_way_out(tmp_path, monkeypatch, hidden, advice):
    program(tmp_path / "bin", "nvidia-smi", "echo 'NVIDIA A, Rev 2, 570.12'\necho 'NVIDIA B, 570.12'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = machine_check._gpu({"available": False, "built_for": "CPUs", "environment": {}})
    assert (finding.state, finding.details) == ("missing", "NVIDIA A, Rev 2, driver 570.12")
    assert advice in finding.advice


@pytest.mark.skipif(sys.platform != "linux", reason="torch.compile looks for another compiler there")
def test_a_missing_compiler_says_what_to_install_or_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    finding = machine_check._compiler()
    assert finding.state == "missing"
    assert "sudo apt install g++" in finding.advice
    assert "compiler" not in recording.satisfied(sandbox_here())
    program(tmp_path, "clang++", "")
    monkeypatch.setenv("CXX", "clang++")
    assert machine_check._compiler().state == "ok"
    assert "compiler" in recording.satisfied(sandbox_here())
