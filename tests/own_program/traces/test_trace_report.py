"""What a trace's card says, against numbers that are known since the trace was made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, TensorDataset

from course_utils.show.advice import Advice
from own_program.traces import gpu_time as places
from own_program.traces.cpu_time import COMMUNICATION
from own_program.traces.trace_report import TraceReport, read_trace
from tests.own_program.traces.made_up import (
    ALL_REDUCE,
    GEMM,
    NODE,
    POINTWISE,
    TO_GPU,
    MadeUp,
    busy_steps,
)


def read(made: MadeUp, **header: Any) -> TraceReport:
    report = read_trace(made.json(**header))
    assert isinstance(report, TraceReport)
    for column in report.found.groups:
        for shares in column.steps:
            assert sum(shares.places.values()) == pytest.approx(shares.lasts, abs=0.05)
    report._repr_html_()
    return report


def only(report: TraceReport) -> Advice:
    (advice,) = report.plan
    return advice


def share(report: TraceReport, place: str, column: int = 0) -> float:
    return report.found.groups[column].share(lambda shares: shares.get(place))


def test_a_busy_gpu_gets_no_advice():
    report = read(busy_steps())
    assert report.plan == ()
    assert report.card().words == "Nothing stands out: the GPU computes for 100% of a step (1.00 ms)."
    assert report.card().warning == ""


def test_what_the_gpu_does_not_wait_for_costs_nothing():
    made = busy_steps()
    for number in range(4):
        made.work(ALL_REDUCE, 1000 * number + 1100, 600, launched=1000 * number + 50, stream=20)
        made.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1000 * number + 100, 800)
    report = read(made)
    assert report.plan == ()
    assert share(report, places.HIDDEN) == pytest.approx(0.6)
    assert "Nothing stands out" in report.card().words


def test_what_holds_the_gpu_up_before_a_launch():
    made = MadeUp()
    for start in made.steps(3):
        made.event("cuda_runtime", "cudaMalloc", start + 10, 200)
        made.work(TO_GPU, start + 220, 160, start + 215, cat="gpu_memcpy", call="cudaMemcpyAsync", call_lasts=190)
        made.work(GEMM, start + 500, 500, launched=start + 497)
    assert {a.lesson: a.saves for a in read(made).plan[:2]} == {
        "caching_allocator": pytest.approx(0.2, abs=0.01),
        "pinned_memory": pytest.approx(0.19, abs=0.01),
    }


def test_a_synchronisation_is_named_with_its_operator_and_line():
    made = MadeUp()
    for start in made.steps():
        made.work(GEMM, start + 10, 690, launched=start + 5)
        made.event("python_function", "train.py(42): train", start + 1, 998)
        made.event("python_function", "/usr/lib/python3.11/site-packages/torch/_tensor.py(9): item", start + 15, 690)
        made.op("aten::item", start + 20, 682)
        made.op("aten::_local_scalar_dense", start + 21, 680)
        made.event("cuda_runtime", "cudaStreamSynchronize", start + 25, 676)
        made.work(GEMM, start + 900, 100, launched=start + 895)
    report = read(made)
    advice = only(report)
    assert advice.lesson == "host_device_syncs"
    assert "in aten::item (cudaStreamSynchronize), train.py(42): train" in advice.because
    assert advice.saves == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("waits", [True, False])
def test_launches_that_are_late_since_the_cpu_had_waited_are_the_synchronisations(waits: bool):
    """A mask waits for the GPU, and small kernels follow, for which the CPU would have been early without it."""
    made = MadeUp()
    for number in range(4):
        start = 1000 * number
        made.step(number, start, 1000)
        made.work(GEMM, start, 800, launched=start - 100 if number else 0)
        if waits:
            made.op("aten::index", start + 95, 710)
            made.op("aten::nonzero", start + 96, 708)
            made.event("cuda_runtime", "cudaStreamSynchronize", start + 100, 700)
        for kernel in range(20):
            made.op("aten::mul", start + 804 + 10 * kernel, 8)
            made.work(POINTWISE, start + 809 + 10 * kernel, 1, launched=start + 806 + 10 * kernel)
    report = read(made)
    assert share(report, places.SYNC if waits else places.LAUNCH) == pytest.approx(0.18, abs=0.01)
    named = "waited for it in aten::nonzero (cudaStreamSynchronize), called by aten::index,"
    assert (named in " ".join(advice.because for advice in report.plan)) == waits


@pytest.mark.parametrize(
    ("computes", "sends", "beside", "saves"),
    [(800, 500, 300, 0.2), (300, 800, 100, 0.2), (1000, 500, 500, None)],
)
def test_no_more_communication_can_be_hidden_than_there_is_to_hide_it_behind(
    computes: float, sends: float, beside: float, saves: float | None
):
    made = MadeUp()
    for start in made.steps():
        made.work(GEMM, start + 1000, computes, launched=start + 5)
        made.work(ALL_REDUCE, start + 1000 + computes - beside, sends, launched=start + 6, stream=20)
    plan = [advice for advice in read(made).plan if "communication" in advice.change]
    assert [advice.saves for advice in plan] == ([pytest.approx(saves)] if saves else [])


@pytest.mark.parametrize(
    ("kernel", "saves"),
    [
        ("ampere_sgemm_128x64_tn", 1.0),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", 0.5),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", None),
        ("volta_dgemm_64x64_nn", 1.0),  # in float64
    ],
)
def test_kernels_in_more_bits_than_they_need(kernel: str, saves: float | None):
    report = read(busy_steps(kernel=kernel))
    assert [(advice.lesson, advice.saves) for advice in report.plan] == ([("mixed_precision", saves)] if saves else [])


@pytest.mark.parametrize(
    ("gpu", "how"),
    [
        ({"computeMajor": 9, "computeMinor": 0}, "autocast to bfloat16"),
        ({"name": "Tesla V100-SXM2-16GB"}, "autocast to float16, with a GradScaler"),
        ({"computeMajor": 6, "computeMinor": 0}, None),
    ],
)
def test_16_bits_are_of_a_type_that_the_gpu_computes_in(gpu: dict[str, Any], how: str | None):
    report = read(busy_steps(kernel="ampere_sgemm_128x64_tn"), deviceProperties=[{"id": 0, **gpu}])
    found = [advice.change for advice in report.plan if advice.change.startswith("compute in 16 bits")]
    assert found == ([f"compute in 16 bits ({how})"] if how else [])


def test_kinds_of_steps_are_not_averaged():
    made = MadeUp()
    for number in range(6):
        start = 1000 * number
        made.step(number + 10, start, 1000)
        made.work(GEMM, start + 1000, 900 if number % 2 else 960, launched=start + 5)
        sends = 100 if number % 2 else 40
        made.work(ALL_REDUCE, start + 2000 - sends, sends, launched=start + 9, stream=20)
        for extra in range(number % 2 * 3):
            made.work("update", start + 1000 + extra, 1, launched=start + 12)
    report = read(made)
    assert {column.name for column in report.found.groups} == {"steps 11, 13 and 15", "steps 10, 12 and 14"}
    assert only(report).saving == "at most 10% of steps 11, 13 and 15, and at most 4% of steps 10, 12 and 14"
    assert "7%" not in repr(report)  # their mean


def test_a_first_step_that_warms_up_and_a_last_one_that_is_cut_are_left_out():
    made = busy_steps(count=5)
    made.events = [e for e in made.events if not (e.get("cat") == "kernel" and e["ts"] - made.zero >= 5250)]
    report = read(made)
    assert report.found.groups[0].name == "steps 0 to 3"
    assert "Step 4, the last, is left out" in " ".join(report.card().notes)

    slow = MadeUp()
    for number, (start, lasts) in enumerate(((0, 9000), (9000, 1000), (10_000, 1000), (11_000, 1000))):
        slow.step(number, start, lasts)
        slow.work(GEMM, start + 10_000, lasts, launched=start + 5)
    report = read(slow)
    assert report.found.groups[0].name == "steps 1 to 3"
    assert "Step 0, the first, is left out: it is slower" in " ".join(report.card().notes)


def test_compiling_in_each_step_is_told_as_such():
    made = MadeUp()
    for start in made.steps(4, 10_000):
        made.op("_compile.compile_inner (dynamo_timed)", start + 10, 7000)
        made.work(GEMM, start + 7110, 2890, launched=start + 7105)
    report = read(made)
    assert share(report, places.COMPILING) == pytest.approx(0.7, abs=0.02)
    assert only(report).change == "compile once, not in each step"


def test_a_launch_that_loads_code_is_told_as_a_first_use():
    made, now = MadeUp(), 0.0
    made.step(0, 0, 7000)
    for number in range(8):
        lasts = 6600.0 if number == 3 else 5.0
        made.work(GEMM, now + lasts, 10, launched=now, call_lasts=lasts)
        now += lasts + 20
    report = read(made)
    assert report.plan == ()
    assert share(report, places.START) > 0.9
    assert "cudaLaunchKernel took 6.60 ms, far longer than others of its kind: a first use" in report.card().words


def test_several_gpus_in_one_trace_each_have_a_column():
    made = MadeUp()
    for start in made.steps():
        made.work(GEMM, start + 1000, 1000, launched=start + 1)
        made.work(GEMM, start + 1010, 500, launched=start + 3, device=1)
        made.work(ALL_REDUCE, start + 1510, 490, launched=start + 4, device=1)
    report = read(made)
    assert [column.name for column in report.found.groups] == ["GPU 0, steps 0 to 3", "GPU 1, steps 0 to 3"]
    assert "GPU 1, steps 0 to 3" in only(report).saving
    assert share(report, places.SENDS, 1) == pytest.approx(0.49, abs=0.01)


@pytest.mark.parametrize(
    ("each", "loader", "change"),
    [
        (30, "SingleProcess", "index the tensors once a batch, not sample by sample"),
        (30, "MultiProcessing", "give the DataLoader more workers, or less work"),
    ],
)
def test_a_loader_is_told_what_its_samples_need(each: float, loader: str, change: str):
    made, alone = MadeUp(), loader == "SingleProcess"
    lasts = each * 32 + 500
    for start in made.steps(3, lasts):
        made.mark(f"enumerate(DataLoader)#_{loader}DataLoaderIter.__next__", start, each * 32)
        made.event("python_function", "train.py(9): main", start, lasts)
        for sample in range(32 if alone else 0):
            made.op("aten::select", start + each * sample, 2)
            made.event("python_function", "data.py(7): __getitem__", start + each * sample + 0.5, each - 1)
        made.op("aten::addmm", start + lasts - 490, 490)
    advice = read(made).plan[0]
    assert (advice.lesson, advice.change) == ("data_loading", change)
    assert advice.saves == pytest.approx(each * 32 / lasts, abs=0.02)
    assert ("most of that in data.py(7): __getitem__" in advice.because) == alone


def test_a_cpu_that_waits_for_another_rank():
    made = MadeUp()
    for start in made.steps(3, 10_000):
        made.op("aten::addmm", start + 5000, 5000)
        made.mark("gloo:all_reduce", start, 4500, tid=2)
        made.op("aten::mm", start, 500, tid=3)  # what a third thread computes hides it
    report = read(made)
    assert share(report, COMMUNICATION) == pytest.approx(0.4)
    assert only(report).lesson == "ddp"


def test_small_operators_of_the_programs_own_loop_are_told_from_a_models():
    made = MadeUp()
    for start in made.steps(3, 7000):
        made.event("python_function", "train.py(12): collate", start, 6000)
        for call in range(300):
            made.op("aten::add", start + 20 * call, 10)
        for layer in range(20):
            made.op("aten::linear", start + 6000 + 20 * layer, 10, **{"Sequence number": start + layer})
            made.op(f"{NODE}AddmmBackward0", start + 6970 - 30 * layer, 30, **{"Sequence number": start + layer})
    advice = read(made).plan[0]
    assert advice.change == "call fewer operators outside the model, each on more data"
    assert "from your own code outside the model (train.py(12): collate), mostly aten::add (300)" in advice.because
    assert advice.saves == pytest.approx(6000 / 7000, abs=0.02)


def test_a_wait_belongs_to_the_programs_function_that_waits():
    made = MadeUp()
    for start in made.steps(4, 10_000):
        made.event("python_function", "train.py(30): main", start, 10_000)
        made.event("python_function", "torch/utils/data/dataset.py(9): __getitem__", start + 1, 9000)
        made.event("python_function", "mine/data.py(8): batches", start + 2, 8998)
        made.event("python_function", "<built-in function sleep>", start + 4, 8994)
        made.op("aten::mm", start + 9100, 890)
    card = read(made).card()
    assert read(made).plan == ()
    assert card.words.endswith("is Python, or nothing recorded (91%), most of it in mine/data.py(8): batches.")
    assert "It was recorded with stacks, which make Python slower: without them a step is shorter" in card.notes[-1]


def test_a_trace_of_rocm_ties_calls_to_kernels_by_their_external_id():
    made = MadeUp()
    for number in range(4):
        made.step(number, 1000 * number, 1000)
        for kernel in range(10):
            tie, start = 10 * number + kernel + 1, 1000 * number + 100 * kernel
            made.op("aten::mm", start + 20, 12, **{"External id": 500 + tie})
            made.event("cuda_runtime", "hipExtModuleLaunchKernel", start + 35, 4, **{"External id": tie})
            made.event("kernel", "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64", start + 40, 60, 0, **{"External id": tie})
    report = read(made)
    assert share(report, places.LAUNCH) == pytest.approx(0.4)
    assert only(report).lesson == "torch_compile"


def check(made: MadeUp, start: float) -> None:
    """A NaN check of anomaly mode, of 30 us."""
    made.op("aten::isnan", start, 9)
    made.op("aten::ne", start + 1, 6)
    made.op("aten::item", start + 21, 9)


def backward(checked: Callable[[int], bool]) -> MadeUp:
    """Steps of 10 ms: a forward pass of 5 ms, ten nodes of 400 us, and a check after their work."""
    made = MadeUp()
    for start in made.steps(4, 10_000):
        made.op("aten::addmm", start, 5000)
        for node in range(10):
            at = start + 5000 + 400 * node
            made.op(NODE + "MmBackward0", at, 400)
            made.op("MmBackward0", at + 1, 300)
            made.op("aten::mm", at + 2, 290)
            if checked(node):
                check(made, at + 310)
        made.op(f"{NODE}torch::autograd::AccumulateGrad", start + 9000, 10)
    return made


def test_anomaly_mode_is_told_by_its_checks_and_bounded_by_them_alone():
    advice = read_trace(backward(lambda node: True).json()).plan[0]
    assert (advice.change, advice.lesson) == ("switch anomaly mode off", "your_own_program")
    assert advice.saving == "at most 3% of a step, its checks alone"
    assert advice.because.startswith("10 NaN checks a step ran in the backward pass: 300 µs a step.")


def test_checks_of_the_program_are_no_anomaly_mode():
    made = backward(lambda node: node % 3 == 0)  # a gradient scaler's, a loss's, or a hook's on each module
    for number in range(4):
        check(made, 10_000 * number + 9200)  # nor is one after the backward pass
    assert "switch anomaly mode off" not in [advice.change for advice in read_trace(made.json()).plan]


def test_what_torch_records_is_understood(tmp_path: Path):
    model, path = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), tmp_path / "trace.json"
    when = schedule(wait=1, warmup=1, active=3, repeat=1)
    with (
        torch.autograd.set_detect_anomaly(True),
        profile(schedule=when, with_stack=True, on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as profiler,
    ):
        for inputs, targets in DataLoader(TensorDataset(torch.randn(60, 8), torch.randn(60, 8)), batch_size=10):
            functional.mse_loss(model(inputs), targets).backward()
            profiler.step()
    report = read_trace(path)
    assert [advice.change for advice in report.plan] == ["switch anomaly mode off"]
    assert sum(len(group.steps) for group in report.found.groups) + len(report.found.cpu.steps.notes) == 3
    assert report.found.share("loading data") > 0
    assert "It was recorded with stacks" in report.card().notes[-1]


def test_a_gpu_of_which_nothing_was_recorded_gets_no_plan_but_how_to_record_it():
    made = MadeUp()
    for start in made.steps(3):
        for place in range(30):
            made.op("aten::add", start + 30 * place, 10)
    card = read(made, deviceProperties=[{"id": 0, "name": "H100"}]).card()
    assert card.words.endswith("what the GPU did is not in the file.")
    assert "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]." in card.warning
    assert card.plan == ()
