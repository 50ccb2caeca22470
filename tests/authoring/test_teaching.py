"""What the instructor's guide says follows from records, lessons and checks."""

from __future__ import annotations

import re
from pathlib import Path

from authoring.predictions import prediction_of, recorded_answer
from authoring.teaching import demo_minutes, presenter_notes, routes, wrong_turns
from course_utils.lesson_notebooks import find_lessons

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons()


def test_every_day_fits_into_its_time_and_the_course_begins_with_measuring():
    for route in routes():
        for day in route["days"]:
            taught = sum(stop["minutes"] for stop in day["stops"])
            assert taught < day["minutes"] <= route["minutes"] <= 8 * 60, f"{route['name']}: {day['minutes']} minutes"
        lessons = [stop["lesson"] for day in route["days"] for stop in day["stops"]]
        assert lessons[0].slug == "measuring"
        assert lessons == sorted(lessons)
        assert route["first_to_go"] in lessons[1:]
    assert set(lessons) == set(LESSONS), "the longest one has all"


def test_the_notes_say_how_long_it_takes_what_to_expect_and_where_people_go_wrong():
    for lesson in LESSONS:
        words = recorded_answer(lesson.slug).words(prediction_of(lesson))
        notes = presenter_notes(lesson)
        assert words in notes
        assert all(hint in notes for exercise in wrong_turns(lesson) for hint in exercise.hints.values())
        assert re.search(r"\*\*Time\*\*: \d+ minutes at most", notes)
        assert 3 < demo_minutes(lesson) <= 10, lesson.name
