"""The claims ledger: what it states follows from the records and the calls, and would not if they said otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from authoring import calls
from authoring.claims import faults, judge, judge_all, load_claims
from authoring.expressions import EvidenceError
from authoring.lesson_files import Claim, LessonFileError, load_lessons, read_lesson
from course_utils.lesson_notebooks import find_lessons, needs
from tests import made_up_records
from tests.made_up_records import edit_record

LESSONS = {lesson.slug: lesson for lesson in load_lessons()}
LEDGER = {claim.id: claim for claim in load_claims(LESSONS.values())}
OF_GPUS = ("CUDA", "two GPUs")


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch, none_ran: None):
    """Calls that are not the test's subject are not run."""
    monkeypatch.setattr(calls, "_run", lambda codes: [["None"] for _ in codes])


# The ledger as it stands


def test_what_the_ledger_states_follows_from_records_and_calls():
    judged = judge_all(LESSONS.values())
    assert len(judged) == len(LEDGER) >= 52
    assert faults(judged) == []


def test_what_a_cpu_may_decide_says_why_and_what_only_a_gpu_runs_is_claimed_of_gpus():
    needed = {name: tags for lesson in find_lessons() for name, tags in needs(lesson).items()}
    for claim in LEDGER.values():
        if claim.experiments and claim.speaks_of not in OF_GPUS:
            assert claim.why, f"{claim.id}: why may a record of {claim.speaks_of} decide it?"
        tags = {tag for experiment in claim.experiments for tag in needed.get(experiment, ())}
        assert "cuda" not in tags or claim.speaks_of in OF_GPUS, claim.id
        assert "two-gpus" not in tags or claim.speaks_of == "two GPUs", claim.id


def test_sentences_take_no_figure_from_anywhere_and_sources_are_dated():
    measured = re.compile(r"\d[\d.,]*\s?(?:%|percent|times|x\b|[KMGT]i?B\b|[mµun]?s\b|seconds)", re.IGNORECASE)
    for claim in LEDGER.values():
        for text in (claim.sentence, claim.condition, claim.why):
            assert not measured.search(text), f"{claim.id}: {text}"
        for source in claim.sources:
            after_the_links = re.sub(r"\]\([^)]*\)", "]", source)
            assert re.search(r"\b(19|20)\d\d\b|\b\d+\.(\d+|x)\b", after_the_links), f"{claim.id}: {source}"


def test_another_record_gives_another_verdict_and_the_message_names_the_sentence(records, no_calls):
    def gives_back(experiments: dict[str, Any]) -> None:
        if gap := experiments.get("caching_allocator/gap"):
            gap["data"]["rows"][0][gap["data"]["columns"].index("given back")] = 3

    claim = LEDGER["T9"]
    for path in records.glob(f"*/{claim.lesson}.json"):
        edit_record(path, gives_back)
    judged = judge(claim)
    assert judged.verdict == "confirmed" != claim.verdict
    gives = f"what it rests on gives 'confirmed': holds: {claim.holds}"
    (fault,) = [text for text in faults([judged]) if gives in text]
    assert fault.startswith(f'{claim.id} · {claim.claim.rstrip(".")}: "{claim.sentence}"')


# Judging

CLAIM: dict[str, Any] = {
    "id": "T8",
    "claim": "A claim.",
    "speaks_of": "any",
    "verdict": "refuted",
    "sentence": "It is not so.",
}


def ledger(folder: Path, *entries: Any) -> list[Claim]:
    """The claims of a lesson.yml with these entries."""
    path = folder / "caching_allocator" / "lesson.yml"
    path.parent.mkdir(exist_ok=True)
    (folder / "order.yml").write_text("Memory:\n  - caching_allocator\n", encoding="utf-8")
    lesson = {"title": "The caching allocator", "question": "Why?", "claims": list(entries)}
    path.write_text(yaml.safe_dump(lesson), encoding="utf-8")
    return list(read_lesson(path).claims)


def retries(count: int) -> list[Any]:
    return [made_up_records.table("caching_allocator/gap", [{"setting": "default", "retries": count}])]


AT_MOST = 'recorded("caching_allocator/gap", "some-gpu")["default"]["retries"] <= {}'


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        (AT_MOST.format(5), "confirmed"),
        (AT_MOST.format(4), "refuted"),
        (f"[{AT_MOST.format(4)}, {AT_MOST.format(5)}]", "depends"),
        (f'{AT_MOST.format(5)} and calls["it"] == "works"', "confirmed"),
    ],
)
def test_a_condition_gives_the_verdict_and_its_numbers_stand_in_the_message(
    holds, verdict, tmp_path, no_records, no_calls
):
    made_up_records.write(no_records, made_up_records.GPU, retries(5))
    otherwise = "confirmed" if verdict == "refuted" else "refuted"
    entry = CLAIM | {"holds": holds, "calls": {"it": "1"}}
    (right,) = ledger(tmp_path, entry | {"verdict": verdict})
    assert judge(right).verdict == verdict
    assert faults([judge(right)]) == []
    (claim,) = ledger(tmp_path, entry | {"verdict": otherwise})
    (message,) = faults([judge(claim)])
    for part in (claim.id, claim.sentence, holds, "caching_allocator/gap['default']['retries']` on some-gpu is 5"):
        assert part in message


def test_a_verdict_that_rests_on_a_call_alone_says_how_it_ended(tmp_path, no_calls):
    (claim,) = ledger(tmp_path, CLAIM | {"holds": 'calls["it"] == "works"', "calls": {"it": "1"}})
    (message,) = faults([judge(claim)])
    assert "gives 'confirmed'" in message
    assert "the call 'it' works" in message


@pytest.mark.parametrize(
    ("record_of", "speaks_of", "may_decide"),
    [
        (made_up_records.CPU, "CPU", True),
        (made_up_records.CPU, "CUDA", False),
        (made_up_records.GPU, "CUDA", True),
        (made_up_records.GPU, "two GPUs", False),
        (made_up_records.TWO_GPUS, "two GPUs", True),
        (made_up_records.CPU_IN_DISGUISE, "two GPUs", False),
    ],
)
def test_a_cpu_never_decides_about_gpus_nor_one_gpu_about_two(record_of, speaks_of, may_decide, tmp_path, no_records):
    made_up_records.write(no_records, record_of, retries(5))
    condition = AT_MOST.replace("some-gpu", record_of.machine).format(5)
    (claim,) = ledger(tmp_path, CLAIM | {"holds": condition, "speaks_of": speaks_of})
    if may_decide:
        assert judge(claim).verdict == "confirmed"
    else:
        with pytest.raises(EvidenceError, match=rf"T8: speaks of .*{record_of.machine} is no record of one"):
            judge(claim)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (CLAIM | {"rul": []}, r"extra fields found \(rul\)"),
        (CLAIM, "nothing says why"),
        (CLAIM | {"verdict": "documented"}, "name the sources"),
        (CLAIM | {"holds": "import os"}, "T8: .*cannot be read"),
        (CLAIM | {"holds": "1 < 2"}, "reads no record and no call"),
    ],
)
def test_a_damaged_claim_is_one_clear_error(entry, message, tmp_path):
    with pytest.raises(LessonFileError, match=message):
        ledger(tmp_path, entry)
