"""The form that JupyterLab shows for a prediction: a module of its own, since widgets take long to import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from course_utils.show.page import style


class PredictionForm(anywidget.AnyWidget):
    """Question, field, and a button that locks the answer in, as Enter does.

    What is typed comes as messages, and is no trait: while a cell runs, a page holds a trait's changes back until the
    cell has finished, and the reveal may be the next one.

    Attributes:
        content: what is asked and answered, as `prediction.js` wants it.
    """

    _esm = Path(__file__).with_name("prediction.js")
    _css = style("prediction")
    content = traitlets.Dict().tag(sync=True)

    def __init__(self, content: dict[str, Any], hear: Callable[[Any, bool], None]) -> None:
        super().__init__(content=content)
        self.on_msg(lambda _, message, __: hear(message["answer"], message["locked"]))
