"""What a lesson asks its readers to predict, and what the book shows of it: the form, with the recorded answer folded.

The answer is what lesson.yml expects. So it comes from a record, and where that is missing there is none.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any, NamedTuple

from authoring import expressions
from authoring.expressions import NotRecordedError, RecordedExperiment
from authoring.lesson_files import read_lesson
from course_utils.lesson_notebooks import Lesson, LessonError, read_notebook
from course_utils.results import store
from course_utils.results.comparison import Case
from course_utils.results.result import Result
from course_utils.show.prediction import Prediction
from course_utils.show.reveal import Unit


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
    sources = (cell["source"] for cell in read_notebook(lesson.path)["cells"] if cell["cell_type"] == "code")
    if prediction := next(filter(None, map(asked, sources)), None):
        return prediction
    raise LessonError(f"{lesson.name} asks for no prediction: add a cell with predict().")


class RecordedAnswer(NamedTuple):
    value: Any
    rests_on: tuple[RecordedExperiment, ...]

    @property
    def result(self) -> Result:
        return expressions.newest_result(self.rests_on)

    def words(self, prediction: Prediction) -> str:
        """The answer as the room sees it when the prediction is revealed: with its unit."""
        if isinstance(self.value, str | Case):  # a choice, or a verdict
            return expressions.in_words(self.value)
        return Unit(prediction.unit).words(self.value)


def recorded_answer(slug: str) -> RecordedAnswer | None:
    expected = read_lesson(store.package_root() / "lessons" / slug / "lesson.yml").expect
    try:
        value, rests_on = expressions.evaluate(expected or "None")
    except NotRecordedError:
        return None
    return RecordedAnswer(value, tuple(rests_on.values())) if rests_on else None


def stored_outputs(source: str, file_name: str) -> list[dict[str, Any]]:
    """The outputs of a code cell that asks for a prediction, as they are stored; none if no machine has the answer."""
    prediction, slug = asked(source), re.fullmatch(r"\d\d_(\w+)\.ipynb", file_name)
    if not (prediction and slug and (store.package_root() / "lessons" / slug[1] / "lesson.yml").is_file()):
        return []
    answer = recorded_answer(slug[1])
    if answer is None:
        return []
    changed = any(each.is_of_other_code for each in answer.rests_on)
    said = dataclasses.replace(answer.result, whose="recorded")
    shown = prediction.reveal(answer.value, said, "the experiment's code has changed since" if changed else "")
    data = {"text/html": shown.html, "text/plain": repr(shown)}
    return [{"output_type": "display_data", "data": data, "metadata": {}}]
