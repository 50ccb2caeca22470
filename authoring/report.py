"""What ``make report`` has beside the learner's report: the claims of the ledger that one's own records decide."""

from __future__ import annotations

from authoring import claims
from authoring.claims import MachineJudgement
from authoring.evidence import EvidenceError
from authoring.lesson_files import Claim, LessonFileError
from authoring.rendering import rendered
from authoring.verdicts import RULED, readers_word
from course_utils.results import store
from course_utils.results.store import RecordError


def judged_here() -> list[tuple[Claim, MachineJudgement]]:
    """The claims that records of one's own decide without a call, each with what follows from them alone."""
    root = store.results_root()
    own = [claim for claim in claims.load_claims() if claim.experiments and not claim.calls]
    judged = ((claim, claims.judged_by(claim, machine, root)) for claim in own for machine in store.machines(root))
    return [(claim, machine) for claim, machine in judged if machine]


def claims_section() -> str:
    judged, problem = [], ""
    try:
        judged = judged_here()
    except (EvidenceError, LessonFileError, RecordError) as error:
        problem = str(error)
    # What others published, or nobody knew, one's own record may well decide otherwise.
    parting = [claim for claim, machine in judged if claim.verdict in RULED and claim.verdict != machine.verdict]
    if not judged and not problem:
        return ""
    return rendered("claims_in_report.html", problem=problem, judged=judged, parting=parting, word=readers_word)
