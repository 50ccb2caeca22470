"""What the instructor's guide says follows from records, lessons and checks."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from authoring import teaching
from authoring.evidence import EvidenceError, machines
from authoring.lesson_files import Expected, load_lessons
from authoring.pages import instructors
from authoring.predictions import prediction_of
from authoring.teaching import expectations, plans, presenter_notes, routes, wrong_turns
from course_utils.records.lessons import Lesson, find_lesson, find_lessons
from course_utils.show.reveal import Unit

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


@each_lesson
def test_what_to_expect_answers_the_question_that_the_room_is_asked(lesson: Lesson):
    expected = expectations(lesson)
    assert expected, f"lesson.yml of {lesson.slug} names no number to expect"
    assert {each.result.environment.machine for each in expected} <= set(machines())
    unit = re.escape(Unit(prediction_of(lesson).unit).endings[0])
    for each in expected:
        assert re.match(rf"[\d.,]+{unit}$|[\d.]+ times as (fast|long) \(|the same|too close", each.words), each
    notes = presenter_notes(lesson)
    assert expected[0].words in notes
    assert all(hint in notes for exercise in wrong_turns(lesson) for hint in exercise.hints.values())
    assert re.search(r"\*\*Time\*\* on .+: .* s in all\.", notes)


def test_a_number_that_nobody_recorded_is_an_error(monkeypatch: pytest.MonkeyPatch):
    wrong = Expected("x", 'pinned_memory/staging[65]["through staging"]')
    lesson = dataclasses.replace(load_lessons()[4], expect=(wrong,))
    monkeypatch.setattr(teaching, "read_lesson", lambda path: lesson)
    with pytest.raises(EvidenceError, match="65"):
        expectations(find_lesson("pinned_memory"))


def test_a_number_may_be_asked_of_one_machine_alone(monkeypatch: pytest.MonkeyPatch):
    lessons = {each.slug: each for each in load_lessons()}
    asked = lessons["in_place_operations"].expect[0]
    for machine in (None, "nvidia", "nowhere"):
        expect = (dataclasses.replace(asked, machine=machine),)
        lesson = dataclasses.replace(lessons["in_place_operations"], expect=expect)
        monkeypatch.setattr(teaching, "read_lesson", lambda path, lesson=lesson: lesson)
        if machine == "nowhere":
            with pytest.raises(EvidenceError, match="no machine is called nowhere"):
                expectations(find_lesson(lesson.slug))
        else:
            found = [each.result.environment.machine for each in expectations(find_lesson(lesson.slug))]
            assert machine is None or all(each.startswith(machine) for each in found)
            assert len(found) == (1 if machine else 2)


def test_the_guide_includes_what_is_generated_and_nothing_else():
    page = (ROOT / "book" / "instructors.md").read_text(encoding="utf-8")
    included = re.findall(r"^```\{include\} _generated/(\S+)$", page, re.MULTILINE)
    pages = instructors.generated()
    assert sorted(included) == sorted(pages)
    for lesson in LESSONS:
        assert f"../notebooks/{lesson.path.name}" in pages["instructors_demos.md"]
        assert expectations(lesson)[0].words in pages["instructors_expectations.md"]
    table = pages["instructors_routes.md"].splitlines()
    assert all(line.count("|") == 3 for line in table if line.startswith("|"))
