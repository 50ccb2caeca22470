"""Lessons under ``--nbval``: each runs from the wheel in a folder of its own, and a dead kernel is noticed.

The folder holds nothing but the programs of the lessons, as on a hosted notebook.
``--changed-notebooks`` leaves out each lesson that passed before with the same notebook, scripts, records and helpers.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from tests import wheels

ROOT = Path(__file__).resolve().parents[1]
PASSED = "course/passed_notebooks"
_POLL_S = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--changed-notebooks", action="store_true", help="leave out lessons that passed as they are")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("nbval", default=False):
        return
    from nbval import kernel
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell

    from course_utils.show.page import bare

    # nbval waits for an answer until the cell's time is up, even when nobody is left to answer.
    get_message = RunningKernel.get_message

    def get_message_of_living_kernel(self: RunningKernel, stream: str, timeout: float | None = None) -> dict:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL_S if deadline is None else deadline - time.monotonic()
            try:
                return get_message(self, stream, timeout=max(0.0, min(left, _POLL_S)))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("The kernel died while this cell ran.") from None
                if deadline is not None and time.monotonic() >= deadline:
                    raise

    RunningKernel.get_message = get_message_of_living_kernel
    # Stored outputs are bare, live ones are dressed.
    IPyNbCell.sanitize = lambda _, text: bare(text) if isinstance(text, str) else text
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Passed(config))
    start_new_kernel = kernel.start_new_kernel

    def start_kernel_of_wheel(*arguments: Any, cwd: str, **options: Any) -> Any:
        if Path(cwd) == ROOT / "notebooks":
            target = wheels.installed()
            cwd = tempfile.mkdtemp(dir=target.parent)
            shutil.copytree(target / "course_utils" / "notebooks" / "scripts", Path(cwd, "scripts"))
            options["env"] = wheels.variables(target)
        try:
            return start_new_kernel(*arguments, cwd=cwd, **options)
        except RuntimeError:  # its ports are chosen before it starts, and another worker's kernel may take one
            return start_new_kernel(*arguments, cwd=cwd, **options)

    kernel.start_new_kernel = start_kernel_of_wheel


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects lessons that passed as they are, if asked to."""
    if not config.getoption("changed_notebooks"):
        return
    passed = config.cache.get(PASSED, {})
    notebooks = {item.path for item in items if item.path.suffix == ".ipynb"}
    unchanged = {path for path in notebooks if passed.get(path.name) == key(path)}
    config.hook.pytest_deselected(items=[item for item in items if item.path in unchanged])
    items[:] = [item for item in items if item.path not in unchanged]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a notebook's cell that leaves a dead kernel behind: nbval sees it in the next cell, if there is one."""
    result = yield
    kernel = getattr(item.parent, "kernel", None)
    if kernel is not None and not kernel.is_alive():
        raise RuntimeError("The kernel died after this cell.")
    return result


def key(notebook: Path) -> str:
    """A hash of all that a lesson's outcome depends on: nothing of other lessons, of authoring, or of the tests."""
    slug = notebook.stem.partition("_")[2]
    files = [notebook, ROOT / "requirements.txt", ROOT / "pyproject.toml", ROOT / "tools" / "packaging.py"]
    files += (ROOT / "notebooks" / "scripts").glob("*.py")
    files += (ROOT / "own_program").rglob("*.py")
    package = ROOT / "course_utils"
    for path in package.rglob("*"):
        parts = path.relative_to(package).parts
        other_lesson = parts[0] == "lessons" and len(parts) > 2 and parts[1] != slug
        other_record = parts[0] == "records" and path.suffix == ".json" and path.stem != slug
        if path.is_file() and path.suffix != ".pyc" and not other_lesson and not other_record:
            files.append(path)
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class _Passed:
    """Remembers the lessons of which every cell has passed, with what they depended on."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[0]
        if name.endswith(".ipynb"):
            self.outcomes[name] = self.outcomes.get(name, True) and not report.failed

    def pytest_sessionfinish(self) -> None:
        passed = self.config.cache.get(PASSED, {})
        for name, is_passed in self.outcomes.items():
            path = ROOT / name
            if path.is_file():  # a test of nbval itself runs a notebook of its own
                passed[path.name] = key(path) if is_passed else ""
        self.config.cache.set(PASSED, passed)
