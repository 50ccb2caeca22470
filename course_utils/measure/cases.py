"""What is compared: cases while they are measured, and whether they compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from course_utils.measure.devices import Sample
from course_utils.measure.fresh import Fresh, Switches
from course_utils.results.measurement import Measurement

Case = Callable[[], Any] | Fresh
Check = Callable[[Any, Any], Any]
NOTHING_RETURNED = "not checked: the cases return nothing"


class CaseError(RuntimeError):
    """A case cannot be compared. The message names the case and says what to do."""


@dataclass
class RunningCase:
    """A case while it is being measured."""

    label: str
    fn: Callable[[], Any]
    switches: Switches
    output: Any = None
    first_call_s: float | None = None
    warmup_s: list[float] = field(default_factory=list)
    calls: int = 1
    preceded: bool = False  # by a call that is not timed
    samples: list[Sample] = field(default_factory=list)
    prequeued_s: float | None = None
    touches_device: bool | None = None  # whether its calls work on the device under test; None if nobody knows
    peaks: tuple[int | None, int | None] = (None, None)

    def measurement(self, **work: float | None) -> Measurement:
        """The raw samples, with the work of one call: ``items``, ``flops``, ``bytes``."""
        on_device = self.samples[0].device_s is not None
        return Measurement(
            label=self.label,
            elapsed_s=tuple(sample.elapsed_s for sample in self.samples),
            calls=self.calls,
            enqueue_s=tuple(sample.enqueue_s for sample in self.samples) if on_device else (),
            device_s=tuple(sample.device_s for sample in self.samples) if on_device else (),
            prequeued_s=self.prequeued_s,
            first_call_s=self.first_call_s,
            warmup_s=tuple(self.warmup_s),
            peak_allocated_bytes=self.peaks[0],
            peak_reserved_bytes=self.peaks[1],
            **work,
        )


def check_cases(cases: Mapping[str, Case]) -> None:
    """Refuse what is no case, before anything runs."""
    for label, case in cases.items():
        if not (callable(case) or isinstance(case, Fresh)):
            raise ValueError(
                f"case {label!r} is a {type(case).__name__}, not a function: pass the function without calling it, "
                "for example `lambda: model(x)`"
            )


def case_error(label: str, where: str, error: Exception) -> CaseError:
    """What to say when a case raises."""
    advice = "Run it once by itself to see the whole traceback."
    if isinstance(error, torch.OutOfMemoryError):
        advice = "Make the problem smaller, or free what earlier cells hold."
    elif "same device" in str(error) or "meta" in str(error):
        advice = "Move its tensors to one device, for example with .to(device)."
    return CaseError(f"case {label!r} failed in {where}: {type(error).__name__}: {error}. {advice}")


def check_parity(cases: list[RunningCase], check: Check | bool) -> str:
    """Compare each case's first output with the baseline's; say in words what was done."""
    baseline, *others = cases
    if check is False:
        return "not checked, by choice"
    if check is True and all(case.output is None for case in cases):
        return NOTHING_RETURNED
    agree = assert_agree if check is True else check
    for case in others:
        try:
            answer = agree(baseline.output, case.output)
            if answer is not None and not answer:
                raise AssertionError(f"The check says {answer}.")
        except Exception as error:
            raise CaseError(
                f"case {case.label!r} does not compute the same as the baseline {baseline.label!r}, so their "
                f"times say nothing.\n{error}\nMake them agree, or pass check= a function with the tolerance "
                "that you mean."
            ) from error
    return "outputs agree" if check is True else "outputs agree, by the lesson's own check"


def assert_agree(expected: Any, actual: Any) -> None:
    """``assert_close`` for outputs of any nesting, at the tolerance of the coarser dtype where dtypes differ."""
    values = (expected, actual)
    if all(isinstance(value, Mapping) for value in values) and expected.keys() == actual.keys():
        for key in expected:
            assert_agree(expected[key], actual[key])
    elif all(isinstance(value, list | tuple) for value in values) and len(expected) == len(actual):
        for part, other in zip(expected, actual, strict=True):
            assert_agree(part, other)
    elif all(isinstance(value, torch.Tensor) for value in values):
        if expected.dtype != actual.dtype and expected.is_floating_point() and actual.is_floating_point():
            coarse = max(expected.dtype, actual.dtype, key=lambda dtype: torch.finfo(dtype).eps)
            expected, actual = expected.to(coarse), actual.to(coarse)
        torch.testing.assert_close(actual, expected)
    elif all(isinstance(value, int | float | complex) or hasattr(value, "__array__") for value in values):
        torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), check_dtype=False)
    elif isinstance(expected, Mapping | list | tuple) or expected != actual:
        raise AssertionError(f"outputs differ: {expected!r} against {actual!r}")
