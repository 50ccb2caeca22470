"""What the instructor's guide says follows from records, lessons and checks."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
from pathlib import Path

import pytest

from authoring import teaching
from authoring.evidence import EvidenceError, experiments_in, machines
from authoring.lesson_files import Expected, load_lessons
from authoring.pages import instructors
from authoring.teaching import (
    Question,
    asked,
    demo_minutes,
    expectations,
    plans,
    presenter_notes,
    question_of,
    routes,
    stated_minutes,
    wrong_turns,
)
from course_utils.records.lessons import Lesson, find_lesson, find_lessons

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons()
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


def test_every_day_fits_into_its_time_and_the_course_begins_with_measuring():
    for route in routes():
        for minutes in route.planned_minutes:
            assert minutes <= route.minutes <= 8 * 60, f"{route.name} takes {minutes} minutes"
            assert minutes >= 0.75 * route.minutes, f"{route.name} leaves the room waiting"
        lessons = [stop.lesson for day in route.days for stop in day if stop.lesson]
        assert lessons[0].slug == "measuring"
        assert lessons == sorted(lessons)
    assert set(lessons) == set(LESSONS), "the longest one has all"


def test_nobody_sits_for_too_long_and_a_whole_day_has_lunch():
    for route in routes():
        for day in route.days:
            names = [stop.what for stop in day]
            assert names.count("Lunch") == (route.minutes > 300)
            at = [-1, *(index for index, name in enumerate(names) if name in ("Break", "Lunch")), len(day)]
            for start, end in itertools.pairwise(at):
                assert 0 < sum(stop.minutes for stop in day[start + 1 : end]) <= plans()["plan"]["without_break"]
            if "Lunch" in names:
                before = sum(stop.minutes for stop in day[: names.index("Lunch")])
                after = sum(stop.minutes for stop in day[names.index("Lunch") + 1 :])
                assert abs(before - after) <= 100


def test_the_minutes_are_those_of_the_lessons():
    for planned, route in zip(plans()["routes"], routes(), strict=True):
        discussion = planned.get("discussion", plans()["plan"]["discussion"])
        for stop in itertools.chain(*route.days):
            if stop.what.endswith("discussion"):
                assert stop.minutes == stated_minutes(stop.lesson) + discussion
            elif stop.lesson:
                assert demo_minutes(stop.lesson) <= stop.minutes < demo_minutes(stop.lesson) + 1


@each_lesson
def test_each_lesson_says_what_to_expect(lesson: Lesson):
    found = expectations(lesson)
    assert found, f"{lesson.slug}/lesson.yml names no number to expect"
    assert all(re.search(r"\d", each.words) for each in found)
    assert {each.machine for each in found} <= set(machines())
    for each in load_lessons()[lesson.number].expect:
        assert {name.partition("/")[0] for name in experiments_in(each.value)} == {lesson.slug}


@each_lesson
def test_what_to_expect_answers_the_question_that_the_room_is_asked(lesson: Lesson):
    question = question_of(lesson)
    for each in expectations(lesson):
        if question.direction:
            assert question.direction in each.words, each
        elif question.unit:
            assert re.fullmatch(rf"[\d.,]+ ?{re.escape(question.unit)}", each.words), each
        else:
            assert re.fullmatch(r"[\d.]+", each.words), each


@pytest.mark.parametrize(
    ("source", "question"),
    [
        ('asked = predict("How many?", low=1)\nasked', Question("How many?")),
        ('rival = f()\nquestion = f"Is {rival} faster?"\nguess = predict(question)', Question("Is … faster?")),
        ('predict("What share?", unit="%")', Question("What share?", "%")),
        ("compare(cases)", None),
    ],
)
def test_the_question_of_a_prediction_is_found(source: str, question: Question | None):
    assert asked(source) == question


def test_a_number_that_nobody_recorded_is_an_error(monkeypatch: pytest.MonkeyPatch):
    wrong = Expected("x", 'pinned_memory/staging[65]["through staging"]')
    lesson = dataclasses.replace(load_lessons()[4], expect=(wrong,))
    monkeypatch.setattr(teaching, "read_lesson", lambda path: lesson)
    with pytest.raises(EvidenceError, match="65"):
        expectations(find_lesson("pinned_memory"))


@each_lesson
def test_the_presenter_has_times_numbers_and_hints(lesson: Lesson):
    notes = presenter_notes(lesson)
    assert expectations(lesson)[0].words in notes
    assert wrong_turns(lesson)[0].hint in notes
    assert re.search(r"\*\*Time\*\* on .+: .* s in all\.", notes)


def test_the_guide_includes_what_is_generated_and_nothing_else():
    page = (ROOT / "book" / "instructors.md").read_text(encoding="utf-8")
    included = re.findall(r"^```\{include\} _generated/(\S+)$", page, re.MULTILINE)
    made = instructors.generated()
    assert sorted(included) == sorted(made)
    for lesson in LESSONS:
        assert f"../notebooks/{lesson.path.name}" in made["instructors_demos.md"]
        assert expectations(lesson)[0].words in made["instructors_expectations.md"]
    table = made["instructors_routes.md"].splitlines()
    assert all(line.count("|") == 3 for line in table if line.startswith("|"))


def test_slides_in_the_book_are_made_again_only_when_they_are_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lessons = [find_lesson("00"), find_lesson("04")]
    notebooks = []
    for lesson in lessons:
        notebooks.append(tmp_path / lesson.path.name)
        shutil.copy(lesson.path, notebooks[-1])
    monkeypatch.setattr(instructors, "find_lessons", lambda: find_lessons(tmp_path))
    written: list[list[str]] = []

    def write(stale: list[Lesson], folder: Path, assets: str) -> None:
        written.append([lesson.name for lesson in stale])
        folder.mkdir(exist_ok=True)
        for lesson in stale:
            (folder / f"{lesson.name}.html").write_text(assets)

    monkeypatch.setattr(instructors, "write_slides", write)
    html = tmp_path / "html"
    html.mkdir()
    instructors.add_slides(html)
    instructors.add_slides(html)
    assert written == [["00_measuring", "04_pinned_memory"]]
    later = (html / "slides" / "04_pinned_memory.html").stat().st_mtime + 5
    os.utime(notebooks[1], (later, later))
    instructors.add_slides(html)
    assert written[1:] == [["04_pinned_memory"]]
    notebooks[0].unlink()
    instructors.add_slides(html)
    assert not (html / "slides" / "00_measuring.html").exists()
