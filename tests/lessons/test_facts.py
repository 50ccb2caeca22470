"""What lessons state of torch: the facts of each lesson.yml hold with the installed version; messages are quoted."""

from __future__ import annotations

import contextlib
from importlib.metadata import version

import pytest

from authoring import calls
from authoring.expressions import EvidenceError
from authoring.lesson_files import LessonFile, load_lessons
from authoring.markdown_texts import passages
from authoring.reference_pages import reference_pages

LESSONS = [lesson for lesson in load_lessons() if lesson.facts]


@pytest.fixture(scope="module", autouse=True)
def _all_at_once():
    """One process that imports torch once; if something ends it, each lesson's facts are run by themselves."""
    stated = [fact for lesson in LESSONS for fact in lesson.facts if fact.expected(version("torch"))]
    with contextlib.suppress(EvidenceError):
        calls.run([fact.whole_code for fact in stated])


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)
def test_what_a_lesson_states_of_torch_holds_and_the_messages_that_it_quotes_stand_there(lesson: LessonFile):
    faults = calls.faults(lesson.slug, lesson.facts)
    assert not faults, "\n\n".join(faults)
    notebook = lesson.notebook.read_text("utf-8")
    pages = [page for page in reference_pages() if f"book/reference/{page.name}" in notebook]
    texts = [passage.text for path in (lesson.notebook, *pages) for passage in passages(path)]
    quoted = (fact.expected(version("torch")) for fact in lesson.facts if fact.message)
    missing = [message for message in quoted if message and not any(message in text for text in texts)]
    assert not missing, f"{lesson.slug} quotes none of these: {missing}. Correct the message, or the lesson."
