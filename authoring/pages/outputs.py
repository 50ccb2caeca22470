"""A Sphinx extension for outputs: words for figures, links to pages of the book, styles, and scripts of explorers.

A card in a notebook links lessons as notebooks; in the book they are pages. And JupyterLab finds a heading by an anchor
above it, ``<a id="10-verdict"></a>``, whose number keeps lessons that are open at the same time apart; in the book the
heading has that name itself, without the number.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from authoring.rendering import linked_to_pages
from course_utils.show import page


def _bundles(document: nodes.document) -> Iterator[nodes.Element]:
    return document.findall(lambda node: getattr(node, "get", {}.get)("nb_element") == "mime_bundle")


def describe_figures(_: Sphinx, document: nodes.document) -> None:
    for bundle in _bundles(document):
        text = next((form.astext() for form in bundle.children if form["mime_type"] == "text/plain"), None)
        for picture in bundle.findall(nodes.image) if text else ():
            picture["alt"] = text.removeprefix("Figure: ")


def link_pages(app: Sphinx, document: nodes.document) -> None:
    here = posixpath.dirname(app.env.docname)

    def is_page(place: str) -> bool:
        return posixpath.normpath(posixpath.join(here, place)) in app.env.found_docs

    for bundle in _bundles(document):
        for raw in bundle.findall(nodes.raw):
            raw.children = [nodes.Text(linked_to_pages(raw.astext(), is_page))]


def add_scripts(_: Sphinx, document: nodes.document) -> None:
    """Put what draws a page's forms and explorers at its end, once for all of them."""
    shown = "".join(raw.astext() for bundle in _bundles(document) for raw in bundle.findall(nodes.raw))
    if needed := page.scripts(shown):
        document.append(nodes.raw("", needed, format="html"))


def use_names_of_headings(_: Sphinx, __: str, source: list[str]) -> None:
    """Take the anchors from a text, but those of claims, and the numbers from its links to headings of lessons."""
    text = re.sub(r'<a id=(\\?")(?![a-z]\d+[a-z]?\1)[\w-]+\1></a>', "", source[0])
    source[0] = re.sub(r"(\]\((?:[\w./]+\.ipynb)?#)\d\d-", r"\1", text)


def name_claims(app: Sphinx, document: nodes.document) -> None:
    """Let links lead to the anchors of claims, which stand in rows of a table: MyST knows headings alone."""
    anchors = (re.fullmatch(r'<a id="([a-z]\d+[a-z]?)">', raw.astext()) for raw in document.findall(nodes.raw))
    names = {anchor[1]: (0, anchor[1], anchor[1]) for anchor in anchors if anchor}
    app.env.metadata[app.env.docname].setdefault("myst_slugs", {}).update(names)


def setup(app: Sphinx) -> dict[str, Any]:
    sheets = sorted(Path(page.__file__).parent.glob("*.css"))
    app.connect("config-inited", lambda _, config: config.html_static_path.extend(map(str, sheets)))
    for sheet in sheets:
        app.add_css_file(sheet.name)
    app.connect("source-read", use_names_of_headings)
    app.connect("doctree-read", describe_figures)
    app.connect("doctree-read", link_pages)
    app.connect("doctree-read", name_claims)
    app.connect("doctree-read", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
