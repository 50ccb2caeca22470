"""Calls end as they say, each alone; a fact about torch that no longer holds is named with its code and its lesson."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from authoring import calls
from authoring.calls import TorchFact, faults
from authoring.lesson_files import read_lesson


def test_calls_run_apart_once_for_all_processes_and_say_how_they_ended(monkeypatch, none_ran):
    fine = "print('noise')"
    two_warnings = "import warnings\nwarnings.warn('old', FutureWarning)\nwarnings.warn('older')"
    raises, alone, too = "raise TypeError('no\\n  such argument')", "left = 1", "assert 'left' not in globals()"
    ended = [each.how for each in calls.run([fine, two_warnings, raises, alone, too])]
    assert ended == ["works", "warns FutureWarning: old", "raises TypeError: no such argument", "works", "works"]
    monkeypatch.setattr(calls, "_ended", {})  # as in the next process
    monkeypatch.setattr(calls, "_run", lambda codes: pytest.fail(f"ran {codes} again"))
    assert calls.run([fine])[0].how == "works"


FACTS = """
- before: ""
- {says: a sum, code: "torch.ones(3).sum().item()", ends: 3.0}
- {message: mat1 and mat2 must have the same dtype, code: "nn.Linear(2, 2).half()(torch.ones(2, 2))"}
- before: |
    import warnings
    torch.set_default_dtype(torch.float64)
- says: an old call
  code: |
    warnings.warn('first')
    warnings.warn('old', FutureWarning)
  ends: "warns FutureWarning: ol"
- {says: a mistake, code: F.no_such_function, ends: "raises AttributeError: no_such_function"}
- {says: what differs, code: "1", ends: {"<2": 0, ">=2": 1}}
- {says: what only another version does, code: "1", ends: {"<2": 0}}
"""


def read_facts(folder: Path, entries: Any) -> tuple[TorchFact, ...]:
    path = folder / "some_lesson" / "lesson.yml"
    path.parent.mkdir(exist_ok=True)
    lesson = {"title": "T", "question": "Q?", "facts": entries}
    path.write_text(yaml.safe_dump(lesson), encoding="utf-8")
    (folder / "order.yml").write_text("A part:\n  - some_lesson\n", encoding="utf-8")
    return read_lesson(path).facts


def test_facts_are_held_to_torch_and_one_that_does_not_hold_is_named(tmp_path, none_ran):
    facts = read_facts(tmp_path, yaml.safe_load(FACTS) * 2)
    (wrong,) = read_facts(tmp_path, [{"says": "one and one", "code": "x = 1\nx + x", "ends": 3}])
    (fault,) = faults("some_lesson", [*facts, wrong])  # the others hold
    assert "some_lesson: one and one.\nx = 1\nx + x\nmust end: 3\nand ended: 2\nCorrect the lesson" in fault
    assert len(faults("some_lesson", facts, "1.13.1+cpu")) == 4  # both that differ, twice
