"""The trial of `compare` beside torch's Timer, made once: the book's table says what its record holds."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "records" / "timer_quality" / "amd-epyc-2-cores-24gib-51f9.json"
CONDITIONS = ("idle", "one busy program", "crowded")
JUDGES = {
    "`compare`": ("compare", "verdict"),
    "`Timer`": ("timer", "verdict"),
    "`Timer`, carefully": ("timer", "cautious"),
}
ASKED = {"wrong about the same code": (1.0, {"FASTER", "SLOWER"}), "finds 3% more work": (1.03, {"SLOWER"})}


def test_the_books_table_is_the_records():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    trials = [dict(zip(record["columns"], row, strict=True)) for row in record["trials"]]
    page = (ROOT / "book" / "how_we_measure.md").read_text(encoding="utf-8")
    for words, (truth, verdicts) in ASKED.items():
        for judge, (method, rule) in JUDGES.items():
            cells = [f"{judge}, {words}"]
            for condition in CONDITIONS:
                asked = {"method": method, "condition": condition, "truth": truth}
                answers = [trial[rule] for trial in trials if asked.items() <= trial.items()]
                cells.append(f"{sum(answer in verdicts for answer in answers)} of {len(answers)}")
            assert f"| {' | '.join(cells)} |" in page
