"""Expressions over records: what they read, what they refuse, and which units their values carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from authoring import evidence
from authoring.evidence import EvidenceError, NotRecordedError, evaluate, experiments_in, in_words
from tests.made_up_records import EPYC, edit_record, recorder_of

COMPILER = recorder_of("torch_compile")

# What an expression reads


def test_experiments_are_named_with_their_slash():
    text = 'torch_compile/mlp["a/b"].median_s / measuring/warm_cache.median_s\n + len(torch_compile/mlp.labels)'
    assert experiments_in(text) == ("torch_compile/mlp", "measuring/warm_cache")
    assert experiments_in("[a / b for a in (1, 2) for b in (3, 4)]") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 +", "cannot be read"),
        ("open(1)", "names 'open'"),
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
        ("torch_compile/mlp.verdct", "'Comparison'.* no .*'verdct'"),
        ('caching_allocator/gap["default"]["retris"]', "there is no 'retris'.*retries"),
        ('caching_allocator/gap["nobody"]', "no row 'nobody'.*default"),
        ("1 / (2 - 2)", "division"),
        ('quantity(1, "stones")', "no unit 'stones'"),
        ("torch_compile/workload", "did you mean 'torch_compile/workloads'"),
        ("torch_compil/mlp", "no lesson 'torch_compil'"),
    ],
)
def test_an_error_says_what_there_is(text: str, message: str):
    with pytest.raises(EvidenceError, match=message) as error:
        evaluate(text, EPYC if "caching_allocator" in text else COMPILER)
    assert not isinstance(error.value, NotRecordedError)
    with pytest.raises(EvidenceError, match=f"no machine 'mine'.*{EPYC}"):
        evaluate("torch_compile/mlp.rounds", "mine")


# What is not recorded


def test_a_record_that_is_deleted_or_damaged_is_told_apart(records: Path):
    text = "torch_compile/graph_breaks.rounds"
    assert evaluate(text, COMPILER, records) >= 8
    (records / COMPILER / "torch_compile.json").write_text("{", encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"torch_compile.json cannot be read") as error:
        evaluate(text, COMPILER, records)
    assert not isinstance(error.value, NotRecordedError)
    (records / COMPILER / "torch_compile.json").unlink()
    with pytest.raises(NotRecordedError, match=r"torch_compile/graph_breaks: not recorded on .*record torch_compile"):
        evaluate(text, COMPILER, records)


def test_changed_code_gives_the_value_with_a_notice(records: Path):
    path = records / COMPILER / "torch_compile.json"
    text = "torch_compile/graph_breaks.rounds"
    edit_record(path, lambda experiments: experiments["torch_compile/graph_breaks"].update(code_hash="other"))
    assert evaluate(text, COMPILER, records) == evaluate(text, COMPILER)
    assert evidence.recorded(experiments_in(text), COMPILER, records)["torch_compile/graph_breaks"].is_of_other_code


# Values


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ('caching_allocator/gap["default"]["peak reserved"]', "bytes"),
        ('sum(row["peak reserved"] for row in caching_allocator/gap)', "bytes"),
        ('fsdp/peak["DDP"]["peak"] - fsdp/peak["FSDP"]["peak"]', "bytes"),
        ('2 * -fsdp/peak["DDP"]["peak"] / 3', "bytes"),
        ('fsdp/peak["DDP"]["peak"] / fsdp/peak["FSDP"]["peak"]', "ratio"),
        ('quantity(1 - fsdp/peak["FSDP"]["peak"] / fsdp/peak["DDP"]["peak"], "percent")', "percent"),
        ("memory_snapshots/history.peak_bytes", "bytes"),
        ('torch_compile/mlp["compiled"].median_s', "s"),
        ('torch_compile/mlp["compiled"].ratio', "ratio"),
        ('torch_compile/mlp["compiled"].measurement.interval_s.low', "s"),
        ('measuring/ceilings["copy"].value', "B/s"),
        ('caching_allocator/gap["default"]["retries"]', None),
        ('fsdp/peak["DDP"]["peak"] + profiler/cost["profiler"].median_s', None),
        ('fsdp/peak["DDP"]["peak"] * fsdp/peak["DDP"]["peak"]', None),
    ],
)
def test_numbers_carry_their_unit(text: str, unit: str | None):
    machine = recorder_of(*(name.partition("/")[0] for name in experiments_in(text)))
    assert getattr(evaluate(text, machine), "unit", None) == unit


def test_in_words_has_the_words_of_the_house():
    machine = recorder_of("torch_compile", "flash_attention")
    workloads = evaluate("torch_compile/workloads", machine)
    cases = [case for point in workloads for case in point.comparison if not case.is_baseline]
    cases += [point.comparison["flash"] for point in evaluate("flash_attention/forward", machine)]
    shown = {
        "FASTER": "times as fast (",
        "SLOWER": "times as long (",
        "SAME": "the same (within ",
        "UNCLEAR": "too close to call",
    }
    for case in cases:
        assert shown[case.verdict] in in_words(case)
    assert "FASTER" in {case.verdict for case in cases}
    assert in_words(workloads["pointwise chain"]["eager"]) == "the baseline"
    assert in_words([1, 2, 3]) == "1, 2 and 3"
    assert evaluate('tally(["UNCLEAR", "SAME", "SAME"])', None) == "same in 2 of 3, too close to call in 1"
    assert (in_words([]), in_words(False), in_words(None), in_words(0.25, "percent")) == ("none", "no", "–", "25%")
    measurement = evaluate('torch_compile/mlp["compiled"].measurement', machine)
    assert " to " in in_words(measurement.interval_s, "s")
    assert in_words(measurement).endswith(f" ({in_words(measurement.interval_s, 's')})")
    assert in_words(cases[0].verdict) in ("faster", "slower", "same", "too close to call")
    with pytest.raises(EvidenceError, match="a whole Comparison"):
        in_words(evaluate("torch_compile/mlp", machine))


def test_what_a_cpu_did_beside_a_gpu_is_not_said_to_be_the_gpus():
    """`pinned_memory` times a read on the CPU and copies on the GPU; one record holds both."""
    read, copy = (f"pinned_memory/{name}" for name in ("arrived_batch", "copy"))
    for names, name in [((read,), "Intel"), ((copy,), "NVIDIA"), ((read, copy), "NVIDIA")]:
        recorded = evidence.recorded(names, "nvidia-h200").values()
        assert evidence.newest_result(recorded).caption.startswith(name)
