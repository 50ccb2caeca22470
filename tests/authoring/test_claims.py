"""The claims ledger: what it states follows from the records and the calls, and would not if they said otherwise."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from authoring import calls, evidence
from authoring.claims import faults, judge, judge_all, load_claims
from authoring.evidence import EvidenceError
from authoring.lesson_files import Claim, LessonFileError, Part, load_lessons, read_lesson
from authoring.published import word_of
from course_utils.records import store
from course_utils.records.kinds.curves import Curve, Curves
from course_utils.records.lessons import experiments, find_lesson, find_lessons, needs
from course_utils.records.notebook_files import parsed_cells, read_notebook
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
    assert len(judgements) == len(LEDGER) == 53
    assert faults(judgements) == []


def test_each_expression_reads_experiments_that_a_notebook_has():
    known = {name for lesson in find_lessons() for name in experiments(lesson)}
    for name, (_, part) in PARTS.items():
        read = {name for number in part.evidence for name in evidence.experiments_in(number.show)}
        assert {*part.experiments} | read <= known, name


def test_an_answered_claim_has_its_condition_and_an_open_one_says_what_would_settle_it():
    for claim in LEDGER.values():
        if not LESSONS[claim.lesson].built:
            assert claim.experiments == (), claim.id
        assert claim.condition or claim.verdict == "open", claim.id
        for part in judge(claim).parts:
            assert (part.verdict == "open") == bool(part.waits_for), claim.id


def test_few_claims_are_without_any_answer():
    assert sum(claim.verdict == "open" for claim in LEDGER.values()) <= 6


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


def test_the_labels_that_rules_about_gpus_read_are_those_of_the_notebooks():
    for name, (claim, part) in PARTS.items():
        if part.speaks_of not in OF_GPUS or not part.rule:
            continue
        path = find_lesson(claim.lesson).path
        root = store.package_root()
        folders = (path.parent / "scripts", root / "materials", root / "lessons" / claim.lesson)
        files = [file for folder in folders for file in folder.glob("*.py")]
        trees = [*parsed_cells(read_notebook(path), path.name).values()]
        trees += [ast.parse(file.read_text(encoding="utf-8")) for file in files]
        written = re.compile("|".join(sorted(pattern for tree in trees for pattern in texts_in(tree))))
        for label in {label for text in expressions_of(part) for label in labels_in(text)}:
            assert written.fullmatch(label), f"{name} reads {label!r}, which no cell and no program writes"


def texts_in(tree: ast.AST) -> set[str]:
    """Every text in a program as a pattern; what an f-string puts in may be anything."""
    patterns = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
            patterns.add(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in node.values]
            if re.search("[a-z]{4}", "".join(parts)):  # a bare f"{one}, {other}" would match everything
                patterns.add("".join(parts))
    return patterns


def labels_in(expression: str) -> set[str]:
    """The keys that an expression reads, and the texts that it compares labels with."""
    tree = ast.parse(re.sub(r"\b[a-z_]+/([a-z_]+)\b", r"\1", expression), mode="eval")
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts - {"SAME", "FASTER", "SLOWER", "bytes"}


# Every verdict could be another one

# What would have to be in the committed records, and what would follow then: tables, sweeps, curves.
OTHERWISE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "L3-0": (lambda data: no_read(data), "confirmed"),
    "F1-0": (
        made_up_records.set_cells("flatten_parameters/what_scatters_it", "scattered in forward 2", False),
        "refuted",
    ),
    "F6-0": (lambda data: busy_gpu(data), "confirmed"),
    "M5-0": (lambda data: no_gain(data["data_loading/step"], data["data_loading/photographs"]), "refuted"),
    "T6-1": (lambda data: late(data["data_loading/step"]), "refuted"),
    "T8-0": (lambda data: level(data["caching_allocator/reserved"]), "confirmed"),
}


def level(data: dict[str, Any]) -> None:
    for line in data["curves"]:
        line["y"] = [line["y"][0]] * len(line["y"])


def no_read(data: dict[str, Any]) -> None:
    """A loop without reads that gains at each point, where a GPU has recorded it."""
    if "host_device_syncs/on_gpu" in data:
        made_up_records.scale("host_device_syncs/on_gpu", "one read at the end", 0.5)(data)


def busy_gpu(data: dict[str, Any]) -> None:
    """A step whose scattered weights cost the GPU's own time, too, where a GPU has recorded it."""
    if "flatten_parameters/whole_model" in data:
        times = {case["label"]: case for case in data["flatten_parameters/whole_model"]["cases"]}
        times["scattered"]["prequeued_s"] = 1.2 * times["flat"]["prequeued_s"]


def late(data: dict[str, Any]) -> None:
    """Two workers that help no more than none."""
    times = {case["label"]: case for case in data["cases"]}
    times["2 workers"]["elapsed_s"] = times["no worker"]["elapsed_s"]
    times["2 workers"]["calls"] = times["no worker"]["calls"]


def no_gain(step: dict[str, Any], photographs: dict[str, Any]) -> None:
    """Two workers that gain nothing: neither on photographs that arrive late nor on those that are decoded alone."""
    late(step)
    for point in photographs["points"]:
        times = {case["label"]: case for case in point["comparison"]["cases"]}
        stored = times["no worker"]["elapsed_s"]
        times["with workers"]["elapsed_s"] = {**stored, "per_second": stored["per_second"] / 3}
        times["with workers"]["calls"] = times["no worker"]["calls"]


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_record_gives_another_verdict_and_the_message_names_the_sentence(name, tmp_path, no_calls):
    edit, expected = OTHERWISE[name]
    claim, part = PARTS[name]
    root = made_up_records.committed(claim.lesson, tmp_path, edit)
    judgement = judge(claim, root)
    judged = judgement.parts[index_of(name)]
    assert judged.verdict == expected != part.verdict
    gives = f"its rule gives {expected!r}: {judged.machines[0].machine} gives {expected!r}"
    of_the_part = repr(part.what) if len(claim.parts) > 1 else ""
    (fault,) = [text for text in faults([judgement]) if gives in text and of_the_part in text]
    assert fault.startswith(f'{claim.id} · {claim.claim.rstrip(".")}: "{claim.sentence}"')


# Rules about GPUs, on records that no GPU has made yet


def steps(data_parallel: float, ddp: float) -> list[Any]:
    times = {"one process": 1.0, "DataParallel": data_parallel, "DDP, 1 rank": 1.0, "DDP, 2 ranks": ddp}
    return [made_up_records.ranks("ddp/data_parallel", "steps", times)]


def kept_parts(factor: float) -> list[Any]:
    """The table of memory, whose parts in bf16 are these shares of those in fp32."""
    rows = []
    for recipe, kept in (("fp32", 1.0), ("bf16", factor)):
        parts = dict.fromkeys(("weights", "gradients", "optimizer", "activations"), 100 * kept)
        total = {"casts": 0, "peak": 400 * kept}
        rows += [{"recipe": f"{recipe}, batch {size}", **parts, **total} for size in (1, 32, 64)]
    return [made_up_records.table("mixed_precision/memory", rows, {"casts": "bytes"})]


def capped(reserved: dict[str, int]) -> list[Any]:
    """The table of a training under a cap, with these peaks in MiB."""
    reserved = reserved | {"default again": reserved["default"]}
    same = {"steps done": 96, "other steps": 1.0}
    rows = [{"setting": label, "peak reserved": mib * 2**20, **same} for label, mib in reserved.items()]
    return [made_up_records.table("caching_allocator/gpu", rows, {"peak reserved": "bytes"})]


def after_steps(*mib: float) -> list[Any]:
    curve = Curve("default", tuple(range(1, len(mib) + 1)), mib)
    return [Curves((curve,), "step", "reserved (MiB)", made_up_records.GPU, name="caching_allocator/gpu_reserved")]


ON_A_GPU: list[tuple[str, list[Any], str]] = [
    ("L5-0", steps(0.9, 0.6), "confirmed"),
    ("L5-0", steps(0.6, 0.9), "refuted"),
    ("T8-1", after_steps(300, 400, 400, 400), "confirmed"),
    ("T8-1", after_steps(300, 400, 400, 380), "refuted"),
    ("T10-1", capped({"default": 800, "expandable segments": 700}), "confirmed"),
    ("T10-1", capped({"default": 800, "expandable segments": 800}), "refuted"),
]


@pytest.mark.parametrize(("name", "results", "expected"), ON_A_GPU, ids=lambda value: str(value)[:9])
def test_a_rule_about_gpus_follows_a_gpus_record_and_no_cpus(name, results, expected, tmp_path, no_calls):
    claim, part = PARTS[name]
    needs_two = part.speaks_of == "two GPUs"
    others = made_up_records.write(tmp_path, made_up_records.CPU_IN_DISGUISE, results)
    if needs_two:
        made_up_records.write(tmp_path, made_up_records.GPU, results)
    judged = judge(claim, others).parts[index_of(name)]
    assert judged.machines == ()
    if part.published:  # what others measured answers meanwhile
        assert judged.verdict == word_of(part.published)
    else:
        assert (judged.verdict, bool(judged.waits_for)) == ("open", True)

    machine = made_up_records.TWO_GPUS if needs_two else made_up_records.GPU
    judged = judge(claim, made_up_records.write(tmp_path, machine, results)).parts[index_of(name)]
    assert judged.verdict == expected
    assert [each.machine for each in judged.machines] == [machine.machine]


def test_a_cpu_has_no_veto_against_the_gpus_that_a_claim_names(tmp_path):
    claim = LEDGER["L6"]
    assert (claim.speaks_of, claim.parts[0].speaks_of) == ("CUDA", "any")
    root = made_up_records.committed("mixed_precision", tmp_path)
    for recorded_on_a_gpu in root.glob("nvidia-*"):
        shutil.rmtree(recorded_on_a_gpu)
    assert judge(claim, root).parts[0].verdict == "refuted"
    judged = judge(claim, made_up_records.write(root, made_up_records.GPU, kept_parts(0.5))).parts[0]
    assert (judged.verdict, [each.machine for each in judged.machines]) == ("confirmed", ["some-gpu"])


# Judging

CLAIM: dict[str, Any] = {
    "id": "T8",
    "claim": "A claim.",
    "kind": "memory",
    "speaks_of": "any",
    "verdict": "refuted",
    "sentence": "It is not so.",
}
RETRIES = 'caching_allocator/no_cap["default"]["retries"]'
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
    return [made_up_records.table("caching_allocator/no_cap", [row], dict.fromkeys(more, "bytes"))]


def test_machines_that_disagree_make_it_depend_and_each_is_listed(tmp_path):
    (claim,) = ledger(tmp_path, CLAIM | RULE)
    made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(20))
    made_up_records.write(tmp_path / "records", made_up_records.CPU_IN_DISGUISE, retries(0))
    judgement = judge(claim, tmp_path / "records")
    assert (judgement.verdict, judgement.agree) == ("depends", False)
    verdicts = {each.machine: each.verdict for each in judgement.machines}
    assert verdicts == {"some-gpu": "confirmed", "nvidia-h200": "refuted"}
    (fault,) = faults([judgement])
    assert "some-gpu gives 'confirmed'" in fault
    assert "nvidia-h200 gives 'refuted'" in fault


def test_a_record_that_is_too_unclear_leaves_the_word_to_the_others(tmp_path):
    (claim,) = ledger(tmp_path, CLAIM | RULE)
    made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(5))
    judgement = judge(claim, tmp_path / "records")
    assert judgement.verdict == "open"
    assert "too unclear" in judgement.machines[0].notices[0]
    assert judgement.parts[0].waits_for == "a clearer record of `caching_allocator/no_cap` on any machine"
    made_up_records.write(tmp_path / "records", made_up_records.CPU_IN_DISGUISE, retries(0))
    judgement = judge(claim, tmp_path / "records")
    assert (judgement.verdict, judgement.agree) == ("refuted", True)
    assert faults([judgement]) == []


def test_a_claim_is_as_strong_as_its_weakest_part_and_asides_do_not_count(tmp_path):
    def claim_with(aside: bool) -> Claim:
        this = {"what": "this", "verdict": "confirmed", "rule": [{"confirmed": f"{RETRIES} == 0"}]}
        this["rule"].append({"refuted": "otherwise"})
        that = {"what": "that", "verdict": "open", "aside": aside, "waits_for": "somebody"}
        (claim,) = ledger(tmp_path, CLAIM | {"verdict": "confirmed", "parts": [this, that]})
        return claim

    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(0))
    judgement = judge(claim_with(aside=True), root)
    assert (judgement.verdict, faults([judgement])) == ("confirmed", [])
    judgement = judge(claim_with(aside=False), root)
    assert (judgement.verdict, judgement.machines[0].verdict) == ("open", "open")
    (fault,) = faults([judgement])
    assert "states 'confirmed' for the whole, but from its parts follows 'open'" in fault
    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(1))
    assert judge(claim_with(aside=False), root).verdict == "refuted"


def test_numbers_come_in_words_with_their_unit_and_code_that_changed_is_noticed(tmp_path):
    shown = [
        {"label": "reserved", "show": 'caching_allocator/no_cap["default"]["peak reserved"]'},
        {"label": "not recorded there", "show": 'caching_allocator/cap["default"]["peak reserved"]'},
    ]
    (claim,) = ledger(tmp_path, CLAIM | RULE | {"evidence": shown})
    root = made_up_records.write(tmp_path / "records", made_up_records.GPU, retries(0, **{"peak reserved": 3 * 2**29}))
    made_up_records.edit_record(
        root / "some-gpu" / "caching_allocator.json",
        lambda experiments: experiments["caching_allocator/no_cap"].update(code_hash="other"),
    )
    (machine,) = judge(claim, root).machines
    assert machine.numbers == (("reserved", "1.50 GiB"),)
    assert ("2026-03-01" in machine.caption, "Some GPU" in machine.caption) == (True, True)
    assert machine.notices == ("The code of caching_allocator/no_cap has changed since some-gpu recorded it.",)


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

AT_MOST = 'recorded("caching_allocator/no_cap", "some-gpu")["default"]["retries"] <= {}'


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
        assert [each.machine for each in judgement.machines] == ["some-gpu"]
        messages = faults([judgement])
        assert bool(messages) == (stated == otherwise)
    (message,) = messages
    for part in (claim.id, claim.sentence, holds, "caching_allocator/no_cap['default']['retries']` on some-gpu is 5"):
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
        (CLAIM | {"holds": 'recorded("caching_allocator/no_cap")["default"]'}, "names no machine"),
        (CLAIM | {"holds": "1 < 2"}, "reads no record and no call"),
    ],
)
def test_a_damaged_claim_is_one_clear_error(entry, message, tmp_path):
    with pytest.raises(LessonFileError, match=message):
        ledger(tmp_path, entry)
