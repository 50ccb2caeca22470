"""How near the limits: the rows, the reasons that each lesson owes, and the page that shows both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from authoring.lesson_files import HeldAgainst, LessonFile, LessonLimits, load_lessons
from authoring.limits import Share, faults, load_limits, shares
from authoring.pages import limits_page
from course_utils.records import store
from course_utils.records.kinds.ceilings import Ceiling, Ceilings
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from tests.made_up_records import CPU, GPU

LESSONS = load_lessons()


def test_every_lesson_says_what_its_rates_are_held_against_and_why_they_stay_low():
    records = [store.load_lesson(path) for path in sorted(store.reference_root().glob("*/*.json"))]
    assert faults(LESSONS, shares(records, load_limits(LESSONS))) == []


# Made-up records


def measured(label: str, seconds: float, **more: Any) -> Measurement:
    return Measurement(label, (seconds,) * 8, **more)


def compared(environment: Environment, *cases: Measurement, ceiling: Ceiling | None = None) -> Comparison:
    """A comparison of these cases; of a single one with its like."""
    if len(cases) == 1:
        cases = (*cases, dataclasses.replace(cases[0], label=f"{cases[0].label} too"))
    return Comparison(cases, measured("again", 1e-3), environment, ceiling=ceiling)


def ceilings(environment: Environment, **rates: float) -> Ceilings:
    units = {"copy": "B/s", "host_to_device": "B/s"}
    entries = (Ceiling(name.replace("_", " "), units.get(name, "FLOP/s"), rate, (1.0,)) for name, rate in rates.items())
    return Ceilings(tuple(entries), environment)


def record(lesson: str, environment: Environment, **results: Any) -> store.LessonRecord:
    experiments = {
        f"{lesson}/{name}": store.Experiment(f"{lesson}/{name}", result.kind, "c", result.to_record())
        for name, result in results.items()
    }
    return store.LessonRecord(lesson, environment, experiments, "2026-01-01T00:00:00+00:00", 1.0)


def of_lesson(**experiments: HeldAgainst) -> dict[str, LessonLimits]:
    held = {f"mixed_precision/{name}": each for name, each in experiments.items()}
    return {"mixed_precision": LessonLimits(experiments=held)}


COPY = of_lesson(fp8=HeldAgainst({"": ("copy",)}))
BY_CASE = HeldAgainst({"bf16": ("matmul bfloat16",), "": ("matmul tfloat32", "matmul float32")})
GENERAL = record("measuring", GPU, ceilings=ceilings(GPU, copy=100.0, matmul_float32=10.0, matmul_bfloat16=40.0))
TWO_CASES = [measured("fp32", 1.0, flops=8.0), measured("bf16", 1.0, flops=8.0)]


def test_a_rate_is_held_against_the_ceiling_of_its_case_on_its_machine():
    step = record("mixed_precision", GPU, step_time=compared(GPU, *TWO_CASES))
    rows = shares([step, GENERAL], of_lesson(step_time=BY_CASE))
    assert [(row.case, row.ceiling, row.share, row.unit) for row in rows] == [
        ("fp32", "matmul float32", 0.8, "FLOP/s"),  # this machine has no TF32: the next one in the list counts
        ("bf16", "matmul bfloat16", 0.2, "FLOP/s"),
    ]
    elsewhere = dataclasses.replace(GPU, machine="another")
    step = record("mixed_precision", elsewhere, step_time=compared(elsewhere, *TWO_CASES))
    rows = shares([step, GENERAL], of_lesson(step_time=BY_CASE))
    assert [row.share for row in rows] == [None, None], "the ceilings of another machine say nothing"


def test_what_a_lesson_measured_itself_comes_first():
    own = Ceiling("matmul float32", "FLOP/s", 16.0, (1.0,))
    nearer = ceilings(GPU, matmul_float32=20.0)
    results = {"step_time": compared(GPU, TWO_CASES[0], ceiling=own), "baseline": compared(GPU, TWO_CASES[0])}
    limits = of_lesson(step_time=BY_CASE, baseline=BY_CASE)
    rows = shares([GENERAL, record("mixed_precision", GPU, ceilings=nearer, **results)], limits)
    assert [row.share for row in rows] == [0.5, 0.5, 0.4, 0.4]


def test_ceilings_of_as_many_threads_come_before_those_of_lesson_00():
    two = dataclasses.replace(CPU, torch_threads=2)
    general = record("measuring", two, ceilings=ceilings(two, copy=100.0))
    alike = record("torch_compile", CPU, ceilings=ceilings(CPU, copy=80.0))
    lesson = record("mixed_precision", CPU, fp8=compared(CPU, measured("a", 1.0, bytes=40.0)))
    for records, value, threads in (([alike, general], 80.0, 1), ([general], 100.0, 2)):
        for row in shares([lesson, *records], COPY):
            assert (row.ceiling_value, row.ceiling_threads, row.share) == (value, threads, 40.0 / value)


def test_a_gpus_ceilings_say_nothing_about_its_host():
    on_host = of_lesson(fp8=HeldAgainst({"": ("copy",)}, host=True))
    for environment, expected in ((GPU, None), (CPU, 0.5)):
        general = record("measuring", environment, ceilings=ceilings(environment, copy=100.0))
        lesson = record("mixed_precision", environment, fp8=compared(environment, measured("a", 1.0, bytes=50.0)))
        assert {row.share for row in shares([general, lesson], on_host)} == {expected}


# What is owed


def low_on_a_gpu(**more: Any) -> list[Share]:
    slow = compared(GPU, *(measured(recipe, 1.0, flops=1.0, **more) for recipe in ("fp32", "bf16")))
    return shares([GENERAL, record("mixed_precision", GPU, baseline=slow)], load_limits(LESSONS))


def lessons_with(slug: str, limits: LessonLimits | None) -> list[LessonFile]:
    return [dataclasses.replace(lesson, limits=limits) if lesson.slug == slug else lesson for lesson in LESSONS]


def test_a_low_share_of_a_gpu_asks_for_its_reason_and_says_where():
    limits = LESSONS[7].limits
    held = limits.experiments["mixed_precision/baseline"]

    def explained(**why: str) -> list[LessonFile]:
        experiments = {**limits.experiments, "mixed_precision/baseline": dataclasses.replace(held, why=why)}
        return lessons_with("mixed_precision", dataclasses.replace(limits, experiments=experiments))

    _, fault = [each for each in faults(explained(cpu="It is made up."), low_on_a_gpu()) if "some-gpu" in each]
    assert fault.startswith("mixed_precision/baseline, bf16: 2.5% of matmul bfloat16 on some-gpu. Write why")
    assert fault.endswith("in mixed_precision/lesson.yml under limits: baseline: why: cuda:")
    assert faults(explained(cpu="It is made up.", cuda="It is, too."), low_on_a_gpu()) == []


def test_what_waits_for_python_by_its_record_needs_no_other_reason():
    waiting: dict[str, Any] = {"enqueue_s": (1.0,) * 8, "device_s": (1.0,) * 8}
    assert not any(row.wants_reason for row in low_on_a_gpu(prequeued_s=0.1, **waiting))
    assert all(row.wants_reason for row in low_on_a_gpu(prequeued_s=0.99, **waiting))


def test_every_fault_is_named():
    lost = dataclasses.replace(low_on_a_gpu()[0], ceiling=None, ceiling_value=None)
    assert faults(LESSONS, [lost]) == [], "a machine may lack a ceiling"
    (fault,) = faults(LESSONS, [dataclasses.replace(lost, case="fp-32")])
    assert fault.startswith("mixed_precision/baseline has rates in FLOP/s of 'fp-32'")
    wrong = of_lesson(magic=HeldAgainst({"": ("matmul flaot32",)}))["mixed_precision"]
    named, misspelt = faults(lessons_with("mixed_precision", wrong), [])
    assert named == "lesson mixed_precision has no experiment mixed_precision/magic: remove it"
    assert misspelt.startswith("mixed_precision/magic: there is no ceiling 'matmul flaot32': copy, matmul float32")
    (fault,) = faults(lessons_with("ddp", None), [])
    assert fault.startswith("ddp has no limits")


# The page


def test_the_page_shows_the_last_point_and_the_reasons_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path))
    two = dataclasses.replace(CPU, torch_threads=2)
    sizes = {64: 0.02, 16384: 0.9}
    points = (
        SweepPoint(kib, compared(CPU, measured("straight", 1.0, bytes=100 * share))) for kib, share in sizes.items()
    )
    store.save_lesson(record("pinned_memory", CPU, staging=Sweep("KiB", tuple(points), CPU)), tmp_path)
    store.save_lesson(record("measuring", two, ceilings=ceilings(two, copy=100.0)), tmp_path)
    page, figures = limits_page.limits_page(LESSONS)
    lesson = page.split("### [04")[1].split("### [")[0]
    assert "| staging, KiB 16,384 | straight | 90.0\N{NO-BREAK SPACE}B/s | 90% of copy |" in lesson
    assert "KiB 64" not in lesson
    assert "Through staging it is read and written twice" in lesson
    assert "Ceilings, measured with 2 threads: copy 100 B/s." in lesson, "the rates are those of one thread"
    assert "No GPU run is recorded yet" in page
    (figure,) = figures.values()
    assert f"![{figure.alt}](_generated/limits-some-cpu.png)" in page
    assert "04 · staging, 16,384: straight, 90% of copy" in figure.alt
    assert "staging, 64" not in figure.alt


def test_the_page_says_what_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(tmp_path))
    page, figures = limits_page.limits_page(LESSONS)
    assert not figures
    assert "No machine has recorded its rates yet." in page
    own = Ceiling("copy", "B/s", 100.0, (1.0,))
    slow = compared(GPU, measured("eager", 1.0, bytes=1.0), ceiling=own)
    store.save_lesson(record("torch_compile", GPU, mlp=slow), tmp_path)
    page, figures = limits_page.limits_page(LESSONS)
    assert "Why, on a CUDA GPU:\n\n- **mlp**: Nobody has written down the reason yet." in page
    assert "Lesson 00 is not recorded here" in page
    assert "No GPU run is recorded yet" not in page
    assert len(figures) == 1
