"""Set-up: the pinned environment, make.py on good and bad machines, the learner's workspace, CI files."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course_utils.measure.machine import OLDEST_TORCH
from tools import verbs, virtual_environment
from tools.supported_python import NEWEST, OLDEST
from tools.workspace import MANIFEST, refresh

ROOT = Path(__file__).resolve().parents[1]
POSIX = pytest.mark.skipif(os.name == "nt", reason="writes POSIX shell scripts")


def pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): str(each.specifier) for each in requirements}


# --- pins ---------------------------------------------------------------------------------------------------------


def test_every_pin_is_exact_platform_independent_and_there_once():
    direct, others = pins("requirements.txt"), pins("constraints.txt")
    assert not direct.keys() & others.keys()
    for package, specifier in (direct | others).items():
        assert re.fullmatch(r"==[\w.]+", specifier), f"{package}{specifier}"
        assert not package.startswith(("nvidia-cu", "triton")), "torch pins these for each of its builds"


def test_the_conda_environment_and_the_package_agree_with_the_requirements():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    pip = next(entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert pip == ["-c constraints.txt", *[line for line in lines if line and not line.startswith("#")], "-e ."]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    exact = pins("requirements.txt")
    for dependency in map(Requirement, project["dependencies"]):
        version = exact[canonicalize_name(dependency.name)].removeprefix("==")
        assert dependency.specifier.contains(version), f"{dependency} against {version}"
    assert project["requires-python"] == f">={'.'.join(map(str, OLDEST))},<3.{NEWEST[1] + 1}"
    assert f"torch>={'.'.join(map(str, OLDEST_TORCH))}" in project["dependencies"]


def test_the_lock_covers_everything_that_the_requirements_bring_along():
    """Walks the installed packages' own metadata from requirements.txt down."""
    # Only what pip installed: setuptools, once imported, puts copies of its own on the path.
    here = [sysconfig.get_path("purelib")]
    installed = {canonicalize_name(each.metadata["Name"]): each for each in distributions(path=here)}
    locked = pins("constraints.txt") | pins("requirements.txt")
    queue, seen = list(pins("requirements.txt")), set()
    while queue:
        name = queue.pop()
        if name in seen or name not in installed:
            continue
        seen.add(name)
        if name.startswith(("nvidia-cu", "triton")):
            continue
        assert name in locked, f"{name} is installed but neither in requirements.txt nor in constraints.txt"
        version = installed[name].version.split("+")[0]
        assert locked[name] == f"=={version}", f"{name} {version} is installed, {locked[name]} is locked"
        for line in installed[name].requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(canonicalize_name(requirement.name))
    assert len(seen) > 100


# --- a wrong Python -----------------------------------------------------------------------------------------------


def copy_of_make(folder):
    folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / "make.py", folder)
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "course_utils" / "show", folder / "course_utils" / "show")
    of_the_course = ("__init__.py", "files.py", "lesson_order.py", "lessons/order.yml")
    for name in (f"course_utils/{each}" for each in of_the_course):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def with_version(folder, version):
    """Return a command that runs make.py believing that it is another Python."""
    runner = folder / "pretend.py"
    runner.write_text(
        f"import runpy, sys\nsys.version_info = {version} + ('final', 0)\n"
        "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n",
        encoding="utf-8",
    )
    return [sys.executable, runner, folder / "make.py"]


@POSIX
@pytest.mark.parametrize(
    ("version", "there", "words"),
    [
        ((3, 8, 0), [], "Python 3.8; .*3.11 to 3.13.*Install Python 3.13"),
        ((3, 14, 0), ["python3.12"], "run: python3.12"),
    ],
)
def test_a_wrong_python_says_which_one_to_take(tmp_path, version, there, words):
    folder = copy_of_make(tmp_path / "course")
    programs = tmp_path / "bin"
    programs.mkdir()
    script(programs / "python3.13", "exit 127")  # a version manager's stand-in for a Python that is not there
    for name in there:
        script(programs / name, "exit 0")
    command = [*with_version(folder, version), "lab"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(programs)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert re.search(words, done.stderr)


# --- the environment ------------------------------------------------------------------------------------------------


@POSIX
def test_an_installation_that_fails_says_how_to_go_on_and_is_tried_again(tmp_path):
    """With the real make.py, venv and pip, from an index that has nothing."""
    course = copy_of_make(tmp_path / "course")
    for name in virtual_environment.INPUTS:
        (course / name).write_text("torch==2.13.0\n" if name == "requirements.txt" else "", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "TORCH_INDEX"))}
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": tmp_path.as_uri()}
    command = [sys.executable, course / "make.py", "setup"]
    failed = subprocess.run(command, capture_output=True, text=True, env=kept | index, timeout=240)
    assert failed.returncode == 1
    assert failed.stdout.startswith("Installing the course into .venv: about ")
    assert "No matching distribution found for torch==2.13.0" in failed.stderr
    assert "run the same command again" in failed.stderr
    assert "Traceback" not in failed.stderr
    stamp = json.loads((course / ".venv" / virtual_environment.STAMP).read_text(encoding="utf-8"))
    assert "digest" not in stamp, "the next run tries again"


@pytest.mark.parametrize(
    ("system", "gpu", "index", "size", "hinted"),
    [
        ("Linux", False, None, "cuda", True),
        ("Linux", True, None, "cuda", False),
        ("Darwin", False, None, "cpu", False),
    ],
)
def test_what_is_downloaded_is_said_first_and_the_small_build_where_it_helps(
    tmp_path, monkeypatch, system, gpu, index, size, hinted
):
    monkeypatch.setattr(virtual_environment.platform, "system", lambda: system)
    monkeypatch.setattr(virtual_environment, "has_nvidia_gpu", lambda: gpu)
    words = "\n".join(virtual_environment.what_comes(tmp_path, index))
    assert f"about {virtual_environment.SIZES[size][0]} to download" in words
    assert (f"TORCH_INDEX_URL={virtual_environment.CPU_INDEX} make lab" in words) == hinted


# --- verbs ----------------------------------------------------------------------------------------------------------


def test_every_verb_of_the_makefile_is_one_of_make_py():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE).group(1).split()
    assert set(targets) == {*verbs.VERBS, "help"}
    for verb in verbs.VERBS:
        assert re.search(rf"^  {verb} ", verbs.HELP, flags=re.MULTILINE), f"make.py's help does not name {verb}"


def test_an_unknown_verb_is_named_beside_the_known_ones():
    done = subprocess.run([sys.executable, ROOT / "make.py", "fly"], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.search("no verb 'fly'.*lint", done.stderr)


def test_test_runs_every_stage_and_names_those_that_failed(monkeypatch, capfd):
    ran = []

    def run(command):
        ran.append(" ".join(map(str, command[2:])))
        return int("not serial" in ran[-1])

    monkeypatch.setattr(verbs, "prepare", lambda _root: Path(sys.executable))
    monkeypatch.setattr(verbs, "_run", run)
    assert verbs.test([]) == 1
    together, alone = (command for command in ran if command.startswith("pytest"))
    assert {"tests", "notebooks", "--nbval", "--doctest-modules"} <= set(together.split())
    assert ran[-1] == alone, "what measures time comes when everything else has ended"
    assert "failed: tests, notebooks in" in capfd.readouterr().out


@POSIX
def test_lab_hands_its_arguments_to_jupyterlab_and_keeps_to_the_folder(tmp_path):
    """Starts the real JupyterLab's own account of its settings, in a copy that shares this environment."""
    folder = copy_of_make(tmp_path / "course")
    (folder / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(), folder / "notebooks" / verbs.FIRST_LESSON)
    program = (
        "import sys; from tools import verbs; from pathlib import Path\n"
        "verbs.prepare = lambda root: Path(sys.executable)\n"
        "sys.exit(verbs.main(['lab', '--', '--no-browser', '--port', '9999', '--show-config-json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout[done.stdout.index("\n{") :])
    assert config["LabApp"]["default_url"].endswith(verbs.FIRST_LESSON)
    assert config["ServerApp"]["root_dir"] == str(folder / "workspace")
    assert config["ServerApp"]["port"] == 9999
    assert (folder / "workspace" / verbs.FIRST_LESSON).exists()
    overrides = folder / ".jupyter" / "config" / "labconfig" / "default_setting_overrides.json"
    notification = json.loads(overrides.read_text())["@jupyterlab/apputils-extension:notification"]
    assert notification == {"fetchNews": "false", "checkForUpdates": False}
    assert config["LabApp"]["custom_css"]
    assert ".course-card" in (folder / ".jupyter" / "config" / "custom" / "custom.css").read_text()


def test_everything_that_jupyter_writes_stays_in_the_folder(tmp_path):
    settings = virtual_environment.variables(tmp_path)
    folders = {name for name in settings if re.match(r"JUPYTER(LAB)?_\w+_DIR$|IPYTHONDIR$", name)}
    assert len(folders) == 6
    for name in folders:
        assert Path(settings[name]).is_relative_to(tmp_path)
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert {".jupyter/", ".venv/", "/workspace/", "/results/"} <= set(ignored)


# --- the learner's workspace ------------------------------------------------------------------------------------------


class Lessons:
    """A folder of real notebooks and the workspace that goes with it."""

    name = "00_measuring.ipynb"

    def __init__(self, folder):
        self.originals, self.workspace = folder / "notebooks", folder / "workspace"
        (self.originals / "scripts").mkdir(parents=True)
        (self.originals / "scripts" / "ranks.py").write_text("print(1)\n", encoding="utf-8")
        self.publish("a = 1", "a + 1")
        self.first = self.refresh()

    def publish(self, *sources, stored=None):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        if stored:
            cells[-1].outputs = [nbformat.v4.new_output("stream", text=stored)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), self.originals / self.name)

    def refresh(self):
        return refresh(self.originals, self.workspace)

    def learner(self, change):
        notebook = nbformat.read(self.workspace / self.name, as_version=4)
        change(notebook)
        nbformat.write(notebook, self.workspace / self.name)

    def run(self):
        def change(notebook):
            for number, cell in enumerate(notebook.cells, start=1):
                cell.execution_count = number
                cell.outputs = [nbformat.v4.new_output("stream", text="mine")]
            notebook.cells.append(nbformat.v4.new_code_cell(""))  # as Shift-Enter on the last cell does

        self.learner(change)

    def edit(self):
        self.learner(lambda notebook: notebook.cells[0].update(source="a = 100"))

    def sources(self, name=None):
        notebook = nbformat.read(self.workspace / (name or self.name), as_version=4)
        return [cell.source for cell in notebook.cells]


@pytest.fixture
def lessons(tmp_path):
    return Lessons(tmp_path)


def test_first_refresh_copies_lessons_and_scripts_and_leaves_other_files_alone(lessons):
    own = lessons.workspace / "my_notes.ipynb"
    own.write_text("{}")
    assert lessons.sources() == ["a = 1", "a + 1"]
    assert (lessons.workspace / "scripts" / "ranks.py").read_text() == "print(1)\n"
    assert len(lessons.first) == 1
    assert lessons.name in lessons.first[0]
    assert lessons.refresh() == []
    assert own.read_text() == "{}"


def test_a_lesson_that_was_only_run_keeps_its_outputs_until_the_course_changes_it(lessons):
    lessons.run()
    assert lessons.refresh() == []
    assert "mine" in (lessons.workspace / lessons.name).read_text()
    lessons.publish("a = 2", "a + 1")
    assert lessons.name in lessons.refresh()[0]
    assert lessons.sources() == ["a = 2", "a + 1"]


def test_a_changed_lesson_stays_and_the_new_version_comes_beside_it_once(lessons):
    lessons.edit()
    assert lessons.refresh() == [], "the course did not change, so there is nothing to say"
    lessons.publish("a = 2", "a + 1")
    (sentence,) = lessons.refresh()
    assert "00_measuring.new.ipynb" in sentence
    assert lessons.sources()[0] == "a = 100"
    assert lessons.sources("00_measuring.new.ipynb") == ["a = 2", "a + 1"]
    (lessons.workspace / "00_measuring.new.ipynb").unlink()
    assert lessons.refresh() == []
    lessons.publish("a = 3", "a + 1")
    assert len(lessons.refresh()) == 1
    lessons.publish("a = 4", "a + 1")
    assert "new2" in lessons.refresh()[0], "a version that was put beside may hold work by now"


def test_new_stored_outputs_reach_an_untouched_lesson_and_bother_no_changed_one(lessons):
    lessons.publish("a = 1", "a + 1", stored="recorded again")
    assert lessons.refresh() == []
    assert "recorded again" in (lessons.workspace / lessons.name).read_text()
    lessons.edit()
    lessons.publish("a = 1", "a + 1", stored="and again")
    assert lessons.refresh() == []
    assert sorted(path.name for path in lessons.workspace.glob("*.ipynb")) == [lessons.name]


def test_a_lost_manifest_or_a_damaged_notebook_loses_no_work(lessons):
    lessons.edit()
    (lessons.workspace / MANIFEST).write_text("[]")
    lessons.refresh()
    assert lessons.sources()[0] == "a = 100"
    (lessons.workspace / lessons.name).write_text('{"cells": [')
    lessons.publish("a = 2")
    assert "it stays" in lessons.refresh()[0]
    assert (lessons.workspace / lessons.name).read_text() == '{"cells": ['
    # Deleting it is how to start a lesson over.
    (lessons.workspace / lessons.name).unlink()
    lessons.refresh()
    assert lessons.sources() == ["a = 2"]
