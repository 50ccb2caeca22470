"""The kinds of results: one module each. A new kind is a new module here, and its test."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from course_utils.records.result import Result

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

RESULT_TYPES: Mapping[str, type[Result]] = {kind.kind: kind for kind in Result.__subclasses__()}
