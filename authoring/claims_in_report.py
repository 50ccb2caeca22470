"""What ``make report`` has beside the learner's report: the claims of the ledger that one's own records decide."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from authoring import claims
from authoring.claims import JudgedClaim
from authoring.expressions import EvidenceError, NotRecordedError, machines_in
from authoring.lesson_files import LessonFileError
from authoring.rendering import rendered
from authoring.verdict_words import RULED, readers_word
from course_utils.results import store
from course_utils.results.store import RecordError


def judged_here() -> Iterator[JudgedClaim]:
    """The claims that records of one's own decide without a call, in place of the machine that they name."""
    root = store.results_root()
    for claim in claims.load_claims():
        if claim.experiments and not claim.calls and len(machines_in(claim.holds)) == 1:
            lessons = {name.partition("/")[0] for name in claim.experiments}
            for machine in store.machines(root):
                if not all((root / machine / f"{lesson}.json").is_file() for lesson in lessons):
                    continue
                # It lacks an experiment, or is of another kind than the claim speaks of.
                with contextlib.suppress(NotRecordedError, claims.OtherDeviceError):
                    yield claims.judge(claim, root, on=machine)


def claims_section() -> str:
    judged, problem = [], ""
    try:
        judged = [*judged_here()]
    except (EvidenceError, LessonFileError, RecordError) as error:
        problem = str(error)
    # What others published, or nobody knew, one's own record may well decide otherwise.
    parting = [each for each in judged if each.claim.verdict in RULED and each.claim.verdict != each.verdict]
    if not judged and not problem:
        return ""
    return rendered("claims_in_report.html", problem=problem, judged=judged, parting=parting, word=readers_word)
