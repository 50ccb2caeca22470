"""Each link of a lesson, and of the pages beside it, leads somewhere in JupyterLab. The book's are in test_book.py."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt

from course_utils.lesson_notebooks import notebooks_root, read_notebook
from tools.workspace import copy_pages, refresh

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BeautifulSoup]:
    """What JupyterLab can open in a learner's workspace, as HTML where there may be links."""
    workspace = tmp_path_factory.mktemp("workspace")
    refresh(notebooks_root(), workspace)
    copy_pages(ROOT / "book", workspace)
    files = [path for path in workspace.rglob("*") if path.is_file()]
    return {path.relative_to(workspace).as_posix(): BeautifulSoup(html(path), "html.parser") for path in files}


def html(path: Path) -> str:
    markdown = MarkdownIt().enable("table").render
    if path.suffix == ".md":
        return markdown(path.read_text(encoding="utf-8"))
    if path.suffix != ".ipynb":
        return ""
    cells = read_notebook(path)["cells"]
    texts = [markdown(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    outputs = [output.get("data", {}).get("text/html", "") for cell in cells for output in cell.get("outputs", [])]
    return "\n".join([*texts, *outputs])


def names(document: BeautifulSoup) -> set[str]:
    """JupyterLab's rule: a heading is called as it is written, with dashes for spaces, and an ``id`` is kept."""
    headings = document.find_all(re.compile("^h[1-6]$"))
    return {tag["id"] for tag in document.find_all(id=True)} | {each.get_text().replace(" ", "-") for each in headings}


def test_every_link_leads_to_a_file_and_a_heading(documents: dict[str, BeautifulSoup]):
    known = {name: names(document) for name, document in documents.items()}
    count = Counter(each for those in known.values() for each in those)
    broken = []
    for name, document in documents.items():
        for link in document.find_all("a", href=True):
            place = urlsplit(link["href"])
            if place.scheme in ("http", "https"):
                continue
            target = posixpath.normpath(posixpath.join("/", posixpath.dirname(name), place.path)).strip("/")
            target = target if place.path else name
            fragment = unquote(place.fragment)
            if target not in known or (fragment and fragment not in known[target]):
                broken.append(f"{name}: {link['href']}")
            if not place.path and count[fragment] > 1:
                # JupyterLab goes to the first one in its whole page, be it in a lesson that is open behind this one.
                broken.append(f"{name}: {link['href']} is the name of a heading in other lessons, too")
            if name.endswith(".ipynb") and fragment and target.endswith(".ipynb") and target != name:
                broken.append(f"{name}: {link['href']} names a heading, which JupyterLab looks for too early")
            if name.endswith(".ipynb") and not (ROOT / "notebooks" / place.path).exists():
                broken.append(f"{name}: {link['href']} leads nowhere on GitHub")
    assert not broken, "\n".join(broken)
