"""Published rows: what a row must say, what it may decide, and what happens when its numbers say something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from authoring import claims
from authoring.claims import faults, judge
from authoring.lesson_answers import answer_text, rows_text
from authoring.lesson_files import LessonFile, LessonFileError, load_lessons, read_lesson
from authoring.published import paired, ratio
from course_utils.lesson_notebooks import find_lesson
from course_utils.lesson_order import file_name
from course_utils.results import store
from tests import made_up_records

SOURCE = {"repository": "somebody/measured", "path": "results/copy.md", "commit": "0123abc"}
ROW = {
    "id": "somebody_gpu",
    "compared": "copies, pinned and pageable",
    "hardware": "Some GPU",
    "versions": "not stated",
    "date": "2026-01",
    "n": "not stated",
    "uncontrolled": "batch differs",
    "source": SOURCE,
    "seen": "2026-11-23",
    "values": {"pinned_ms": 2, "pageable_ms": 6, "peak_gib": 1.5},
    "shows": [{"label": "pageable over pinned", "show": "pageable_ms / pinned_ms"}],
}
CLAIM = {
    "id": "X1",
    "claim": "It is faster.",
    "kind": "speed",
    "speaks_of": "CUDA",
    "verdict": "published",
    "sentence": "It is.",
    "published": [{"row": "somebody_gpu", "confirmed": "pinned_ms < pageable_ms"}],
}


@pytest.fixture
def lesson(tmp_path: Path):
    """Writes a lesson with rows and claims, and reads it."""

    def read(rows: list[dict[str, Any]], *entries: dict[str, Any], **more: Any) -> LessonFile:
        content = {"title": "A trial", "question": "Is it faster?"}
        (tmp_path / "order.yml").write_text("In practice:\n  - trial\n", encoding="utf-8")
        path = tmp_path / "trial" / "lesson.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            yaml.safe_dump({**content, "published": rows, "claims": list(entries), **more}, sort_keys=False)
        )
        return read_lesson(path)

    return read


def test_rows_answer_where_no_record_of_ours_does(lesson, tmp_path):
    (claim,) = lesson([ROW], CLAIM).claims
    judgement = judge(claim, tmp_path)
    assert (judgement.verdict, faults([judgement])) == ("published", [])
    against = {**ROW, "id": "other", "values": {"pinned_ms": 6, "pageable_ms": 2}, "shows": []}
    says = {"row": "other", "refuted": "pinned_ms > pageable_ms"}
    (claim,) = lesson([against], CLAIM | {"published": [says], "contradicted": True}).claims
    assert (judge(claim, tmp_path).verdict, claim.word, claim.is_by_others) == ("published otherwise", "No", True)
    both = CLAIM | {"published": [*CLAIM["published"], says], "verdict": "depends (published)"}
    (claim,) = lesson([ROW, against], both).claims
    assert (judge(claim, tmp_path).verdict, faults([judge(claim, tmp_path)])) == ("depends (published)", [])


def test_our_own_record_decides_and_a_disagreement_is_shown(lesson, tmp_path):
    recorded = made_up_records.table("caching_allocator/gap", [{"setting": "default", "retries": 3}])
    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, [recorded])
    holds = 'recorded("caching_allocator/gap", "some-gpu")["default"]["retries"] == 0'
    (claim,) = lesson([ROW], CLAIM | {"holds": holds, "verdict": "refuted"}).claims
    judgement = judge(claim, root)
    assert (judgement.verdict, faults([judgement])) == ("refuted", [])
    assert [says.row.id for says in judgement.disagreeing] == ["somebody_gpu"]


def test_numbers_that_do_not_bear_out_what_a_row_is_said_to_say_are_a_fault(lesson, tmp_path):
    wrong = CLAIM | {"published": [{"row": "somebody_gpu", "confirmed": "pinned_ms > pageable_ms"}]}
    (fault,) = faults([judge(lesson([ROW], wrong).claims[0], tmp_path)])
    assert "'somebody_gpu' says 'confirmed'" in fault
    assert "its numbers do not bear out 'pinned_ms > pageable_ms'" in fault


def test_the_build_stops_at_a_row_that_its_numbers_do_not_bear_out(monkeypatch):
    from authoring.pages import build

    lessons = load_lessons()
    judgement = next(each for each in claims.judge_all(lessons) if each.claim.published)
    says = judgement.claim.published[0]
    monkeypatch.setattr(type(says), "holds", property(lambda self: self != says))
    with pytest.raises(build.BookError, match=says.row.id):
        build.check(lessons, [judgement])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({name: ""}, f"{name} is empty") for name in ("hardware", "versions", "n", "uncontrolled", "compared")),
        ({"hardware": None}, "hardware"),
        ({"date": "spring"}, "date 'spring'"),
        ({"seen": "2026-11"}, "seen '2026-11'"),
        ({"source": {}}, "name a repository with path and commit, or an address"),
        ({"source": {**SOURCE, "commit": "main"}}, "the commit at which the file was read"),
        ({"source": {**SOURCE, "path": ""}}, "with the path of the file"),
        ({"source": {"address": "https://example.org/page"}}, "an address has a title"),
        ({"source": {**SOURCE, "repository": "us/pytorch-performance-course"}}, "a file of this course"),
        ({"source": {**SOURCE, "path": f"notebooks/{file_name('pinned_memory')}.ipynb"}}, "a file of this course"),
        ({"values": {}}, "a row without values"),
        ({"values": {"pinned_ms": "two"}}, "'two' is no number"),
        ({"values": {"median": 2}}, "give the value another name"),
    ],
)
def test_a_row_that_lacks_what_a_reader_needs_is_named(change, message, lesson):
    with pytest.raises(LessonFileError, match=f"published somebody_gpu: .*{message}"):
        lesson([ROW | change])


def test_a_row_that_is_not_there_or_says_nothing_known_is_named(lesson):
    with pytest.raises(LessonFileError, match="X1: there is no published row 'nobody'; there are: somebody_gpu"):
        lesson([ROW], CLAIM | {"published": [{"row": "nobody", "confirmed": "1 > 0"}]})
    for words in ({"perhaps": "1 > 0"}, {}, {"confirmed": "1 > 0", "refuted": "1 < 0"}):
        with pytest.raises(LessonFileError, match="X1: a row says one of confirmed, refuted, depends"):
            lesson([ROW], CLAIM | {"published": [{"row": "somebody_gpu", **words}]})
    with pytest.raises(LessonFileError, match="'1 > 0' reads no number of somebody_gpu: it has pinned_ms, pageable_ms"):
        lesson([ROW], CLAIM | {"published": [{"row": "somebody_gpu", "confirmed": "1 > 0"}]})


def test_a_row_shows_its_numbers_with_all_that_is_not_stated(lesson):
    text = rows_text(lesson([ROW]).published)
    assert "pageable over pinned **3.00**" in text
    assert "Some GPU · versions not stated · 2026-01 · number of runs not stated" in text
    assert "Not controlled: batch differs." in text
    assert "[somebody/measured, copy.md](https://github.com/somebody/measured/blob/0123abc/results/copy.md)" in text
    (claim,) = lesson([ROW], CLAIM).claims
    assert "It says *Holds*, because `pinned_ms < pageable_ms`." in rows_text([claim.published[0].row], claim.published)
    bare = rows_text(lesson([{key: value for key, value in ROW.items() if key != "shows"}]).published)
    assert "pinned_ms **2.00 ms**; pageable_ms **6.00 ms**; peak_gib **1.50 GiB**" in bare


def test_what_is_not_stated_and_what_was_read_in_part_is_said(lesson):
    page = {"address": "https://example.org/pull/1", "title": "A thread"}
    text = rows_text(lesson([ROW | {"hardware": "not stated", "source": page}]).published)
    assert "<br>*Hardware not stated ·" in text
    assert "[A thread](https://example.org/pull/1), read in a stored excerpt on 2026-11-23." in text
    assert "excerpt" not in rows_text(lesson([ROW]).published)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"address": "https://example.org/blob/4567def/copy.md", "commit": "0123abc"}, "not lead to commit 0123abc"),
        ({"address": "https://example.org/blob/main/copy.md"}, "leads to the newest version"),
        ({"address": "https://example.org/blob/0123abc/copy.md", "commit": "0123abc"}, ""),
        ({"address": "https://example.org/pull/165"}, ""),
    ],
)
def test_a_link_that_does_not_hold_what_was_read_is_shown_as_such(source, words, lesson):
    text = rows_text(lesson([ROW | {"source": {"title": "Copies", **source}}]).published)
    assert ("(**the link" in text, words in text) == (bool(words), True)


def test_an_answer_carries_its_number_with_a_link_to_where_it_comes_from(lesson):
    answer = {"says": "It takes {number} as long."}
    number = 'published["somebody_gpu"]["pageable_ms"] / published["somebody_gpu"]["pinned_ms"]'
    trial = lesson([ROW], answer={**answer, "number": number})
    text = answer_text(trial, [trial], "..")
    assert text.sentence == f"It takes [**3.00**]({trial.published[0].source.link}) as long."
    assert text.whose == "Published by somebody/measured: Some GPU, 2026-01."


def test_an_answer_from_a_record_links_the_record_and_names_its_machine(lesson):
    machine = next(store.reference_root().glob("*/measuring.json")).parent.name
    number = f'recorded("measuring/known_answers", "{machine}")["two products"].ratio'
    answer = {"says": "{number}.", "number": number}
    trial = lesson([], answer=answer)
    text = answer_text(trial, [trial], "..")
    path = text.sentence.partition("](")[2].rstrip(").")
    assert (find_lesson(0).path.parent / path).is_file()
    assert "Measured by us" in text.whose


# Intervals from raw samples


def test_paired_ratios_give_their_median_with_the_interval_of_the_course():
    estimate = paired([2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7])
    assert estimate.value == pytest.approx(2.35)
    # In 99% of all cases the median lies between the outermost of eight values.
    assert estimate.interval.ends == (2.0, 2.7)
    assert estimate.in_words() == "2.35 (2.00 to 2.70)"
    assert (estimate > 1.9, estimate > 2.1, estimate < 2.8, estimate < 2.6) == (True, False, True, False)
    assert not paired([1.0, 2.0]).interval.bounded
    assert paired([1.0, 2.0]).in_words() == "1.50"


def test_the_ratio_of_independent_runs_covers_the_true_one_as_often_as_it_says():
    import random

    drawn, misses = random.Random(0), 0
    for _ in range(400):
        case = [2 * drawn.lognormvariate(0, 0.1) for _ in range(20)]
        base = [drawn.lognormvariate(0, 0.1) for _ in range(20)]
        misses += not ratio(case, base).interval.inside(0, 2) and not ratio(case, base).interval.meets(2, 2)
    assert misses <= 8  # 1% of 400 is 4
    assert ratio(case, base).interval.low < ratio(case, base).value < ratio(case, base).interval.high


def test_samples_are_read_from_the_lessons_folder(lesson, monkeypatch, tmp_path):
    monkeypatch.setattr("authoring.published.package_root", lambda: tmp_path)
    (tmp_path / "lessons" / "trial").mkdir(parents=True)
    (tmp_path / "lessons" / "trial" / "runs.json").write_text(json.dumps({"samples": {"a": [1, 2, 3] * 4}}))
    shows = [{"label": "middle", "show": 'median(samples["a"])'}]
    (row,) = lesson([ROW | {"samples": "runs.json", "values": {}, "shows": shows}]).published
    assert row.numbers == (("middle", "2 (1 to 3)"),)
    (row,) = lesson([ROW | {"samples": "gone.json", "shows": shows}]).published
    with pytest.raises(claims.EvidenceError, match=r"somebody_gpu: gone.json cannot be read"):
        _ = row.numbers
