"""`make renumber`: whatever mentions a lesson's number follows the list; a second pass finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from authoring import renumber
from authoring.lesson_files import LessonFileError
from authoring.renumber import RenumberedFiles, renumbered
from course_utils.lesson_notebooks import dumped
from tests.made_up_notebooks import text

ROOT = Path(__file__).resolve().parents[2]


def save(path: Path, *sources: str) -> None:
    cells = [text(source, id=f"c{place}") for place, source in enumerate(sources)]
    path.write_text(dumped({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """Three lessons, with a page."""
    for slug in ("first", "second", "third"):
        add(tmp_path, slug)
    order(tmp_path, "first", "second", "third")
    for name in ("notebooks", "book", "tests"):
        (tmp_path / name).mkdir()
    following = "Next: [01 · The second](01_second.ipynb), in words of its own."
    save(tmp_path / "notebooks/00_first.ipynb", "# 00 · The first\n\nSee lesson 02.", following)
    anchored = '<a id="01-a-part"></a>\n## A part\n\nAbove, [there](#01-a-part).'
    following = "Next: [02 · The third](02_third.ipynb)."
    save(tmp_path / "notebooks/01_second.ipynb", "# 01 · The second", anchored, following)
    save(tmp_path / "notebooks/02_third.ipynb", "# 02 · The third")
    page = "[Lesson 01](../notebooks/01_second.ipynb#01-a-part), lessons 00, 01 and 02, `02_third`, 02_other, lesson 1."
    (tmp_path / "book/page.md").write_text(page, encoding="utf-8")
    return tmp_path


def add(course: Path, slug: str) -> None:
    folder = course / "course_utils/lessons" / slug
    folder.mkdir(parents=True)
    about = f'title: The {slug}\nquestion: How "{slug}" is it?\n'
    (folder / "lesson.yml").write_text(about, encoding="utf-8")


def order(course: Path, *slugs: str) -> None:
    lines = ["A part:", *(f"  - {slug}" for slug in slugs), ""]
    (course / "course_utils/lessons/order.yml").write_text("\n".join(lines), encoding="utf-8")


def texts(course: Path) -> dict[str, str]:
    kept = [*course.glob("notebooks/*"), *course.glob("book/*")]
    return {path.name: path.read_text(encoding="utf-8") for path in kept}


def test_a_lesson_in_the_middle_moves_all_that_come_after_it(course: Path):
    assert renumbered(course) == RenumberedFiles({}, {})
    add(course, "new")
    save(course / "notebooks/new.ipynb", "# 00 · The new", "Next: [01 · The second](01_second.ipynb), as before.")
    order(course, "first", "new", "second", "third")
    found = renumbered(course)
    assert [path.name for path in found.renamed.values()] == ["02_second.ipynb", "03_third.ipynb", "01_new.ipynb"]
    renumber.apply(found)
    now = texts(course)
    assert {*now} == {*("00_first.ipynb", "01_new.ipynb", "02_second.ipynb", "03_third.ipynb", "page.md")}
    # A line that leads on to another lesson loses its words: they were about the one before.
    assert r'"Next: [01 · The new](01_new.ipynb): How \"new\" is it?"' in now["00_first.ipynb"]
    assert "See lesson 03." in now["00_first.ipynb"]
    assert "# 01 · The new" in now["01_new.ipynb"]
    assert "Next: [02 · The second](02_second.ipynb), as before." in now["01_new.ipynb"]
    assert r"<a id=\"02-a-part\">" in now["02_second.ipynb"]
    assert "[there](#02-a-part)" in now["02_second.ipynb"]
    assert "Next: [03 · The third](03_third.ipynb)." in now["02_second.ipynb"]
    assert now["page.md"] == (
        "[Lesson 02](../notebooks/02_second.ipynb#02-a-part), lessons 00, 02 and 03, `03_third`, 02_other, lesson 1."
    )
    assert renumbered(course) == RenumberedFiles({}, {}), "a second run finds nothing"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda course: save(course / "notebooks/04_new.ipynb"), r"04_new\.ipynb is no lesson of order\.yml"),
        (lambda course: (course / "README.md").write_text("See lesson 07."), r"README\.md mentions lesson 07"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_nothing_is_written(course: Path, damage, message: str):
    damage(course)
    before = texts(course)
    with pytest.raises(LessonFileError, match=message):
        renumbered(course)
    assert texts(course) == before


def test_each_lesson_of_the_course_has_its_number(capsys: pytest.CaptureFixture[str]):
    assert renumber.main(["--check"]) == 0, capsys.readouterr().err
