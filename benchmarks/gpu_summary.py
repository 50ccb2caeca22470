"""What a run of ``benchmarks.gpu_run`` has found so far: one dictionary, and one text for people.

Everything is read from the run's folder, so that a run that was cut short is summed up like a whole one.
"""

from __future__ import annotations

import contextlib
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from authoring import shares
from course_utils.commands.recording import verdicts_of
from course_utils.records import store
from course_utils.records.kinds.ceilings import Ceilings
from course_utils.records.kinds.comparison import Case
from course_utils.records.store import LessonRecord, RecordError
from course_utils.show.formats import format_interval, format_percent, format_rate, format_ratio, format_seconds

ROOT = Path(__file__).resolve().parents[1]
COURSE_LIMIT_S = 600
LINK_SHARE, ATTENTION_SHARE, PRODUCT_TOLERANCE = 0.85, 0.6, 0.15


def summary(folder: Path, dry_run: bool) -> dict[str, Any]:
    """Sum up a run.

    Args:
        folder: the run's output.
        dry_run: whether it is only a rehearsal on a CPU: then nothing counts as reached or missed.

    Returns:
        Plain JSON types: ``machine``, ``parts``, ``tests``, ``lessons``, ``shares``, ``goals``, ``timers``, ``copy``.
    """
    described = _read(folder / "environment.json") or {}
    records = list(_records(folder / "records"))
    limits = _read(folder / "limits.json")
    result: dict[str, Any] = {
        "dry_run": dry_run,
        "machine": described.get("environment"),
        "versions": described.get("versions", {}),
        "parts": (_read(folder / "state.json") or {}).get("parts", {}),
        "tests": _tests(sorted(folder.glob("tests*.xml"))),
        "lessons": _lessons(folder / "parts", records),
        "limits": limits and {key: limits[key] for key in ("size", "link", "product")},
        "shares": _shares(records, limits),
        "timers": _timers(folder / "timer_quality.json"),
    }
    result["goals"] = [] if dry_run else _goals(result, records, limits)
    result["copy"] = [] if dry_run else _copy_commands(folder, records)
    return result


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _records(root: Path) -> Iterator[LessonRecord]:
    for machine in store.machines(root) if root.is_dir() else ():
        for path in sorted((root / machine).glob("*.json")):
            yield store.load_lesson(path)


def _tests(files: list[Path]) -> dict[str, Any]:
    """Counts, failures with their messages, reasons for skipping, and what tests noted."""
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    failures, noted = [], {}
    for file in files:
        if not file.exists():
            continue
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            # The file alone says what is meant: pytest writes the path with dots.
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            found = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            counts["passed" if found is None else found.tag] += 1
            if found is not None and found.tag == "skipped":
                skipped[found.get("message", "")] += 1
            elif found is not None:
                failures.append({"test": name, "message": found.get("message", ""), "text": found.text or ""})
            noted |= {f"{name}: {each.get('name')}": each.get("value") for each in case.iter("property")}
    return {"counts": dict(counts), "failures": failures, "skipped": dict(skipped), "noted": noted}


def _lessons(folder: Path, records: list[LessonRecord]) -> dict[str, dict[str, Any]]:
    """For each lesson that was tried: seconds, experiments, verdicts, slow cells, and the traceback of a failure."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("lesson-*.json")):
        told = _read(path)
        slow = [cell for cell in told["cells"] if cell["seconds"] >= 10]
        found[path.stem.removeprefix("lesson-")] = {
            key: told[key] for key in ("seconds", "error", "failures", "remark") if key in told
        } | {"slow cells": slow}
        kept = folder / f"{path.stem.removeprefix('lesson-')}-kept"
        if kept.is_dir():
            found[path.stem.removeprefix("lesson-")]["kept"] = len(list(kept.glob("*.json")))
    for record in records:
        told = found.setdefault(record.lesson, {"slow cells": []})
        verdicts = {str(verdict): count for verdict, count in verdicts_of(record).items()}
        told |= {"recorded in": record.seconds, "experiments": len(record.experiments), "verdicts": verdicts}
    return found


def _shares(records: list[LessonRecord], limits: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Every rate in the records beside the ceiling that it is bound by."""
    measured = Ceilings.from_record(limits["ceilings"]) if limits else None
    return [
        {
            "lesson": row.lesson,
            "experiment": row.where,
            "case": row.case,
            "rate": row.rate,
            "unit": row.unit,
            "ceiling": row.ceiling,
            "share": row.share,
            "launch-bound": row.launch_bound,
        }
        for row in shares.shares(records, shares.load_limits(), measured)
    ]


def _case(records: list[LessonRecord], name: str, label: str) -> Case | None:
    """A case of a comparison, or of a sweep's last point."""
    for record in records:
        if name in record.experiments:
            *_, (_, comparison, _) = record.result(name).measurements()
            return comparison[label] if label in comparison.labels else None
    return None


def _goals(found: dict[str, Any], records: list[LessonRecord], limits: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What was asked of a GPU of the H200's class, what was found, and whether that is enough (None: not known)."""
    goals: list[dict[str, Any]] = []

    def goal(what: str, words: str | None, reached: bool | None) -> None:
        goals.append({"goal": what, "found": words or "not measured", "reached": reached if words else None})

    all_there = all("recorded in" in told for told in found["lessons"].values()) and bool(records)
    seconds = sum(record.seconds for record in records)
    goal(
        f"the whole course at full size in {COURSE_LIMIT_S} s",
        f"{len(records)} lessons in {seconds:.0f} s" if records else None,
        seconds <= COURSE_LIMIT_S if all_there else None,
    )
    link = (limits or {}).get("link", {}).get("bytes_s")
    pinned = _case(records, "pinned_memory/copy", "pinned")
    rate = pinned and pinned.measurement.rate("bytes")
    goal(
        f"pinned copies at {LINK_SHARE:.0%} or more of the link",
        f"{format_rate(rate, 'B/s')}, {format_percent(rate / link)} of PCIe" if rate and link else None,
        bool(rate and link) and rate / link >= LINK_SHARE,
    )
    product = (limits or {}).get("product")
    others = [rate for route, rate in (product or {}).get("routes", {}).items() if not route.startswith("torch.mm")]
    goal(
        f"the 16-bit product's ceiling within {PRODUCT_TOLERANCE:.0%} of a library called directly",
        f"{format_percent(product['ceiling'] / max(others))} of it" if others else None,
        bool(others) and abs(product["ceiling"] / max(others) - 1) <= PRODUCT_TOLERANCE,
    )
    long = [row for row in found["shares"] if row["experiment"].startswith("flash_attention/long,") and row["share"]]
    longest = long[-1]["experiment"].partition(", ")[2] if long else "the longest"
    attention = {row["case"]: row["share"] for row in long if row["experiment"] == long[-1]["experiment"]}
    best = max((attention[name] for name in ("flash", "cudnn") if name in attention), default=None)
    goal(
        f"fused attention at {ATTENTION_SHARE:.0%} or more of that ceiling, head size 128, {longest}",
        ", ".join(f"{name} {format_percent(share)}" for name, share in attention.items()) if best else None,
        # Above the ceiling by more than noise, it is the count of the work that is wrong.
        best is not None and ATTENTION_SHARE <= best <= shares.HIGH,
    )
    for name in ("flatten_parameters/forward", "flatten_parameters/step_by_step", "flatten_parameters/whole_model"):
        case = _case(records, name, "scattered")
        goal(
            f"the cost of scattered LSTM weights with its interval ({name})",
            f"{format_ratio(case.ratio)} of the time {format_interval(case.interval)}" if case else None,
            case is not None and case.interval.bounded,
        )
    false = next((value for key, value in found["tests"]["noted"].items() if key.endswith("false_verdicts")), None)
    goal("at most 1 false verdict in 400 trials of 0.3 s", false, None if false is None else int(false.split()[0]) <= 1)
    return goals


def _timers(path: Path) -> dict[str, Any] | None:
    """What each timer made of identical code and of known ratios."""
    if not path.exists():
        return None
    from course_utils.lessons.measuring import timer_trial as timer_quality

    try:
        record = timer_quality.load(path)
    except RecordError as error:
        return {"missing": str(error)}
    found = record.summary()
    return {"complete": record.complete, "trials": len(record.trials)} | {
        key: found[key] for key in ("judges", "goals")
    }


def _copy_commands(folder: Path, records: list[LessonRecord]) -> list[str]:
    """How the records get into the course."""
    folder = folder.resolve()
    with contextlib.suppress(ValueError):  # outside the repository the whole path is needed
        folder = folder.relative_to(ROOT)
    commands = []
    for machine in sorted({record.environment.machine for record in records}):
        target = f"course_utils/records/{machine}"
        commands.append(f"mkdir -p {target} && cp {folder / 'records' / machine}/*.json {target}/")
        if (folder / "timer_quality.json").exists():
            target = f"course_utils/lessons/measuring/timer_trials/{machine}.json"
            commands.append(f"cp {folder / 'timer_quality.json'} {target}")
    return commands


# For people


def as_text(found: dict[str, Any]) -> str:
    """The summary as a text."""
    machine = found["machine"] or {}
    title = f"{machine.get('device_name', 'machine not described')}, torch {machine.get('torch', '?')}"
    lines = [title + (", dry run: nothing here is a result" if found["dry_run"] else "")]
    lines += ["", "Parts"]
    lines += [f"  {told['state']:<10} {told['seconds']:7.1f} s  {name}" for name, told in found["parts"].items()]
    lines += _tests_text(found["tests"])
    lines += _lessons_text(found["lessons"])
    lines += _shares_text(found["shares"])
    if found["goals"]:
        lines += ["", "Asked for"]
        word = {True: "reached", False: "NOT reached", None: "not known"}
        lines += [f"  {word[goal['reached']]:<11}  {goal['goal']}: {goal['found']}" for goal in found["goals"]]
    limits = found["limits"] or {}
    missing = dict(limits.get("product", {}).get("missing", {}))
    if reason := limits.get("link", {}).get("missing"):
        missing["PCIe link"] = reason
    if missing:
        lines += ["", "Not measured here"] + [f"  {what}: {reason}" for what, reason in missing.items()]
    if found["timers"] and "judges" in found["timers"]:
        lines += [
            "",
            f"Timers, {found['timers']['trials']} trials" + ("" if found["timers"]["complete"] else " so far"),
        ]
        for judge, conditions in found["timers"]["judges"].items():
            for condition, told in conditions.items():
                identical = told["identical"]
                said = f"{identical.get('hits', 0)} of {identical.get('trials', 0)} false verdicts on identical code"
                lines.append(f"  {judge}, {condition}: {said}")
    if found["copy"]:
        lines += ["", "To keep the records, from the repository's root:"] + [f"  {line}" for line in found["copy"]]
    return "\n".join(lines) + "\n"


def _tests_text(tests: dict[str, Any]) -> list[str]:
    if not tests["counts"]:
        return []
    lines = ["", "Tests: " + ", ".join(f"{count} {what}" for what, count in sorted(tests["counts"].items()))]
    lines += [f"  FAILED {each['test']}: {each['message'].splitlines()[0][:160]}" for each in tests["failures"]]
    lines += [f"  {count} skipped: {reason}" for reason, count in tests["skipped"].items()]
    lines += [f"  {what}: {value}" for what, value in tests["noted"].items()]
    return lines


def _lessons_text(lessons: dict[str, dict[str, Any]]) -> list[str]:
    if not lessons:
        return []
    total = sum(told.get("recorded in", 0) for told in lessons.values())
    lines = ["", f"Lessons, {format_seconds(total)} in all" if total else "Lessons"]
    for slug, told in lessons.items():
        if "error" in told:
            lines.append(f"  {slug}: FAILED: {told['error']}")
            for failure in told.get("failures", ()):
                lines.append(f"    {failure['error']}")
                lines += [f"    | {line}" for line in failure["traceback"].strip().splitlines()[-6:]]
            if told.get("kept"):
                lines.append(f"    results kept in parts/{slug}-kept: {told['kept']}")
            continue
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(told.get("verdicts", {}).items()))
        lines.append(
            f"  {slug}: {told.get('recorded in', 0):.1f} s, {told.get('experiments', 0)} experiments; {verdicts}"
        )
        lines += [f"    code cell {cell['cell']} took {cell['seconds']:.0f} s" for cell in told["slow cells"]]
        if "remark" in told:
            lines.append(f"    {told['remark']}")
    return lines


def _shares_text(rows: list[dict[str, Any]]) -> list[str]:
    held = [row for row in rows if row["share"] is not None]
    if not held:
        return []
    lines = ["", "Shares of the ceilings"]
    for row in held:
        where = f"{row['experiment']}, {row['case']}"
        bound = ", launch-bound" if row["launch-bound"] else ""
        rate = format_rate(row["rate"], row["unit"])
        lines.append(f"  {format_percent(row['share']):>6} of {row['ceiling']:<17} {rate:>14}  {where}{bound}")
    return lines
