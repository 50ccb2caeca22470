"""What a lesson asks its readers to predict, and what the book shows of it: the form, with the recorded answer folded.

The answer is the first number that lesson.yml expects. So it comes from a record, and where no machine has recorded it
with today's parameters there is none.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from authoring.evidence import NotRecordedError, evaluate, experiments_in, newest_environment, recorded
from authoring.lesson_files import read_lesson
from course_utils.records import store
from course_utils.records.lessons import Lesson, LessonError
from course_utils.records.notebook_files import read_notebook
from course_utils.show.prediction import Prediction


def asked(source: str) -> Prediction | None:
    """What a code cell asks to predict, or None.

    Example:
        >>> asked('asked = predict("What share?", unit="%")').unit
        '%'
    """
    for node in ast.walk(ast.parse(source if "predict(" in source else "")):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "predict":
            try:
                arguments = [ast.literal_eval(value) for value in node.args]
                options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
            except ValueError as error:
                raise LessonError(
                    f"{ast.unparse(node)}: the book asks this, too. Write plain texts and numbers."
                ) from error
            return Prediction(*arguments, **options)
    return None


def prediction_of(lesson: Lesson) -> Prediction:
    """What a lesson asks to predict; a `LessonError` if it asks nothing."""
    for cell in read_notebook(lesson.path)["cells"]:
        prediction = asked(cell["source"]) if cell["cell_type"] == "code" else None
        if prediction:
            return prediction
    raise LessonError(f"{lesson.name} asks for no prediction: add a cell with predict().")


def stored_outputs(source: str, file_name: str) -> list[dict[str, Any]]:
    """The outputs of a code cell that asks for a prediction, as they are stored; none if no machine has the answer."""
    prediction, slug = asked(source), re.fullmatch(r"\d\d_(\w+)\.ipynb", file_name)
    lesson_file = store.package_root() / "lessons" / slug[1] / "lesson.yml" if prediction and slug else None
    if lesson_file is None or not lesson_file.is_file():
        return []
    for expected in read_lesson(lesson_file).expect[:1]:
        for record in store.records_of(slug[1], store.reference_root()):
            machine = record.environment.machine
            if not expected.is_asked(machine):
                continue
            try:
                answer = evaluate(expected.value, machine)
                results = recorded(experiments_in(expected.value), machine).values()
            except NotRecordedError:
                continue
            if expected.unit == "percent":
                answer = 100 * float(answer)
            where = newest_environment(results).caption
            if any(result.is_of_other_code for result in results):
                where += " · the experiment's code has changed since"
            shown = prediction.reveal(answer, f"Recorded: {where}")
            data = {"text/html": shown.html, "text/plain": repr(shown)}
            return [{"output_type": "display_data", "data": data, "metadata": {}}]
    return []
