"""Expressions over records: what they read, what they refuse, and which units their values carry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from authoring import evidence
from authoring.evidence import EvidenceError, NotRecordedError, Quantity, evaluate, experiments_in, in_words
from course_utils.records import store
from course_utils.records.kinds import RESULT_TYPES
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.measurement import Measurement
from tests.made_up_records import GPU

ROOT = store.package_root() / "records"
XEON = "intel-xeon-processor-2-cores"
EPYC = "amd-epyc-2-cores"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A copy of the reference records to spoil."""
    return Path(shutil.copytree(ROOT, tmp_path / "records"))


def edit(path: Path, change: Callable[[dict], None]) -> None:
    """Change a record's file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


# What an expression reads


def test_experiments_are_named_with_their_slash():
    text = 'torch_compile/mlp["a/b"].median_s / measuring/warm_cache.median_s + len(torch_compile/mlp.labels)'
    assert experiments_in(text) == ("torch_compile/mlp", "measuring/warm_cache")
    assert experiments_in("[a / b for a in (1, 2) for b in (3, 4)]") == ()


def test_expressions_may_go_over_lines():
    text = 'all(point.comparison["flash"].ratio > 0\n    for point in flash_attention/forward)'
    assert experiments_in(text) == ("flash_attention/forward",)
    assert evaluate(text, XEON) is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 +", "cannot be read"),
        ('"open', "cannot be read"),
        ("a b", "cannot be read"),
        ("lambda: 1", "Lambda"),
        ("(x := 1)", "NamedExpr"),
        ('f"{1}"', "JoinedStr"),
        ("{**{}}", "Dict"),
        ("torch_compile/mlp.__class__", "underscore"),
        ('__import__("os").system("true")', "system"),
        ("open(1)", "'open'"),
        ('torch_compile/mlp.plot("x")', "'plot'"),
        ("(1).real(2)", "'real'"),
        ("all.__self__", "underscore"),
        ("measuring", "names 'measuring'"),
        ('torch_compile/mlp["compiled"].verdict == "FASTR"', "'FASTR'"),
        ('torch_compile/mlp["compiled"].verdict in ("SAME", "SLOW")', "'SLOW'"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str):
    with pytest.raises(EvidenceError, match=message):
        experiments_in(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('torch_compile/mlp["compild"]', "no case 'compild'.*eager, compiled"),
        ("torch_compile/mlp.verdct", "a Comparison has no 'verdct'"),
        ("torch_compile/mlp.plot", "a Comparison has no 'plot'"),
        ('caching_allocator/cap["default"]["retris"]', "there is no 'retris'.*retries"),
        ('caching_allocator/cap["nobody"]', "no row 'nobody'.*default"),
        ("caching_allocator/cap.rows[99]", "no item 99"),
        ("flash_attention/forward[7]", "no point length=7.*64"),
        ("1 / (2 - 2)", "division"),
        ('quantity(1, "stones")', "no unit 'stones'"),
        ('1 + "a"', "unsupported"),
        ("torch_compile/mpl", "Did you mean 'torch_compile/mlp'"),
        ("torch_compil/mlp", "no lesson 'torch_compil'"),
    ],
)
def test_an_error_says_what_there_is(text: str, message: str):
    with pytest.raises(EvidenceError, match=message) as error:
        evaluate(text, XEON)
    assert not isinstance(error.value, NotRecordedError)


def test_a_machine_without_records_is_an_error():
    with pytest.raises(EvidenceError, match=f"a machine 'mine'.*{XEON}"):
        evaluate("torch_compile/mlp.rounds", "mine")


# What is not recorded


def test_an_experiment_that_a_machine_lacks_is_not_recorded():
    with pytest.raises(NotRecordedError, match=r"pinned_memory/copy: not recorded on .*course record") as error:
        evaluate("pinned_memory/copy.points or pinned_memory/staging.points", XEON)
    assert error.value.experiments == ("pinned_memory/copy",)


def test_a_record_that_is_deleted_is_not_recorded(records: Path):
    assert evaluate("torch_compile/mlp.rounds", XEON, records) >= 8
    (records / XEON / "torch_compile.json").unlink()
    with pytest.raises(NotRecordedError, match="torch_compile/mlp"):
        evaluate("torch_compile/mlp.rounds", XEON, records)


def test_other_parameters_count_as_not_recorded(records: Path):
    path = records / XEON / "torch_compile.json"
    edit(path, lambda data: data["experiments"]["torch_compile/mlp"].update(parameters_hash="other"))
    with pytest.raises(NotRecordedError, match="other parameters than today's"):
        evaluate("torch_compile/mlp.rounds", XEON, records)
    assert evaluate("torch_compile/modes.rounds", XEON, records) >= 8


def test_changed_code_gives_the_value_with_a_notice(records: Path):
    text = "torch_compile/mlp.rounds + torch_compile/modes.rounds"
    assert evidence.notices(text, XEON, records) == ()
    path = records / XEON / "torch_compile.json"
    edit(path, lambda data: data["experiments"]["torch_compile/mlp"].update(code_hash="other"))
    assert evaluate(text, XEON, records) == evaluate(text, XEON)
    (notice,) = evidence.notices(text, XEON, records)
    assert "torch_compile/mlp" in notice


def test_a_damaged_record_is_an_error_of_its_own(records: Path):
    (records / XEON / "torch_compile.json").write_text("{", encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"torch_compile.json cannot be read") as error:
        evaluate("torch_compile/mlp.rounds", XEON, records)
    assert not isinstance(error.value, NotRecordedError)


def test_a_record_that_changes_is_read_again(records: Path):
    text = 'caching_allocator/cap["default"]["retries"]'
    before = evaluate(text, XEON, records)

    def one_more(data: dict) -> None:
        table = data["experiments"]["caching_allocator/cap"]["data"]
        table["rows"][0][table["columns"].index("retries")] += 1

    edit(records / XEON / "caching_allocator.json", one_more)
    assert evaluate(text, XEON, records) == before + 1


def test_environment_is_that_of_the_newest_record(records: Path):
    path = records / XEON / "measuring.json"
    edit(
        path, lambda data: (data.update(recorded_at="2999-01-01T00:00:00+00:00"), data["environment"].update(date="x"))
    )
    text = "measuring/known_answers.rounds + torch_compile/mlp.rounds"
    assert evidence.environment_of(text, XEON, records).date == "x"
    assert evidence.environment_of("torch_compile/mlp.rounds", XEON, records).date != "x"
    with pytest.raises(EvidenceError, match="no experiment"):
        evidence.environment_of("1 + 1", XEON, records)


def test_machines_by_device(records: Path):
    edit(records / EPYC / "measuring.json", lambda data: data["environment"].update(device_kind="cuda"))
    assert evidence.machines(records) == [EPYC, XEON]
    assert evidence.machines(records, "cuda") == [EPYC]
    assert evidence.machines(records, "mps") == []


# Values


def test_every_recorded_result_can_be_read():
    kinds = set()
    for machine in store.machines(ROOT):
        for path in (ROOT / machine).glob("*.json"):
            for name, experiment in store.load_lesson(path).experiments.items():
                try:
                    result = evaluate(name, machine)
                except NotRecordedError:
                    continue
                kinds.add(experiment.kind)
                assert isinstance(result, RESULT_TYPES[experiment.kind])
                assert result.to_record() == store.load_lesson(path).result(name).to_record()
    assert kinds >= {"comparison", "sweep", "table", "curves", "memory_trace", "rank_results"}


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ('caching_allocator/cap["default"]["peak reserved"]', "bytes"),
        ('[row["peak reserved"] for row in caching_allocator/cap][0]', "bytes"),
        ('sum(row["peak reserved"] for row in caching_allocator/cap)', "bytes"),
        ('fsdp/peak["DDP"]["peak"] - fsdp/peak["FSDP"]["peak"]', "bytes"),
        ('2 * fsdp/peak["DDP"]["peak"] / 3', "bytes"),
        ('abs(-fsdp/peak["DDP"]["peak"])', "bytes"),
        ('max(fsdp/peak["DDP"]["peak"], fsdp/peak["FSDP"]["peak"])', "bytes"),
        ('fsdp/peak["DDP"]["peak"] / fsdp/peak["FSDP"]["peak"]', "ratio"),
        ('quantity(1 - fsdp/peak["FSDP"]["peak"] / fsdp/peak["DDP"]["peak"], "percent")', "percent"),
        ('caching_allocator/cap["default"]["unused"]', "percent"),
        ("memory_snapshots/step.peak_bytes", "bytes"),
        ('torch_compile/mlp["compiled"].median_s', "s"),
        ('torch_compile/mlp["compiled"].ratio', "ratio"),
        ('torch_compile/mlp["compiled"].interval.low', "ratio"),
        ('torch_compile/mlp["compiled"].measurement.interval_s.low', "s"),
        ('measuring/ceilings["copy"].value', "B/s"),
        ('flatten_parameters/forward["flat"].measurement.peak_allocated_bytes', "bytes"),
        ('caching_allocator/cap["default"]["retries"]', None),
        ('fsdp/peak["DDP"]["peak"] + torch_compile/mlp["compiled"].median_s', None),
        ('fsdp/peak["DDP"]["peak"] * fsdp/peak["DDP"]["peak"]', None),
        ('fsdp/peak["DDP"]["during"]', None),
    ],
)
def test_numbers_carry_their_unit(text: str, unit: str | None):
    assert getattr(evaluate(text, XEON), "unit", None) == unit


def test_a_quantity_is_a_number():
    one = Quantity(1024, "bytes")
    assert one == 1024
    assert one > 1000
    assert repr(one) == in_words(one) == "1.00 KiB"
    assert sum([one, one]) == 2048


def test_a_tally_counts_verdicts_and_the_most_frequent_comes_first():
    assert evaluate('tally(["UNCLEAR", "SAME", "SAME"])', None) == "same in 2 of 3, unclear in 1"
    assert evaluate("tally([])", None) == "none"
    cases = "case.verdict for point in flash_attention/forward for case in point.comparison"
    assert f" of {evaluate(f'len([{cases}])', XEON)}" in evaluate(f"tally({cases})", XEON)


@pytest.mark.parametrize(
    ("factors", "reason"),
    [((2.0,) * 5, "too few rounds"), (tuple(1 + 0.01 * number for number in range(64)), "the machine drifted")],
)
def test_what_has_no_interval_says_why(factors, reason):
    rounds = len(factors)
    baseline, again = Measurement("one", (1.0,) * rounds), Measurement("again", (1.0,) * rounds)
    made = Comparison((baseline, Measurement("two", factors)), again, GPU, planned_rounds=rounds)
    assert not made["two"].decision_interval.bounded
    assert in_words(made["two"]) == f"unclear (no interval: {reason})"


def test_in_words_has_the_words_of_the_house():
    comparison = evaluate("torch_compile/workloads", XEON)
    words = {case.verdict: in_words(case) for point in comparison for case in point.comparison if not case.is_baseline}
    words |= {
        point.comparison["flash"].verdict: in_words(point.comparison["flash"])
        for point in evaluate("flash_attention/forward", XEON)
    }
    for verdict, said in words.items():
        shown = {
            "FASTER": "times as fast (95%",
            "SLOWER": "times as long (95%",
            "SAME": "the same within",
            "UNCLEAR": "unclear (99%",
        }
        assert shown[verdict] in said
    assert "FASTER" in words
    assert in_words(comparison["pointwise chain"]["eager"]) == "the baseline"
    assert in_words([1, 2, 3]) == "1, 2 and 3"
    assert in_words([]) == "none"
    assert in_words(False) == "no"
    assert in_words(None) == "–"
    assert in_words(0.25, "percent") == "25%"
    assert " to " in in_words(evaluate('torch_compile/mlp["compiled"].measurement.interval_s', XEON))
    assert "(95% interval" in in_words(evaluate('torch_compile/mlp["compiled"].measurement', XEON))
    with pytest.raises(EvidenceError, match="a whole Comparison"):
        in_words(evaluate("torch_compile/mlp", XEON))


def test_the_words_of_a_case_are_those_of_its_samples(records: Path):
    """A case that takes half of the time is said to be twice as fast, and one that takes twice as long to be slower."""

    def halve(data: dict) -> None:
        cases = data["experiments"]["torch_compile/mlp"]["data"]["cases"]
        cases[1]["elapsed_s"] = [seconds / 2 for seconds in cases[0]["elapsed_s"]]

    edit(records / XEON / "torch_compile.json", halve)
    assert in_words(evaluate('torch_compile/mlp["compiled"]', XEON, records)).startswith("2.00 times as fast (95%")
    edit(
        records / XEON / "torch_compile.json",
        lambda data: data["experiments"]["torch_compile/mlp"]["data"]["cases"].reverse(),
    )
    assert in_words(evaluate('torch_compile/mlp["eager"]', XEON, records)).startswith(("2.00 times as long", "unclear"))
