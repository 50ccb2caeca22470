"""A Sphinx extension: figures in stored outputs are described by their own words, not by the name of their file."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def describe_figures(_: Sphinx, document: nodes.document) -> None:
    """Give each picture of an output the text that stands for it in a terminal: a figure's is what it shows."""
    for bundle in document.findall(lambda node: getattr(node, "get", {}.get)("nb_element") == "mime_bundle"):
        text = next((form.astext() for form in bundle.children if form["mime_type"] == "text/plain"), None)
        for picture in bundle.findall(nodes.image) if text else ():
            picture["alt"] = text.removeprefix("Figure: ")


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx's way to ask what an extension does."""
    app.connect("doctree-read", describe_figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
