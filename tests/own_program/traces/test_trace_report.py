"""What a trace's card says, against numbers that are known since the trace was made up."""

from __future__ import annotations

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
from own_program.traces.cpu_time import COMMUNICATION, COMPILING
from own_program.traces.trace_report import TraceReport, read_trace
from tests.own_program.traces.made_up import (
    ALL_REDUCE,
    GEMM,
    NODE,
    POINTWISE,
    SEND_RECV,
    TO_GPU,
    WITHIN_GPU,
    MadeUp,
    ahead,
    busy_steps,
)


def read(made: MadeUp, **header: Any) -> TraceReport:
    report = read_trace(made.json(**header))
    assert isinstance(report, TraceReport)
    for column in report.found.groups:
        for shares in column.steps:
            assert sum(shares.places.values()) == pytest.approx(shares.lasts, abs=0.05)
    repr(report)
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
    made = busy_steps(count=4)
    for number in range(4):
        made.work(ALL_REDUCE, 1000 * number + 1100, 600, launched=1000 * number + 50, stream=20)
        made.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1000 * number + 100, 800)
    report = read(made)
    assert report.plan == ()
    assert share(report, places.HIDDEN) == pytest.approx(0.6)
    assert "Nothing stands out" in report.card().words


def dry(gap: float, count: int = 3, **fill: Any) -> MadeUp:
    """Steps of 1000 us; each begins with a stretch of idle GPU, whose cause the caller adds."""
    made = MadeUp()
    for start in made.steps(count):
        made.work(GEMM, start + gap, 1000 - gap, launched=start + gap - 3, **fill)
    return made


def test_moments_between_short_kernels_are_advice_and_no_riddle():
    made = busy_steps(count=4, parts=200)
    for event in made.events:
        if event.get("cat") == "kernel":
            event["dur"] *= 0.6
    report = read(made)
    assert only(report).saves == pytest.approx(0.4, abs=0.01)
    assert "fewer kernels" in only(report).change
    assert report.card().warning == ""


def test_what_holds_the_gpu_up_before_a_launch():
    made = dry(500)
    for number in range(3):
        made.event("cuda_runtime", "cudaMalloc", 1000 * number + 10, 200)
        made.copy(TO_GPU, 1000 * number + 220, 160, launched=1000 * number + 215, call_lasts=190)
    assert {a.lesson: a.saves for a in read(made).plan[:2]} == {
        "caching_allocator": pytest.approx(0.2, abs=0.01),
        "pinned_memory": pytest.approx(0.19, abs=0.01),
    }


@pytest.mark.parametrize(
    ("name", "place", "lesson"),
    [
        ("Memcpy HtoD (Pinned -> Device)", places.PINNED, "pinned_memory"),
        ("CopyHostToDevice", places.PINNED, "pinned_memory"),  # ROCm does not say which memory
        ("Memcpy DtoH (Device -> Pinned)", places.TO_HOST, "host_device_syncs"),
        (WITHIN_GPU, places.WITHIN, "profiler"),
    ],
)
def test_copies_by_their_kind(name: str, place: str, lesson: str):
    made = MadeUp()
    for start in made.steps(3):
        made.event("python_function", "model.py(12): forward", start + 2, 500)
        made.op("aten::contiguous", start + 3, 4)
        made.copy(name, start + 1000, 100, launched=start + 5)
        made.work(GEMM, start + 1100, 900, launched=start + 10)
    report = read(made)
    assert share(report, place) == pytest.approx(0.1)
    assert only(report).lesson == lesson
    made_by = "made by aten::contiguous in model.py(12): forward (100% of them): 100 µs a step"
    assert (made_by in only(report).because) == (place == places.WITHIN)


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
    ("kernel", "lasts", "words"),
    [
        ("indexing_backward_kernel", 800, "; 80% of the computing is aten::_index_put_impl_ (IndexBackward0); no c"),
        (GEMM, 800, "Nothing stands out: the GPU computes for 100% of a step (1.00 ms); 80% of the computing is "),
        ("indexing_backward_kernel", 400, "Nothing stands out: the GPU computes for 100% of a step (1.00 ms)."),
    ],
)
def test_the_operator_of_most_of_the_computing_is_named(kernel: str, lasts: float, words: str):
    made = MadeUp()
    for start in made.steps():
        made.op(f"{NODE}IndexBackward0", start + 2, 20)
        made.op("aten::_index_put_impl_", start + 3, 15)
        made.work(kernel, start + 1000, lasts, launched=start + 5)
        for place in range(2):
            made.op(f"aten::op{place}", start + 30 + 9 * place, 8)
            part = (1000 - lasts) / 2
            made.work(GEMM, start + 1000 + lasts + part * place, part, launched=start + 32 + 9 * place)
    assert words in read(made).card().words


@pytest.mark.parametrize(
    ("computes", "sends", "beside", "saves"),
    [(800, 500, 300, 0.2), (200, 800, 0, 0.2), (300, 800, 100, 0.2), (1000, 500, 500, None), (10, 990, 0, 0.99)],
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
    for advice in plan:
        assert f": {sends - beside:.0f} µs a step." in advice.because
        assert ("to save more, send less" in advice.because) == (1000 * saves < sends - beside)
        assert advice.change.startswith("send less, or less often" if computes == 10 else "overlap communication")


@pytest.mark.parametrize(
    ("asked_by", "argument", "word"),
    [
        ((), "", "send and receive, or all_to_all"),
        (("c10d::alltoall_base_", "nccl:coalesced"), "", "all_to_all"),
        (("my broadcast",), "", "send and receive, or all_to_all"),  # an annotation of the user's
        (("nccl:coalesced",), "recv", "send and receive"),
        (("nccl:_all_gather_base",), "", "all_gather"),
    ],
)
def test_who_asked_for_a_kernel_says_which_collective_it_is(asked_by: tuple[str, ...], argument: str, word: str):
    made = MadeUp()
    for start in made.steps(3):
        made.work(GEMM, start + 1000, 800, launched=start + 5)
        for place, name in enumerate(asked_by):
            made.event("user_annotation" if "nccl" in name else "cpu_op", name, start + 10 + place, 20 - 2 * place)
        made.mark("nccl:broadcast", start + 10, 20, tid=2)
        made.work(SEND_RECV, start + 1500, 500, launched=start + 15, stream=20)
        made.events[-1]["args"]["Collective name"] = argument
    advice = only(read(made))
    assert advice.because.startswith(f"Communication ({word}) ran")
    assert advice.lesson == ("fsdp" if word == "all_gather" else "ddp")


@pytest.mark.parametrize(
    ("kernel", "saves"),
    [
        ("ampere_sgemm_128x64_tn", 1.0),
        ("volta_scudnn_128x64_relu_interior_nn_v1", 1.0),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x2x1", 1.0),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", 0.5),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", 0.5),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", None),
        ("volta_sgemm_fp16_128x64_nn", None),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", None),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", None),
        (GEMM, None),
        ("volta_dgemm_64x64_nn", 1.0),  # in float64
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<double, 4>>()", 1.0),
        ("void copy_kernel<double2, 4>(double2*)", None),  # 16 bytes at once, of anything
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
        ({"name": "some card"}, "autocast"),
    ],
)
def test_16_bits_are_of_a_type_that_the_gpu_computes_in(gpu: dict[str, Any], how: str | None):
    made = busy_steps(kernel="ampere_sgemm_128x64_tn", parts=3)
    for number in range(4):
        made.work(POINTWISE, 1000 * number + 1000, 400, launched=1000 * number + 20, stream=8)
    report = read(made, deviceProperties=[{"id": 0, **gpu}])
    found = [advice for advice in report.plan if advice.change.startswith("compute in 16 bits")]
    assert [advice.change for advice in found] == ([f"compute in 16 bits ({how})"] if how else [])
    assert all(advice.saves == 1 and "of elementwise kernels half can go" in advice.because for advice in found)


SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, {}, false>(float*, float const*)"
MANY = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{}>()"


@pytest.mark.parametrize(
    ("kernels", "lesson", "saves"),
    [
        ((GEMM, SOFTMAX.format("false"), "dropout", GEMM, *["layer_norm"] * 4), "flash_attention", 0.5),
        ((GEMM, SOFTMAX.format("true"), "dropout", GEMM, *["layer_norm"] * 4), None, 0),  # a log-softmax: the loss
        ((GEMM, "void pytorch_flash::flash_fwd_kernel<softmax>(Flash_fwd_params)", GEMM), None, 0),
        ((GEMM, *[MANY.format("BinaryOpListAlphaFunctor<float>")] * 4), "torch_compile", 0.8),
        ((GEMM, *[MANY.format("FusedAdamMathFunctor<float, 4>")] * 4), None, 0),
        ((GEMM, POINTWISE, POINTWISE, GEMM, GEMM), "torch_compile", 0.4),
        ((GEMM, POINTWISE, GEMM, POINTWISE, GEMM), None, 0),
    ],
)
def test_several_kernels_that_one_could_do(kernels: tuple[str, ...], lesson: str | None, saves: float):
    made = ahead(*((kernel, 1000 / len(kernels)) for kernel in kernels))
    for number in range(3):
        made.mark("Optimizer.step#AdamW.step", 1000 * number + 8, 500)  # from the second launch on
    found = [(advice.lesson, advice.saves) for advice in read(made).plan]
    assert found[:1] == ([(lesson, pytest.approx(saves))] if lesson else [])


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
    text = repr(report)
    assert "steps 11, 13 and 15" in text
    assert "7%" not in text  # their mean


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


def test_marks_on_the_gpus_side_serve_where_no_call_was_recorded():
    made = MadeUp()
    for number in range(3):
        made.event("gpu_user_annotation", f"ProfilerStep#{number}", 1000 * number, 950, 7, device=0)
        made.work(GEMM, 1000 * number, 700)
    report = read(made)
    assert "marks on the GPU's side" in report.card().provenance
    assert share(report, places.UNKNOWN) > 0.2
    assert report.plan == ()
    assert "No launches were recorded" in report.card().warning


def test_the_largest_part_is_told_first_and_why_or_that_nobody_knows():
    made = MadeUp()
    for start in made.steps():
        made.work(GEMM, start + 1000, 200, launched=start + 1)
        made.work("volta_sgemm_128x64_tn", start + 1810, 190, launched=start + 3)
    report = read(made)
    assert report.card().words.startswith(
        "The largest part of a step (1.00 ms) is idle: between launched kernels (61%); the GPU computes for 39%. The "
        "next kernel had been launched by then: the GPU waited for another stream or another GPU, or kernels are "
        "missing from the file. Of what is known, change first: compute in 16 bits"
    )
    assert report.card().warning == ""


def one_long_launch(steps: int, slow: tuple[int, ...], call: str = "cudaLaunchKernel") -> MadeUp:
    made, at = MadeUp(), 0.0
    for number in range(steps):
        begin = at
        for kernel in range(14):
            lasts = 6600.0 if number in slow and kernel == 9 else 12.0
            made.op("aten::mm", at, lasts + 6)
            made.work(GEMM, at + lasts + 2, 8, launched=at, call=call, call_lasts=lasts)
            at += lasts + 40
        made.step(number + 1, begin, at - begin)
    return made


@pytest.mark.parametrize(
    ("call", "how"), [("hipLaunchKernel", ""), ("cuLaunchKernelEx", ", with CUDA graphs (mode='reduce-overhead')")]
)
def test_launches_are_fewer_in_cuda_graphs_where_there_is_cuda(call: str, how: str):
    advice = only(read(one_long_launch(4, (), call)))
    assert advice.change == f"launch less: compile the step{how}"
    assert "A larger batch, if memory is left, gives each launch more to do." in advice.because


@pytest.mark.parametrize("marked", [True, False])
def test_what_is_mostly_a_first_use_gets_no_plan(marked: bool):
    made = one_long_launch(1, (0,), "hipLaunchKernel")
    made.events = [event for event in made.events if marked or event.get("cat") != "user_annotation"]
    report = read(made)
    assert "is idle: start, or first use (9" in report.card().words
    how = ", with schedule(wait=5, warmup=3, active=8, repeat=1)." if marked else "."
    assert report.card().words.endswith(f"a first use, as it seems, which loads code. Record later steps{how}")
    assert ("No step is marked" in report.card().warning) == (not marked)
    assert report.plan == ()


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("steps", [1, 4])
def test_compiling_is_told_as_such(gpu: bool, steps: int):
    made = MadeUp()
    for start in made.steps(steps, 10_000):
        made.op("_compile.compile_inner (dynamo_timed)", start + 10, 7000)
        made.op("aten::mm", start + 7100, 2900)
        if gpu:
            made.work(GEMM, start + 7110, 2890, launched=start + 7105)
    report = read(made)
    assert share(report, places.COMPILING if gpu else COMPILING) == pytest.approx(0.7, abs=0.02)
    if steps > 1:
        assert only(report).change == "compile once, not in each step"
        assert "torch.compile worked in 4 of 4 steps" in only(report).because.lower()
    else:
        assert report.plan == ()
        assert "That is torch.compile's own work" in report.card().words


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
        (300, "SingleProcess", "load batches in worker processes (num_workers)"),  # read from a file, say
        (30, "MultiProcessing", "give the DataLoader more workers, or less work"),
    ],
)
@pytest.mark.parametrize("gpu", [True, False])
def test_a_loader_is_told_what_its_samples_need(each: float, loader: str, change: str, gpu: bool):
    made, alone = MadeUp(), loader == "SingleProcess"
    lasts = each * 32 + 500
    for start in made.steps(3, lasts):
        made.mark(f"enumerate(DataLoader)#_{loader}DataLoaderIter.__next__", start, each * 32)
        made.event("python_function", "train.py(9): main", start, lasts)
        for sample in range(32 if alone else 0):
            made.op("aten::select", start + each * sample, 2)
            made.event("python_function", "data.py(7): __getitem__", start + each * sample + 0.5, each - 1)
        made.op("aten::addmm", start + lasts - 490, 490)
        if gpu:
            made.work(GEMM, start + lasts - 480, 480, launched=start + lasts - 485)
    advice = read(made).plan[0]
    assert (advice.lesson, advice.change) == ("data_loading", change)
    assert advice.saves == pytest.approx(each * 32 / lasts, abs=0.02)
    assert ("most of that in data.py(7): __getitem__" in advice.because) == alone
    assert ("aten::select 32 times a step: it fetches samples one by one" in advice.because) == ("once" in change)


@pytest.mark.parametrize(("beside", "sends"), [(0, 0.45), (500, 0.4)])
def test_a_cpu_that_waits_for_another_rank(beside: float, sends: float):
    made = MadeUp()
    for start in made.steps(3, 10_000):
        made.op("aten::addmm", start + 5000, 5000)
        made.mark("gloo:all_reduce", start, 4500, tid=2)
        made.op("aten::mm", start, beside, tid=3)  # what a third thread computes hides it
    report = read(made)
    assert share(report, COMMUNICATION) == pytest.approx(sends)
    assert only(report).lesson == "ddp"
    assert "waited for communication (all_reduce)" in only(report).because


@pytest.mark.parametrize(
    ("loads", "python", "stack", "words"),
    [
        (800, 7800, "", "is Python, or nothing recorded (78%). Record with with_stack=True to see where. Of what is "),
        (800, 7800, "g.py(23): slow", "recorded (78%), most of it in g.py(23): slow. Of what is known, change "),
        (800, 4000, "", "is operators (52%), and 40% is Python, or nothing recorded. Record with "),
        (3000, 2500, "", "is operators (45%). To change first: "),
    ],
)
def test_pythons_time_is_told_before_a_plan_that_saves_less(loads: float, python: float, stack: str, words: str):
    made = MadeUp()
    for start in made.steps(3, 10_000):
        made.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, loads)
        made.op("aten::addmm", start + loads + python, 10_000 - loads - python)
        if stack:
            made.event("python_function", stack, start + loads, python)
    card = read(made).card()
    assert words in card.words
    assert card.words.endswith("load batches in worker processes (num_workers).")
    assert f"In {python / 100:.0f}% of the time nothing was recorded" in " ".join(card.notes)


def batch_by_hand(own: int, layers: int, frozen: int = 0, stacks: bool = False, gpu: bool = False) -> MadeUp:
    """Steps of a training that adds small tensors one by one, and of a model with a backward pass of 40 us a layer."""
    made, at = MadeUp(), 0.0
    for number in range(3):
        begin = at
        for _ in range(own):
            made.op("aten::add", at, 10)
            if gpu:
                made.work(POINTWISE, at + 12, 4, launched=at + 5)
            at += 20
        if stacks:
            made.event("python_function", "train.py(12): collate", begin, 20 * own)
            made.event("python_function", "nn.Module: Net_0", at, 20 * (layers + frozen))
        for layer in range(frozen + layers):
            numbered = {} if layer < frozen else {"Sequence number": 1000 * number + layer}
            made.op("aten::relu" if layer % 2 else "aten::linear", at, 10, **numbered)
            if gpu:
                made.work(GEMM, at + 12, 4, launched=at + 5)
            at += 20
        for layer in range(frozen + layers - 1, frozen - 1, -1):
            made.op(f"{NODE}AddmmBackward0", at, 40, **{"Sequence number": 1000 * number + layer})
            if gpu:
                made.work(GEMM, at + 12, 40, launched=at + 5)
            at += 40
        made.step(number, begin, at - begin)
    return made


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("stacks", [True, False])
def test_operators_of_the_programs_own_loop_are_no_matter_for_a_compiler(stacks: bool, gpu: bool):
    advice = read(batch_by_hand(300, 20, stacks=stacks, gpu=gpu)).plan[0]
    assert advice.change == "call fewer operators outside the model, each on more data"
    where = " (train.py(12): collate)" if stacks else ""
    assert f"a step come from your own code outside the model{where}, mostly aten::add (300)" in advice.because
    assert advice.saves == pytest.approx(6000 / 7200, abs=0.02)


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(("layers", "frozen", "stacks"), [(300, 0, True), (300, 0, False), (8, 300, False)])
def test_a_models_own_small_operators_are(layers: int, frozen: int, stacks: bool, gpu: bool):
    plan = read(batch_by_hand(8, layers, frozen, stacks, gpu)).plan
    assert "compile the" in plan[0].change
    assert "outside the model" not in " ".join(advice.change for advice in plan)
    assert "with_stack=True tells" not in plan[0].because


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_of_many_operators_on_a_cpu(fused: bool):
    made = MadeUp()
    for start in made.steps(3, 10_000):
        made.op("aten::addmm", start + 1, 5999)
        made.mark("Optimizer.step#AdamW.step", start + 6000, 4000)
        for place in range(100):
            made.op("aten::add_", start + 6001 + 30 * place, 25)
        made.op("aten::_fused_adamw_" if fused else "aten::addcdiv_", start + 9100, 800)
    report = read(made)
    assert [advice.lesson for advice in report.plan] == ([] if fused else ["torch_compile"])


def test_the_kernels_that_take_most_are_named_without_communication():
    adds = [
        (POINTWISE.replace("add", f"add{place}"), 70) for place in range(2)
    ]  # of which as much is shown as is alike
    card = read(ahead((ALL_REDUCE, 300), (GEMM, 525), *adds, ("tiny", 35))).card()
    pointwise = "at::native::vectorized_elementwise_kernel"
    named = f"{GEMM} 75% (1 a step), {pointwise} 20% (2 a step), tiny 5% (1 a step)."
    assert f"Of the kernels that compute: {named}" in card.notes
    assert "Of the kernels" not in " ".join(read(dry(900)).card().notes)


def test_a_wait_belongs_to_the_programs_function_that_waits():
    made = MadeUp()
    for start in made.steps(4, 10_000):
        made.event("python_function", "train.py(30): main", start, 10_000)
        made.event("python_function", "torch/utils/data/dataset.py(9): __getitem__", start + 1, 9000)
        made.event("python_function", "mine/data.py(8): batches", start + 2, 8998)
        made.event("python_function", "random.py(3): choice", start + 3, 8996)
        made.event("python_function", "<built-in function sleep>", start + 4, 8994)
        made.op("aten::mm", start + 9100, 890)
    card = read(made).card()
    assert read(made).plan == ()
    assert card.words.endswith("is Python, or nothing recorded (91%), most of it in mine/data.py(8): batches.")
    assert "Most of it in mine/data.py(8): batches." in " ".join(card.notes)
    assert "It was recorded with stacks, which make Python slower: without them a step is shorter" in card.notes[-1]
    assert "a recording without them" not in repr(card)


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
    assert "as the GPU saw them" in report.card().provenance
    assert only(report).lesson == "torch_compile"


def test_a_graph_is_one_launch_and_is_not_advised_where_it_is_used():
    made = MadeUp()
    for number in range(4):
        start = 1000.0 * number
        made.step(number, start, 1000)
        made.event("cuda_runtime", "cudaGraphLaunch", start + 300, 20, correlation=9000 + number)
        for kernel in range(100):
            args = {"device": 0, "stream": 7, "correlation": 9000 + number}
            made.event("kernel", GEMM, start + 400 + 6 * kernel, 6, 7, **args)
    advice = only(read(made))
    assert advice.saves == pytest.approx(0.4)
    assert advice.lesson == "profiler"
    assert "CUDA graphs (mode" not in advice.change
    assert "of 1 a step (1 of graphs)" in advice.because


def test_a_host_that_does_other_work_than_launching_is_not_told_to_launch_less():
    made = MadeUp()
    for start in made.steps():
        for kernel in range(2):
            made.work(GEMM, start + 500 * kernel + 200, 300, launched=start + 500 * kernel + 195)
    assert only(read(made)).change == "find what the CPU does between its launches, and do less of it"
    for start in range(0, 4000, 500):  # the same wait inside operators is a matter of operators
        made.op("aten::mm", start, 199)
    assert "compile" in only(read(made)).change


@pytest.mark.parametrize(
    ("slow", "change"),
    [
        (2500, "find what the CPU does between its launches, and do less of it"),
        (500, "let the program run ahead of the GPU"),
    ],
)
def test_after_a_synchronisation_a_slow_host_is_told_from_one_that_only_waited(slow: float, change: str):
    made, lasts = MadeUp(), 1000 + slow
    for start in made.steps(5, lasts):
        for kernel in range(10):
            made.work(GEMM, start + 10 + 99 * kernel, 99, launched=start + 1 + kernel)
        made.op("aten::item", start + 20, 982)
        made.event("cuda_runtime", "cudaStreamSynchronize", start + 21, 980)
        made.event("python_function", "data.py(8): augment", start + 1002, slow - 10)
    advice = only(read(made))
    assert advice.change == change
    assert advice.saves == pytest.approx(slow / lasts, rel=0.03)
    assert ("most of that time in data.py(8): augment, made" in advice.because) == (slow > 1000)


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
