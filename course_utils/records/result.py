"""What all results share: how they show themselves, how they become records, and the registry of their kinds."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


T = TypeVar("T")


class NothingToDrawError(ValueError):
    """A result holds no numbers that a figure could show."""


def compact(value: Any) -> Any:
    """Make a value fit for a record: six significant digits are far below any timer's noise and keep files small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple | list):
        return [compact(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): compact(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    # Parameters may be numpy's numbers, or torch's dtypes and devices.
    return compact(value.tolist()) if hasattr(value, "tolist") else str(value)


def fields_of(result: Any) -> dict[str, Any]:
    """Field names and values, nested results as they are."""
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is of the type that a field is declared with."""
    inner = typing.get_args(hint)
    if hint is Any:
        return True
    if typing.get_origin(hint) is types.UnionType:
        return any(_fits(value, one) for one in inner)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, typing.get_origin(hint) or hint)


def built(cls: type[T], values: Mapping[str, Any]) -> T:
    """Make a result from a record's values.

    Raises:
        TypeError: if a field is missing, unknown, or of another type than it is declared with.
    """
    result = cls(**values)
    for f in dataclasses.fields(cls):
        if not _fits(getattr(result, f.name), _hints(cls)[f.name]):
            raise TypeError(f"{cls.__name__}.{f.name} cannot be {str(values[f.name])[:60]!r}")
    return result


def tuples(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The values with the lists of these names as tuples."""
    return {key: tuple(value) if key in names else value for key, value in values.items()}


def built_of(cls: type[T], row: Sequence[Any]) -> T:
    """Make a result from a row of its fields' values."""
    return built(cls, dict(zip((f.name for f in dataclasses.fields(cls)), row, strict=True)))


class Result:
    """What all results share: how they show themselves, and how they become records."""

    kind: ClassVar[str]

    def to_record(self) -> dict[str, Any]:
        """The result as plain JSON types, raw samples included."""
        raise NotImplementedError

    def __repr__(self) -> str:
        from course_utils.show import text

        return text(self)

    def _repr_html_(self) -> str:
        from course_utils import show as display

        return display.html(self)

    def plot(self, ax: Any = None) -> Figure:
        """Draw the result.

        Args:
            ax: a matplotlib axes to draw into; by default a new figure with machine and date under it.

        Returns:
            The figure. It shows itself in a notebook; ``.savefig(path)`` writes it.
        """
        from course_utils.show import figure

        return figure(self, ax=ax)
