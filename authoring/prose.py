"""Figures in texts: filled from records, and checked against them.

In README.md, the book's pages and the Markdown cells of lessons, a figure stands between two comments, which no reader
sees::

    On two cores, scaling takes <!--= ddp/scaling.comparison("steps")["DDP, 2 ranks"] @ MACHINE -->...<!--/-->.

The first comment says where the figure comes from: an expression over records (:mod:`authoring.evidence`) and the
machine, which may be left out where one machine alone has recorded it. ``claim T8`` gives a verdict of the claims
ledger, and ``time 04`` the minutes that a lesson takes.

``python -m authoring.prose --write`` fills in what stands between the comments, ``--check`` says what is out of
date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from authoring import evidence
from authoring.sentences import (
    BLANK,
    Passage,
    code_blanked,
    one_line,
    passages,
    sentence_at,
    sentences,
    text_files,
)
from course_utils.records import store
from course_utils.records.lessons import Lesson, LessonError, experiments, find_lesson, find_lessons
from course_utils.records.notebook_files import dumped, read_notebook

if TYPE_CHECKING:
    from authoring.claims import Claim

WORDS_A_MINUTE = 150  # slower than a novel: code is read, too, and cells are run one by one
NOT_RECORDED = "not recorded"

_MARKER = re.compile(r"<!--=(?P<what>.*?)-->(?P<text>.*?)<!--/-->", re.S)
_OPENING = re.compile(r"<!--=|<!--/-->")
_MACHINE = re.compile(r"(?P<expression>.+?)\s+@\s+(?P<machine>[\w.+-]+)", re.S)
_EXERCISE = re.compile(r"^#+ Exercise \d+ · .+ · (?P<minutes>\d+) min\s*$", re.M)
_VERDICT_LINE = re.compile(r"\*\*(?P<id>[A-Z]\d+) · (?P<claim>[^*\n]+(?:\n[^*\n]+)*): (?P<verdict>[^*:]+?)\.\*\*")
_VERDICT_START = re.compile(r"^(?:[-*] )?\*\*(?P<id>[A-Z]\d+)\b", re.M)
_MEASURED = re.compile(r"\b(?:FASTER|SLOWER|SAME)\b")
_EXPERIMENT = re.compile(r"\b[a-z]\w*/[a-z]\w*\b")
_CONDITION = re.compile(r"\b(?:where|if|when|whether|until|unless|as long as|which|how)\b|\?", re.I)


class ProseError(ValueError):
    """A marker that cannot be filled. The message says what to do."""


class UnrecordedError(ProseError):
    """What a marker asks for is not recorded."""


@dataclass(frozen=True)
class Marker:
    """A figure in a text.

    Attributes:
        what: where it comes from.
        text: what stands there now.
        start: where the first comment begins in the text.
        inner: where the figure begins.
        outer: where the figure ends.
    """

    what: str
    text: str
    start: int
    inner: int
    outer: int


def markers(text: str) -> list[Marker]:
    """The figures of a text.

    Args:
        text: Markdown. What stands in code is no marker.

    Returns:
        In order.

    Example:
        >>> [(one.what, one.text) for one in markers("It is <!--= claim T8 -->refuted<!--/-->, not `<!--= x -->`.")]
        [('claim T8', 'refuted')]
    """
    blanked = _code_without_comments(text)
    return [
        Marker(one_line(match["what"]), match["text"], match.start(), match.start("text"), match.end("text"))
        for match in _MARKER.finditer(text)
        if blanked[match.start()] != BLANK
    ]


def _code_without_comments(text: str) -> str:
    """The text with code blanked; a backtick inside of a marker's expression begins no code."""
    hidden = re.sub(r"(?<=<!--=).*?(?=-->)", lambda match: match[0].replace("`", "'"), text, flags=re.S)
    return code_blanked(hidden)


# What a marker stands for


def reading_minutes(texts: Iterable[str]) -> float:
    """How long it takes to read texts and code, aloud or not.

    Args:
        texts: Markdown or code. Comments that no reader sees and the addresses of links do not count.

    Returns:
        Minutes, by `WORDS_A_MINUTE`.

    Example:
        >>> reading_minutes(["word " * 75, "<!-- hidden -->[one](file.md) " * 75])
        1.0
    """
    shown = (re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", text, flags=re.S) for text in texts)
    return sum(len(re.findall(r"\S*\w\S*", text)) for text in shown) / WORDS_A_MINUTE


def lesson_minutes(lesson: Lesson, records: Path | None = None) -> float:
    """How long a lesson takes: reading it, its exercises, and one run.

    Args:
        lesson: which.
        records: where the reference records are; `reference_root` by default.

    Returns:
        Minutes: the words of its text and of its code by `WORDS_A_MINUTE`, the minutes that its exercises name, and the
        run of the slowest machine that has recorded it.

    Raises:
        UnrecordedError: if no machine has recorded it.
    """
    texts = [cell["source"] for cell in read_notebook(lesson.path)["cells"]]
    exercises = sum(int(match["minutes"]) for text in texts for match in _EXERCISE.finditer(text))
    runs = store.records_of(lesson.slug, records or store.reference_root())
    if not runs:
        raise UnrecordedError(f"no machine has recorded {lesson.slug}. Run `course record {lesson.slug} --reference`.")
    return reading_minutes(texts) + exercises + max(run.seconds for run in runs) / 60


def _time(number: str, records: Path | None) -> str:
    try:
        lesson = find_lesson(number)
    except LessonError as error:
        raise ProseError(str(error)) from error
    return f"{max(5, 5 * round(lesson_minutes(lesson, records) / 5))} minutes"


def _claim(identifier: str, records: Path | None) -> str:
    from authoring.claims import load_claims

    del records
    claims = {claim.id: claim for claim in load_claims()}
    if identifier not in claims:
        raise ProseError(f"the ledger has no claim {identifier!r}; it has: {', '.join(claims)}.")
    return claims[identifier].word


def _expression(what: str, records: Path | None) -> str:
    match = _MACHINE.fullmatch(what)
    try:
        names = evidence.experiments_in(match["expression"] if match else what)
        if not names:
            raise ProseError(f"{what!r} reads no experiment: such a number needs no marker.")
        if match:
            return evidence.in_words(evidence.evaluate(match["expression"], match["machine"], records))
        found: dict[str, object] = {}
        for machine in evidence.machines(records):
            try:
                found[machine] = evidence.evaluate(what, machine, records)
            except evidence.NotRecordedError:
                continue
        if len(found) > 1:
            raise ProseError(f"several machines have recorded it, so name one: {what} @ {next(iter(found))}.")
        if not found:
            lessons = " ".join(dict.fromkeys(name.partition("/")[0] for name in names))
            raise UnrecordedError(
                f"no machine has recorded {', '.join(names)}. Run `course record {lessons} --reference`."
            )
        return evidence.in_words(next(iter(found.values())))
    except evidence.NotRecordedError as error:
        raise UnrecordedError(str(error)) from error
    except evidence.EvidenceError as error:
        raise ProseError(str(error)) from error


_KINDS: Mapping[str, Callable[[str, Path | None], str]] = {"time": _time, "claim": _claim}


def figure(what: str, records: Path | None = None) -> str:
    """The words that a marker stands for.

    Args:
        what: ``EXPRESSION``, ``EXPRESSION @ MACHINE``, ``claim T8`` or ``time 04``.
        records: where the reference records are; `reference_root` by default.

    Returns:
        The words.

    Raises:
        UnrecordedError: if it is not recorded.
        ProseError: if it cannot be worked out.

    Example:
        >>> figure("measuring/known_answers.rounds >= 8 @ amd-epyc-2-cores")
        'yes'
    """
    kind, _, rest = what.partition(" ")
    if kind in _KINDS and re.fullmatch(r"\w+", rest):
        return _KINDS[kind](rest, records)
    return _expression(what, records)


def fill(text: str, records: Path | None = None) -> tuple[str, list[tuple[Marker, str]]]:
    """A text with its figures as the records have them today.

    Args:
        text: Markdown.
        records: where the reference records are; `reference_root` by default.

    Returns:
        The text, and with each marker that cannot be filled the reason. What is not recorded says so in the text;
        where a marker itself is wrong, the text stays.
    """
    problems, pieces, end = [], [], 0
    for marker in markers(text):
        try:
            words = figure(marker.what, records)
        except UnrecordedError as error:
            words = NOT_RECORDED
            problems.append((marker, str(error)))
        except ProseError as error:
            words = marker.text
            problems.append((marker, str(error)))
        pieces += [text[end : marker.inner], words]
        end = marker.outer
    return "".join([*pieces, text[end:]]), problems


def _misplaced(text: str) -> list[tuple[int, str]]:
    """Where the comments of a marker do not make one, or would show."""
    blanked = _code_without_comments(text)
    whole = {place for one in markers(text) for place in (one.start, one.outer)}
    found = []
    for match in _OPENING.finditer(text):
        if blanked[match.start()] == BLANK:
            found.append((match.start(), "a marker in code, which would show as it stands. Put it outside."))
        elif match.start() not in whole:
            found.append((match.start(), "half a marker. It is written <!--= what -->figure<!--/-->."))
    for one in markers(text):
        line = text[text.rfind("\n", 0, one.start) + 1 : one.start]
        if not re.sub(r"^\s*(?:(?:[-*+>]|\d+[.)])\s+)*", "", line):
            # Markdown takes a line that begins with a comment for HTML, and shows the rest of it as it stands.
            found.append((one.start, "a marker at the beginning of a line. Put a word before it."))
        if "--" in one.what or one.what.endswith("-"):
            found.append((one.start, "a marker with two dashes in it. They may end the comment; write it another way."))
        if "\n\n" in text[one.start : one.outer] or _OPENING.search(one.text):
            found.append((one.start, "a marker without its end. Put <!--/--> after the figure."))
    return found


def _shown(text: str, position: int) -> str:
    """The sentence at a place as a reader sees it."""
    return one_line(re.sub(r"<!--.*?-->", "", sentence_at(text, position).text))


def _faults(passage: Passage, records: Path | None) -> list[str]:
    text = passage.text
    if "<!--=" not in text and "<!--/-->" not in text:
        return []

    def fault(position: int, said: str) -> str:
        return f'{passage.where}: "{_shown(text, position)}": {said}'

    found = [fault(place, said) for place, said in _misplaced(text)]
    filled, problems = fill(text, records)
    found += [fault(marker.start, said) for marker, said in problems]
    for before, after in zip(markers(text), markers(filled), strict=True):
        if before.text != after.text and after.text != NOT_RECORDED:
            found.append(
                fault(
                    before.start,
                    f"it says {before.text!r}, and the records give {after.text!r}. Run `python -m authoring.prose "
                    "--write`, and read the sentence again.",
                )
            )
    return found


def check(files: Iterable[Path] | None = None, records: Path | None = None) -> list[str]:
    """What is wrong with the figures in texts.

    Args:
        files: which texts; by default README.md, the book's pages and the lessons.
        records: where the reference records are; `reference_root` by default.

    Returns:
        One message for each figure that differs from the records, is not recorded, or cannot be worked out. It names
        the file and the sentence, and says what to do. Empty if all is well.

    Raises:
        LessonError: if a notebook cannot be read.
    """
    chosen = text_files() if files is None else files
    return [fault for path in chosen for passage in passages(path) for fault in _faults(passage, records)]


def write(files: Iterable[Path] | None = None, records: Path | None = None) -> tuple[list[Path], list[str]]:
    """Fills in the figures in texts. All else in a file stays as it is.

    Args:
        files: which texts; by default README.md, the book's pages and the lessons.
        records: where the reference records are; `reference_root` by default.

    Returns:
        The files that changed, and what `check` still says of them: what is not recorded says so in the text now.

    Raises:
        LessonError: if a notebook cannot be read.
    """
    chosen = text_files() if files is None else list(files)
    changed = []
    for path in chosen:
        before = path.read_bytes().decode("utf-8")
        if "<!--=" not in before:
            continue
        if path.suffix == ".ipynb":
            notebook = read_notebook(path)
            for cell in notebook["cells"]:
                if cell.get("cell_type") == "markdown":
                    cell["source"] = fill(cell["source"], records)[0]
            after = before if notebook == read_notebook(path) else dumped(notebook)
        else:
            after = fill(before, records)[0]
        if after != before:
            path.write_bytes(after.encode("utf-8"))
            changed.append(path)
    return changed, check(chosen, records)


# Verdicts in the texts of lessons


def verdict_faults(
    claims: Sequence[Claim], verdicts: Mapping[str, str] | None = None, notebooks: Path | None = None
) -> list[str]:
    """Where lessons state another verdict on a claim than the ledger, or none.

    A verdict stands in a line of the form ``**T8 · the claim in a few words: refuted.** More words.``

    Args:
        claims: the ledger.
        verdicts: what follows from the records, by the claim's id; by default what the ledger states.
        notebooks: where the lessons are; the course's own by default.

    Returns:
        One message for each line that is wrong, with the whole sentence, and for each claim without a line.
    """
    found: list[str] = []
    for lesson in find_lessons(notebooks):
        found += _verdict_faults_of(lesson, [c for c in claims if c.lesson == lesson.slug], verdicts or {})
    return found


def _verdict_faults_of(lesson: Lesson, claims: Sequence[Claim], verdicts: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    known = {claim.id: claim for claim in claims}
    stated: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for passage in passages(lesson.path):
        plain = re.sub(r"<!--.*?-->", "", passage.text, flags=re.S)
        in_verdict = plain[plain.find("\n## Verdict") + 1 :] if "## Verdict" in plain else ""
        for start in _VERDICT_START.finditer(in_verdict):
            line = _VERDICT_LINE.match(in_verdict, start.start("id") - 2)
            where = f'{passage.where}: "{sentence_at(in_verdict, start.start()).text}"'
            words = [] if line is None else _verdict_words(line["verdict"])
            if len(words) != 1:
                right = known[start["id"]].verdict if start["id"] in known else "refuted"
                found.append(f"{where}: a verdict is written **{start['id']} · the claim in a few words: {right}.**")
            elif start["id"] not in known:
                found.append(f"{where}: the ledger has no claim {start['id']} of lesson {lesson.slug}.")
            elif words == ["documented"] and known[start["id"]].contradicted and "otherwise" not in line["verdict"]:
                found.append(f"{where}: the sources contradict the claim, so the line says 'documented otherwise'.")
            else:
                stated[start["id"]].append((words[0], where))
    for claim in claims:
        right = _right_words(claim, verdicts.get(claim.id, claim.verdict), len(stated[claim.id]))
        for word, where in stated[claim.id]:
            if word not in right:
                found.append(f"{where}: it says {word!r}, and the ledger has {' or '.join(map(repr, right))}.")
        if missing := sorted(set(right) - {word for word, _ in stated[claim.id]}):
            found.append(
                f"{lesson.path.name}: its Verdict lacks the line **{claim.id} · the claim in a few words: "
                f"{missing[0]}.** ({claim.claim})"
            )
    return found


def _right_words(claim: Claim, verdict: str, lines: int) -> tuple[str, ...]:
    """The verdicts that a lesson has to state: the claim's in one line, or those of its parts in several."""
    if lines < 2:
        return (verdict,)
    return tuple(dict.fromkeys([verdict, *(part.verdict for part in claim.parts if not part.aside)]))


def _verdict_words(text: str) -> list[str]:
    from authoring.claims import VERDICTS

    return [word for word in VERDICTS if re.search(rf"\b{word}\b", one_line(text))]


def unconditional_verdicts(texts: Iterable[Passage], experiment_names: Iterable[str] | None = None) -> list[str]:
    """Sentences that state FASTER, SLOWER or SAME of a named experiment without a condition.

    Another machine's record may say otherwise: such a word comes from a marker, or the sentence says when it holds.

    Args:
        texts: where to look.
        experiment_names: those of the course by default.

    Returns:
        A message for each, with the sentence.
    """
    names = set(experiment_names or (name for lesson in find_lessons() for name in experiments(lesson)))
    found = []
    for passage in texts:
        # Without what stands in a marker; code stays, since names and verdicts are written as such.
        text = _MARKER.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), passage.text)
        for one in sentences(text):
            named = any(name in names for name in _EXPERIMENT.findall(one.text))
            if named and _MEASURED.search(one.text) and not _CONDITION.search(one.text):
                found.append(f'{passage.where}: "{one.text}": say when it holds, or take the verdict from a marker.')
    return found


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks or fills the figures in texts, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m authoring.prose", description="Take the figures in texts from the records."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--check", action="store_true", help="say what differs from the records, and exit 1 if anything"
    )
    action.add_argument("--write", action="store_true", help="fill in the figures")
    parser.add_argument("files", nargs="*", type=Path, help="pages and notebooks; all by default")
    options = parser.parse_args(arguments)
    files = options.files or text_files()
    if absent := [str(path) for path in files if not path.is_file()]:
        print(f"There is no file {absent[0]}.", file=sys.stderr)
        return 1
    try:
        changed, faults = write(files) if options.write else ([], check(files))
    except LessonError as error:
        print(error, file=sys.stderr)
        return 1
    for path in changed:
        print(f"{path.name}: written")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    else:
        count = sum(len(markers(passage.text)) for path in files for passage in passages(path))
        print(f"{count} figure{'' if count == 1 else 's'} in texts, all as recorded")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
