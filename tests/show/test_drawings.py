"""Drawings: each file can be read and described without its picture, and a lesson shows it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from course_utils import lessons
from course_utils.show.drawings import drawing

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(Path(lessons.__file__).parent.glob("*/*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}/{path.stem}" for path in FILES])
def test_a_drawing_is_described_and_its_lesson_shows_it(path: Path):
    shown = drawing(f"{path.parent.name}/{path.stem}")
    assert shown.alt.endswith(".")
    assert len(shown.alt) > 100
    tree = ElementTree.parse(path)
    names = {node.tag.removeprefix(SVG) for node in tree.iter()}
    known = {"svg", "title", "rect", "line", "circle", "path", "text", "tspan", "pattern", "image"}
    assert names <= known  # no script, no link
    assert all(image.get("href").startswith("data:image/webp;base64,") for image in tree.iter(f"{SVG}image"))
    assert all(float(text.get("font-size")) >= 9 for text in tree.iter(f"{SVG}text"))
    (notebook,) = (ROOT / "notebooks").glob(f"[0-9][0-9]_{path.parent.name}.ipynb")
    assert f'drawing(\\"{path.parent.name}/{path.stem}\\")' in notebook.read_text(encoding="utf-8")
