"""Drawings: each file can be read and described without its picture, and a lesson shows it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course_utils import lessons, recorded
from course_utils.lessons.activation_checkpointing.drawings import memory_against_time
from course_utils.lessons.initialization.pictures import losses
from course_utils.show.drawings import drawing
from tests.figure_checks import problems_of_texts

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(Path(lessons.__file__).parent.glob("*/*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}/{path.stem}" for path in FILES])
def test_a_drawing_is_described_and_its_lesson_shows_it(path: Path):
    shown = drawing(f"{path.parent.name}/{path.stem}")
    assert shown.alt.endswith(".")
    assert len(shown.alt) > 100
    assert repr(shown) == f"Figure: {shown.alt}"
    tree = ElementTree.parse(path)
    names = {node.tag.removeprefix(SVG) for node in tree.iter()}
    known = {"svg", "title", "rect", "line", "circle", "path", "text", "tspan", "pattern", "image"}
    assert names <= known  # no script, no link
    assert all(image.get("href").startswith("data:image/webp;base64,") for image in tree.iter(f"{SVG}image"))
    assert all(float(text.get("font-size")) >= 9 for text in tree.iter(f"{SVG}text"))
    assert path.stat().st_size < 30_000
    (notebook,) = (ROOT / "notebooks").glob(f"[0-9][0-9]_{path.parent.name}.ipynb")
    assert f'drawing(\\"{path.parent.name}/{path.stem}\\")' in notebook.read_text(encoding="utf-8")


def test_a_picture_stands_in_a_page_as_an_image_that_holds_everything():
    path = FILES[0]
    html = drawing(f"{path.parent.name}/{path.stem}")._repr_html_()
    assert re.fullmatch(r'<img src="data:image/svg\+xml;base64,[\w+/=]+" alt="[^"]{100,}\.">', html)


def test_a_drawing_of_a_measurement_is_readable_and_described():
    for draw, experiment in (
        (memory_against_time, "activation_checkpointing/trade"),
        (losses, "initialization/losses"),
    ):
        fig = draw(recorded(experiment))
        assert problems_of_texts(fig) == []
        assert len(fig.alt) > 100
