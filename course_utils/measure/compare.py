"""Measure code and compare it fairly: parity first, then paired rounds in random order with an A/A control."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_utils.measure.cases import Case, CaseError, Check
from course_utils.measure.devices import Device, device_under_test
from course_utils.measure.machine import environment
from course_utils.measure.rounds import DEFAULT_BUDGET_S, Rounds
from course_utils.results import paired
from course_utils.results.ceilings import Ceiling
from course_utils.results.comparison import Comparison
from course_utils.results.measurement import Measurement
from course_utils.results.store import keep

__all__ = ["CaseError", "compare", "measure"]


def measure(
    fn: Case,
    label: str = "code",
    *,
    budget_s: float = DEFAULT_BUDGET_S,
    memory: bool = True,
    device: Device | None = None,
) -> Measurement:
    """Measure one piece of code, when there is nothing to compare it with: raw times, for a row of a table.

    ``fn`` is a function without arguments, or :func:`course_utils.fresh`, and ``label`` what to call it. The other
    arguments are those of :func:`course_utils.compare`.

    Example:
        >>> import torch
        >>> a = torch.randn(64, 64)
        >>> measure(lambda: a @ a, "matmul", budget_s=0.1).median_s > 0
        True
    """

    def enough(seconds: Sequence[Sequence[float]], confidence: float, spent_s: float) -> bool:
        return paired.is_precise(paired.median_interval(seconds[0], confidence), spent_s)

    with Rounds({label: fn}, label, budget_s, device or device_under_test()) as rounds:
        rounds.first_calls(keep_outputs=False)
        rounds.run(rounds.cases, enough)
        rounds.extras(memory)
    if rounds.interrupted:
        raise KeyboardInterrupt
    return rounds.cases[0].measurement()


def compare(
    cases: Mapping[str, Case],
    *,
    name: str | None = None,
    check: Check | bool = True,
    budget_s: float = DEFAULT_BUDGET_S,
    practical: float = paired.PRACTICAL,
    memory: bool = True,
    parameters: Mapping[str, Any] | None = None,
    items: float | Mapping[str, float] | None = None,
    flops: float | Mapping[str, float] | None = None,
    bytes: float | Mapping[str, float] | None = None,
    ceiling: Ceiling | None = None,
    on: str | None = None,
    device: Device | None = None,
    says: Callable[[Comparison], str] | None = None,
) -> Comparison:
    """Compare two or more ways to do the same thing.

    The first case is the baseline. It runs twice in every round: the second time is the A/A control, which shows what
    this machine makes of no difference at all.

    Args:
        cases: label to function without arguments, or to :func:`course_utils.fresh` for code with state of its own.
        name: ``lesson/experiment``, to keep it in a record.
        check: True: outputs must agree by ``torch.testing.assert_close``, at the tolerance of the coarser dtype; a
            function of (baseline's output, case's output) that raises or returns False if they do not; False: no
            check, and the result says so.
        budget_s: the most seconds for the timings; a comparison that is decided stops earlier. First calls, parity
            check and memory pass are not counted. It may become up to three times as much where that completes the
            eight rounds that a verdict needs.
        practical: relative difference below which nobody cares: 0.01 is 1%.
        memory: whether to make a separate pass for peak memory.
        parameters: problem sizes and settings, for the record.
        items: items that one call processes; a number for all cases, or one for each.
        flops: floating-point operations of one call, likewise.
        bytes: bytes that one call moves, likewise.
        ceiling: a limit of this machine, from :func:`course_utils.ceilings`, to show rates against.
        on: ``cpu`` to measure with the CPU's clock, and to name the CPU, though this machine has a GPU.
        device: a clock of one's own, in place of ``on``.
        says: makes the sentence of the card from the result, instead of its largest gain or loss. See
            :meth:`Comparison.saying`.

    Returns:
        Raw samples of all cases and of the control, with verdicts.

    Raises:
        ValueError: if there are fewer than two cases, or an argument makes no sense.
        CaseError: if a case raises, or if outputs differ.

    Example:
        >>> import torch
        >>> a = torch.randn(128, 128)
        >>> result = compare({"matmul": lambda: a @ a, "twice": lambda: (a @ a, a @ a)[1]}, budget_s=0.3)
        >>> result["twice"].ratio > 1
        True
    """
    if not isinstance(cases, Mapping) or len(cases) < 2:
        raise ValueError(
            "compare() needs at least two cases: pass a dictionary such as {'pageable': f, 'pinned': g}, the baseline "
            "first"
        )
    if not 0 < practical < 1:
        raise ValueError(f"practical is a relative difference between 0 and 1, got {practical!r}; 0.01 is 1%")
    work = {key: _per_case(key, value, cases) for key, value in (("items", items), ("flops", flops), ("bytes", bytes))}
    here = environment()
    started = time.perf_counter()

    def decided(seconds: Sequence[Sequence[float]], confidence: float, spent_s: float) -> bool:
        baseline, *others, control = seconds
        judged = (paired.judge(case, baseline, control, confidence, practical) for case in others)
        return all(case.is_enough(spent_s) for case in judged)

    title, device = name or " vs ".join(map(str, cases)), device or device_under_test(on)
    with Rounds(cases, title, budget_s, device) as rounds:
        rounds.first_calls()
        agreement = rounds.check(check)
        control = rounds.add_control()
        rounds.run([*rounds.cases, control], decided)
        rounds.check_again(check)
        rounds.extras(memory)
    return keep(
        Comparison(
            cases=tuple(case.measurement(**{key: of[case.label] for key, of in work.items()}) for case in rounds.cases),
            control=Measurement(
                label=control.label,
                calls=control.calls,
                elapsed_s=tuple(sample.elapsed_s for sample in control.samples),
            ),
            environment=here,
            name=name,
            parameters=dict(parameters or {}),
            clock=rounds.device.clock,
            agreement=agreement,
            practical=practical,
            confidence=rounds.confidence,
            spent_s=time.perf_counter() - started,
            interrupted=rounds.interrupted,
            ceiling=ceiling,
            notes=tuple(rounds.notes),
            busy=rounds.busy,
            worked_by=rounds.worked_by,
        ),
        says,
    )


def _per_case(key: str, value: Any, cases: Mapping[str, Any]) -> dict[str, float | None]:
    if not isinstance(value, Mapping):
        return dict.fromkeys(cases, value)
    if set(value) != set(cases):
        raise ValueError(
            f"{key}= must be one number or name exactly the cases {', '.join(cases)}; got {', '.join(value)}"
        )
    return dict(value)
