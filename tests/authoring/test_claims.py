"""The claims ledger: what it states follows from the records and the calls, and would not if they said otherwise."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from authoring import calls, evidence
from authoring.claims import faults, judge, judge_all, load_claims
from authoring.evidence import EvidenceError
from authoring.lesson_files import Claim, LessonFileError, Part, load_lessons, read_lesson
from course_utils.records.lessons import experiments, find_lessons, needs
from course_utils.records.store import records_of, reference_root
from tests import made_up_records

LESSONS = {lesson.slug: lesson for lesson in load_lessons()}
LEDGER = {claim.id: claim for claim in load_claims(LESSONS.values())}
PARTS = {f"{claim.id}-{index}": (claim, part) for claim in LEDGER.values() for index, part in enumerate(claim.parts)}
OF_GPUS = ("CUDA", "two GPUs")


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch, none_ran: None):
    """Calls that are not the test's subject are not run."""
    monkeypatch.setattr(calls, "_run", lambda codes: [["None"] for _ in codes])


def expressions_of(part: Part) -> list[str]:
    return [*(text for _, text in part.rule), *(number.show for number in part.evidence)]


def index_of(name: str) -> int:
    return int(name.partition("-")[2])


# The ledger as it stands


def test_what_the_ledger_states_follows_from_records_and_calls():
    judgements = judge_all(LESSONS.values())
    assert len(judgements) == len(LEDGER) >= 52
    assert faults(judgements) == []


def test_each_expression_reads_experiments_that_a_notebook_or_a_committed_record_has():
    known = {name for lesson in find_lessons() for name in experiments(lesson)}
    known |= {name for slug in LESSONS for kept in records_of(slug, reference_root()) for name in kept.experiments}
    for name, (_, part) in PARTS.items():
        read = {name for number in part.evidence for name in evidence.experiments_in(number.show)}
        assert {*part.experiments} | read <= known, name


def test_an_open_claim_says_what_would_settle_it():
    for claim in LEDGER.values():
        if not LESSONS[claim.lesson].built:
            assert claim.experiments == (), claim.id
        for part in judge(claim).parts:
            assert (part.verdict == "open") == bool(part.waits_for), claim.id


def test_what_a_cpu_may_decide_says_why_and_what_only_a_gpu_runs_is_claimed_of_gpus():
    needed = {name: tags for lesson in find_lessons() for name, tags in needs(lesson).items()}
    for name, (_, part) in PARTS.items():
        if part.experiments and part.speaks_of not in OF_GPUS:
            assert part.why, f"{name}: why may a record of {part.speaks_of} decide {part.what!r}?"
        tags = {tag for experiment in part.experiments for tag in needed.get(experiment, ())}
        assert "cuda" not in tags or part.speaks_of in OF_GPUS, name
        assert "two-gpus" not in tags or part.speaks_of == "two GPUs", name


def test_sentences_take_no_figure_from_anywhere_and_sources_are_dated():
    measured = re.compile(r"\d[\d.,]*\s?(?:%|percent|times|x\b|[KMGT]i?B\b|[mµun]?s\b|seconds)", re.IGNORECASE)
    for claim in LEDGER.values():
        for text in (claim.sentence, claim.condition, *(part.why for part in claim.parts)):
            assert not measured.search(text), f"{claim.id}: {text}"
        for source in claim.sources:
            after_the_links = re.sub(r"\]\([^)]*\)", "]", source)
            assert re.search(r"\b(19|20)\d\d\b|\b\d+\.(\d+|x)\b", after_the_links), f"{claim.id}: {source}"


def test_no_part_of_a_claim_about_gpus_rests_on_what_a_cpu_measured():
    """Arithmetic and bookkeeping may be any device's; times, peaks, errors and kernels may not."""
    measured = re.compile(r"peak|median|verdict|speedup|interval|kernel|float16")
    for name, (claim, part) in PARTS.items():
        if claim.speaks_of in OF_GPUS and part.speaks_of not in OF_GPUS and part.experiments and not part.aside:
            assert not any(measured.search(text) for _, text in part.rule), name


# Every verdict could be another one

# What would have to be in the committed records, and what would follow then: tables, sweeps, curves.
OTHERWISE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "T9-0": (lambda data: gives_back(data.get("caching_allocator/gap")), "confirmed"),
}


def gives_back(data: dict[str, Any] | None) -> None:
    if data:
        data["rows"][0][data["columns"].index("given back")] = 3


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_record_gives_another_verdict_and_the_message_names_the_sentence(name, tmp_path, no_calls):
    edit, expected = OTHERWISE[name]
    claim, part = PARTS[name]
    root = made_up_records.committed(claim.lesson, tmp_path, edit)
    judgement = judge(claim, root)
    judged = judgement.parts[index_of(name)]
    assert judged.verdict == expected != part.verdict
    gives = f"its rule gives {expected!r}: holds: {part.holds}"
    of_the_part = repr(part.what) if len(claim.parts) > 1 else ""
    (fault,) = [text for text in faults([judgement]) if gives in text and of_the_part in text]
    assert fault.startswith(f'{claim.id} · {claim.claim.rstrip(".")}: "{claim.sentence}"')


# Judging

CLAIM: dict[str, Any] = {
    "id": "T8",
    "claim": "A claim.",
    "kind": "memory",
    "speaks_of": "any",
    "verdict": "refuted",
    "sentence": "It is not so.",
}
RETRIES = 'caching_allocator/gap["default"]["retries"]'
RULE = {"rule": [{"confirmed": f"{RETRIES} > 10"}, {"refuted": f"{RETRIES} == 0"}]}


def ledger(folder: Path, *entries: Any) -> list[Claim]:
    """The claims of a lesson.yml with these entries."""
    path = folder / "caching_allocator" / "lesson.yml"
    path.parent.mkdir(exist_ok=True)
    (folder / "order.yml").write_text("Memory:\n  - caching_allocator\n", encoding="utf-8")
    lesson = {"title": "The caching allocator", "question": "Why?"}
    path.write_text(yaml.safe_dump({**lesson, "claims": list(entries)}), encoding="utf-8")
    return list(read_lesson(path).claims)


def retries(count: int, **more: Any) -> list[Any]:
    row = {"setting": "default", "retries": count, **more}
    return [made_up_records.table("caching_allocator/gap", [row], dict.fromkeys(more, "bytes"))]


@pytest.mark.parametrize(
    ("speaks_of", "others", "machine"),
    [
        ("CUDA", [made_up_records.CPU_IN_DISGUISE], made_up_records.GPU),
        ("two GPUs", [made_up_records.CPU_IN_DISGUISE, made_up_records.GPU], made_up_records.TWO_GPUS),
    ],
)
def test_a_rule_about_gpus_follows_a_gpus_record_and_no_cpus(speaks_of, others, machine, tmp_path):
    (claim,) = ledger(tmp_path, CLAIM | RULE | {"speaks_of": speaks_of})
    for other in others:
        made_up_records.write(tmp_path / "records", other, retries(20))
    (judged,) = judge(claim, tmp_path / "records").parts
    assert (judged.verdict, judged.machines, bool(judged.waits_for)) == ("open", (), True)
    (judged,) = judge(claim, made_up_records.write(tmp_path / "records", machine, retries(20))).parts
    assert (judged.verdict, [each.machine for each in judged.machines]) == ("confirmed", [machine.machine])


def test_a_cpu_has_no_veto_against_the_gpus_that_a_claim_names(tmp_path):
    part = {"what": "it", "speaks_of": "any", "verdict": "confirmed", **RULE}
    (claim,) = ledger(tmp_path, CLAIM | {"speaks_of": "CUDA", "parts": [part]})
    root = made_up_records.write(tmp_path / "records", made_up_records.CPU, retries(0))
    assert judge(claim, root).parts[0].verdict == "refuted"
    judged = judge(claim, made_up_records.write(root, made_up_records.GPU, retries(20))).parts[0]
    assert (judged.verdict, [each.machine for each in judged.machines]) == ("confirmed", ["some-gpu"])


def test_machines_that_disagree_make_it_depend_and_each_is_listed(tmp_path):
    (claim,) = ledger(tmp_path, CLAIM | RULE)
    made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(20))
    made_up_records.write(tmp_path / "records", made_up_records.CPU_IN_DISGUISE, retries(0))
    judgement = judge(claim, tmp_path / "records")
    assert judgement.verdict == "depends"
    verdicts = {each.machine: each.verdict for each in judgement.parts[0].machines}
    assert verdicts == {"some-gpu": "confirmed", "nvidia-h200": "refuted"}
    (fault,) = faults([judgement])
    assert "some-gpu gives 'confirmed'" in fault
    assert "nvidia-h200 gives 'refuted'" in fault


def test_a_record_that_is_too_unclear_leaves_the_word_to_the_others(tmp_path):
    (claim,) = ledger(tmp_path, CLAIM | RULE)
    made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(5))
    judgement = judge(claim, tmp_path / "records")
    assert judgement.verdict == "open"
    assert "too unclear" in judgement.parts[0].machines[0].notices[0]
    assert judgement.parts[0].waits_for == "a clearer record of `caching_allocator/gap` on any machine"
    made_up_records.write(tmp_path / "records", made_up_records.CPU_IN_DISGUISE, retries(0))
    judgement = judge(claim, tmp_path / "records")
    assert judgement.verdict == "refuted"
    assert faults([judgement]) == []


def test_a_claim_is_as_strong_as_its_weakest_part_and_asides_do_not_count(tmp_path):
    def claim_with(aside: bool) -> Claim:
        this = {"what": "this", "verdict": "confirmed", "rule": [{"confirmed": f"{RETRIES} == 0"}]}
        this["rule"].append({"refuted": "otherwise"})
        that = {"what": "that", "verdict": "open", "aside": aside, "waits_for": "somebody"}
        (claim,) = ledger(tmp_path, CLAIM | {"parts": [this, that]})
        return claim

    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(0))
    judgement = judge(claim_with(aside=True), root)
    assert (judgement.verdict, judgement.claim.word, faults([judgement])) == ("confirmed", "Holds", [])
    judgement = judge(claim_with(aside=False), root)
    assert (judgement.verdict, judgement.claim.word) == ("open", "Open")
    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(1))
    assert judge(claim_with(aside=False), root).verdict == "refuted"


@pytest.mark.parametrize(
    ("parts", "word", "is_by_others"),
    [
        (["confirmed", "refuted"], "Half", False),
        (["documented", "refuted"], "Half", False),
        (["documented", "documented otherwise"], "Half", True),
        (["refuted", "depends", "documented otherwise"], "No", False),
        (["outdated API"], "No", False),
        (["published otherwise"], "No", True),
        (["depends (published)", "open"], "Half", True),
        (["depends (published)", "confirmed"], "Half", False),
        (["documented", "published"], "Holds", True),
        (["open"], "Open", False),
    ],
)
def test_four_words_say_it_and_a_half_is_what_one_part_holds_of(parts, word, is_by_others):
    claim = LEDGER["T9"]
    several = tuple(dataclasses.replace(claim.parts[0], verdict=verdict) for verdict in parts)
    claim = dataclasses.replace(claim, parts=several)
    assert (claim.word, claim.is_by_others) == (word, is_by_others)


def test_numbers_come_in_words_with_their_unit_and_code_that_changed_is_noticed(tmp_path):
    shown = [
        {"label": "reserved", "show": 'caching_allocator/gap["default"]["peak reserved"]'},
        {"label": "not recorded there", "show": 'caching_allocator/gpu["default"]["peak reserved"]'},
    ]
    (claim,) = ledger(tmp_path, CLAIM | RULE | {"evidence": shown})
    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(0, **{"peak reserved": 3 * 2**29}))
    made_up_records.edit_record(
        root / "some-gpu" / "caching_allocator.json",
        lambda experiments: experiments["caching_allocator/gap"].update(code_hash="other"),
    )
    (machine,) = judge(claim, root).parts[0].machines
    assert machine.numbers == (("reserved", "1.50 GiB"),)
    assert ("2026-03-01" in machine.caption, "Some GPU" in machine.caption) == (True, True)
    assert machine.notices == ("The code of caching_allocator/gap has changed since some-gpu recorded it.",)


def test_a_rule_or_a_number_that_does_not_fit_the_record_is_an_error_that_names_the_claim(tmp_path):
    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(20))
    (claim,) = ledger(tmp_path, CLAIM | {"rule": [{"refuted": RETRIES.replace("default", "defualt")}]})
    with pytest.raises(EvidenceError, match=r"T8: .*defualt"):
        judge(claim, root)
    (claim,) = ledger(tmp_path, CLAIM | {"rule": [{"refuted": RETRIES}]})
    with pytest.raises(EvidenceError, match="is 20, and not true or false"):
        judge(claim, root)
    shown = [{"label": "x", "show": RETRIES.replace("retries", "retris")}]
    (claim,) = ledger(tmp_path, CLAIM | RULE | {"evidence": shown})
    with pytest.raises(EvidenceError, match=r"T8: .*retris"):
        judge(claim, root)


# Plain conditions

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
def test_a_plain_condition_gives_the_verdict_and_its_numbers_stand_in_the_message(holds, verdict, tmp_path, no_calls):
    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(5))
    otherwise = "confirmed" if verdict == "refuted" else "refuted"
    entry = CLAIM | {"holds": holds, "calls": {"it": "1"}}
    for stated in (verdict, otherwise):
        (claim,) = ledger(tmp_path, entry | {"verdict": stated})
        judgement = judge(claim, root)
        assert judgement.verdict == verdict
        assert [each.machine for each in judgement.parts[0].machines] == ["some-gpu"]
        messages = faults([judgement])
        assert bool(messages) == (stated == otherwise)
    (message,) = messages
    for part in (claim.id, claim.sentence, holds, "caching_allocator/gap['default']['retries']` on some-gpu is 5"):
        assert part in message


def test_a_plain_condition_that_gives_no_truth_or_reads_another_kind_of_machine_is_an_error(tmp_path, no_calls):
    root = made_up_records.write(tmp_path / "records", made_up_records.CPU, retries(5))
    of_a_cpu = AT_MOST.replace("some-gpu", "some-cpu").format(5)
    (claim,) = ledger(tmp_path, CLAIM | {"holds": of_a_cpu.partition(" <=")[0]})
    with pytest.raises(EvidenceError, match=r"T8: .* is 5, and not true or false: write a condition"):
        judge(claim, root)
    (claim,) = ledger(tmp_path, CLAIM | {"holds": of_a_cpu, "speaks_of": "CUDA"})
    with pytest.raises(EvidenceError, match=r"T8: speaks of a CUDA GPU, and .*some-cpu is no record of one"):
        judge(claim, root)


# Reading claims


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({key: value for key, value in CLAIM.items() if key != "kind"}, r"T8: required field missing.*kind"),
        (CLAIM | {"kind": "taste"}, "taste not in literal"),
        (CLAIM | {"rul": []}, r"extra fields found \(rul\)"),
        (CLAIM, "no rule says why"),
        (CLAIM | {"verdict": "documented"}, "name the sources"),
        (CLAIM | {"rule": [{"refuted": "import os"}]}, "T8: .*cannot be read"),
        (CLAIM | {"rule": [{"refuted": True}]}, "put it in quotes"),
        (CLAIM | {"rule": ["refuted"]}, "T8: 'str' object"),
        (CLAIM | RULE | {"contradicted": True}, "is refuted and contradicted"),
        (CLAIM | RULE | {"holds": AT_MOST.format(5)}, "has holds:, so it has no let, rule"),
        (CLAIM | {"holds": 'recorded("caching_allocator/gap")["default"]'}, "names no machine"),
        (CLAIM | {"holds": "1 < 2"}, "reads no record and no call"),
    ],
)
def test_a_damaged_claim_is_one_clear_error(entry, message, tmp_path):
    with pytest.raises(LessonFileError, match=message):
        ledger(tmp_path, entry)
