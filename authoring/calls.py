"""Running calls: code that the ledger's claims rest on, and what lessons state of torch, with how it must end.

All codes of a claim or a lesson run in one process of their own, each in a namespace of its own. How each ended is
kept, as with the same Python and torch it ends the same way; what reads the course's own code is run anew.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import NamedTuple, NewType

from filelock import FileLock
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from authoring.expressions import EvidenceError
from course_utils.files import write_whole

Code = NewType("Code", str)  # its lines and spaces count
# A call may set what would disturb others, or load what the page does not need; what it set in torch is set back.
_RUNNER = """
import ast, io, json, sys, warnings
from contextlib import redirect_stderr, redirect_stdout

def value_of(code):
    tree, names = ast.parse(code, "<call>"), {"__name__": "call"}
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<call>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<call>", "eval"), names) if last else None

def set_back():
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.distributions.Distribution.set_default_validate_args(True)  # compiling switches that off
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()

ended = []
for code in json.load(sys.stdin):
    value = ""
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        set_back()
        try:
            value = repr(value_of(code))
        except Exception as error:
            how = [f"raises {type(error).__name__}: {error}"]
        else:
            how = [f"warns {each.category.__name__}: {each.message}" for each in caught]
    ended.append([value, *how])
json.dump(ended, sys.stdout)
"""
_TIMEOUT_S = 300
_KEPT = Path(__file__).resolve().parents[1] / ".cache" / "calls.json"
_READY = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
_ended: dict[str, list[str]] = {}


@dataclass(frozen=True, kw_only=True)
class TorchFact:
    """What a lesson states of torch: code, and how it must end, by the version of torch (``""``: in all).

    The code has `torch`, `nn` and `F`, and what ``before`` defines. It ends with the ``repr`` of its last expression,
    with ``raises TypeError: part of the message`` or with ``warns FutureWarning: part of it``. A ``message`` is one
    that the lesson quotes, of an error or a warning.
    """

    code: Code
    says: str = ""
    before: Code = Code("")
    ends: Mapping[str, str] | None = None
    message: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if bool(self.ends) == bool(self.message) or bool(self.says) == bool(self.message):
            raise ValueError("a fact has says: and ends:, or the message: that the lesson quotes")

    @property
    def whole_code(self) -> str:
        return f"{_READY}{self.before}\n{self.code}"

    def expected(self, torch_version: str) -> str | None:
        """How the code must end, or the message that it must give, with a version of torch; None if nothing is said."""
        stated = (self.ends or self.message or {}).items()
        released = Version(torch_version).base_version  # a nightly 2.15 is one, too
        return next((text for versions, text in stated if SpecifierSet(versions).contains(released)), None)


class Ended(NamedTuple):
    """How code ended: the ``repr`` of its last expression, and the error or the warnings that it gave."""

    value: str
    notes: tuple[str, ...]

    @property
    def how(self) -> str:
        """In a sentence: ``works``, ``warns X: ...`` or ``raises X: ...``; what may follow differs between machines."""
        return re.split(r"(?<=[.!?]) ", self.notes[0])[0] if self.notes else "works"


@functools.cache
def _versions() -> str:
    """What may change how a call ends."""
    packages = ("torch", "lightning", "numpy")
    return str([sys.version, *(each.version for name in packages for each in distributions(name=name))])


def run(codes: Sequence[str]) -> list[Ended]:
    """Run codes that have not been run before, all together in one process, and say how each ended."""
    if any(code not in _ended for code in codes):
        _KEPT.parent.mkdir(exist_ok=True)
        with FileLock(_KEPT.with_suffix(".lock")):  # workers of the tests ask for the same
            _ended.update(_kept())
            if new := list(dict.fromkeys(code for code in codes if code not in _ended)):
                _ended.update(zip(new, _run(new), strict=True))
                ended = {code: how for code, how in _ended.items() if "course_utils" not in code}
                write_whole(_KEPT, json.dumps({_versions(): _kept() | ended}))
    return [Ended(_ended[code][0], tuple(_ended[code][1:])) for code in codes]


def _kept() -> dict[str, list[str]]:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(_KEPT.read_text(encoding="utf-8")).get(_versions(), {})
    return {}


def _run(codes: list[str]) -> list[list[str]]:
    command = [sys.executable, "-c", _RUNNER]
    options = {"capture_output": True, "text": True, "timeout": _TIMEOUT_S, "check": True}
    with tempfile.TemporaryDirectory() as folder:
        try:
            runner = subprocess.run(command, input=json.dumps(codes), cwd=folder, **options)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            reason = ((error.stderr or "").strip().splitlines() or [str(error)])[-1]
            raise EvidenceError(f"the calls cannot be run: {reason}. Run them by hand.") from error
    return [[" ".join(text.split()) for text in ended] for ended in json.loads(runner.stdout)]


def faults(lesson: str, facts: Sequence[TorchFact], torch_version: str | None = None) -> list[str]:
    """One message for each fact of a lesson that this torch does not bear out: what it says, its code, how it ended."""
    torch_version = torch_version or version("torch")
    stated = [(fact, expected) for fact in facts if (expected := fact.expected(torch_version)) is not None]
    ends = run([fact.whole_code for fact, _ in stated])
    return [
        f"{lesson}: {fact.says or 'it quotes a message'}.\n{fact.code.rstrip()}\n"
        f"must end: {expected}\nand ended: {'; '.join(ended.notes) or ended.value}\n"
        "Correct the lesson and the fact in its lesson.yml; where versions of torch part, state both: "
        "ends: {'<2.15': ..., '>=2.15': ...}."
        for (fact, expected), ended in zip(stated, ends, strict=True)
        if not _bears_out(ended, expected, is_message=fact.message is not None)
    ]


def _bears_out(ended: Ended, expected: str, is_message: bool) -> bool:
    expected = " ".join(expected.split())
    if is_message:
        return any(expected in note for note in ended.notes)
    if expected.startswith(("raises ", "warns ")):
        kind, _, part = expected.partition(": ")
        return any(note.startswith(f"{kind}:") and part in note for note in ended.notes)
    return ended.value == expected
