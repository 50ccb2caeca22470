"""Explorers: Python prepares numbers and sentences, and one script draws them, in JupyterLab and in stored pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anywidget
import jinja2
import traitlets

from course_utils.show.cards import Card
from course_utils.show.page import dressed, style

_PAGE = Path(__file__).with_name("stored_view.html.j2")


class Viewer(anywidget.AnyWidget):
    """An explorer in JupyterLab. The script says in ``chosen`` what a person asks for; Python answers in ``state``.

    Attributes:
        view: what is drawn: one of the views in ``viewer.js``.
        form: the fields above the drawing; see `field`.
        chosen: the fields' values, by their keys.
        state: what is to be drawn.
        message: a line above the drawing, for errors and progress.
    """

    _esm = Path(__file__).with_name("viewer.js")
    _css = style("viewer")
    view = traitlets.Unicode().tag(sync=True)
    form = traitlets.List().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": "<p>Run this cell (Shift+Enter) to see the explorer.</p>"}, metadata


def field(key: str, label: str, options: Iterable[Any] | None = None, **more: Any) -> dict[str, Any]:
    """A field of a viewer's form: a list if it has options (values, or pairs of words and value), else by its value.

    ``more`` is ``min``, ``max`` and ``step`` of a number, ``slider`` to move through the options, or a ``hint``.
    """
    pairs = [each if isinstance(each, tuple) else (str(each), each) for each in options or ()]
    return {"key": key, "label": label, **({"options": pairs} if pairs else {}), **more}


@dataclass(frozen=True)
class StoredView:
    """What shows itself in a page without a kernel."""

    text: str  # for a terminal
    html: str  # for a page that has the style and the scripts; see `stored_view`

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return dressed(self.html)


def stored_view(
    view: str, states: Sequence[dict[str, Any]], fallback: str, form: Sequence[Any] = (), **chosen: Any
) -> str:
    """An explorer for pages without a kernel, with all its data inside; the same in every process.

    Args:
        view: one of the views in ``viewer.js``.
        states: what can be drawn. Each says under ``when`` which of the chosen values it belongs to.
        fallback: HTML for where no script runs, such as on GitHub.
        form: the fields.
        **chosen: the fields' first values.
    """
    content = {"view": view, "form": form, "chosen": chosen, "states": states}
    packed = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
    return jinja2.Template(_PAGE.read_text(encoding="utf-8")).render(fallback=fallback, content=packed)


def slider(label: str, cards: Sequence[tuple[str, Card]], everything: Card, at: int = 0) -> StoredView:
    """A slider over values, each with its card; all of them are in one card, folded where the script runs.

    Args:
        label: what is varied.
        cards: the values' names and their cards, in order.
        everything: what a terminal and a page without scripts show.
        at: where it opens: the place of a card.
    """
    states = [{"when": {"at": at}, "card": card.html()} for at, (_, card) in enumerate(cards)]
    form = [field("at", label, [(name, at) for at, (name, _) in enumerate(cards)], slider=True)]
    fallback = f"<details open><summary>All values</summary>{everything.html()}</details>"
    return StoredView(repr(everything), stored_view("cards", states, fallback, form, at=at))
