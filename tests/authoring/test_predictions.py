"""What the book shows of a prediction: the recorded answer, and nothing that no record bears out."""

from __future__ import annotations

from pathlib import Path

from authoring.predictions import asked, stored_outputs
from course_utils.lesson_notebooks import find_lesson, read_notebook
from tests.made_up_records import edit_record

RECORDED = find_lesson("flatten_parameters")


def shown() -> str:
    """What a page shows of the prediction, as text."""
    sources = [cell["source"] for cell in read_notebook(RECORDED.path)["cells"] if cell["cell_type"] == "code"]
    outputs = stored_outputs(next(source for source in sources if asked(source)), RECORDED.path.name)
    return outputs[0]["data"]["text/plain"] if outputs else ""


def test_without_a_record_nothing_is_shown(records: Path):
    path = min(records.glob("*/flatten_parameters.json"))
    assert "code has changed" not in shown()
    edit_record(path, lambda experiments: experiments["flatten_parameters/what_scatters_it"].update(code_hash="other"))
    assert "Recorded: " in shown()
    assert "the experiment's code has changed since" in " ".join(shown().split())
    edit_record(path, lambda experiments: experiments.pop("flatten_parameters/what_scatters_it"))
    assert shown() == ""
