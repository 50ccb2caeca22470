"""The claims ledger: what people say about PyTorch, and the verdict that follows from records and from running calls.

Each lesson.yml states its claims, their verdicts, and one plain condition for each (:mod:`authoring.expressions`) that
names its machines: a claim is confirmed where it ``holds``, refuted where it does not, and depends where a list of
conditions is mixed. `judge` works it out again, and `faults` names every claim whose stated verdict and whose data
part. A claim that speaks of GPUs reads records of GPUs only. Without a condition, rows that others published decide;
without any, the claim is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from authoring import calls, expressions
from authoring.expressions import EvidenceError, RecordedExperiment
from authoring.lesson_files import Claim, LessonFile, load_lessons
from authoring.published import RowSays, word_of
from authoring.verdict_words import RULED
from course_utils.results.environment import Environment

SPEAKS_OF = {"any": "any machine", "CPU": "a CPU", "CUDA": "a CUDA GPU", "two GPUs": "two CUDA GPUs"}


@dataclass(frozen=True)
class MachineEvidence:
    machine: str
    caption: str
    lesson: str  # whose record it is
    numbers: tuple[tuple[str, str], ...]  # labels and words
    notices: tuple[str, ...]  # what a reader must know, such as code that has changed since


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the verdict that follows, and what it follows from."""

    claim: Claim
    verdict: str
    machines: tuple[MachineEvidence, ...] = ()
    outcomes: Mapping[str, str] = field(default_factory=dict)  # how its calls ended, by name

    @property
    def disagreeing(self) -> tuple[RowSays, ...]:
        """Published rows that say something else than what we measured or ran ourselves."""
        is_ours = self.verdict in RULED
        return tuple(says for says in self.claim.published if is_ours and says.verdict != self.verdict)


def load_claims(lessons: Iterable[LessonFile] | None = None) -> list[Claim]:
    return [claim for lesson in lessons or load_lessons() for claim in lesson.claims]


def judge_all(lessons: Iterable[LessonFile] | None = None) -> list[JudgedClaim]:
    """Judge every claim of the ledger; all calls run in one process."""
    claims = load_claims(lessons)
    calls.run([code for claim in claims for code in claim.calls.values()])
    return [judge(claim) for claim in claims]


def judge(claim: Claim) -> JudgedClaim:
    """Work out what follows for a claim from the reference records, and from running its calls."""
    try:
        if claim.holds:
            return _judge_condition(claim)
        if claim.verdict.startswith("documented"):
            return JudgedClaim(claim, claim.verdict)
        return JudgedClaim(claim, word_of(claim.published) if claim.published else "open")
    except EvidenceError as error:
        raise EvidenceError(f"{claim.id}: {error}") from error


def _judge_condition(claim: Claim) -> JudgedClaim:
    ended = calls.run([*claim.calls.values()])
    outcomes = {name: each.how for name, each in zip(claim.calls, ended, strict=True)}
    value, rests_on = expressions.evaluate(claim.holds, calls=outcomes)
    truths = value if isinstance(value, list | tuple) else [value]
    if not truths or not all(isinstance(truth, bool) for truth in truths):
        raise EvidenceError(
            f"{claim.holds!r} is {value!r}, and not true or false: write a condition, or a list of them."
        )
    verdict = ("confirmed" if all(truths) else "depends") if any(truths) else "refuted"
    numbers = [*expressions.numbers_of(claim.holds, calls=outcomes)]
    machines = []
    for machine in dict.fromkeys(machine for _, machine in rests_on):
        read = {name: each for (name, where), each in rests_on.items() if where == machine}
        _check_devices(claim, machine, read)
        said = expressions.newest_result(read.values())
        shown = tuple((f"`{label}`", words) for label, where, words in numbers if where == machine)
        changed = [name for name, each in read.items() if each.is_of_other_code]
        notices = tuple(f"The code of {name} has changed since {machine} recorded it." for name in changed)
        machines.append(MachineEvidence(machine, said.caption, said.name.partition("/")[0], shown, notices))
    return JudgedClaim(claim, verdict, tuple(machines), outcomes)


def _check_devices(claim: Claim, machine: str, read: Mapping[str, RecordedExperiment]) -> None:
    """A CPU never decides about GPUs, and one GPU never about two."""
    if wrong := [name for name, each in read.items() if not _is_of(each.record.environment, claim.speaks_of)]:
        raise EvidenceError(
            f"speaks of {SPEAKS_OF[claim.speaks_of]}, and {', '.join(wrong)} on {machine} is no record of one: "
            "name another machine under holds:, or correct speaks_of:."
        )


def _is_of(environment: Environment, speaks_of: str) -> bool:
    if speaks_of == "any":
        return True
    if speaks_of == "CPU":
        return environment.device_kind == "cpu"
    return environment.device_kind == "cuda" and environment.gpu_count >= (2 if speaks_of == "two GPUs" else 1)


# What parts from the data


_ADVICE = "Correct the verdict and its sentence in lesson.yml and in the lesson, or look at the record."


def faults(judged: Iterable[JudgedClaim]) -> list[str]:
    """Every place in which a stated verdict and the data part: the claim, its sentence, and what follows instead."""
    return [
        f'{each.claim.id} · {each.claim.claim.rstrip(".")}: "{each.claim.sentence}" '
        f"The ledger states {fault}. {_ADVICE}"
        for each in judged
        for fault in _faults_of(each)
    ]


def _faults_of(judged: JudgedClaim) -> Iterator[str]:
    claim = judged.claim
    for says in claim.published:
        if not says.holds:
            yield (
                f"that the published row {says.row.id!r} says {says.verdict!r}, "
                f"but its numbers do not bear out {says.condition!r}"
            )
    if judged.verdict != claim.verdict:
        read = [f"{name} on {each.machine} is {words}" for each in judged.machines for name, words in each.numbers]
        reasons = [f"holds: {claim.holds}", *read] if claim.holds else []
        if not read:
            reasons += [f"the call {name!r} {outcome}" for name, outcome in judged.outcomes.items()]
        reasons += [f"the published row {says.row.id} says {says.verdict!r}" for says in claim.published]
        follows = f"what it rests on gives {judged.verdict!r}"
        yield f"{claim.verdict!r} but {follows}: {'; '.join(reasons) or 'nothing'}"
