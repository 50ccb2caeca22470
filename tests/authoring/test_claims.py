"""The claims ledger: what it states follows from the records and the calls, and would not if they said otherwise."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from authoring import claims, evidence
from authoring.claims import RULED, Claim, ClaimError, Part, faults, judge, load_claims
from course_utils.records import store
from course_utils.records.lessons import experiments, find_lesson, find_lessons, needs
from course_utils.records.notebook_files import parsed_cells, read_notebook
from tests import made_up_records as made

LEDGER = {claim.id: claim for claim in load_claims()}
PARTS = [(claim, index) for claim in LEDGER.values() for index in range(len(claim.parts))]
IDS = [
    *(f"F{n}" for n in range(1, 7)),
    *(f"M{n}" for n in range(1, 8)),
    *(f"S{n}" for n in range(1, 6)),
    *(f"T{n}" for n in range(1, 26)),
    *(f"L{n}" for n in range(1, 10)),
]


def chosen(which: Callable[[Part], bool]) -> dict[str, tuple[Claim, int]]:
    """The parts of the ledger for which ``which`` is true, by a name such as ``T14-2``."""
    return {f"{claim.id}-{index}": (claim, index) for claim, index in PARTS if which(claim.parts[index])}


@pytest.fixture
def calls_say(monkeypatch):
    """Lets calls end as a test wants, without running them."""

    def say(part: Part, outcomes: dict[str, str]) -> None:
        for call in part.calls:
            monkeypatch.setitem(claims._ended, call.code, outcomes.get(call.name, "works"))

    return say


@pytest.fixture
def no_calls(monkeypatch):
    """Calls that are not the test's subject are not run."""
    monkeypatch.setattr(claims, "_run", lambda codes: ["works" for _ in codes])
    monkeypatch.setattr(claims, "_ended", {})


# The ledger as it stands


def test_every_claim_of_the_curriculum_has_one_entry():
    assert sorted(LEDGER) == sorted(IDS)
    assert len(LEDGER) == 52


def test_what_the_ledger_states_follows_from_records_and_calls():
    found = faults(LEDGER.values())
    assert not found, "\n".join(found)


def test_each_rule_reads_experiments_that_a_notebook_has():
    known = {lesson.slug: set(experiments(lesson)) for lesson in find_lessons()}
    for claim, index in PARTS:
        part = claim.parts[index]
        for text in (*(text for _, text in part.rule), *(number.expression for number in part.evidence)):
            for name in evidence.experiments_in(text):
                assert name in known[name.partition("/")[0]], f"{claim.id}: {name}"


def test_a_claim_of_a_lesson_that_stands_is_judged_and_a_planned_one_is_open():
    built = {lesson.slug for lesson in find_lessons()}
    for claim in LEDGER.values():
        if claim.lesson in built:
            assert claim.rule or claim.verdict == "documented", claim.id
            assert claim.condition or claim.verdict == "open", claim.id
        else:
            assert (claim.verdict, claim.rule) == ("open", ()), claim.id
            assert judge(claim).waits_for == (f"lesson {claim.lesson_title}",)


def test_each_part_that_a_record_decides_says_why_such_a_record_may():
    for claim, index in PARTS:
        part = claim.parts[index]
        if part.experiments and part.speaks_of in ("any", "CPU"):
            assert part.why, f"{claim.id}: why may a record of {part.speaks_of} decide {part.what!r}?"


def test_what_only_a_gpu_runs_is_claimed_of_gpus():
    needed = {name: tags for lesson in find_lessons() for name, tags in needs(lesson).items()}
    for claim, index in PARTS:
        part = claim.parts[index]
        for name in part.experiments:
            if "two-gpus" in needed.get(name, ()):
                assert part.speaks_of == "two GPUs", f"{claim.id}: {name}"
            elif "cuda" in needed.get(name, ()):
                assert part.speaks_of in ("CUDA", "two GPUs"), f"{claim.id}: {name}"


def test_sentences_take_no_figure_from_anywhere():
    measured = re.compile(r"\d[\d.,]*\s?(?:%|percent|times|x\b|[KMGT]i?B\b|[mµun]?s\b|seconds)", re.IGNORECASE)
    for claim in LEDGER.values():
        for text in (claim.sentence, claim.condition, *(part.why for part in claim.parts)):
            assert not measured.search(text), f"{claim.id}: {text}"


def test_documented_claims_have_sources_with_a_version_or_a_year():
    cited = [claim for claim in LEDGER.values() if claim.sources]
    assert {claim.id for claim in cited} >= {"M3", "F5", "T15"}
    for claim in cited:
        for source in claim.sources:
            after_the_links = re.sub(r"\]\([^)]*\)", "]", source)
            assert re.search(r"\b(19|20)\d\d\b|\b\d+\.(\d+|x)\b", after_the_links), f"{claim.id}: {source}"


# Every verdict could be another one

# What would have to be in the committed records, and what the ledger would have to say then.
T = made.set_cells
OTHERWISE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "S1-1": (made.scale("measuring/training_step", "all CPU threads", 0.5), "confirmed"),
    "M6-1": (T("on_device_tensors/mixtures", "outcome", "permitted"), "confirmed"),
    "M3-2": (made.scale("pinned_memory/staging", "through staging", 1.0), "refuted"),
    "L6-0": (
        made.both(
            *(
                T("mixed_precision/memory", part, lambda row, part=part: row[part] / 2, "bf16, batch 1")
                for part in ("weights", "gradients", "optimizer")
            )
        ),
        "confirmed",
    ),
    "L6-2": (
        made.both(
            T("mixed_precision/memory", "measured peak", 500, "bf16, "),
            T("mixed_precision/memory", "measured peak", 1000, "fp32, "),
        ),
        "confirmed",
    ),
    "L6-4": (T("mixed_precision/memory", "activations", 1000, "bf16, batch 32"), "confirmed"),
    "F1-0": (T("flatten_parameters/what_scatters_it", "flat in forward 2", True), "refuted"),
    "F2-1": (T("flatten_parameters/what_scatters_it", "flat in forward 2", True, "tied"), "confirmed"),
    "F3-0": (
        made.both(
            made.scale("flatten_parameters/cpu", "flat", 0.8),
            made.scale("flatten_parameters/cpu", "flattened in every forward", 0.8),
        ),
        "refuted",
    ),
    "F4-1": (T("flatten_parameters/what_scatters_it", "called in forward 1", False, "replica"), "refuted"),
    "T14-2": (
        made.both(
            *(T("flash_attention/backends", kind, 0.5, "flash") for kind in ("float32", "bfloat16", "float16")),
        ),
        "refuted",
    ),
    "T14-4": (T("flash_attention/memory", "flash", lambda row: 2 * row["by hand"]), "refuted"),
    "T14-6": (T("flash_attention/fallbacks", "kernel", "flash"), "confirmed"),
    "T14-8": (
        made.both(
            *(
                made.scale(f"flash_attention/{name}", "flash", 1.5)
                for name in ("forward", "forward_causal", "training", "training_causal", "short", "decoding")
            )
        ),
        "refuted",
    ),
    "T15-3": (T("flash_attention/fallbacks", "kernel", "math", "plain"), "refuted"),
    "T20-0": (T("torch_compile/start", "torch.compile()", 0.001), "confirmed"),
    "T20-1": (T("torch_compile/start", "first call", lambda row: row["later call"]), "refuted"),
    "T20-2": (made.scale("torch_compile/workloads", "compiled", 0.95), "confirmed"),
    "T21-1": (T("torch_compile/recompiles", "graphs", 8), "refuted"),
    "T8-0": (lambda data: _level(data["caching_allocator/reserved"]), "confirmed"),
    "T9-0": (T("caching_allocator/no_cap", "given back", 30, "default"), "confirmed"),
    "T10-0": (
        made.both(
            T("caching_allocator/tight_cap", "steps done", 50, "expandable"),
            T("caching_allocator/tight_cap", "retries", 9, "expandable"),
        ),
        "refuted",
    ),
    "T11-0": (
        made.both(T("caching_allocator/tight_cap", "steps done", 96), T("caching_allocator/tight_cap", "retries", 0)),
        "confirmed",
    ),
    "T12-0": (
        made.both(
            T("memory_snapshots/spike", "peak", lambda row: 1000),
            T("memory_snapshots/leak", "left behind by a batch", 0),
        ),
        "refuted",
    ),
    "T13-0": (T("memory_snapshots/zero_grad", "medium batch", 1000), "refuted"),
    "T16-0": (T("fsdp/memory", "measured", lambda row: 1000), "refuted"),
    "T17-0": (T("fsdp/order", "loss moves", True), "refuted"),
    "T18-0": (lambda data: _keep_all_weights(data["fsdp/old_names"]), "confirmed"),
    "T19-0": (T("fsdp/peak", "gathered", 1000), "refuted"),
    "T19-1": (T("fsdp/memory", "measured", 1000), "confirmed"),
    "T22-0": (T("fsdp/memory", "measured", 1000), "refuted"),
    "T22-2": (T("fsdp/fits", "verdict", "SAME"), "confirmed"),
    "T23-0": (
        made.both(
            T("fsdp/traffic", "are weights themselves", 0.0),
            T("fsdp/traffic", "bytes", 10_000_000, "ZeRO-1: broadcast"),
        ),
        "confirmed",
    ),
}


def _level(data: dict[str, Any]) -> None:
    for line in data["curves"]:
        line["y"] = [line["y"][0]] * len(line["y"])


def _keep_all_weights(data: dict[str, Any]) -> None:
    reported = dict(data["reports"][0]["values"])
    reported["calls"]["SHARD_GRAD_OP"]["old"]["weights_bytes"] = reported["parameters_bytes"]
    data["reports"][0]["values"] = list(reported.items())


# How calls would have to end, and what the ledger would have to say then.
CALLS_OTHERWISE = {
    "L4-2": ({}, "confirmed"),
    "M6-0": ({}, "confirmed"),
    "L2-2": ({".to() where it is": "raises AssertionError: "}, "refuted"),
    "F4-0": ({"a replica without it": "raises AssertionError: the replica did not flatten itself"}, "confirmed"),
    "T14-0": ({"block by block": "raises AssertionError: Tensor-likes are not close!"}, "refuted"),
    "T15-1": ({"no context manager": "raises AssertionError: ['aten.softmax']"}, "confirmed"),
    "T15-2": ({}, "confirmed"),
}


def test_each_part_that_is_decided_today_has_a_case_in_which_it_is_decided_otherwise():
    by_records = chosen(lambda part: part.verdict in RULED and bool(part.experiments))
    by_calls = chosen(lambda part: bool(part.calls))
    assert sorted(OTHERWISE) == sorted(by_records)
    assert sorted(CALLS_OTHERWISE) == sorted(by_calls)


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_record_gives_another_verdict_and_the_message_names_the_sentence(name, tmp_path, no_calls):
    edit, expected = OTHERWISE[name]
    claim, index = dict(chosen(lambda part: True))[name]
    root = made.committed(claim.lesson, tmp_path, edit)
    judged = judge(claim, root).parts[index]
    assert judged.verdict == expected != claim.parts[index].verdict
    said = f"its rule gives {expected!r}: {judged.machines[0].machine} gives {expected!r}"
    of_the_part = repr(claim.parts[index].what) if len(claim.parts) > 1 else ""
    (fault,) = [text for text in faults([claim], root) if said in text and of_the_part in text]
    assert fault.startswith(f'{claim.id} · {claim.claim.rstrip(".")}: "{claim.sentence}"')


@pytest.mark.parametrize("name", CALLS_OTHERWISE)
def test_another_end_of_a_call_gives_another_verdict(name, calls_say):
    outcomes, expected = CALLS_OTHERWISE[name]
    claim, index = dict(chosen(lambda part: True))[name]
    for part in claim.parts:
        calls_say(part, outcomes)
    assert judge(claim).parts[index].verdict == expected != claim.parts[index].verdict
    assert any(claim.sentence in text and repr(expected) in text for text in faults([claim]))


def test_a_deleted_record_opens_the_verdict_and_is_named(tmp_path, no_calls):
    claim = LEDGER["T16"]
    (tmp_path / "some-machine").mkdir()
    (fault,) = faults([claim], tmp_path)
    assert claim.sentence in fault
    assert "it waits for a record of `fsdp/memory` on any machine" in fault


# Rules about GPUs, on records that no GPU has made yet

COPY_KIB = [4, 64, 1024, 16384, 262144]
FLASH = ("forward", "forward_causal", "training", "training_causal", "short", "decoding")
WAYS = ("flat", "scattered", "flattened once", "flattened in every forward")


def _ways(name: str, scattered: float, once: float = 1.0, every: float = 1.0) -> Any:
    times = dict(zip(WAYS, (1.0, scattered, once, every), strict=True))
    return made.sweep(f"flatten_parameters/{name}", [128, 512, 1024], lambda _: times)


def _copies(pinned: Callable[[int], float], base: Callable[[int], float] = lambda kib: kib * 1e-6) -> list[Any]:
    return [
        made.sweep(
            "pinned_memory/copy",
            COPY_KIB,
            lambda kib: {"pageable": base(kib), "pinned": base(kib) * pinned(kib)},
        )
    ]


def _made(slug: str, label: str, **times: float) -> Any:
    return made.sweep(f"on_device_tensors/{slug}", [100, 10_000], lambda _: {"there": 1.0, label: times["moved"]})


def _gpu_table(**other_steps: float | None) -> list[Any]:
    labels = {
        "expandable": "expandable segments",
        "buckets": "buckets of 32",
        "warm_up": "warm-up with the longest",
        "again": "default again",
    }
    rows = [{"setting": labels[key], "other steps": value} for key, value in other_steps.items()]
    return [made.table("caching_allocator/gpu", rows, {"other steps": "ratio"})]


def _flash(ratio: Callable[[str], float]) -> list[Any]:
    return [
        made.sweep(f"flash_attention/{name}", [256, 4096], lambda _, name=name: {"by hand": 1.0, "flash": ratio(name)})
        for name in FLASH
    ]


def _causes(threads: float, processes: float, replicas: float) -> list[Any]:
    times = {"one after the other": 1.0, "two threads": threads, "two processes": processes}
    steps = {"step": 1.0, "+ modules": replicas}
    return [
        made.ranks("ddp/causes", "small operations", times),
        made.comparison("ddp/replication", steps, practical=0.03),
    ]


def _steps(data_parallel: float, ddp: float) -> list[Any]:
    times = {"one process": 1.0, "DataParallel": data_parallel, "DDP, 1 rank": 1.0, "DDP, 2 ranks": ddp}
    return [made.ranks("ddp/data_parallel", "steps", times)]


def _fits(*verdicts: str) -> list[Any]:
    rows = [{"batch on a rank": 2**n, "FSDP takes": 1.5, "verdict": verdict} for n, verdict in enumerate(verdicts)]
    return [made.table("fsdp/fits", rows, {"FSDP takes": "ratio"})]


def _factors(*factors: float) -> list[Any]:
    rows = [
        {"workload": workload, "from fp32": factor, "from TF32": factor}
        for workload, factor in zip(("product", "wide step", "narrow step"), factors, strict=True)
    ]
    return [made.table("mixed_precision/headlines", rows, {"from fp32": "ratio", "from TF32": "ratio"})]


def _precision(peak: float | None = 0.8, activations: float = 0.6) -> list[Any]:
    """The table of memory: fp32's parts, and bf16's as shares of them; ``None`` for peaks that were not measured."""
    rows = []
    for recipe, kept, of_peak in (("fp32", 1.0, 1.0), ("bf16", activations, peak)):
        for size in (1, 32):
            parts = {"weights": 100, "gradients": 100, "optimizer": 200, "activations": kept * 100 * size}
            total = None if peak is None else of_peak * (400 + 100 * size)
            found = {"recipe": f"{recipe}, batch {size}", **parts, "casts": 0}
            rows.append(found | {"sum of parts": sum(parts.values()), "measured peak": total})
    units = dict.fromkeys(["activations", "casts", "measured peak"], "bytes")
    return [made.table("mixed_precision/memory", rows, units)]


def _errors(flash: float) -> list[Any]:
    rows = [
        {"backend": backend, "float32": None, "bfloat16": error, "float16": error / 8}
        for backend, error in (("by hand", 0.003), ("flash", flash))
    ]
    return [made.table("flash_attention/backends", rows, {"bfloat16": "relative"})]


def _flash_bytes(*flash: int) -> list[Any]:
    rows = [
        {"sweep, length": f"forward, {length}", "by hand": 10_000, "flash": found}
        for length, found in zip((64, 1024), flash, strict=True)
    ]
    return [made.table("flash_attention/memory", rows, {"by hand": "bytes", "flash": "bytes"})]


def _served(*kernels: str) -> list[Any]:
    rows = [{"call": f"call {number}", "kernel": kernel} for number, kernel in enumerate(kernels)]
    return [made.table("flash_attention/fallbacks", rows)]


def _places(gpu: Callable[[int], float]) -> list[Any]:
    return [
        made.sweep(
            "measuring/training_step",
            [16, 64, 256, 1024],
            lambda width: {"one CPU thread": 1.0, "all CPU threads": 0.7, "the GPU": gpu(width)},
        )
    ]


def _modes(overhead: float, autotune: float) -> list[Any]:
    times = {"default": 1.0, "reduce-overhead": overhead, "max-autotune": autotune, "eager": 1.5}
    return [made.comparison("torch_compile/modes", times)]


def _step_by_step(habit: int) -> list[Any]:
    times = dict.fromkeys(WAYS, 1.0)
    peaks = dict.fromkeys(WAYS, 100) | {"flattened in every forward": habit}
    return [made.comparison("flatten_parameters/step_by_step", times, peaks=peaks)]


def _history(waste: bool) -> list[Any]:
    """The CPU's own record, with its environment changed by `made.write`."""
    record = store.load_lesson(next(store.reference_root().glob("*/memory_snapshots.json")))
    results = [record.result(f"memory_snapshots/{name}") for name in ("spike_planted", "leak_planted", "unseen")]
    peak = record.result("memory_snapshots/spike")["planted"]["peak"]
    rows = [{"loss": "planted", "peak": peak}, {"loss": "no name", "peak": peak // 2 if waste else 2 * peak}]
    left = [("evaluation, keep loss", 10**6 if waste else 0), ("evaluation, keep loss.item()", 0)]
    kept = [{"loop": loop, "left behind by a batch": size} for loop, size in left]
    units = {"left behind by a batch": "bytes"}
    tables = [made.table("memory_snapshots/spike", rows), made.table("memory_snapshots/leak", kept, units)]
    return [*results, *tables]


# Results that confirm a rule about GPUs, results that refute it, and, where a rule has it, results on which it depends.
ON_A_GPU: dict[str, dict[str, Callable[[], list[Any]]]] = {
    "S1-0": {
        "confirmed": lambda: _places(lambda width: 0.1),
        "refuted": lambda: _places(lambda width: 3.0),
        "depends": lambda: _places(lambda width: 3.0 if width < 100 else 0.1),
    },
    "L4-0": {
        "confirmed": lambda: [
            _made("rand", "rand here, moved", moved=3),
            _made("arange", "arange here, moved", moved=3),
        ],
        "refuted": lambda: [_made("rand", "rand here, moved", moved=1), _made("arange", "arange here, moved", moved=1)],
        "depends": lambda: [_made("rand", "rand here, moved", moved=1), _made("arange", "arange here, moved", moved=3)],
    },
    "L4-1": {
        "confirmed": lambda: [_made("masked_step", "made here, then moved", moved=1.3)],
        "refuted": lambda: [_made("masked_step", "made here, then moved", moved=1.0)],
    },
    "M3-1": {
        "confirmed": lambda: _copies(lambda kib: 1.0, base=lambda kib: 1e-5),
        "refuted": lambda: _copies(lambda kib: 1.0),
    },
    "L2-0": {
        "confirmed": lambda: _copies(lambda kib: 0.5),
        "refuted": lambda: _copies(lambda kib: 1.0),
        "depends": lambda: _copies(lambda kib: 0.5 if kib > 2000 else 1.0),
    },
    "L2-1": {"confirmed": lambda: _copies(lambda kib: 1.0), "refuted": lambda: _copies(lambda kib: 0.5)},
    "L2-3": {
        "confirmed": lambda: [
            made.comparison("pinned_memory/training_loop", {"pin_memory=False": 1.0, "pin_memory=True": 0.8})
        ],
        "refuted": lambda: [
            made.comparison("pinned_memory/training_loop", {"pin_memory=False": 1.0, "pin_memory=True": 1.0})
        ],
    },
    "L6-1": {
        "confirmed": lambda: _precision(peak=0.5),
        "refuted": lambda: _precision(peak=0.8),
    },
    "L6-3": {
        "confirmed": lambda: _precision(activations=0.3),
        "refuted": lambda: _precision(activations=0.6),
    },
    "L6-5": {
        "confirmed": lambda: _factors(13, 9, 8.5),
        "refuted": lambda: _factors(1.9, 1.5, 0.9),
        "depends": lambda: _factors(13, 8.6, 1.1),
    },
    "F1-1": {
        "confirmed": lambda: [_ways(name, 1.4) for name in ("lstm", "gru", "length")],
        "refuted": lambda: [_ways(name, 1.0) for name in ("lstm", "gru", "length")],
        "depends": lambda: [_ways("lstm", 1.4), _ways("gru", 1.0), _ways("length", 1.4)],
    },
    "F2-0": {
        "confirmed": lambda: [_ways(name, 1.4) for name in ("lstm", "gru")],
        "refuted": lambda: [_ways(name, 1.0) for name in ("lstm", "gru")],
        "depends": lambda: [_ways("lstm", 1.4), _ways("gru", 1.0)],
    },
    "F4-2": {
        "confirmed": lambda: [
            made.comparison("flatten_parameters/data_parallel", {"as it is": 1.0, "flattened in forward": 0.9})
        ],
        "refuted": lambda: [
            made.comparison("flatten_parameters/data_parallel", {"as it is": 1.0, "flattened in forward": 1.1})
        ],
    },
    "F5-1": {
        "confirmed": lambda: [_ways(name, 1.4, every=1.0) for name in ("lstm", "gru")],
        "refuted": lambda: [_ways(name, 1.4, every=1.4) for name in ("lstm", "gru")],
    },
    "F5-2": {"confirmed": lambda: _step_by_step(100), "refuted": lambda: _step_by_step(3000)},
    "F6-0": {
        "confirmed": lambda: [made.comparison("flatten_parameters/whole_model", {"flat": 1.0, "scattered": 1.1})],
        "refuted": lambda: [made.comparison("flatten_parameters/whole_model", {"flat": 1.0, "scattered": 1.0})],
    },
    "T14-1": {
        "confirmed": lambda: _errors(0.002),
        "refuted": lambda: _errors(0.2),
    },
    "T14-3": {
        "confirmed": lambda: _flash_bytes(1000, 2000),
        "refuted": lambda: _flash_bytes(20_000, 20_000),
        "depends": lambda: _flash_bytes(20_000, 2000),
    },
    "T14-5": {
        "confirmed": lambda: _served("flash", "flash"),
        "refuted": lambda: _served("efficient", "math"),
        "depends": lambda: _served("flash", "efficient"),
    },
    "T14-7": {
        "confirmed": lambda: _flash(lambda name: 0.3),
        "refuted": lambda: _flash(lambda name: 1.0),
        "depends": lambda: _flash(lambda name: 1.2 if name == "decoding" else 0.3),
    },
    "T21-0": {
        "confirmed": lambda: _modes(0.6, 0.95),
        "refuted": lambda: _modes(1.0, 1.1),
        "depends": lambda: _modes(0.6, 1.1),
    },
    "T8-1": {
        "confirmed": lambda: [made.curves("caching_allocator/gpu_reserved", {"default": [504, 584, 584, 584]})],
        "refuted": lambda: [made.curves("caching_allocator/gpu_reserved", {"default": [400, 600, 900]})],
    },
    "T10-1": {
        "confirmed": lambda: _gpu_table(expandable=0.8, again=1.01),
        "refuted": lambda: _gpu_table(expandable=1.0, again=1.01),
    },
    "T11-1": {
        "confirmed": lambda: _gpu_table(buckets=0.8, warm_up=0.8, again=1.01),
        "refuted": lambda: _gpu_table(buckets=1.2, warm_up=1.0, again=1.01),
        "depends": lambda: _gpu_table(buckets=1.2, warm_up=0.8, again=1.01),
    },
    "T12-1": {"confirmed": lambda: _history(waste=True), "refuted": lambda: _history(waste=False)},
    "L5-0": {"confirmed": lambda: _steps(0.9, 0.6), "refuted": lambda: _steps(0.6, 0.9)},
    "L5-1": {
        "confirmed": lambda: _causes(threads=1.0, processes=0.5, replicas=1.0),
        "refuted": lambda: _causes(threads=0.5, processes=0.5, replicas=1.0),
        "depends": lambda: _causes(threads=1.0, processes=0.5, replicas=1.3),
    },
    "T22-1": {
        "confirmed": lambda: _fits("SAME", "FASTER"),
        "refuted": lambda: _fits("SLOWER", "SLOWER"),
        "depends": lambda: _fits("SLOWER", "SAME"),
    },
}
ABOUT_GPUS = chosen(lambda part: part.speaks_of in ("CUDA", "two GPUs") and bool(part.rule))


def test_each_rule_about_gpus_is_tried_on_made_up_records():
    assert sorted(ON_A_GPU) == sorted(ABOUT_GPUS)
    for name, cases in ON_A_GPU.items():
        claim, index = ABOUT_GPUS[name]
        assert set(cases) >= {"confirmed", "refuted"}, name
        read = {result.name for result in cases["confirmed"]()}
        assert read >= set(claim.parts[index].experiments), name


@pytest.mark.parametrize(("name", "expected"), [(name, each) for name, cases in ON_A_GPU.items() for each in cases])
def test_a_rule_about_gpus_follows_a_gpus_record(name, expected, tmp_path, no_calls):
    claim, index = ABOUT_GPUS[name]
    machine = made.TWO_GPUS if claim.parts[index].speaks_of == "two GPUs" else made.GPU
    root = made.write(tmp_path, machine, ON_A_GPU[name][expected]())
    judged = judge(claim, root).parts[index]
    assert judged.verdict == expected
    assert [one.machine for one in judged.machines] == [machine.machine]
    assert judged.machines[0].numbers, "a reader sees at least one number"
    assert any(claim.sentence in text and machine.machine in text for text in faults([claim], root))


@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_cpu_never_decides_about_gpus_nor_one_gpu_about_two(name, tmp_path, no_calls):
    claim, index = ABOUT_GPUS[name]
    results = ON_A_GPU[name]["confirmed"]()
    made.write(tmp_path, made.CPU_IN_DISGUISE, results)
    if claim.parts[index].speaks_of == "two GPUs":
        made.write(tmp_path, made.GPU, results)
    judged = judge(claim, tmp_path).parts[index]
    assert (judged.verdict, judged.machines) == ("open", ())
    assert "GPU" in judged.waits_for[0]


# Plausible records that a rule must not take for more than they are: the part, the records, and what follows.
UNDECIDED = {
    "the step was not timed": ("T10-1", lambda: _gpu_table(expandable=None, again=1.01), "open"),
    "the default was not timed again": ("T10-1", lambda: _gpu_table(expandable=0.8, again=None), "open"),
    "neither way was timed again": ("T11-1", lambda: _gpu_table(buckets=0.8, warm_up=0.8, again=None), "open"),
    "no peak was measured": ("L6-1", lambda: _precision(peak=None), "open"),
    "another fused kernel served all": ("T14-5", lambda: _served("efficient", "cudnn"), "refuted"),
    "one workload beats the claim": ("L6-5", lambda: _factors(9, 1.5, 0.9), "depends"),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_a_plausible_record_of_a_gpu_decides_no_more_than_it_can(case, tmp_path, no_calls):
    name, results, expected = UNDECIDED[case]
    claim, index = ABOUT_GPUS[name]
    judged = judge(claim, made.write(tmp_path, made.GPU, results())).parts[index]
    assert judged.verdict == expected
    assert [one.machine for one in judged.machines] == ["some-gpu"]


def test_weights_that_travel_in_buckets_are_no_optimizer_state(tmp_path):
    root = made.committed("fsdp", tmp_path, T("fsdp/traffic", "are weights themselves", 0.0))
    assert judge(LEDGER["T23"], root).verdict == "open"


def test_an_optimizer_state_that_zero_1_keeps_in_full_is_not_sharded(tmp_path):
    whole = T("fsdp/memory", "measured", lambda row: 2 * row["formula"], "ZeRO-1: optimizer state")
    assert judge(LEDGER["T16"], made.committed("fsdp", tmp_path, whole)).verdict == "depends"


def test_a_cpu_has_no_veto_against_the_gpus_that_a_claim_names(tmp_path):
    claim = LEDGER["L6"]
    assert (claim.speaks_of, claim.parts[0].speaks_of) == ("CUDA", "any")
    root = made.committed("mixed_precision", tmp_path)
    assert judge(claim, root).parts[0].verdict == "refuted"
    halved = _precision()
    rows = [[row[0], *(value / 2 if row[0].startswith("bf16") else value for value in row[1:4]), *row[4:]]
            for row in halved[0].rows]  # fmt: skip
    made.write(root, made.GPU, [dataclasses.replace(halved[0], rows=tuple(map(tuple, rows)))])
    judged = judge(claim, root).parts[0]
    assert (judged.verdict, [one.machine for one in judged.machines]) == ("confirmed", ["some-gpu"])


def test_no_part_of_a_claim_about_gpus_rests_on_what_a_cpu_measured():
    """Arithmetic and bookkeeping may be any device's; times, peaks, errors and kernels may not."""
    of_gpus = [(claim, index) for claim, index in PARTS if claim.speaks_of in ("CUDA", "two GPUs")]
    decided = [(claim, index, claim.parts[index]) for claim, index in of_gpus if not claim.parts[index].aside]
    any_device = {f"{claim.id}-{index}" for claim, index, part in decided if part.speaks_of in ("any", "CPU")
                  and part.experiments}  # fmt: skip
    assert any_device == {"L6-0", "F1-0", "T21-1", "T22-0"}, "look at its why before you add one"
    measured = re.compile(r"peak|median|verdict|speedup|interval|kernel|float16")
    for name in any_device:
        claim, index = dict(chosen(lambda part: True))[name]
        assert not any(measured.search(text) for _, text in claim.parts[index].rule), name


def test_the_labels_that_rules_about_gpus_read_are_those_of_the_notebooks():
    for name, (claim, index) in ABOUT_GPUS.items():
        part = claim.parts[index]
        path = find_lesson(claim.lesson).path
        written = [_texts_in(tree) for _, tree in parsed_cells(read_notebook(path), path.name)]
        written += [_texts_in(ast.parse(file.read_text("utf-8"))) for file in path.parent.glob("scripts/*.py")]
        written += [
            _texts_in(ast.parse(file.read_text("utf-8"))) for file in (store.package_root() / "materials").glob("*.py")
        ]
        patterns = re.compile("|".join(sorted(set().union(*written))))
        for text in (*(text for _, text in part.rule), *(number.expression for number in part.evidence)):
            for label in _labels_in(text):
                assert patterns.fullmatch(label), f"{name} reads {label!r}, which no cell and no program writes"


def _texts_in(tree: ast.AST) -> set[str]:
    """Every text in a program as a pattern; what an f-string puts in may be anything."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
            found.add(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in node.values]
            if re.search("[a-z]{4}", "".join(parts)):  # a bare f"{one}, {other}" would match everything
                found.add("".join(parts))
    return found


def _labels_in(expression: str) -> set[str]:
    """The keys that an expression reads, and the texts that it compares labels with."""
    plain = re.sub(r"\b[a-z_]+/([a-z_]+)\b", r"\1", expression)
    tree = ast.parse(plain.strip(), mode="eval")
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts - {"SAME", "FASTER", "SLOWER", "bytes"}


# Judging


LEDGER_HEAD = """
- id: T8
  claim: A claim.
  lesson: caching_allocator
  kind: memory
  speaks_of: any
  verdict: refuted
  sentence: It is not so.
"""
RULE = """
  rule:
    - confirmed: 'caching_allocator/no_cap["default"]["retries"] > 10'
    - refuted: 'caching_allocator/no_cap["default"]["retries"] == 0'
"""


def ledger(tmp_path: Path, text: str) -> list[Claim]:
    file = tmp_path / "claims.yml"
    file.write_text(text, encoding="utf-8")
    return load_claims(file)


def retries(count: int) -> list[Any]:
    return [made.table("caching_allocator/no_cap", [{"setting": "default", "retries": count}])]


def test_machines_that_disagree_make_it_depend_and_each_is_listed(tmp_path):
    (claim,) = ledger(tmp_path, LEDGER_HEAD + RULE)
    made.write(tmp_path / "records", made.GPU, retries(20))
    made.write(tmp_path / "records", made.CPU_IN_DISGUISE, retries(0))
    judgement = judge(claim, tmp_path / "records")
    assert judgement.verdict == "depends"
    assert not judgement.agree
    assert {one.machine: one.verdict for one in judgement.machines} == {
        "some-gpu": "confirmed",
        "nvidia-h200": "refuted",
    }
    (fault,) = faults([claim], tmp_path / "records")
    assert "some-gpu gives 'confirmed'" in fault
    assert "nvidia-h200 gives 'refuted'" in fault


def test_a_record_that_is_too_unclear_leaves_the_word_to_the_others(tmp_path):
    (claim,) = ledger(tmp_path, LEDGER_HEAD + RULE)
    made.write(tmp_path / "records", made.GPU, retries(5))
    judgement = judge(claim, tmp_path / "records")
    assert judgement.verdict == "open"
    assert "too unclear" in judgement.machines[0].notices[0]
    assert judgement.waits_for == ("a clearer record of `caching_allocator/no_cap` on any machine",)
    made.write(tmp_path / "records", made.CPU_IN_DISGUISE, retries(0))
    judgement = judge(claim, tmp_path / "records")
    assert (judgement.verdict, judgement.agree) == ("refuted", True)
    assert faults([claim], tmp_path / "records") == []


def test_a_claim_is_as_strong_as_its_weakest_part_and_asides_do_not_count(tmp_path):
    text = """
- id: T8
  claim: This and that.
  lesson: caching_allocator
  kind: memory
  speaks_of: any
  verdict: confirmed
  sentence: It is so.
  parts:
    - {what: this, verdict: confirmed, rule: [{confirmed: '%s'}, {refuted: otherwise}]}
    - {what: that, verdict: open, aside: %s, waits_for: somebody}
"""
    rule = 'caching_allocator/no_cap["default"]["retries"] == 0'
    root = made.write(tmp_path / "records", made.GPU, retries(0))
    (claim,) = ledger(tmp_path, text % (rule, "true"))
    assert (judge(claim, root).verdict, faults([claim], root)) == ("confirmed", [])
    assert [part.what for part in claim.still_open] == ["that"]
    (claim,) = ledger(tmp_path, text % (rule, "false"))
    assert judge(claim, root).verdict == "open"
    assert judge(claim, root).machines[0].verdict == "open"
    (fault,) = faults([claim], root)
    assert "states 'confirmed' for the whole, but from its parts follows 'open'" in fault
    root = made.write(tmp_path / "records", made.GPU, retries(1))
    assert judge(claim, root).verdict == "refuted"


def test_a_part_that_a_machine_lacks_leaves_its_word_on_the_whole_open(tmp_path):
    claim = LEDGER["F1"]
    on_a_cpu = judge(claim, made.committed("flatten_parameters", tmp_path))
    assert on_a_cpu.parts[0].machines[0].verdict == "confirmed"
    assert on_a_cpu.machines[0].verdict == "open"


def test_an_open_claim_of_a_lesson_that_stands_needs_a_rule(tmp_path):
    (claim,) = ledger(tmp_path, LEDGER_HEAD.replace("verdict: refuted", "verdict: open"))
    (fault,) = faults([claim], tmp_path)
    assert "waits for lesson 11 · The caching allocator, which stands" in fault


def test_numbers_come_in_words_with_their_unit(tmp_path):
    numbers = """
  evidence:
    - {label: reserved, show: 'caching_allocator/no_cap["default"]["peak reserved"]'}
    - {label: not recorded there, show: 'caching_allocator/cap["default"]["peak reserved"]'}
"""
    (claim,) = ledger(tmp_path, LEDGER_HEAD + RULE + numbers)
    row = {"setting": "default", "retries": 0, "peak reserved": 3 * 2**29}
    root = made.write(
        tmp_path / "records", made.GPU, [made.table("caching_allocator/no_cap", [row], {"peak reserved": "bytes"})]
    )
    (machine,) = judge(claim, root).machines
    assert machine.numbers == (("reserved", "1.50 GiB"),)
    assert (machine.date, "Some GPU" in machine.caption) == ("2026-03-01", True)


def test_a_rule_that_does_not_fit_the_record_is_a_fault_that_names_the_claim(tmp_path):
    (claim,) = ledger(tmp_path, LEDGER_HEAD + RULE)
    row = {"setting": "another name", "retries": 0}
    root = made.write(tmp_path / "records", made.GPU, [made.table("caching_allocator/no_cap", [row])])
    with pytest.raises(ClaimError, match=r"T8: its rule for 'confirmed' cannot be worked out.*another name"):
        judge(claim, root)
    (fault,) = faults([claim], root)
    assert fault.startswith('T8 · A claim: "It is not so."')


def test_a_rule_gives_true_or_false(tmp_path):
    (claim,) = ledger(tmp_path, LEDGER_HEAD + RULE.replace(" > 10", ""))
    root = made.write(tmp_path / "records", made.GPU, retries(20))
    with pytest.raises(ClaimError, match="is 20, and not true or false"):
        judge(claim, root)


# Running calls


def test_calls_run_apart_and_say_how_they_ended(monkeypatch):
    codes = {
        "fine": "print('noise')",
        "warns": "import warnings\nwarnings.warn('old', FutureWarning)\nwarnings.warn('older')",
        "raises": "raise TypeError('no\\n  such argument')",
        "no syntax": "1 +",
        "alone": "assert 'left' not in globals()\nleft = 1",
        "alone, too": "assert 'left' not in globals()",
    }
    calls = [claims.Call(name, code) for name, code in codes.items()]
    assert claims.outcomes_of(calls) == {
        "fine": "works",
        "warns": "warns FutureWarning: old",
        "raises": "raises TypeError: no such argument",
        "no syntax": "raises SyntaxError: invalid syntax (<call>, line 1)",
        "alone": "works",
        "alone, too": "works",
    }
    monkeypatch.setattr(claims, "_run", lambda codes: pytest.fail(f"ran {codes} again"))
    assert claims.outcomes_of(calls[:1]) == {"fine": "works"}


def test_calls_that_end_the_process_or_never_end_are_a_clear_error(monkeypatch):
    with pytest.raises(ClaimError, match="cannot be run"):
        claims.outcomes_of([claims.Call("ends", "import os\nos._exit(3)")])
    monkeypatch.setattr(claims, "_CALLS_TIMEOUT_S", 0.5)
    with pytest.raises(ClaimError, match="cannot be run"):
        claims.outcomes_of([claims.Call("hangs", "import time\ntime.sleep(60)")])


# Reading the file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- [", "cannot be read"),
        ("T8: x", "list of claims"),
        ("- claim: x", "mapping with an id"),
        (LEDGER_HEAD.replace("  kind: memory\n", ""), "T8 lacks 'kind'"),
        (LEDGER_HEAD.replace("kind: memory", "kind: taste"), "T8 says 'taste'; it may be one of: speed"),
        (LEDGER_HEAD.replace("speaks_of: any", "speaks_of: GPUs"), "it may be one of: any, CPU, CUDA, two GPUs"),
        (LEDGER_HEAD.replace("verdict: refuted", "verdict: wrong"), "it may be one of: confirmed"),
        (LEDGER_HEAD.replace("lesson: caching", "lesson: cashing"), "no lesson 'cashing_allocator'"),
        (LEDGER_HEAD + "  rul: []", "T8 has 'rul', which nothing reads"),
        (LEDGER_HEAD, "no rule says why"),
        (LEDGER_HEAD.replace("verdict: refuted", "verdict: documented"), "name the sources"),
        (LEDGER_HEAD + "  rule: [{open: otherwise}]", "cannot give 'open'"),
        (LEDGER_HEAD + "  rule: [{refuted: 1 > 0, confirmed: otherwise}]", "a step of a rule"),
        (LEDGER_HEAD + "  rule: [{refuted: 'import os'}]", "T8: .*cannot be read"),
        (LEDGER_HEAD + "  rule: [{refuted: true}]", "put it in quotes"),
        (LEDGER_HEAD + "  rule: [{refuted: otherwise}]\n  parts: []", "move its rule"),
        (LEDGER_HEAD + RULE + LEDGER_HEAD + RULE, "T8 twice"),
        (LEDGER_HEAD + RULE + "  contradicted: true", "is refuted and contradicted"),
    ],
)
def test_a_damaged_ledger_is_one_clear_error(text, message, tmp_path):
    with pytest.raises(ClaimError, match=message):
        ledger(tmp_path, text)


def test_a_missing_ledger_is_a_clear_error(tmp_path):
    with pytest.raises(ClaimError, match="cannot be read"):
        load_claims(tmp_path / "claims.yml")


def test_let_puts_expressions_in(tmp_path):
    text = """
  let: {row: 'caching_allocator/no_cap["default"]'}
  rule: [{refuted: '{row}["retries"] == 0'}]
  evidence: [{label: retries, show: '{row}["retries"]'}]
"""
    (claim,) = ledger(tmp_path, LEDGER_HEAD + text)
    assert claim.rule == (("refuted", 'caching_allocator/no_cap["default"]["retries"] == 0'),)
    assert claim.evidence[0].expression == 'caching_allocator/no_cap["default"]["retries"]'
    assert claim.experiments == ("caching_allocator/no_cap",)
    # For people, the rule stays as it is written.
    assert claim.parts[0].let == (("row", 'caching_allocator/no_cap["default"]'),)
    assert claim.parts[0].steps == (("refuted", '{row}["retries"] == 0'),)


def test_what_a_source_contradicts_is_not_called_documented(tmp_path):
    text = LEDGER_HEAD.replace(
        "verdict: refuted", "verdict: documented\n  contradicted: true\n  sources: [A page of 2020]"
    )
    (claim,) = ledger(tmp_path, text)
    assert (claim.verdict, claim.word, claim.parts[0].word) == ("documented", *["documented otherwise"] * 2)
    assert {one.id for one in LEDGER.values() if one.contradicted} == {"M3", "F5"}
    assert LEDGER["T15"].parts[0].word == "documented"
