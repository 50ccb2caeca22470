"""``make report``: the learner's report, with the claims of the ledger that one's own records decide."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jinja2

from authoring import claims
from authoring.claims import Claim, MachineJudgement
from authoring.evidence import EvidenceError
from authoring.lesson_files import LessonFileError
from course_utils.commands import report
from course_utils.records import store
from course_utils.records.store import RecordError

TEMPLATES = Path(__file__).resolve().parent / "templates"


def judged_here() -> list[tuple[Claim, MachineJudgement]]:
    """The claims that records of one's own decide without a call to be run, each with what follows from them alone."""
    ledger = [claim for claim in claims.load_claims() if claim.experiments and not claim.calls]
    return [
        (claim, machine)
        for claim in ledger
        for machine in claims.judge(claim, store.results_root()).machines
        if machine.verdict != "open"
    ]


def claims_section() -> list[report.Section]:
    """The report's section about claims; none where one's own records decide nothing."""
    title = "The claims, judged by your records"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("claims_in_report.html.j2")
    try:
        judged = judged_here()
    except (EvidenceError, LessonFileError, RecordError) as error:
        return [report.Section(title, template.render(problem=str(error), judged=[]))]
    return [report.Section(title, template.render(problem="", judged=judged))] if judged else []


def main(arguments: list[str] | None = None) -> int:
    """Write the report."""
    parser = argparse.ArgumentParser(prog="make report", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    try:
        print(report.build(parser.parse_args(arguments).output, claims_section()))
    except report.ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
