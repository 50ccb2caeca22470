"""The claims ledger: what people say about PyTorch, and the verdict that follows from records and from running calls.

Each lesson.yml states its claims, their verdicts, and one plain condition for each (:mod:`authoring.expressions`) that
names its machines: a claim is confirmed where it ``holds``, refuted where it does not, and depends where a list of
conditions is mixed. `judge` works it out again, and `faults` names every claim whose stated verdict and whose data
part. A claim that speaks of GPUs reads records of GPUs only. Without a condition, rows that others published decide;
without any, the claim is open.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from authoring import evidence, expressions
from authoring.calls import outcomes_of
from authoring.evidence import EvidenceError, NotRecordedError, Recorded
from authoring.lesson_files import Claim, LessonFile, load_lessons
from authoring.published import RowSays, word_of
from authoring.verdicts import OTHERWISE, RULED
from course_utils.results.environment import Environment

SPEAKS_OF = {"any": "any machine", "CPU": "a CPU", "CUDA": "a CUDA GPU", "two GPUs": "two CUDA GPUs"}


@dataclass(frozen=True)
class MachineJudgement:
    """What one machine's records say."""

    machine: str
    caption: str
    verdict: str
    is_measured: bool = True  # or worked out, or simulated there
    numbers: tuple[tuple[str, str], ...] = ()  # labels and words
    notices: tuple[str, ...] = ()  # what a reader must know, such as code that has changed since
    lesson: str = ""  # whose record it is, if not the claim's own


@dataclass(frozen=True)
class Judgement:
    """What follows for a claim; the verdict is the word that readers see."""

    claim: Claim
    verdict: str
    machines: tuple[MachineJudgement, ...] = ()
    outcomes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # how its calls ended, by name

    @property
    def disagreeing(self) -> tuple[RowSays, ...]:
        """Published rows that say something else than what we measured or ran ourselves."""
        is_ours = self.verdict in RULED
        return tuple(says for says in self.claim.published if is_ours and says.verdict != self.verdict)


def load_claims(lessons: Iterable[LessonFile] | None = None) -> list[Claim]:
    """All claims of the lessons, in the lessons' order."""
    return [claim for lesson in lessons or load_lessons() for claim in lesson.claims]


def judge(claim: Claim, root: Path | None = None) -> Judgement:
    """Work out what follows for a claim from the records below ``root``, and from running its calls.

    Raises:
        EvidenceError: if a rule does not fit a record, or the calls cannot be run. It names the claim.
    """
    try:
        return _judged(claim, root)
    except EvidenceError as error:
        raise EvidenceError(f"{claim.id}: {error}") from error


def judge_all(lessons: Iterable[LessonFile] | None = None) -> list[Judgement]:
    """Judge every claim of the ledger; all calls run in one process."""
    claims = load_claims(lessons)
    outcomes_of(call for claim in claims for call in claim.calls)
    return [judge(claim) for claim in claims]


def _judged(claim: Claim, root: Path | None) -> Judgement:
    if claim.holds:
        outcomes = outcomes_of(claim.calls)
        value, rests_on = expressions.evaluate(claim.holds, root, calls=outcomes)
        verdict = _word_for(value, claim)
        machines = tuple(
            _judge_condition(claim, machine, verdict, rests_on, root, calls=outcomes)
            for machine in dict.fromkeys(machine for _, machine in rests_on)
        )
        return Judgement(claim, verdict, machines, outcomes)
    if claim.verdict in ("documented", OTHERWISE["documented"]):
        return Judgement(claim, claim.verdict)
    return Judgement(claim, word_of(claim.published) if claim.published else "open")


def _judge_condition(
    claim: Claim, machine: str, verdict: str, rests_on: expressions.RestsOn, root: Path | None, **names: Any
) -> MachineJudgement:
    """What a machine has to do with the verdict of a condition: its numbers, and whether it may decide at all."""
    read = {name: each for (name, where), each in rests_on.items() if where == machine}
    if wrong := [name for name, each in read.items() if not _is_of(each.record.environment, claim.speaks_of)]:
        raise EvidenceError(
            f"speaks of {SPEAKS_OF[claim.speaks_of]}, and {', '.join(wrong)} on {machine} is no record of one: "
            "name another machine under holds:, or correct speaks_of:."
        )
    numbers = expressions.numbers_of(claim.holds, root, **names)
    shown = tuple((f"`{label}`", words) for label, where, words in numbers if where == machine)
    said = evidence.newest_result(read.values())
    lesson = said.name.partition("/")[0]
    return MachineJudgement(machine, said.caption, verdict, said.is_measured, shown, _changed(read, machine), lesson)


def judged_by(claim: Claim, machine: str, root: Path) -> MachineJudgement | None:
    """What a plain condition gives on a machine below ``root`` in place of the one that it names.

    None if the machine lacks a record of it, is of another class than is spoken of, or the condition names several.
    """
    with contextlib.suppress(NotRecordedError):
        value, rests_on = expressions.evaluate(claim.holds, root, on=machine)
        may_decide = all(_is_of(each.record.environment, claim.speaks_of) for each in rests_on.values())
        if may_decide and len(expressions.machines_in(claim.holds)) == 1:
            return _judge_condition(claim, machine, _word_for(value, claim), rests_on, root, on=machine)
    return None


def _word_for(value: Any, claim: Claim) -> str:
    """The verdict that a condition gives: of a list of conditions, all, some or none may hold."""
    truths = value if isinstance(value, list | tuple) else [value]
    if not truths or not all(isinstance(truth, bool) for truth in truths):
        raise EvidenceError(
            f"{claim.holds!r} is {value!r}, and not true or false: write a condition, or a list of them."
        )
    if any(truths):
        return "confirmed" if all(truths) else "depends"
    # A call that is gone refutes the claim, and the ledger has a kinder word for it.
    return claim.verdict if claim.verdict == "outdated API" else "refuted"


def _is_of(environment: Environment, speaks_of: str) -> bool:
    """A CPU never decides about GPUs, and one GPU never about two."""
    if speaks_of == "any":
        return True
    if speaks_of == "CPU":
        return environment.device_kind == "cpu"
    return environment.device_kind == "cuda" and environment.gpu_count >= (2 if speaks_of == "two GPUs" else 1)


def _changed(experiments: Mapping[str, Recorded], machine: str) -> tuple[str, ...]:
    other_code = [name for name, recorded in experiments.items() if recorded.is_of_other_code]
    return tuple(f"The code of {name} has changed since {machine} recorded it." for name in other_code)


# What parts from the data


_ADVICE = "Correct the verdict and its sentence in lesson.yml and in the lesson, or look at the record."


def faults(judgements: Iterable[Judgement]) -> list[str]:
    """Every place in which a stated verdict and the data part: the claim, its sentence, and what follows instead."""
    return [
        f'{judgement.claim.id} · {judgement.claim.claim.rstrip(".")}: "{judgement.claim.sentence}" '
        f"The ledger states {fault}. {_ADVICE}"
        for judgement in judgements
        for fault in _faults_of(judgement)
    ]


def _faults_of(judgement: Judgement) -> Iterator[str]:
    claim = judgement.claim
    for says in claim.published:
        if not says.holds:
            yield (
                f"that the published row {says.row.id!r} says {says.verdict!r}, "
                f"but its numbers do not bear out {says.condition!r}"
            )
    if judgement.verdict != claim.verdict:
        read = [f"{name} on {each.machine} is {words}" for each in judgement.machines for name, words in each.numbers]
        reasons = [f"holds: {claim.holds}", *read] if claim.holds else []
        if not read:
            reasons += [f"the call {name!r} {outcome}" for name, outcome in judgement.outcomes.items()]
        reasons += [f"the published row {says.row.id} says {says.verdict!r}" for says in claim.published]
        follows = f"what it rests on gives {judgement.verdict!r}"
        yield f"{claim.verdict!r} but {follows}: {'; '.join(reasons) or 'nothing'}"
