"""The claims ledger: what people say about PyTorch, and the verdict that follows from records and from running calls.

Each lesson.yml states its claims, their verdicts, and the rules that the verdicts follow from. `judge` works a rule out
again, and `faults` names every claim whose stated verdict and whose data part. A rule that speaks of GPUs reads records
of GPUs only; as long as there are none, rows that others published decide, and without any the claim is open.

A claim in the newer form has one plain condition instead (:mod:`authoring.expressions`), which names its machines: the
claim is confirmed where it ``holds``, refuted where it does not, and depends where a list of conditions is mixed.
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
from authoring.lesson_files import Claim, LessonFile, Part, load_lessons
from authoring.published import RowSays, word_of
from authoring.verdicts import OTHERWISE, RULED, together
from course_utils.records.kinds.environment import Environment

SPEAKS_OF = {"any": "any machine", "CPU": "a CPU", "CUDA": "a CUDA GPU", "two GPUs": "two CUDA GPUs"}


@dataclass(frozen=True)
class MachineJudgement:
    """What one machine's records say: ``open`` if no condition of the rule holds there."""

    machine: str
    caption: str
    verdict: str
    is_measured: bool = True  # or worked out, or simulated there
    numbers: tuple[tuple[str, str], ...] = ()  # labels and words
    notices: tuple[str, ...] = ()  # what a reader must know, such as code that has changed since
    lesson: str = ""  # whose record it is, if not the claim's own


@dataclass(frozen=True)
class PartJudgement:
    """What follows for one part; the verdict is the word that readers see."""

    part: Part
    verdict: str
    machines: tuple[MachineJudgement, ...] = ()
    outcomes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # how its calls ended, by name
    waits_for: str | None = None  # what is missing for a verdict, in words

    @property
    def disagreeing(self) -> tuple[RowSays, ...]:
        """Published rows that say something else than what we measured or ran ourselves."""
        is_ours = self.verdict in RULED
        return tuple(says for says in self.part.published if is_ours and says.verdict != self.verdict)


@dataclass(frozen=True)
class Judgement:
    """What follows for a claim."""

    claim: Claim
    parts: tuple[PartJudgement, ...]

    @property
    def verdict(self) -> str:
        """What follows from its parts; asides do not count."""
        return together([part.verdict for part in self.parts if not part.part.aside])


def load_claims(lessons: Iterable[LessonFile] | None = None) -> list[Claim]:
    """All claims of the lessons, in the lessons' order."""
    return [claim for lesson in lessons or load_lessons() for claim in lesson.claims]


def judge(claim: Claim, root: Path | None = None) -> Judgement:
    """Work out what follows for a claim from the records below ``root``, and from running its calls.

    Raises:
        EvidenceError: if a rule does not fit a record, or the calls cannot be run. It names the claim.
    """
    try:
        return Judgement(claim, tuple(_judge_part(claim, part, root) for part in claim.parts))
    except EvidenceError as error:
        raise EvidenceError(f"{claim.id}: {error}") from error


def judge_all(lessons: Iterable[LessonFile] | None = None) -> list[Judgement]:
    """Judge every claim of the ledger; all calls run in one process."""
    claims = load_claims(lessons)
    outcomes_of(call for claim in claims for call in claim.calls)
    return [judge(claim) for claim in claims]


def _judge_part(claim: Claim, part: Part, root: Path | None) -> PartJudgement:
    if part.verdict in ("documented", OTHERWISE["documented"]):
        return PartJudgement(part, part.verdict)
    if part.holds:
        return _judge_by_condition(part, root)
    judged = _judge_by_rule(claim, part, root)
    if judged.verdict == "open" and part.published:
        return dataclasses.replace(judged, verdict=word_of(part.published), waits_for=None)
    if judged.verdict == "open" and part.waits_for:
        return dataclasses.replace(judged, waits_for=part.waits_for)
    return judged


def _judge_by_rule(claim: Claim, part: Part, root: Path | None) -> PartJudgement:
    if not part.rule:
        return PartJudgement(part, "open", waits_for=f"lesson {claim.lesson_title}")
    outcomes = outcomes_of(part.calls)
    if not part.experiments:
        verdict = _follows(part, None, root, outcomes)
        waits = "somebody who looks at what its calls do now: no rule knows it" if verdict == "open" else None
        return PartJudgement(part, verdict, (), outcomes, waits)
    machines = _machines_for(part, part.speaks_of, root)
    # What holds on any device may be said by a CPU. But a CPU has no veto against the devices that the claim names.
    if part.speaks_of == "any":
        machines = _machines_for(part, claim.speaks_of, root) or machines
    judged = tuple(_judge_machine(part, machine, root, outcomes) for machine in machines)
    verdicts = {each.verdict for each in judged} - {"open"}
    if verdicts:
        return PartJudgement(part, verdicts.pop() if len(verdicts) == 1 else "depends", judged, outcomes)
    names = ", ".join(f"`{name}`" for name in part.experiments)
    missing = f"{'a clearer' if judged else 'a'} record of {names} on {SPEAKS_OF[part.speaks_of]}"
    return PartJudgement(part, "open", judged, outcomes, missing)


def _judge_by_condition(part: Part, root: Path | None) -> PartJudgement:
    outcomes = outcomes_of(part.calls)
    value, rests_on = expressions.evaluate(part.holds, root, calls=outcomes)
    verdict = _word_for(value, part)
    judged = tuple(
        _judge_condition(part, machine, verdict, rests_on, root, calls=outcomes)
        for machine in dict.fromkeys(machine for _, machine in rests_on)
    )
    return PartJudgement(part, verdict, judged, outcomes)


def _judge_condition(
    part: Part, machine: str, verdict: str, rests_on: expressions.RestsOn, root: Path | None, **names: Any
) -> MachineJudgement:
    """What a machine has to do with the verdict of a condition: its numbers, and whether it may decide at all."""
    read = {name: each for (name, where), each in rests_on.items() if where == machine}
    if wrong := [name for name, each in read.items() if not _is_of(each.record.environment, part.speaks_of)]:
        raise EvidenceError(
            f"speaks of {SPEAKS_OF[part.speaks_of]}, and {', '.join(wrong)} on {machine} is no record of one: "
            "name another machine under holds:, or correct speaks_of:."
        )
    numbers = expressions.numbers_of(part.holds, root, **names)
    shown = tuple((f"`{label}`", words) for label, where, words in numbers if where == machine)
    said = evidence.newest_result(read.values())
    lesson = said.name.partition("/")[0]
    return MachineJudgement(machine, said.caption, verdict, said.is_measured, shown, _changed(read, machine), lesson)


def judged_by(part: Part, machine: str, root: Path) -> MachineJudgement | None:
    """What a plain condition gives on a machine below ``root`` in place of the one that it names.

    None if the machine lacks a record of it, is of another class than is spoken of, or the condition names several.
    """
    with contextlib.suppress(NotRecordedError):
        value, rests_on = expressions.evaluate(part.holds, root, on=machine)
        may_decide = all(_is_of(each.record.environment, part.speaks_of) for each in rests_on.values())
        if may_decide and len(expressions.machines_in(part.holds)) == 1:
            return _judge_condition(part, machine, _word_for(value, part), rests_on, root, on=machine)
    return None


def _word_for(value: Any, part: Part) -> str:
    """The verdict that a condition gives: of a list of conditions, all, some or none may hold."""
    truths = value if isinstance(value, list | tuple) else [value]
    if not truths or not all(isinstance(truth, bool) for truth in truths):
        raise EvidenceError(
            f"{part.holds!r} is {value!r}, and not true or false: write a condition, or a list of them."
        )
    if any(truths):
        return "confirmed" if all(truths) else "depends"
    # A call that is gone refutes the claim, and the ledger has a kinder word for it.
    return part.verdict if part.verdict == "outdated API" else "refuted"


def _machines_for(part: Part, speaks_of: str, root: Path | None) -> list[str]:
    """The machines that may decide: of the class that is spoken of, with records of all that the rule reads."""
    machines = []
    for machine in evidence.machines(root):
        with contextlib.suppress(NotRecordedError):
            experiments = evidence.recorded(part.experiments, machine, root).values()
            # By the record, not by the machine's name: one folder may hold runs with and without the GPU.
            if all(_is_of(each.record.environment, speaks_of) for each in experiments):
                machines.append(machine)
    return machines


def _is_of(environment: Environment, speaks_of: str) -> bool:
    """A CPU never decides about GPUs, and one GPU never about two."""
    if speaks_of == "any":
        return True
    if speaks_of == "CPU":
        return environment.device_kind == "cpu"
    return environment.device_kind == "cuda" and environment.gpu_count >= (2 if speaks_of == "two GPUs" else 1)


def _judge_machine(part: Part, machine: str, root: Path | None, outcomes: Mapping[str, str]) -> MachineJudgement:
    verdict = _follows(part, machine, root, outcomes)
    experiments = evidence.recorded(part.experiments, machine, root)
    notices = [*_changed(experiments, machine)]
    if verdict == "open":
        notices.append("None of the rule's conditions holds: this record is too unclear to decide.")
    numbers = []
    for number in part.evidence:
        with contextlib.suppress(NotRecordedError):  # this machine may not have run what the number comes from
            value = evidence.evaluate(number.show, machine, root)
            numbers.append((number.label, evidence.in_words(value, number.unit)))
    said = evidence.newest_result(experiments.values())
    return MachineJudgement(machine, said.caption, verdict, said.is_measured, tuple(numbers), tuple(notices))


def _changed(experiments: Mapping[str, Recorded], machine: str) -> tuple[str, ...]:
    other_code = [name for name, recorded in experiments.items() if recorded.is_of_other_code]
    return tuple(f"The code of {name} has changed since {machine} recorded it." for name in other_code)


def _follows(part: Part, machine: str | None, root: Path | None, outcomes: Mapping[str, str]) -> str:
    """The first verdict of the rule whose condition holds; ``open`` if none does."""
    for verdict, condition in part.rule:
        holds = evidence.evaluate(condition, machine, root, names={"calls": outcomes})
        if not isinstance(holds, bool):
            raise EvidenceError(f"{condition!r} is {holds!r}, and not true or false.")
        if holds:
            return verdict
    return "open"


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
    for judged in judgement.parts:
        for says in judged.part.published:
            if not says.holds:
                yield (
                    f"that the published row {says.row.id!r} says {says.verdict!r} of {judged.part.what!r}, "
                    f"but its numbers do not bear out {says.condition!r}"
                )
        if judged.verdict != judged.part.verdict:
            which = "" if len(claim.parts) == 1 else f", of the part {judged.part.what!r},"
            reasons = [f"{each.machine} gives {each.verdict!r}" for each in judged.machines]
            reasons = reasons or [f"the call {name!r} {outcome}" for name, outcome in judged.outcomes.items()]
            reasons += [f"it waits for {judged.waits_for}"] if judged.waits_for else []
            reasons += [f"the published row {says.row.id} says {says.verdict!r}" for says in judged.part.published]
            if judged.part.holds:
                read = [
                    f"{name} on {each.machine} is {words}" for each in judged.machines for name, words in each.numbers
                ]
                reasons = [f"holds: {judged.part.holds}", *read, *reasons[len(judged.machines) :]]
            yield f"{judged.part.verdict!r}{which} but its rule gives {judged.verdict!r}: {'; '.join(reasons)}"
