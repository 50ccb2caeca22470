"""Records: results as JSON files, one for each lesson and machine, written so that a crash never harms an older one.

The reference records are part of the package (``records/<machine>/``); what a learner records goes to
``results/<machine>/`` beside the package, which git ignores.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.files import clone_root, package_root, write_whole
from course_utils.lesson_notebooks import NEEDS, LessonError, experiments, find_lesson, needs
from course_utils.results.ceilings import Ceilings
from course_utils.results.code_hash import code_hash
from course_utils.results.comparison import Comparison
from course_utils.results.curves import Curves
from course_utils.results.environment import Environment
from course_utils.results.memory_trace import MemoryTrace
from course_utils.results.rank_results import RankResults
from course_utils.results.reading import Reading
from course_utils.results.result import Result, checked_worked_by
from course_utils.results.serialization import compact, structured
from course_utils.results.sweep import Sweep
from course_utils.results.table import Table
from course_utils.results.unrecorded import Several, Unrecorded
from course_utils.show.suggestions import did_you_mean, typed

# Raised by whoever changes what a record holds; `load_lesson` then has to read older files, or the files are rewritten.
SCHEMA_VERSION = 3
_TYPES = (Ceilings, Comparison, Curves, MemoryTrace, RankResults, Reading, Sweep, Table)
RESULT_TYPES: Mapping[str, type[Result]] = {kind.kind: kind for kind in _TYPES}
# A list of numbers or words in indented JSON. No text holds a line end: in JSON it is written as two characters.
_FLAT_LIST = re.compile(r'\[\n\s*((?:"(?:[^"\\]|\\.)*"|[^"\[\]{}])*?)\n\s*\]')
# Kinds of results that draw a recorded run behind what they show, in grey.
_DRAWN_BEHIND = {"comparison", "rank_results", "sweep"}
CODE_HAS_CHANGED = "The experiment's code has changed since this was recorded."


class RecordError(ValueError):
    """A record is missing, damaged or too new. The message says what to do."""


@dataclass(frozen=True)
class Experiment:
    """One experiment in a lesson's record: which code measured it, and the result."""

    name: str
    kind: str  # a key of `RESULT_TYPES`
    code_hash: str  # see `course_utils.results.code_hash`
    data: Mapping[str, Any]  # the result's `to_record`, without its environment


@dataclass(frozen=True)
class LessonRecord:
    """What one machine measured in one lesson, in so many seconds; ``recorded_at`` is an ISO 8601 time, UTC."""

    lesson: str
    environment: Environment
    experiments: Mapping[str, Experiment]
    recorded_at: str
    seconds: float

    def result(self, name: str) -> Any:
        """The result of one experiment."""
        experiment = self.experiments[name]
        try:
            # What does not say what did the work was done by what the machine's lessons measure on.
            as_a_rule = "cpu" if self.environment.device_kind == "cpu" else "gpu"
            worked_by = checked_worked_by(experiment.data.get("worked_by") or as_a_rule)
            here = {"environment": self.environment.to_record(), "worked_by": worked_by}
            return RESULT_TYPES[experiment.kind].from_record({**experiment.data, **here})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(
                f"experiment {name!r} recorded on {self.environment.machine} is damaged ({error}). "
                f"Restore the file from git or run {typed(f'record {self.lesson}')}."
            ) from error


def reference_root() -> Path:
    """Where the reference records are: ``course_utils/records``."""
    return Path(os.environ.get("COURSE_REFERENCE_ROOT") or package_root() / "records")


def results_root() -> Path:
    """Where a learner's own records go: ``COURSE_RESULTS``, or ``results`` in the clone.

    A package that pip installed lies where nobody looks for results: then it is ``results`` in the current folder.
    """
    return Path(os.environ.get("COURSE_RESULTS") or (clone_root() or Path.cwd()) / "results")


def record_path(root: Path, machine: str, lesson: str) -> Path:
    """The file of one lesson's record."""
    return root / machine / f"{lesson}.json"


def write_json(path: Path, data: Any) -> None:
    """Write JSON so that the file is either the old one or the whole new one, whatever happens meanwhile."""
    # First, so that bad data leaves no file behind.
    text = json.dumps(data, indent=1, allow_nan=False, sort_keys=True) + "\n"
    try:
        # A reader of a diff wants to see which experiment has changed, and raw samples are hundreds of lines each.
        write_whole(path, _FLAT_LIST.sub(lambda flat: re.sub(r"\n *", "", flat[0]), text))
    except OSError as error:
        advice = "check that you may write there, or set COURSE_RESULTS to a folder of your own"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = "the disk is full: free some space and run the same command again"
        raise RecordError(
            f"cannot write {path.name} in {path.parent}: {error.strerror}; {advice}. Earlier records are untouched."
        ) from error


def save_lesson(record: LessonRecord, root: Path) -> Path:
    """Write a lesson's record below ``root``, atomically."""
    path = record_path(root, record.environment.machine, record.lesson)
    entries = {name: dataclasses.asdict(experiment) for name, experiment in record.experiments.items()}
    for entry in entries.values():
        del entry["name"]
        entry["data"].pop("environment", None)  # it stands once, below
    content = {
        "schema_version": SCHEMA_VERSION,
        "lesson": record.lesson,
        "recorded_at": record.recorded_at,
        "seconds": round(record.seconds, 1),
        "environment": record.environment.to_record(),
        "experiments": entries,
    }
    write_json(path, content)
    return path


def load_lesson(path: Path) -> LessonRecord:
    """Read a lesson's record; a RecordError if it is missing, damaged or of another version of the course."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if (version := data.pop("schema_version")) != SCHEMA_VERSION:
            raise ValueError(f"it has schema version {version}, and this course reads {SCHEMA_VERSION}")
        data["experiments"] = {name: {"name": name, **entry} for name, entry in data["experiments"].items()}
        return structured(LessonRecord, data)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"the record {path.parent.name}/{path.name} cannot be read: {type(error).__name__}: {error}. Update the "
            f"course (git pull), restore the file from git, or delete it and run {typed(f'record {path.stem}')}."
        ) from error


def machines(root: Path) -> list[str]:
    """Machines that have records below ``root``, sorted."""
    return sorted({path.parent.name for path in root.glob("*/*.json") if not path.name.startswith(".")})


def machine_named(name: str, known: Collection[str], preferred: Sequence[str] = ()) -> str:
    """The machine that a name means: a folder's name, or its beginning.

    Of several that begin so, it is the first of the ``preferred``: another machine of that kind breaks no text.

    Raises:
        RecordError: if there is none, or more than one.
    """
    meant = [name] if name in known else [machine for machine in known if machine.startswith(f"{name}-")]
    if len(meant) > 1:
        meant = [machine for machine in preferred if machine in meant][:1] or meant
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise RecordError(f"{name!r} may be {' or '.join(meant)}: write more of the name.")
    raise RecordError(
        f"there is no machine {name!r}{did_you_mean(name, known)}. Recorded machines: {', '.join(known) or 'none'}."
    )


def records_of(lesson: str, root: Path) -> list[LessonRecord]:
    """Every machine's record of a lesson: accelerators first, then the newest first."""
    records = map(load_lesson, sorted(root.glob(f"*/{lesson}.json")))
    newest_first = sorted(records, key=lambda record: record.recorded_at, reverse=True)
    return sorted(newest_first, key=lambda record: record.environment.device_kind == "cpu")


def recorded(*names: str, machine: str | None = None, says: Callable[[Any], str] | None = None) -> Any:
    """A committed result, shown with the machine and the day that it comes from.

    Args:
        *names: ``lesson/experiment``, for example ``pinned_memory/copy``. Of several, all are shown
            below each other.
        machine: a machine's folder name, or its beginning: ``nvidia-h200``. Of several it is the newest record. By
            default that of a GPU, or of a CPU as long as no GPU run is recorded: the result says which machine it is.
        says: makes the sentence of its card from the result's numbers, instead of the recorded wording; see
            :meth:`Result.saying`. Of several names, each result is asked for its own.

    Returns:
        The result, or of several names a `Several`; of an experiment that the lesson has and no machine has run yet an
        `Unrecorded`, which says so.

    Raises:
        RecordError: if there is no such experiment or machine, or if the record is damaged or too new.

    Example:
        >>> recorded("measuring/known_answers").rounds >= 8
        True
    """
    results = [_recorded(name, machine) for name in names]
    if says is not None:
        results = [result.saying(says) for result in results]
    return results[0] if len(results) == 1 else Several(tuple(results))


def _recorded(name: str, machine: str | None) -> Any:
    root = reference_root()
    records = records_of(name.partition("/")[0], root)
    if machine:
        known = machines(root)
        holding = [record.environment.machine for record in records if name in record.experiments]
        machine = machine_named(machine, known, [*holding, *known])
        records = [record for record in records if record.environment.machine == machine]
    record = next((record for record in records if name in record.experiments), None)
    if record is None:
        if machine is None and (lacking := _needs(name)) is not None:
            return Unrecorded(name, lacking)
        raise RecordError(_why_none(name, machine, root))
    result = record.result(name)
    notes = [CODE_HAS_CHANGED] if code_has_changed(record, name) else []
    return dataclasses.replace(result, notes=(*result.notes, *notes), whose="recorded")


def _why_none(name: str, machine: str | None, root: Path) -> str:
    """Why there is no record of an experiment, on a machine that has records or on any, and what there is."""
    lesson = name.partition("/")[0]
    held = {record.environment.machine: list(record.experiments) for record in records_of(lesson, root)}
    if not held:
        lessons = sorted({path.stem for path in root.glob("*/*.json")})
        return (
            f"there is no record of a lesson {lesson!r}{did_you_mean(lesson, lessons)}. "
            f"Recorded lessons: {', '.join(lessons) or 'none'}. Run {typed(f'record {lesson} --reference')}."
        )
    place = machine if machine in held else next(iter(held))
    return (
        f"no record{f' of {machine}' if machine else ''} holds {name!r}{did_you_mean(name, {*held[place]} - {name})}. "
        f"Lesson {lesson!r} on {place} holds: {', '.join(held[place]) or 'nothing'}."
    )


def _needs(name: str) -> tuple[str, ...] | None:
    """What an experiment of a notebook needs, in words; None if no notebook has such an experiment."""
    try:
        notebook = find_lesson(name.partition("/")[0])
        if name not in experiments(notebook):
            return None
    except LessonError:
        return None
    keys = needs(notebook).get(name, ())
    # Two GPUs are one GPU as well.
    return tuple(NEEDS[key] for key in keys if not (key == "cuda" and "two-gpus" in keys))


def code_has_changed(record: LessonRecord, name: str) -> bool:
    """Whether an experiment's notebook has other code than what was recorded; False where there is no notebook."""
    try:
        return code_hash(find_lesson(record.lesson), name) != record.experiments[name].code_hash
    except (LessonError, OSError):  # a package may come without the lessons
        return False


def keep(result: Any, says: Callable[[Any], str] | None = None) -> Any:
    """Return what was measured here and now, with the recorded run of the same experiment for the grey behind it.

    ``says`` makes the sentence of its card; one that fails is told on the card, and does not reach the record. If it
    has a name and a lesson is recorded, it is written into the folder ``COURSE_RECORD_TO``: at once, so that a lesson
    that fails later still shows what it had.
    """
    folder = os.environ.get("COURSE_RECORD_TO")
    said = result if says is None else result.saying(says)
    if folder and result.name:
        file = Path(folder) / (result.name.replace("/", "__") + ".json")
        kept = said if said.says else result
        write_json(file, {"name": result.name, "kind": result.kind, "data": kept.to_record()})
    behind = None if folder or not result.name else _recorded_run_of(result)
    return dataclasses.replace(said, whose="you", behind=behind)


def alike(a: Any, b: Any) -> bool:
    """Whether two results of one name are of one kind, with the same parameters.

    At other problem sizes (``environment.size``) only their names count; at the same, what both name must be equal.
    """
    ours, theirs = compact(a.parameters), compact(b.parameters)
    if a.kind != b.kind or a.environment.size != b.environment.size:
        return a.kind == b.kind and ours.keys() == theirs.keys()
    return all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())


def _recorded_run_of(result: Any) -> Any | None:
    """The recorded run to draw behind a result: the one with the most cases in common; None if none has any.

    It is found by its name, kind and parameters alone: whoever measures waits for no notebook.
    """
    if result.kind not in _DRAWN_BEHIND:
        return None
    runs = []
    try:
        labels = {fact.label for fact in result.facts()}
        for record in records_of(result.name.partition("/")[0], reference_root()):
            if result.name in record.experiments and alike(other := record.result(result.name), result):
                same_sizes = other.parameters == compact(result.parameters)
                if common := labels & {fact.label for fact in other.facts()}:
                    runs.append((same_sizes, len(common), other))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # a damaged record spoils no measurement
    return max(runs, key=lambda run: run[:2], default=(None,))[-1]
