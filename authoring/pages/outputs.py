"""A Sphinx extension for stored outputs: figures are described by their own words, and a card's links stay in the book.

A card in a notebook links lessons as notebooks; in the book they are pages.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from authoring.rendering import linked_to_pages


def _bundles(document: nodes.document) -> Iterator[nodes.Element]:
    """The outputs of a page, each in all its forms."""
    return document.findall(lambda node: getattr(node, "get", {}.get)("nb_element") == "mime_bundle")


def describe_figures(_: Sphinx, document: nodes.document) -> None:
    """Give each picture of an output the text that stands for it in a terminal: a figure's is what it shows."""
    for bundle in _bundles(document):
        text = next((form.astext() for form in bundle.children if form["mime_type"] == "text/plain"), None)
        for picture in bundle.findall(nodes.image) if text else ():
            picture["alt"] = text.removeprefix("Figure: ")


def link_pages(app: Sphinx, document: nodes.document) -> None:
    """Turn the links of outputs to notebooks into links to the pages that the book has of them."""
    here = posixpath.dirname(app.env.docname)

    def is_page(place: str) -> bool:
        return posixpath.normpath(posixpath.join(here, place)) in app.env.found_docs

    for bundle in _bundles(document):
        for raw in bundle.findall(nodes.raw):
            raw.children = [nodes.Text(linked_to_pages(raw.astext(), is_page))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx's way to ask what an extension does."""
    app.connect("doctree-read", describe_figures)
    app.connect("doctree-read", link_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
