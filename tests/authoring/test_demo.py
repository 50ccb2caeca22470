"""The five-minute path of each lesson: it holds together, it runs alone, and `course demo` leaves nothing behind."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from authoring import demo, teaching
from authoring.claims import load_claims
from authoring.demo import SET_UP_ID, code_of, demo_notebook, demo_times, start_up, time_demo, write_demo
from authoring.dependencies import undefined_names
from authoring.evidence import EvidenceError
from authoring.normal_form import KERNEL_ARGUMENTS, KERNELSPEC
from authoring.teaching import demo_minutes
from course_utils.commands import cli
from course_utils.records.lessons import Lesson, LessonError, find_lesson, find_lessons
from course_utils.records.notebook_files import parsed_cells, read_notebook
from course_utils.records.store import RecordError

LESSONS = find_lessons()
# What a live cell needs of the one before it: whether this machine compiles, and a launch that two tables show.
SHOWN_LIVE = {"torch_compile": {"can_compile"}, "fsdp": {"run", "parameters"}}
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


@each_lesson
def test_every_name_of_the_path_is_defined_on_it(lesson: Lesson):
    assert undefined_names(dict(parsed_cells(demo_notebook(lesson), lesson.path.name))) == []


@each_lesson
def test_the_path_is_the_lessons_own_cells_in_order(lesson: Lesson):
    sources = {cell["id"]: cell["source"] for cell in read_notebook(lesson.path)["cells"]}
    made = demo_notebook(lesson)["cells"]
    own = [cell["id"] for cell in made if cell["id"] in sources]
    assert own == [name for name in sources if name in own]
    assert all(
        cell["source"] == sources[cell["id"]] for cell in made if cell["cell_type"] == "code" and cell["id"] in own
    )
    text = "\n".join(cell["source"] for cell in made if cell["cell_type"] == "markdown")
    assert "## Verdict" in text
    assert not any(f"## {heading}" in text for heading in ("Exercises", "Solutions", "Sources"))
    assert "](0" not in text, "a link to another lesson would lead nowhere"


@each_lesson
def test_the_path_ends_with_every_verdict_and_nothing_else(lesson: Lesson):
    claims = [claim.id for claim in load_claims() if claim.lesson == lesson.slug]
    end = demo_notebook(lesson)["cells"][-1]["source"]
    assert end.startswith("## Verdict")
    assert set(re.findall(r"^\*\*(\w+) · ", end, re.MULTILINE)) == set(claims)
    assert all(line.startswith("**") for line in end.split("\n")[1:] if line)


@each_lesson
def test_a_five_minute_path_takes_at_most_eight(lesson: Lesson):
    assert 3 < demo_minutes(lesson) <= 8


@each_lesson
def test_each_path_has_been_timed_as_it_is(lesson: Lesson):
    times = demo_times(lesson)
    advice = f"run `python benchmarks/demo_seconds.py {lesson.number:02d}` on a machine that does nothing else"
    assert any(timed.as_it_is for timed in times), advice
    assert all(timed.cells_s.keys() for timed in times)


@pytest.mark.slow
def test_a_path_runs_alone():
    """One lesson in a real kernel; the names that the others need are checked below."""
    lesson = find_lesson("flatten_parameters")
    set_up_s, cells_s = time_demo(lesson)
    assert set_up_s > 0
    live = [cell["id"] for cell in demo_notebook(lesson)["cells"] if "experiment" in cell["metadata"].get("tags", [])]
    assert set(live) <= set(cells_s)


@each_lesson
def test_each_measurement_finds_its_names_when_the_kernel_has_started(lesson: Lesson):
    path = demo_notebook(lesson)
    tree = ast.parse(start_up(path))
    live = [cell["source"] for cell in path["cells"] if "experiment" in cell["metadata"].get("tags", [])]
    missing = {
        source: set(undefined_names({1: tree, 2: ast.parse(source)})) - set(undefined_names({1: tree}))
        for source in live
    }
    first = next(source for source in live if "name=" in source)
    assert missing[first] <= SHOWN_LIVE.get(lesson.slug, set())
    assert set().union(*missing.values()) == SHOWN_LIVE.get(lesson.slug, set())


def run_alone(client: Any, source: str) -> str:
    """What a cell has written and shown, or its error."""
    said: list[str] = []
    reply = client.execute_interactive(source, timeout=120, output_hook=lambda message: said.append(str(message)))
    assert reply["content"]["status"] == "ok", reply["content"].get("evalue")
    return "".join(said)


@pytest.mark.slow
def test_the_live_cell_runs_alone_at_once_and_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from jupyter_client import KernelManager

    monkeypatch.setenv("COURSE_SIZE", "smoke")
    path = write_demo(find_lesson("pinned_memory"), tmp_path / "workspace" / "demo")
    live = [cell for cell in read_notebook(path)["cells"] if "experiment" in cell["metadata"].get("tags", [])][-1]
    with demo._settings_of_its_own(path) as variables:
        manager = KernelManager(kernel_name=KERNELSPEC["name"])
        manager.start_kernel(env=variables, cwd=str(path.parent), extra_arguments=list(KERNEL_ARGUMENTS))
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=120)
            at_once = run_alone(client, live["source"])
            manager.restart_kernel(now=True)
            client.wait_for_ready(timeout=120)
            after = run_alone(client, live["source"])
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    assert "The answer on this machine" in at_once
    assert "The answer on this machine" in after


# A lesson of its own

CELLS = [
    ("markdown", "# 05 · Things\n\n*When are things fast?*\n\n**You will be able to** tell.", "demo"),
    ("code", "import math", "experiment"),
    ("markdown", "## The claim\n\nSee [lesson 04](04_other.ipynb) and [the docs](https://docs.org).", "demo"),
    ("code", "radius = 2\nraise RuntimeError('too slow for a demo')"),
    ("code", "asked = 1", "demo"),
    ("code", "area = math.pi * radius**asked\n\n\n@property\ndef shown(self):\n    # why\n    return area"),
    ("code", "print(round(area, 2), shown)", "demo", "experiment"),
    ("markdown", "## Verdict\n\nIt depends.\n\n## Solutions", "demo"),
]


def lesson_of(folder: Path, cells: list[tuple[str, ...]] = CELLS) -> Lesson:
    made = []
    for number, (kind, source, *tags) in enumerate(cells):
        cell = {"cell_type": kind, "id": f"c{number}", "source": source, "metadata": {"tags": tags}}
        made.append({**cell, "outputs": [], "execution_count": None} if kind == "code" else cell)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "05_things.ipynb"
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return find_lesson("things", folder)


def test_set_up_holds_what_can_run_at_once_and_the_rest_stays_in_its_place(tmp_path: Path):
    cells = {cell["id"]: cell for cell in demo_notebook(lesson_of(tmp_path))["cells"]}
    assert list(cells) == ["title", SET_UP_ID, "c2", "c4", "set-up-6", "c6", "c7"]
    # A function looks its names up when it is called, so it can be there from the start.
    function = "@property\ndef shown(self):\n    # why\n    return area"
    assert cells[SET_UP_ID]["source"] == f"# Set-up\nimport math\n\nradius = 2\n\n{function}"
    assert cells["set-up-6"]["source"] == "# From the lesson\narea = math.pi * radius**asked"
    assert cells[SET_UP_ID]["metadata"]["jupyter"] == {"source_hidden": True}
    assert cells["c2"]["source"] == "## The claim\n\nSee lesson 04 and [the docs](https://docs.org)."
    assert cells["c7"]["source"] == "## Verdict\n\nIt depends."
    assert "able to" not in cells["title"]["source"]


def test_notes_come_first_and_folded(tmp_path: Path):
    heading, notes, title, *_ = demo_notebook(lesson_of(tmp_path), notes="Speak slowly.")["cells"]
    assert heading["metadata"] == {"jp-MarkdownHeadingCollapsed": True}
    assert notes["source"] == "Speak slowly."
    assert title["source"].startswith("# 05"), "a heading of the same level ends the fold"


def test_a_lesson_without_a_path_is_an_error(tmp_path: Path):
    with pytest.raises(LessonError, match="tag its cells demo"):
        demo_notebook(lesson_of(tmp_path, [(kind, source) for kind, source, *_ in CELLS]))


def test_a_path_that_fails_names_its_cell(tmp_path: Path):
    broken = [*CELLS[:6], ("code", "print(area / 0)", "demo", "experiment"), CELLS[7]]
    with pytest.raises(LessonError, match="05_things fails in cell c6"):
        time_demo(lesson_of(tmp_path, broken))


def test_what_was_edited_is_kept_until_a_new_one_is_asked_for(tmp_path: Path):
    lesson = lesson_of(tmp_path / "notebooks")
    program = tmp_path / "notebooks" / "scripts" / "train.py"
    program.parent.mkdir()
    program.write_text("pass")
    folder = tmp_path / "workspace" / "demo"
    said: list[str] = []
    path = write_demo(lesson, folder, say=said.append)
    made = read_notebook(path)
    made["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "run once"}]
    path.write_text(json.dumps(made))
    write_demo(lesson, folder, say=said.append)
    assert read_notebook(path)["cells"][1]["outputs"] == []
    assert said == [], "a copy that was only run is made again"
    made["cells"][2]["source"] += "\n\nMy own words."
    path.write_text(json.dumps(made))
    (folder / "scripts" / "train.py").write_text("print('mine')")
    write_demo(lesson, folder, say=said.append)
    assert read_notebook(path) == made
    assert (folder / "scripts" / "train.py").read_text() == "print('mine')"
    assert said == ["Kept as you edited it: 05_things.ipynb, scripts/train.py. `course demo 05 --new` makes it anew."]
    write_demo(lesson, folder, new=True, say=said.append)
    assert "My own words" not in path.read_text()
    assert (folder / "scripts" / "train.py").read_text() == "pass"
    assert len(said) == 1
    path.write_text("scribbled over")
    with pytest.raises(LessonError, match="--new"):
        write_demo(lesson, folder)


def test_a_path_whose_cells_were_edited_still_starts(tmp_path: Path):
    path = demo_notebook(lesson_of(tmp_path))
    path["cells"][-2]["source"] = "print("
    assert start_up(path) == path["cells"][1]["source"]
    path["cells"] = path["cells"][2:-2]
    assert start_up(path) == ""


def test_times_belong_to_the_code_that_was_timed(tmp_path: Path):
    lesson, other = LESSONS[0], demo_times(LESSONS[0])[0]
    records = Path(demo.__file__).parent / "benchmark_records" / demo.KIND
    stored = json.loads((records / f"{other.machine}.json").read_text(encoding="utf-8"))
    assert stored["lessons"][lesson.slug]["code"] == code_of(demo_notebook(lesson))
    stored["lessons"][lesson.slug]["code"] = "0" * 16
    (tmp_path / "one.json").write_text(json.dumps(stored))
    changed = demo_times(lesson, tmp_path)
    assert changed == [dataclasses.replace(other, as_it_is=False)]
    (tmp_path / "one.json").write_text("{")
    with pytest.raises(RecordError, match=r"one\.json is damaged .*demo_seconds\.py"):
        demo_times(lesson, tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no groups of processes like these")
def test_ctrl_c_while_jupyterlab_starts_is_one_line(tmp_path: Path):
    """A terminal's Ctrl-C goes to the whole group: what is starting would answer with a traceback."""
    child = f"import pathlib, time; pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(600)"
    code = "import os, pathlib, sys; from authoring.demo import _run; "
    code += f"sys.exit(_run([sys.executable, '-c', {child!r}], dict(os.environ), pathlib.Path('.')))"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=120)[1] == "The demo has ended.\n"


# The command line


def test_a_folder_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "workspace").write_text("a file")
    monkeypatch.setattr(demo, "demo_folder", lambda: tmp_path / "workspace" / "demo")
    assert cli.main(["demo", "04"]) == cli.FAILED
    said = capsys.readouterr().err
    assert "The demo cannot be written" in said
    assert "a folder which you may write to" in said
    assert said.count("\n") == 1
    assert cli.main(["slides", "04", "--output", str(tmp_path / "workspace")]) == cli.FAILED
    said = capsys.readouterr().err
    assert "The slides cannot be written" in said
    assert "--output FOLDER" in said
    assert said.count("\n") == 1


def test_a_number_that_nobody_recorded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def nothing(lesson: Lesson) -> str:
        raise EvidenceError("no machine has recorded it")

    monkeypatch.setattr(teaching, "presenter_notes", nothing)
    monkeypatch.setattr(demo, "demo_folder", lambda: tmp_path / "demo")
    assert cli.main(["demo", "04"]) == cli.FAILED
    assert capsys.readouterr().err == "course: no machine has recorded it\n"


@pytest.mark.parametrize("port", ["99999", "0", "-1", "x"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["demo", "04", "--port", port]) == cli.WRONG_USE
    assert capsys.readouterr().err.count("\n") == 1


def test_a_wrong_name_is_one_line_with_the_nearest_lesson(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["demo", "pined_memory"]) == cli.WRONG_USE
    said = capsys.readouterr().err
    assert "Did you mean 04_pinned_memory?" in said
    assert said.count("\n") == 1


def test_what_follows_the_two_dashes_goes_to_jupyterlab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told = []
    monkeypatch.setattr(demo, "demo_folder", lambda: tmp_path / "workspace" / "demo")
    monkeypatch.setattr(demo, "open_demo", lambda path, arguments: told.append((path, arguments)) or 0)
    assert cli.main(["demo", "04", "--no-browser", "--port", "9999", "--", "--Foo.bar=1"]) == 0
    path, arguments = told[0]
    assert path == tmp_path / "workspace" / "demo" / "04_pinned_memory.ipynb"
    assert arguments == ["--no-browser", "--ServerApp.port=9999", "--Foo.bar=1"]
    first = read_notebook(path)["cells"][1]["source"]
    assert "Where people go wrong" in first


def test_settings_are_its_own_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUPYTER_PATH", "/somewhere/else")
    path = write_demo(find_lesson("pinned_memory"), tmp_path / "workspace" / "demo")
    with demo._settings_of_its_own(path) as variables:
        assert "JUPYTER_PATH" not in variables
        home = Path(variables["IPYTHONDIR"]).parent
        assert {Path(variables[name]).parent for name in variables if name.startswith("JUPYTER") and "DIR" in name} == {
            home
        }
        start_up = Path(variables["IPYTHONDIR"]) / "profile_default" / "startup" / "00-demo.py"
        assert "import torch" in start_up.read_text(encoding="utf-8")
        compile(start_up.read_text(encoding="utf-8"), "start-up", "exec")
    assert not home.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a program without asking it")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_ending_the_demo_ends_what_it_started(tmp_path: Path, signum: signal.Signals):
    """The signal goes to this program alone, as from a program that started it."""
    child = "import time, pathlib, os; "
    child += f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(600)"
    code = "import os, pathlib, sys; from authoring.demo import _run; "
    code += f"sys.exit(_run([sys.executable, '-c', {child!r}], dict(os.environ), pathlib.Path('.')))"
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    assert process.wait(timeout=120) == (0 if signum == signal.SIGINT else 128 + signum)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
