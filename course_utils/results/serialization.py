"""Results as plain values, for files, and back: what goes in comes out, and nothing is converted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.v import format_exception

T = TypeVar("T")


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


def _number(value: Any, kind: type) -> Any:
    """An int, or a float, from a file: as it is, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int | kind) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not {'a whole' if kind is int else 'a finite'} number")
    return value


def _as_it_is(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


# Turns results into plain values and back. A text where a number belongs is an error.
_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_structure_hook(int, _number)
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook(bool, _as_it_is)
_converter.register_structure_hook(str, _as_it_is)


def structured(cls: type[T], values: Mapping[str, Any]) -> T:
    """Make a dataclass, and all that is in it, from plain values."""
    try:
        return _converter.structure(values, cls)
    except cattrs.BaseValidationError as error:
        raise ValueError("; ".join(cattrs.transform_error(error, format_exception=_what_is_wrong))) from error


def _what_is_wrong(error: BaseException, kind: type | None) -> str:
    return str(error) if isinstance(error, TypeError | ValueError) else format_exception(error, kind)


class Serialized:
    """A dataclass that has a form for files."""

    def to_record(self) -> dict[str, Any]:
        """The result as plain JSON types, raw samples included."""
        return compact(_converter.unstructure(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The result from :meth:`to_record`'s dictionary."""
        return structured(cls, record)

    @classmethod
    def to_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The form that a record has of the fields' plain values, where it is not these."""
        return values

    @classmethod
    def from_file(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields' plain values from the form that a record has."""
        return record


_OF_THIS_RUN = {name: override(omit=True) for name in ("whose", "behind", "whole", "per")}


@_converter.register_unstructure_hook_factory(lambda cls: isinstance(cls, type) and issubclass(cls, Serialized))
def _unstructuring(cls: type[Serialized]) -> Callable[[Serialized], dict[str, Any]]:
    fields_of = make_dict_unstructure_fn(cls, _converter, **_OF_THIS_RUN)
    return lambda result: cls.to_file(fields_of(result))


@_converter.register_structure_hook_factory(lambda cls: isinstance(cls, type) and issubclass(cls, Serialized))
def _structuring(cls: type[Serialized]) -> Callable[[Mapping[str, Any], type[Serialized]], Serialized]:
    build = make_dict_structure_fn(cls, _converter, **_OF_THIS_RUN)
    return lambda record, _: build(cls.from_file(record), cls)
