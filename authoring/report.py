"""What ``make report`` has beside the learner's report: the claims of the ledger that one's own records decide."""

from __future__ import annotations

from authoring import claims
from authoring.claims import Claim, MachineJudgement
from authoring.evidence import EvidenceError
from authoring.lesson_files import LessonFileError
from authoring.rendering import rendered
from authoring.verdicts import RULED, readers_word
from course_utils.commands.report import Section
from course_utils.records import store
from course_utils.records.store import RecordError


def judged_here() -> list[tuple[Claim, MachineJudgement]]:
    """The claims that records of one's own decide without a call to be run, each with what follows from them alone."""
    root = store.results_root()
    ledger = [claim for claim in claims.load_claims() if claim.experiments and not claim.calls]
    judged = []
    for claim in ledger:
        part = claim.parts[0]
        if part.holds:
            machines = filter(None, (claims.judged_by(part, machine, root) for machine in store.machines(root)))
        else:
            machines = (machine for machine in claims.judge(claim, root).machines if machine.verdict != "open")
        judged += [(claim, machine) for machine in machines]
    return judged


def claims_section() -> list[Section]:
    judged, problem = [], ""
    try:
        judged = judged_here()
    except (EvidenceError, LessonFileError, RecordError) as error:
        problem = str(error)
    # What others published, or nobody knew, one's own record may well decide otherwise.
    parting = [claim.id for claim, machine in judged if claim.verdict in RULED and claim.verdict != machine.verdict]
    html = rendered("claims_in_report.html", problem=problem, judged=judged, parting=parting, word=readers_word)
    return [Section("The claims, judged by your records", html)] if judged or problem else []
