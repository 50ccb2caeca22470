"""What ``make report`` has beside the learner's report: the claims of the ledger that one's own records decide."""

from __future__ import annotations

from authoring import claims
from authoring.claims import MachineJudgement
from authoring.evidence import EvidenceError
from authoring.lesson_files import LessonFileError, Part
from authoring.rendering import rendered
from authoring.verdicts import RULED, readers_word
from course_utils.commands.report import Section
from course_utils.records import store
from course_utils.records.store import RecordError


def judged_here() -> list[tuple[Part, MachineJudgement]]:
    """The parts of claims that records of one's own decide without a call, each with what follows from them alone."""
    root = store.results_root()
    judged: list[tuple[Part, MachineJudgement]] = []
    for claim in (claim for claim in claims.load_claims() if claim.experiments and not claim.calls):
        if claim.parts[0].holds:
            machines = (claims.judged_by(claim.parts[0], machine, root) for machine in store.machines(root))
            judged += [(claim.parts[0], machine) for machine in machines if machine]
            continue
        for here in claims.judge(claim, root).parts:
            decide = [machine for machine in here.machines if machine.verdict != "open" and not here.part.aside]
            judged += [(here.part, machine) for machine in decide]
    return judged


def claims_section() -> list[Section]:
    judged, problem = [], ""
    try:
        judged = judged_here()
    except (EvidenceError, LessonFileError, RecordError) as error:
        problem = str(error)
    # What others published, or nobody knew, one's own record may well decide otherwise.
    parting = [part for part, machine in judged if part.verdict in RULED and part.verdict != machine.verdict]
    html = rendered("claims_in_report.html", problem=problem, judged=judged, parting=parting, word=readers_word)
    return [Section("The claims, judged by your records", html)] if judged or problem else []
