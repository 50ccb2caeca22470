"""What the book shows of a prediction: the recorded answer, and nothing that no record bears out."""

from __future__ import annotations

import re
from pathlib import Path

from authoring.predictions import asked, prediction_of, stored_outputs
from course_utils.lesson_notebooks import Lesson, find_lesson, find_lessons, read_notebook
from tests.made_up_records import edit_record

RECORDED = find_lesson("flatten_parameters")


def question_cell(lesson: Lesson) -> str:
    sources = [cell["source"] for cell in read_notebook(lesson.path)["cells"] if cell["cell_type"] == "code"]
    return next(source for source in sources if asked(source))


def shown(lesson: Lesson = RECORDED) -> str:
    """What a page shows of the prediction, as text."""
    outputs = stored_outputs(question_cell(lesson), lesson.path.name)
    return outputs[0]["data"]["text/plain"] if outputs else ""


def test_every_lesson_shows_a_recorded_answer_with_its_machine():
    without_a_machine = {"on_device_tensors": "Worked out", "caching_allocator": "Simulated"}
    without_a_machine["planning_a_cluster"] = "Simulated"
    for lesson in find_lessons():
        head = without_a_machine.get(lesson.slug, r"Recorded: .+, \d+ \w{3} 20\d\d")
        (output,) = stored_outputs(question_cell(lesson), lesson.path.name)
        assert re.search(f"^{head}$", output["data"]["text/plain"], re.MULTILINE), lesson.name
        assert prediction_of(lesson).question in output["data"]["text/html"]


def test_without_a_record_nothing_is_shown(records: Path):
    path = min(records.glob("*/flatten_parameters.json"))
    assert "code has changed" not in shown()
    edit_record(path, lambda experiments: experiments["flatten_parameters/what_scatters_it"].update(code_hash="other"))
    assert "Recorded: " in shown()
    assert "the experiment's code has changed since" in " ".join(shown().split())
    edit_record(path, lambda experiments: experiments.pop("flatten_parameters/what_scatters_it"))
    assert shown() == ""
