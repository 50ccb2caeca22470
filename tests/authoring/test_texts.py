"""Texts of the course: each lesson gives the verdicts on its claims."""

from __future__ import annotations

import re

from authoring.claims import load_claims
from authoring.markdown_texts import passages
from course_utils.lesson_notebooks import find_lessons


def test_each_lesson_gives_the_ledgers_verdict_on_its_claims():
    for lesson in find_lessons():
        marked = {*re.findall(r"<!--= claim (\w+) -->", "\n".join(each.text for each in passages(lesson.path)))}
        own = {claim.id for claim in load_claims() if claim.lesson == lesson.slug}
        assert own <= marked, f"{lesson.path.name}: write <!--= claim {min(own - marked, default='')} -->No<!--/-->"
