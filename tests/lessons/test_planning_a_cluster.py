"""The least time of a step, what travels, and that the lesson's published numbers are those of its rows."""

from __future__ import annotations

import dataclasses

import pytest
from course_utils.ranks.step_floor import Rates, step_floor, step_flops, traffic_bytes
from torch import nn

from authoring.lesson_files import load_lessons
from course_utils.lessons.planning_a_cluster import cases
from course_utils.records.kinds.cluster_plan import GPTShape
from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook


def test_bytes_that_travel() -> None:
    fsdp = traffic_bytes(1000, "fsdp", 4)
    assert fsdp == {"all-gather": 3000, "reduce-scatter": 3000, "all-reduce": 0}
    assert traffic_bytes(1000, "fsdp_no_reshard", 4)["all-gather"] == fsdp["all-gather"] / 2
    assert traffic_bytes(1000, "ddp", 4) == {"all-gather": 0, "reduce-scatter": 0, "all-reduce": 6000}
    hsdp = traffic_bytes(1000, "hsdp", 4, group=2)
    assert hsdp == {"all-gather": 2000, "reduce-scatter": 2000, "all-reduce": 2000}
    assert traffic_bytes(1000, "hsdp", 8, group=8) == traffic_bytes(1000, "fsdp", 8)
    assert sum(traffic_bytes(1000, "fsdp", 1).values()) == 0


def test_operations_are_those_that_llm_foundry_counts() -> None:
    model, _, tokens, rate = cases.STEPS["MPT 13B, 8 GPUs"]
    assert model.parameters == 12_853_954_560  # as its table prints
    share = step_flops(model, tokens, model.context) / tokens * rate / 989.5e12
    assert share == pytest.approx(0.3979, abs=0.0005)  # its MFU


def test_the_least_operations_leave_out_look_ups_and_the_future() -> None:
    small = GPTShape(width=8, layers=2, heads=2, vocabulary=16, context=32)
    for model, looked_up in ((small, 32 * 8), (dataclasses.replace(small, hidden=24), 16 * 8)):
        fewer = step_flops(model, 10, 32) - step_flops(model, 10, 32, least=True)
        assert fewer == 10 * (6 * looked_up + 6 * 2 * 8 * 32)
    rows = {row["step"]: row for row in cases.floors()}
    assert rows["MPT 13B, 8 GPUs"]["MFU"] == pytest.approx(0.3979, abs=0.0005)
    assert all(row["published over least"] > 1 / row["MFU"] for row in rows.values())


def test_the_least_time_is_the_longest_part_or_the_sum() -> None:
    rates = Rates(flops=1e12, inside=1e9, between=1e8, group=4)
    one = step_floor(cases.MPT_7B, "fsdp", 1, rates, tokens=100)
    assert one.hidden_s == one.exposed_s == one.compute_s
    machine = step_floor(cases.MPT_7B, "fsdp", 4, rates, tokens=100)
    assert (machine.between_s, machine.hidden_s) == (0, machine.inside_s)
    many = step_floor(cases.MPT_7B, "fsdp", 16, rates, tokens=100)
    assert (many.inside_s, many.hidden_s) == (0, many.between_s)
    assert many.exposed_s == many.compute_s + many.between_s
    assert step_floor(cases.MPT_7B, "hsdp", 16, rates, tokens=100).hidden_s < many.hidden_s
    computing = step_floor(cases.MPT_7B, "fsdp", 4, rates, tokens=10**6)
    assert computing.hidden_s == computing.compute_s
    with pytest.raises(ValueError, match="6 ranks on machines of 4"):
        step_floor(cases.MPT_7B, "fsdp", 6, rates, tokens=100)


def test_numbers_of_others_are_those_of_the_rows() -> None:
    rows = {row.id: row for lesson in load_lessons() for row in lesson.published}
    foundry = rows["llm_foundry_h100_13b"].values
    rates = {label: step[-1] for label, step in cases.STEPS.items()}
    assert rates == {
        "MPT 7B, 8 GPUs": foundry["b7_8"],
        "MPT 13B, 8 GPUs": foundry["gpus_8"],
        "MPT 13B, 64 GPUs": foundry["gpus_64"],
    }
    eager, compiled = rows["torchtitan_h100_7b_eager"].values, rows["torchtitan_h100_fsdp2_checkpointing"].values
    active = eager["full_active_percent"] / 100 * eager["gpu_gib"]
    assert pytest.approx({"7B, all recomputed": active, "7B, nothing recomputed": compiled["none_gib"]}) == (
        cases.MEASURED_GIB
    )


def test_the_cell_to_paste_counts_the_foreach_step_that_a_gpu_takes() -> None:
    texts = [cell["source"] for cell in read_notebook(find_lesson("planning_a_cluster").path)["cells"]]
    exec(next(text for text in texts if "def peak_bytes" in text), pasted := {})

    def build() -> tuple[nn.Module, list[nn.Module]]:
        model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(16)))
        return model, list(model)

    peak = pasted["peak_bytes"](build, lambda model: model(pasted["torch"].empty(8, 2048)).float().sum(), ranks=2)
    shard = 16 * 2048**2 / 2
    assert peak / shard == pytest.approx(20, rel=0.001)  # weights, gradients, state: 16; the temporary: 4


def test_what_pytorch_asks_for_is_what_the_formula_says() -> None:
    rows = {row["strategy"]: row for row in cases.traffic(ranks=8, group=2)}
    assert {name: row["off by"] for name, row in rows.items()} == dict.fromkeys(rows, 0)
    assert rows["fsdp_no_reshard"]["counted"] < rows["fsdp"]["counted"]
