"""The claims ledger: what people say about PyTorch, and the verdict that follows from records and from running calls.

``book/claims.yml`` states each claim, its verdict, and the rule that the verdict follows from. `judge` works the rule
out again, and `faults` names every claim whose stated verdict and whose data part. A rule that speaks of GPUs reads
records of GPUs only; as long as there are none, the claim is open.

Example:
    >>> claims = {claim.id: claim for claim in load_claims()}
    >>> claims["T8"].verdict
    'refuted'
    >>> judge(claims["T8"]).verdict
    'refuted'
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from authoring import evidence
from course_utils.records import store
from course_utils.records.kinds.environment import Environment
from course_utils.records.lessons import LessonError, notebooks_root

VERDICTS = ("confirmed", "depends", "refuted", "outdated API", "documented", "open")
# What a rule may give: "documented" rests on a cited source, and "open" is what remains when no rule holds.
RULED = ("confirmed", "depends", "refuted", "outdated API")
# A bare "documented" beside a claim reads as approval, so what a source contradicts is shown in other words.
DOCUMENTED_OTHERWISE = "documented otherwise"
KINDS = ("speed", "memory", "numerics", "API")
SPEAKS_OF = {
    "any": "any machine",
    "CPU": "a CPU",
    "CUDA": "a CUDA GPU",
    "two GPUs": "two CUDA GPUs",
}
# A claim of several parts holds only if all of them do: the first of these that a part has is the claim's.
_WEAKEST_FIRST = ("refuted", "outdated API", "depends", "documented", "open", "confirmed")
_CALLS_TIMEOUT_S = 120


class ClaimError(ValueError):
    """The ledger cannot be read or judged. The message names the claim and says what to do."""


@dataclass(frozen=True)
class Evidence:
    """A number that a reader of the ledger wants to see.

    Attributes:
        label: what it is, in a few words.
        expression: where it comes from, in the language of :mod:`authoring.evidence`.
        unit: unit of a bare number, as in a table's column; None if the value brings its own.
    """

    label: str
    expression: str
    unit: str | None = None


@dataclass(frozen=True)
class Call:
    """A piece of code that is run to see what PyTorch does today.

    Attributes:
        name: how rules refer to it: ``calls["name"]``.
        code: Python that runs by itself, on a machine without a GPU too.
    """

    name: str
    code: str


@dataclass(frozen=True)
class Part:
    """What is judged by one rule: a whole claim, or one of the things that it says.

    Attributes:
        what: the statement, in our words.
        kind: ``speed``, ``memory``, ``numerics`` or ``API``.
        speaks_of: the class of device whose records may decide: a key of `SPEAKS_OF`.
        verdict: as stated.
        why: why records of that class can decide it.
        rule: pairs of a verdict and an expression; the first that holds decides.
        evidence: the numbers to show.
        calls: what is run; a rule reads how it ended as ``calls["name"]``: ``works``, ``warns FutureWarning: ...`` or
            ``raises TypeError: ...``.
        waits_for: what an open part without a rule waits for, in words.
        aside: whether it is a remark, which the verdict on the claim does not rest on.
        contradicted: of a documented part: whether its sources say otherwise.
        let: what ``{name}`` stands for in `steps`, as pairs in the order of the file.
        steps: the rule as it is written, before ``{name}`` is put in: for people to read.
    """

    what: str
    kind: str
    speaks_of: str
    verdict: str
    why: str = ""
    rule: tuple[tuple[str, str], ...] = ()
    evidence: tuple[Evidence, ...] = ()
    calls: tuple[Call, ...] = ()
    waits_for: str | None = None
    aside: bool = False
    contradicted: bool = False
    let: tuple[tuple[str, str], ...] = ()
    steps: tuple[tuple[str, str], ...] = ()

    @property
    def word(self) -> str:
        """The verdict as readers see it: ``documented otherwise`` if the sources contradict the part."""
        return DOCUMENTED_OTHERWISE if self.contradicted else self.verdict

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments that the rule reads."""
        return tuple(dict.fromkeys(name for _, text in self.rule for name in evidence.experiments_in(text)))


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    Attributes:
        id: for example ``T8``.
        claim: what is claimed, in our words.
        topic: the part of the course that it belongs to.
        lesson: slug of the lesson that judges it.
        lesson_title: number and title of that lesson, for example ``11 · The caching allocator``.
        kind: ``speed``, ``memory``, ``numerics`` or ``API``.
        speaks_of: the class of device that it speaks of: a key of `SPEAKS_OF`.
        verdict: as stated: one of `VERDICTS`.
        sentence: the verdict as one sentence.
        condition: when it holds, in one sentence; empty where there is nothing to add.
        parts: what is judged, each by a rule of its own; one if the claim says one thing.
        sources: Markdown, each with a version or a date.
        contradicted: of a documented claim: whether its sources say otherwise.
    """

    id: str
    claim: str
    topic: str
    lesson: str
    lesson_title: str
    kind: str
    speaks_of: str
    verdict: str
    sentence: str
    condition: str
    parts: tuple[Part, ...]
    sources: tuple[str, ...] = ()
    contradicted: bool = False

    @property
    def word(self) -> str:
        """The verdict as readers see it: ``documented otherwise`` if the sources contradict the claim."""
        return DOCUMENTED_OTHERWISE if self.contradicted else self.verdict

    @property
    def rule(self) -> tuple[tuple[str, str], ...]:
        """The rules of all parts, in order."""
        return tuple(rule for part in self.parts for rule in part.rule)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The numbers of all parts, in order."""
        return tuple(number for part in self.parts for number in part.evidence)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of all parts, in order."""
        return tuple(call for part in self.parts for call in part.calls)

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments that its rules read."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.experiments))

    @property
    def still_open(self) -> tuple[Part, ...]:
        """The parts that are stated as open."""
        return tuple(part for part in self.parts if part.verdict == "open")


@dataclass(frozen=True)
class MachineJudgement:
    """What one machine's records say.

    Attributes:
        machine: folder name of its records.
        caption: machine, software and day, in one line.
        date: day of the record, ISO 8601.
        verdict: what the rule gives there; ``open`` if none of its conditions holds.
        numbers: the evidence as pairs of label and words.
        notices: what a reader must know, such as code that has changed since.
    """

    machine: str
    caption: str
    date: str
    verdict: str
    numbers: tuple[tuple[str, str], ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartJudgement:
    """What follows for one part.

    Attributes:
        part: the part.
        verdict: what follows from its rule.
        machines: what each machine's records say.
        outcomes: how its calls ended, by name.
        waits_for: what is missing for a verdict, in words; empty if there is one.
    """

    part: Part
    verdict: str
    machines: tuple[MachineJudgement, ...] = ()
    outcomes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What follows for a claim.

    Attributes:
        claim: the claim.
        parts: what follows for each of its parts.
    """

    claim: Claim
    parts: tuple[PartJudgement, ...]

    @property
    def verdict(self) -> str:
        """The claim holds only as far as its weakest part does; asides do not count."""
        return _weakest({part.verdict for part in self.parts if not part.part.aside})

    @property
    def machines(self) -> tuple[MachineJudgement, ...]:
        """Each machine once, with its word on the whole claim (``open`` if it lacks a part) and all numbers."""
        counted = [part for part in self.parts if not part.part.aside]
        names = dict.fromkeys(one.machine for part in counted for one in part.machines)
        return tuple(self._on(name, counted) for name in names)

    @staticmethod
    def _on(machine: str, parts: Sequence[PartJudgement]) -> MachineJudgement:
        said = [one for part in parts for one in part.machines if one.machine == machine]
        verdicts = {one.verdict for one in said}
        for part in parts:
            if all(one.machine != machine for one in part.machines):
                # What needs no record, a call or a source, holds for every machine.
                verdicts.add("open" if part.part.experiments else part.verdict)
        return dataclasses.replace(
            said[0],
            verdict=_weakest(verdicts),
            numbers=tuple(number for one in said for number in one.numbers),
            notices=tuple(dict.fromkeys(notice for one in said for notice in one.notices)),
        )

    @property
    def waits_for(self) -> tuple[str, ...]:
        """What is missing for the parts that are open."""
        return tuple(dict.fromkeys(words for part in self.parts for words in part.waits_for))

    @property
    def agree(self) -> bool:
        """Whether the machines that say anything say the same, part by part."""
        return all(len({one.verdict for one in part.machines} - {"open"}) <= 1 for part in self.parts)


def _weakest(verdicts: set[str]) -> str:
    return next(verdict for verdict in _WEAKEST_FIRST if verdict in verdicts)


def claims_path() -> Path:
    """Where the ledger is: ``book/claims.yml`` beside the package."""
    return store.package_root().parent / "book" / "claims.yml"


def load_claims(path: Path | None = None) -> list[Claim]:
    """Read the ledger.

    Args:
        path: the file; ``book/claims.yml`` by default.

    Returns:
        All claims, in the order of the file.

    Raises:
        ClaimError: if the file cannot be read, or an entry is incomplete or names something that does not exist.

    Example:
        >>> len(load_claims())
        52
    """
    file = claims_path() if path is None else Path(path)
    entries = _read_yaml(file)
    lessons = {
        lesson["slug"]: (part["title"], f"{lesson['number']:02d} · {lesson['title']}")
        for part in _read_yaml(claims_path().with_name("lessons.yml"))["parts"]
        for lesson in part["lessons"]
    }
    if not isinstance(entries, list):
        raise ClaimError(f"{file.name} is a list of claims, one entry for each; start each with `- id:`.")
    claims = [_claim(entry, lessons) for entry in entries]
    ids = [claim.id for claim in claims]
    if repeated := sorted({one for one in ids if ids.count(one) > 1}):
        raise ClaimError(f"{file.name} has {repeated[0]} twice: give each claim an id of its own.")
    return claims


def _read_yaml(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClaimError(f"{file.name} cannot be read: {error}. Mend it, or restore it from git.") from error


_PART_KEYS = {"kind", "speaks_of", "verdict", "contradicted", "why", "let", "rule", "evidence", "calls", "waits_for"}
_CLAIM_KEYS = {"id", "claim", "lesson", "sentence", "condition", "parts", "sources"} | _PART_KEYS


def _claim(entry: Any, lessons: Mapping[str, tuple[str, str]]) -> Claim:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise ClaimError(f"each entry of the ledger is a mapping with an id; this one is not: {str(entry)[:80]!r}.")
    where = entry["id"]
    _check_keys(where, entry, _CLAIM_KEYS, ("claim", "lesson", "kind", "speaks_of", "verdict"))
    if entry["lesson"] not in lessons:
        raise ClaimError(f"{where}: book/lessons.yml has no lesson {entry['lesson']!r}.")
    topic, title = lessons[entry["lesson"]]
    if "parts" in entry:
        if doubled := (_PART_KEYS - {"kind", "speaks_of", "verdict", "contradicted"}) & entry.keys():
            raise ClaimError(f"{where} has parts: move its {', '.join(sorted(doubled))} into one of them.")
        inherited = {key: entry[key] for key in ("kind", "speaks_of")}
        parts = tuple(_part(where, inherited | part) for part in entry["parts"])
    else:
        parts = (_part(where, {key: entry[key] for key in _PART_KEYS & entry.keys()} | {"what": entry["claim"]}),)
    if not any(part.rule for part in parts) and entry["verdict"] == "open":
        entry = {"sentence": f"Open: lesson {title} will judge it."} | entry
    _check_keys(where, entry, _CLAIM_KEYS, ("sentence",))
    claim = Claim(
        **{key: _text(where, key, entry[key]) for key in ("id", "claim", "lesson", "sentence")},
        **{key: entry[key] for key in ("kind", "speaks_of", "verdict")},
        condition=_text(where, "condition", entry.get("condition", "")),
        topic=topic,
        lesson_title=title,
        parts=parts,
        sources=tuple(_text(where, "sources", source) for source in entry.get("sources", ())),
        contradicted=entry.get("contradicted", False),
    )
    _check_words(where, claim)
    if "documented" in {claim.verdict, *(part.verdict for part in parts)} and not claim.sources:
        raise ClaimError(f"{where} is documented: name the sources, each with its version or date.")
    return claim


def _part(where: str, entry: dict[str, Any]) -> Part:
    _check_keys(where, entry, _PART_KEYS | {"what", "aside"}, ("what", "kind", "speaks_of", "verdict"))
    rule, steps = [], []
    for step in entry.get("rule", ()):
        if not isinstance(step, dict) or len(step) != 1:
            raise ClaimError(f"{where}: a step of a rule is `verdict: expression`, got {step!r}.")
        ((verdict, text),) = step.items()
        if verdict not in RULED:
            raise ClaimError(f"{where}: a rule gives one of {', '.join(RULED)}; it cannot give {verdict!r}.")
        # What else may happen is spelled as a word: a bare True in the file would read as a slip.
        rule.append((verdict, "True" if text == "otherwise" else _expanded(where, text, entry.get("let", {}))))
        steps.append((verdict, _text(where, "an expression", text)))
    shown = []
    for number in entry.get("evidence", ()):
        _check_keys(where, number, {"label", "show", "unit"}, ("label", "show"))
        expression = _expanded(where, number["show"], entry.get("let", {}))
        shown.append(Evidence(number["label"], expression, number.get("unit")))
    part = Part(
        what=_text(where, "what", entry["what"]),
        rule=tuple(rule),
        evidence=tuple(shown),
        calls=tuple(Call(name, code) for name, code in entry.get("calls", {}).items()),
        **{key: entry[key] for key in ("kind", "speaks_of", "verdict")},
        why=_text(where, "why", entry.get("why", "")),
        waits_for=entry.get("waits_for"),
        aside=entry.get("aside", False),
        contradicted=entry.get("contradicted", False),
        let=tuple((name, _text(where, name, text)) for name, text in entry.get("let", {}).items()),
        steps=tuple(steps),
    )
    _check_words(where, part)
    try:
        for text in (*(text for _, text in part.rule), *(number.expression for number in part.evidence)):
            evidence.experiments_in(text)
    except evidence.EvidenceError as error:
        raise ClaimError(f"{where}: {error}") from error
    if part.verdict in RULED and not part.rule:
        raise ClaimError(f"{where} is stated as {part.verdict}, and no rule says why: add one, or make it open.")
    return part


def _expanded(where: str, text: Any, let: Mapping[str, Any]) -> str:
    """An expression with what ``let`` defines put in for ``{name}``; the language itself has no braces."""
    text = _text(where, "an expression", text)
    for _ in let:  # what is put in may hold names itself, in any order
        for name, stands_for in let.items():
            text = text.replace(f"{{{name}}}", _text(where, name, stands_for))
    return text


def _check_keys(where: str, entry: Any, known: set[str], needed: Sequence[str]) -> None:
    if not isinstance(entry, dict):
        raise ClaimError(f"{where}: expected a mapping, got {str(entry)[:80]!r}.")
    if unknown := sorted(entry.keys() - known):
        raise ClaimError(f"{where} has {unknown[0]!r}, which nothing reads; there are: {', '.join(sorted(known))}.")
    if missing := [key for key in needed if key not in entry]:
        raise ClaimError(f"{where} lacks {missing[0]!r}.")


def _check_words(where: str, entry: Claim | Part) -> None:
    for word, allowed in ((entry.verdict, VERDICTS), (entry.kind, KINDS), (entry.speaks_of, SPEAKS_OF)):
        if word not in allowed:
            raise ClaimError(f"{where} says {word!r}; it may be one of: {', '.join(allowed)}.")
    if entry.contradicted and entry.verdict != "documented":
        raise ClaimError(f"{where} is {entry.verdict} and contradicted; only what is documented has sources that may.")


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ClaimError(f"{where}: {key} is a text, got {value!r}; put it in quotes.")
    return " ".join(value.split())


def judge(claim: Claim, root: Path | None = None) -> Judgement:
    """Work out what follows for a claim from the records, and from running its calls.

    Args:
        claim: from `load_claims`.
        root: the folder of reference records; the committed ones by default.

    Returns:
        The verdict that follows, with what each machine says and what is missing.

    Raises:
        ClaimError: if a rule does not fit a record, or the calls cannot be run.
    """
    return Judgement(claim, tuple(_judge_part(claim, part, root) for part in claim.parts))


def _judge_part(claim: Claim, part: Part, root: Path | None) -> PartJudgement:
    if part.verdict == "documented":
        return PartJudgement(part, "documented")
    if not part.rule:
        return PartJudgement(part, "open", waits_for=(part.waits_for or f"lesson {claim.lesson_title}",))
    ended = outcomes_of(part.calls)
    if not part.experiments:
        verdict = _follows(claim, part, None, root, ended)
        waits = () if verdict != "open" else ("somebody who looks at what its calls do now: no rule knows it",)
        return PartJudgement(part, verdict, (), ended, waits)
    machines = _machines_for(part, root)
    # What holds on any device may be said by a CPU. But a CPU has no veto against the devices that the claim names.
    if part.speaks_of == "any":
        machines = _machines_for(dataclasses.replace(part, speaks_of=claim.speaks_of), root) or machines
    judged = tuple(_judge_machine(claim, part, machine, root, ended) for machine in machines)
    found = {one.verdict for one in judged} - {"open"}
    if found:
        return PartJudgement(part, found.pop() if len(found) == 1 else "depends", judged, ended)
    names = ", ".join(f"`{name}`" for name in part.experiments)
    missing = f"{'a clearer' if judged else 'a'} record of {names} on {SPEAKS_OF[part.speaks_of]}"
    return PartJudgement(part, "open", judged, ended, (missing,))


def _machines_for(part: Part, root: Path | None) -> list[str]:
    """Machines of the class that the part speaks of, on which all experiments of its rule are recorded."""
    kind = {"any": None, "CPU": "cpu"}.get(part.speaks_of, "cuda")
    return [machine for machine in evidence.machines(root, kind) if _may_decide(part, machine, root)]


def _may_decide(part: Part, machine: str, root: Path | None) -> bool:
    """Whether a machine may decide. A CPU never decides about GPUs, and one GPU never about two."""
    folder = store.reference_root() if root is None else root
    if not all(store.record_path(folder, machine, lesson).is_file() for lesson in _lessons_of(part)):
        return False
    try:
        environments = [evidence.environment_of(name, machine, root) for name in part.experiments]
    except evidence.NotRecordedError:
        return False
    # By the record, not by the machine's name: one folder may hold runs with and without the GPU.
    return all(_is_of(environment, part.speaks_of) for environment in environments)


def _lessons_of(part: Part) -> set[str]:
    return {name.partition("/")[0] for name in part.experiments}


def _is_of(environment: Environment, speaks_of: str) -> bool:
    if speaks_of == "any":
        return True
    if speaks_of == "CPU":
        return environment.device_kind == "cpu"
    return environment.device_kind == "cuda" and environment.gpu_count >= (2 if speaks_of == "two GPUs" else 1)


def _judge_machine(
    claim: Claim, part: Part, machine: str, root: Path | None, ended: Mapping[str, str]
) -> MachineJudgement:
    verdict = _follows(claim, part, machine, root, ended)
    read = [text for _, text in part.rule if evidence.experiments_in(text)]
    said = dict.fromkeys(notice for text in read for notice in evidence.notices(text, machine, root))
    if verdict == "open":
        said["None of the rule's conditions holds: this record is too unclear to decide."] = None
    numbers = []
    for number in part.evidence:
        try:
            value = evidence.evaluate(number.expression, machine, root)
            numbers.append((number.label, evidence.in_words(value, number.unit)))
        except evidence.NotRecordedError:
            continue  # this machine has not run what the number comes from
        except evidence.EvidenceError as error:
            raise ClaimError(f"{claim.id}: its number {number.label!r} cannot be read: {error}") from error
    environment = max((evidence.environment_of(text, machine, root) for text in read), key=lambda found: found.date)
    return MachineJudgement(machine, environment.caption, environment.date, verdict, tuple(numbers), tuple(said))


def _follows(claim: Claim, part: Part, machine: str | None, root: Path | None, ended: Mapping[str, str]) -> str:
    """The first verdict of the rule whose condition holds; ``open`` if none does."""
    for verdict, condition in part.rule:
        try:
            holds = evidence.evaluate(condition, machine, root, calls=ended)
        except evidence.EvidenceError as error:
            raise ClaimError(f"{claim.id}: its rule for {verdict!r} cannot be worked out: {error}") from error
        if not isinstance(holds, bool):
            raise ClaimError(f"{claim.id}: its rule for {verdict!r} is {holds!r}, and not true or false.")
        if holds:
            return verdict
    return "open"


# Running calls


# Run in a process of its own: a call may set what would disturb others, or load what the page does not need.
_RUNNER = """
import io, json, sys, warnings
from contextlib import redirect_stderr, redirect_stdout
ended = []
for code in json.load(sys.stdin):
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        try:
            exec(compile(code, "<call>", "exec"), {"__name__": "call"})
        except Exception as error:
            ended.append(f"raises {type(error).__name__}: {error}")
        else:
            told = [f"warns {one.category.__name__}: {one.message}" for one in caught]
            ended.append(told[0] if told else "works")
json.dump(ended, sys.stdout)
"""


def outcomes_of(calls: Iterable[Call]) -> dict[str, str]:
    """Run calls, all those that have not been run before in one process, and say how each ended.

    Args:
        calls: of one claim or of many.

    Returns:
        By name: ``works``, ``warns FutureWarning: ...`` (the first warning) or ``raises TypeError: ...``, in one line.

    Raises:
        ClaimError: if the process that runs them ends, or does not end.

    Example:
        >>> outcomes_of([Call("one", "1 + 1"), Call("two", "1 / 0")])
        {'one': 'works', 'two': 'raises ZeroDivisionError: division by zero'}
    """
    wanted = list(calls)
    new = list(dict.fromkeys(call.code for call in wanted if call.code not in _ended))
    if new:
        _ended.update(zip(new, _run(new), strict=True))
    return {call.name: _ended[call.code] for call in wanted}


# A call ends the same way as long as the process lives: torch does not change under it.
_ended: dict[str, str] = {}


def _run(codes: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _RUNNER],
                input=json.dumps(codes),
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=_CALLS_TIMEOUT_S,
                check=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = (error.stderr or "").strip().splitlines()[-1:] or [str(error)]
            raise ClaimError(
                f"the calls of the ledger cannot be run: {said[0]}. Run them by hand to see why."
            ) from error
    return [" ".join(one.split()) for one in json.loads(done.stdout)]


# What parts from the data


def faults(claims: Iterable[Claim], root: Path | None = None) -> list[str]:
    """Every place in which a stated verdict and the data part.

    Args:
        claims: from `load_claims`.
        root: the folder of reference records; the committed ones by default.

    Returns:
        A text for each fault: the claim, its sentence of verdict, and what follows, machine by machine. Empty if the
        records and the calls bear all of it out.

    Raises:
        ClaimError: if the calls cannot be run.
    """
    claims = list(claims)
    outcomes_of(call for claim in claims for call in claim.calls)  # all in one process
    found = []
    for claim in claims:
        try:
            judgement = judge(claim, root)
        except ClaimError as error:
            found.append(f"{_named(claim)} {error}")
            continue
        for one in judgement.parts:
            if one.part.verdict == "open" and not (one.part.rule or one.part.waits_for) and _stands(claim.lesson):
                found.append(f"{_named(claim)} It waits for lesson {claim.lesson_title}, which stands: add a rule.")
            if one.verdict != one.part.verdict:
                what = "" if len(claim.parts) == 1 else f", of the part {one.part.what!r},"
                found.append(f"{_named(claim)} The ledger states {one.part.verdict!r}{what} but {_why(one)}. {_ADVICE}")
        if judgement.verdict != claim.verdict and len(claim.parts) > 1:
            parts = "; ".join(f"{one.part.what}: {one.verdict}" for one in judgement.parts if not one.part.aside)
            found.append(
                f"{_named(claim)} The ledger states {claim.verdict!r} for the whole, but from its parts follows "
                f"{judgement.verdict!r} ({parts}). {_ADVICE}"
            )
    return found


def _stands(lesson: str) -> bool:
    """Whether the lesson's notebook exists."""
    try:
        return any(notebooks_root().glob(f"[0-9][0-9]_{lesson}.ipynb"))
    except LessonError:
        return False  # the package may be installed without the notebooks


_ADVICE = "Correct the verdict and its sentence in book/claims.yml and in the lesson, or look at the record."


def _named(claim: Claim) -> str:
    return f'{claim.id} · {claim.claim.rstrip(".")}: "{claim.sentence}"'


def _why(one: PartJudgement) -> str:
    """What follows for a part, and from what."""
    said = [f"{each.machine} gives {each.verdict!r}" for each in one.machines]
    said += [f"the call {name!r} {ended}" for name, ended in one.outcomes.items() if not one.machines]
    said += [f"it waits for {words}" for words in one.waits_for]
    return f"its rule gives {one.verdict!r}: {'; '.join(said) or 'it has no rule'}"
