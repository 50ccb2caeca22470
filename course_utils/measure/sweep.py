"""A comparison repeated over a range of one parameter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_utils.measure.cases import Case, CaseError
from course_utils.measure.compare import compare
from course_utils.measure.machine import environment
from course_utils.measure.rounds import DEFAULT_BUDGET_S
from course_utils.results.store import keep
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.show.progress import progress


def sweep(
    make_cases: Callable[[Any], Mapping[str, Case]],
    *,
    over: Mapping[str, Sequence[Any]],
    name: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    items: Callable[[Any], float | None] | None = None,
    flops: Callable[[Any], float | None] | None = None,
    bytes: Callable[[Any], float | None] | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    says: Callable[[Sweep], str] | None = None,
    **options: Any,
) -> Sweep:
    """Repeat a comparison over a range of one parameter: to find where a technique begins, or stops, to pay.

    Args:
        make_cases: called with each value; returns the cases for :func:`compare`.
        over: one parameter's name and its values, for example ``{"batch": [1, 8, 64]}``. Amounts of memory are shown in
            the unit that fits, such as 16 MiB, where the name is or ends with one: ``{"KiB": [64, 16384]}``.
        name: ``lesson/experiment``, to keep it in a record.
        parameters: problem sizes and settings that do not vary.
        items: called with each value; items that one call processes, or None where that says nothing.
        flops: likewise, floating-point operations.
        bytes: likewise.
        budget_s: the most seconds for the timings of each point; a point that is decided stops earlier.
        says: makes the sentence of its card from the sweep, instead of where each case is faster.
        **options: passed on to :func:`compare`, such as ``on="cpu"``.

    Returns:
        A comparison for each value. Ctrl-C keeps the points that are done. :meth:`Sweep.showing` chooses the cases and
        points that the card tells of, and may tell the time per item.

    Example:
        >>> import torch
        >>> def cases(n):
        ...     a = torch.randn(n, n)
        ...     return {"one": lambda: a @ a, "two": lambda: (a @ a, a @ a)[1]}
        >>> sweep(cases, over={"n": [32, 64]}, budget_s=0.1).values
        (32, 64)
    """
    if len(over) != 1 or not all(isinstance(values, Sequence) and values for values in over.values()):
        raise ValueError(f"sweep() varies one parameter: pass over={{'batch': [1, 8, 64]}}, got {over!r}")
    ((parameter, values),) = over.items()
    here = environment()
    work = {key: of for key, of in (("items", items), ("flops", flops), ("bytes", bytes)) if of is not None}
    points: list[SweepPoint] = []
    interrupted = False
    with progress(name or f"sweep over {parameter}", expected_s=budget_s * len(values)) as bar:
        for value in values:
            bar.describe(f"{parameter}={value}")
            started = time.perf_counter()
            try:
                amounts = {key: of(value) for key, of in work.items()}
                try:
                    cases = make_cases(value)
                except Exception as error:
                    raise CaseError(f"the cases could not be made: {type(error).__name__}: {error}") from error
                if points and tuple(cases) != points[0].comparison.labels:
                    raise ValueError(
                        f"the cases at {parameter}={value} are {list(cases)}, those before "
                        f"{list(points[0].comparison.labels)}: name them alike, in the same order, at each value"
                    )
                comparison = compare(cases, budget_s=budget_s, **amounts, **options)
            except KeyboardInterrupt:
                if not points:
                    raise
                interrupted = True
                break
            except CaseError as error:
                raise CaseError(f"at {parameter}={value}: {error}") from error
            points.append(SweepPoint(value, comparison))
            bar.advance(time.perf_counter() - started)
            interrupted = comparison.interrupted
            if interrupted:
                break
    return keep(
        Sweep(
            over=parameter,
            points=tuple(points),
            environment=here,
            name=name,
            parameters=dict(parameters or {}),
            worked_by="gpu" if any(point.comparison.worked_by == "gpu" for point in points) else "cpu",
            interrupted=interrupted,
        ),
        says,
    )
