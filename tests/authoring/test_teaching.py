"""What the instructor's guide says follows from records, lessons and checks."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from authoring.pages import instructors
from authoring.predictions import prediction_of, recorded_answers
from authoring.teaching import plans, presenter_notes, routes, wrong_turns
from course_utils.records.lessons import Lesson, find_lessons
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
def test_the_notes_say_how_long_it_takes_what_to_expect_and_where_people_go_wrong(lesson: Lesson):
    prediction, answers = prediction_of(lesson), [*recorded_answers(lesson.slug)]
    unit = re.escape(Unit(prediction.unit).endings[0])
    for answer in answers:
        assert re.match(rf"[\d.,]+{unit}$|[\d.]+ times as (fast|long) \(|the same|too close", answer.words(prediction))
    notes = presenter_notes(lesson)
    assert all(answer.words(prediction) in notes for answer in answers)
    assert all(hint in notes for exercise in wrong_turns(lesson) for hint in exercise.hints.values())
    assert re.search(r"\*\*Time\*\* on .+: .* s in all", notes)


def test_the_guide_includes_the_routes_with_the_slides_of_every_lesson():
    page = (ROOT / "book" / "instructors.md").read_text(encoding="utf-8")
    ((included, generated),) = instructors.generated().items()
    assert re.findall(r"^```\{include\} _generated/(\S+)$", page, re.MULTILINE) == [included]
    assert all(f'"../slides/{lesson.name}.html"' in generated for lesson in LESSONS)
    assert all(line.count("|") == 4 for line in generated.splitlines() if line.startswith("|"))
