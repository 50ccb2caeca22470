"""Texts and data: figures come from records, nothing measured is typed, and a stated verdict is the ledger's."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from authoring import claims as ledger
from authoring import prose
from authoring.claims import Claim, Part
from authoring.sentences import Passage, passages, prose_only, sentences
from course_utils.records import store
from course_utils.records.lessons import Lesson, experiments, find_lesson, find_lessons
from course_utils.records.notebook_files import dumped, read_notebook
from tests import text_checks
from tests.made_up_notebooks import code
from tests.text_checks import Listed

ROOT = store.package_root() / "records"
XEON = "intel-xeon-processor-2-cores"
EPYC = "amd-epyc-2-cores"
LESSONS = find_lessons()
FILES = text_checks.page_files()
GLOSSARY = (store.package_root().parent / "book" / "glossary.md").read_text(encoding="utf-8")


def page(folder: Path, text: str) -> Path:
    """A page with a text."""
    path = folder / "page.md"
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A copy of the reference records to spoil."""
    return Path(shutil.copytree(ROOT, tmp_path / "records"))


def edit(records: Path, lesson: str, change: Callable[[dict], None]) -> None:
    """Change the experiments of a record."""
    path = records / XEON / f"{lesson}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data["experiments"])
    path.write_text(json.dumps(data), encoding="utf-8")


def set_cell(row: int, column: str, value: float) -> Callable[[dict], None]:
    """An edit of the table of the allocator without a cap."""

    def change(found: dict) -> None:
        table = found["caching_allocator/no_cap"]["data"]
        table["rows"][row][table["columns"].index(column)] = value

    return change


# The texts of the course


def test_figures_in_texts_are_as_recorded():
    found = prose.check()
    assert not found, "\n".join(found)


def test_no_measurement_is_typed():
    found = text_checks.typed_faults(FILES, text_checks.listed())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_verdict_without_its_condition(path: Path):
    found = prose.unconditional_verdicts(passages(path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_verdict_on_a_claim_is_typed(path: Path):
    found = text_checks.untied_verdicts(passages(path), ledger.VERDICTS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_sources_are_dated(path: Path):
    found = text_checks.undated_sources(passages(path))
    assert not found, "\n".join(found)


def test_verdicts_of_lessons_are_those_of_the_ledger():
    claims = ledger.load_claims()
    # Running calls takes long; the tests of the ledger do it.
    judged = {claim.id: ledger.judge(claim).verdict for claim in claims if not claim.calls}
    found = prose.verdict_faults(claims, judged)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_glossary_links(lesson: Lesson):
    texts = passages(lesson.path)
    found = [*text_checks.dead_glossary_links(texts, GLOSSARY), *text_checks.unlinked_terms(texts, GLOSSARY)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_stated_time(lesson: Lesson):
    found = text_checks.wrong_time(lesson)
    assert not found, "\n".join(found)


def test_glossary_terms_have_anchors_of_their_own():
    anchors = [text_checks.anchor(term) for term in text_checks.terms(GLOSSARY)]
    assert len(anchors) > 100
    assert sorted(set(anchors)) == sorted(anchors)
    assert set(text_checks.terms(GLOSSARY)) >= text_checks.PLAIN_WORDS


# Figures in texts

TAKEN = 'It gives back <!--= caching_allocator/no_cap["default"]["given back"] @ ' + XEON + " -->0<!--/--> segments."


def test_a_figure_is_filled_and_the_rest_stays(tmp_path: Path):
    text = f"# Title\r\n\r\nNot here: <!-- a comment -->.\r\n\r\n{TAKEN.replace('>0<', '><')} *Good.*  \r\n"
    path = page(tmp_path, text)
    changed, faults = prose.write([path])
    assert (changed, faults) == ([path], [])
    assert path.read_bytes().decode() == text.replace("--><!--/-->", "-->0<!--/-->")
    assert prose.write([path]) == ([], [])
    assert prose.check([path]) == []


def test_a_figure_in_a_notebook_keeps_the_normal_form(tmp_path: Path):
    original = find_lesson("caching_allocator").path
    path = Path(shutil.copy(original, tmp_path))
    notebook = read_notebook(path)
    notebook["cells"][0]["source"] += "\n\n" + TAKEN.replace(">0<", ">17<")
    path.write_text(dumped(notebook), encoding="utf-8")
    (fault,) = prose.check([path])
    assert "cell 1" in fault
    assert "It gives back 17 segments." in fault
    assert prose.write([path]) == ([path], [])
    notebook["cells"][0]["source"] = notebook["cells"][0]["source"].replace(">17<", ">0<")
    assert path.read_text(encoding="utf-8") == dumped(notebook)


def test_a_record_that_changes_fails_and_names_the_sentence(tmp_path: Path, records: Path):
    path = page(tmp_path, f"Before. {TAKEN} After.")
    assert prose.check([path], records) == []
    edit(records, "caching_allocator", set_cell(0, "given back", 3))
    (fault,) = prose.check([path], records)
    assert '"It gives back 0 segments."' in fault
    assert "the records give '3'" in fault
    assert prose.write([path], records) == ([path], [])
    assert ">3<" in path.read_text(encoding="utf-8")


def test_a_record_that_is_deleted_is_said_and_fails(tmp_path: Path, records: Path):
    path = page(tmp_path, TAKEN)
    (records / XEON / "caching_allocator.json").unlink()
    (fault,) = prose.check([path], records)
    assert '"It gives back 0 segments."' in fault
    assert "caching_allocator/no_cap: not recorded" in fault
    assert "course record caching_allocator --reference" in fault
    changed, faults = prose.write([path], records)
    assert changed == [path]
    assert "It gives back not recorded segments." in faults[0]
    assert "-->not recorded<!--/-->" in path.read_text(encoding="utf-8")


def test_the_command_says_so_by_its_exit_status(tmp_path: Path, records: Path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(records))
    path = page(tmp_path, TAKEN)
    assert prose.main(["--check", str(path)]) == 0
    assert capsys.readouterr().out == "1 figure in texts, all as recorded\n"
    edit(records, "caching_allocator", set_cell(0, "given back", 3))
    assert prose.main(["--check", str(path)]) == 1
    assert "It gives back 0 segments." in capsys.readouterr().err
    assert prose.main(["--write", str(path)]) == 0
    (records / XEON / "caching_allocator.json").unlink()
    assert prose.main(["--write", str(path)]) == 1
    assert prose.main(["--check", str(tmp_path / "none.md")]) == 1


def test_a_verdict_in_words_follows_the_samples(tmp_path: Path, records: Path):
    path = page(tmp_path, f'Compiled, it is <!--= torch_compile/mlp["compiled"] @ {XEON} --><!--/-->.')
    prose.write([path], records)
    before = path.read_text(encoding="utf-8")

    def halve(found: dict) -> None:
        cases = found["torch_compile/mlp"]["data"]["cases"]
        cases[1]["elapsed_s"] = [seconds / 2 for seconds in cases[0]["elapsed_s"]]

    edit(records, "torch_compile", halve)
    (fault,) = prose.check([path], records)
    assert "2.00 times as fast (95% interval 2.00 to 2.00)" in fault
    assert path.read_text(encoding="utf-8") == before


def test_the_machine_may_be_left_out_where_there_is_one(tmp_path: Path, records: Path):
    path = page(tmp_path, "There are <!--= len(torch_compile/mlp.labels) -->2<!--/--> cases.")
    assert prose.check([path], records) == []
    shutil.copy(records / XEON / "torch_compile.json", records / EPYC)
    (fault,) = prose.check([path], records)
    assert f"name one: len(torch_compile/mlp.labels) @ {EPYC}" in fault


def test_claims_and_times_are_figures():
    claim = ledger.load_claims()[0]
    lesson = find_lesson("caching_allocator")
    assert prose.figure(f"claim {claim.id}") == claim.verdict
    shown = int(re.fullmatch(r"(\d+) minutes", prose.figure(f"time {lesson.number:02d}"))[1])
    assert abs(shown - prose.lesson_minutes(lesson)) <= 2.5
    for wrong in ("claim T99", "time 99"):
        with pytest.raises(prose.ProseError):
            prose.figure(wrong)


def test_the_time_of_a_lesson(tmp_path: Path, records: Path):
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "word " * 398 + "[two words](an/address)"},
        {"cell_type": "markdown", "id": "b", "metadata": {}, "source": ""},
    ]
    cells[1]["source"] = "### Exercise 1 · Do it · 7 min\n\n### Exercise 2 · Again · 5 min"
    cells.append(code("one = two(three)", id="c"))
    path = tmp_path / "10_torch_compile.ipynb"
    path.write_text(dumped({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    lesson = dataclasses.replace(find_lesson("torch_compile"), path=path)
    record = json.loads((records / XEON / "torch_compile.json").read_text(encoding="utf-8"))
    (records / XEON / "torch_compile.json").write_text(json.dumps(record | {"seconds": 60}), encoding="utf-8")
    (records / EPYC / "torch_compile.json").write_text(json.dumps(record | {"seconds": 120}), encoding="utf-8")
    words = 400 + 11 + 2
    assert prose.lesson_minutes(lesson, records) == pytest.approx(words / prose.WORDS_A_MINUTE + 12 + 2)
    for machine in (XEON, EPYC):
        (records / machine / "torch_compile.json").unlink()
    with pytest.raises(prose.UnrecordedError, match="no machine has recorded torch_compile"):
        prose.lesson_minutes(lesson, records)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A <!--= claim T8 --> B", "half a marker"),
        ("A <!--/--> B", "half a marker"),
        ("One.\n<!--= len(torch_compile/mlp.labels) -->2<!--/--> is two.", "beginning of a line"),
        ("- <!--= len(torch_compile/mlp.labels) -->2<!--/--> is two.", "beginning of a line"),
        ("In `code <!--= len(torch_compile/mlp.labels) -->2<!--/-->`.", "in code"),
        ("```\na <!--= len(torch_compile/mlp.labels) -->2<!--/-->\n```", "in code"),
        ("A <!--= len(torch_compile/mlp.labels) --1 -->3<!--/--> B", "two dashes"),
        ("A <!--= torch_compile/mlp -->2<!--/--> B", "a whole Comparison"),
        ("A <!--= len(torch_compile/mlp.labels) @ nowhere -->2<!--/--> B", "a machine 'nowhere'"),
        ("A <!--= 1 + 1 -->2<!--/--> B", "reads no experiment"),
        ("A <!--= claim X1 -->2<!--/--> B", "no claim 'X1'"),
    ],
)
def test_a_marker_that_is_wrong_is_seen(tmp_path: Path, text: str, message: str):
    path = page(tmp_path, text)
    faults = prose.check([path])
    assert any(message in fault for fault in faults), faults
    prose.write([path])
    assert path.read_text(encoding="utf-8") == text


# Cutting texts


def test_code_and_comments_are_no_prose():
    text = "A `1 s` and ``2 ` s`` and [3 s](4.md) and <!-- 5 s --> and $6$ s."
    text += "\n\n```python\n7 s\n```\n\n~~~\n8 s\n~~~\n\n9 s"
    plain = prose_only(text)
    assert len(plain) == len(text)
    assert re.findall(r"\d", plain) == ["9"]
    assert re.findall(r"\d", prose_only("```{note}\n1 s\n```\n\n<!-- generated: x -->\n2 s\n<!-- /generated -->")) == [
        "1"
    ]


def test_sentences_know_lists_tables_and_headings():
    text = "# Head one\nA b. C `d. E` f\ng! *H* i?\n\n- J. K\n- L\n\n| m | n. O |\n| - | - |\n\n1. P"
    assert [one.text for one in sentences(text)] == [
        "# Head one", "A b.", "C `d. E` f g!", "*H* i?", "- J.", "K", "- L", "| m | n. O |", "| - | - |", "1. P",
    ]  # fmt: skip


# Typed numbers


@pytest.mark.parametrize(
    "text",
    [
        "It takes 12 ms.",
        "It takes 1.5 s, or more.",
        "It takes 3\u00a0µs.",
        "It takes five minutes.",
        "A model of 7 GiB fits.",
        "It reads 1,200 GB/s there.",
        "It reaches 989 TFLOP/s.",
        "It is 1.62x faster.",
        "It is 3 × faster.",
        "It is 3 times as fast.",
        "It is three times as fast.",
        "It is ten times faster.",
        "It is twice as fast.",
        "It needs half the memory.",
        "It saves 40%.",
        "It saves forty percent.",
        "It is a ten-fold gain.",
        "It is a tenfold gain.",
        "| pinned | 3 ms |",
        "It takes 12 ms [3].",
        "It takes 12 ms, says [a page](https://example.org).",
        "It takes `12 ms`.",
        "The copy took `1.5 GiB`, and `x`.",
        "DDP halves the time.",
        "The batch is doubled.",
        "A speed-up of 1.8 was measured.",
        "A speedup of two.",
        "It gains by a factor of 3.",
        "The loss goes from 4.2 to 2.1.",
        "It reads 800 tokens/s.",
        "It reads 1,200 samples per second.",
        "It takes 12 ms. Read more in [a page](https://example.org), 2024.",
    ],
)
def test_a_typed_measurement_is_seen(text: str):
    assert list(text_checks.typed_numbers([Passage("page.md", None, text)]))


@pytest.mark.parametrize(
    "text",
    [
        "It takes <!--= x -->12 ms<!--/-->.",
        "It takes <!--= x -->`12 ms`<!--/-->.",
        "It takes `12 ms` [1].",
        "```text\n`12 ms`\n```",
        "Write `sleep 12 ms` or `12`.",
        "Join two halves, half of them from 1 to 2.",
        "It stands in torch 2.0 to 2.13.",
        "It takes 12 ms [1].",
        "It takes 12 ms [2, 1].",
        "- A list. It takes 12 ms. Says who? [1]",
        "| pinned | 3 ms | [1] |",
        "It takes 12 ms ([a report](https://example.org), 2024).",
        "### Exercise 1 · Find it · 10 min",
        "**Time** about 45 minutes.",
        "Do it three times.",
        "Python 3.11 and version 2.13 serve 4 ranks.",
        "[12 ms](page.md#12-ms)",
    ],
)
def test_what_is_no_typed_measurement_is_left_alone(text: str):
    cited = Passage(
        "page.md", 9, "**Sources**\n\n- [1] [A page](https://example.org/3.1), 2020.\n- [3] [B](https://x.org/2)"
    )
    assert list(text_checks.typed_numbers([Passage("page.md", None, text), cited])) == []


def test_a_typed_number_may_be_listed_and_the_list_may_not_outlive_it(tmp_path: Path):
    path = page(tmp_path, "Ask for 3 MiB\nof memory. It took 3 ms.")
    entry = Listed("page.md", "Ask for 3 MiB of memory", "input")
    (fault,) = text_checks.typed_faults([path], [entry], tmp_path)
    assert "'3 ms' is typed: \"It took 3 ms.\"" in fault
    gone = Listed("page.md", "Ask for 4 MiB of memory", "input")
    faults = text_checks.typed_faults([path], [entry, gone], tmp_path)
    assert any("'Ask for 4 MiB of memory' matches no number" in fault for fault in faults)
    assert len(text_checks.typed_faults([path], [dataclasses.replace(entry, file="other.md")], tmp_path)) == 3


def test_the_list_gives_a_reason(tmp_path: Path):
    path = tmp_path / "list.yml"
    path.write_text("page.md:\n  - {text: 3 ms, reason: measured}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'measured'"):
        text_checks.listed(path)


# Verdicts

RULE = 'caching_allocator/no_cap["default"]["given back"] == 0'


def claim_of(identifier: str = "T9", verdict: str = "refuted", *parts: str) -> Claim:
    """A claim about the allocator that is refuted where it gives nothing back."""
    rule = (("refuted", RULE), ("confirmed", "1 == 1"))
    return Claim(
        id=identifier,
        claim="The allocator gives memory back.",
        topic="Memory",
        lesson="caching_allocator",
        lesson_title="11 · The caching allocator",
        kind="memory",
        speaks_of="any",
        verdict=verdict,
        sentence="It gives nothing back.",
        condition="",
        parts=tuple(Part(f"part {i}", "memory", "any", one) for i, one in enumerate(parts))
        or (Part("It gives memory back.", "memory", "any", verdict, rule=rule),),
    )


def lesson_with(folder: Path, verdict: str) -> Path:
    """A folder with one lesson whose Verdict says so."""
    cells = [
        {
            "cell_type": "markdown",
            "id": "a",
            "metadata": {},
            "source": "# 11 · The caching allocator\n\n**T9** · *It does.*",
        },
        {"cell_type": "markdown", "id": "b", "metadata": {}, "source": f"## Verdict\n\n{verdict}"},
    ]
    folder = folder / "notebooks"
    folder.mkdir(exist_ok=True)
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "11_caching_allocator.ipynb").write_text(dumped(notebook), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "**T9 · gives memory back: refuted.** It does not.",
        "**T9 · gives memory back: refuted as it stands.** It does not.",
        "**T9 · gives: `empty_cache()`: refuted, on any machine.**",
        "- **T9 · gives memory\nback: refuted.** It does not.",
    ],
)
def test_a_verdict_line_as_the_ledger_has_it(tmp_path: Path, line: str):
    assert prose.verdict_faults([claim_of()], notebooks=lesson_with(tmp_path, line)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("**T9 · gives memory back: confirmed.** It does.", "it says 'confirmed', and the ledger has 'refuted'"),
        ("**T9: refuted.** It does not.", "a verdict is written"),
        ("**T9 · gives memory back: wrong.** It does not.", "a verdict is written"),
        ("**T9 · gives memory back: refuted or open.** It does not.", "a verdict is written"),
        ("**T7 · gives memory back: refuted.** It does not.", "the ledger has no claim T7"),
        ("It is what it is.", "lacks the line **T9 · the claim in a few words: refuted.**"),
    ],
)
def test_a_verdict_line_that_is_wrong_is_seen_with_its_sentence(tmp_path: Path, line: str, message: str):
    faults = prose.verdict_faults([claim_of()], notebooks=lesson_with(tmp_path, line))
    assert any(message in fault for fault in faults), faults
    if line.startswith("**T"):
        assert any(line.split("** ")[0] in fault and "11_caching_allocator.ipynb, cell 2" in fault for fault in faults)


def test_a_record_that_flips_a_verdict_names_the_sentence_of_the_lesson(tmp_path: Path, records: Path):
    notebooks = lesson_with(tmp_path, "**T9 · gives memory back: refuted.** It does not.")
    claim = claim_of()
    judged = {claim.id: ledger.judge(claim, records).verdict}
    assert prose.verdict_faults([claim], judged, notebooks) == []
    edit(records, "caching_allocator", set_cell(0, "given back", 3))
    judged = {claim.id: ledger.judge(claim, records).verdict}
    faults = prose.verdict_faults([claim], judged, notebooks)
    assert "**T9 · gives memory back: refuted.**" in faults[0]
    assert "the ledger has 'confirmed'" in faults[0]


def test_a_claim_that_its_sources_contradict_is_not_called_documented(tmp_path: Path):
    claim = dataclasses.replace(claim_of("T9", "documented"), contradicted=True)
    line = "**T9 · gives memory back: documented otherwise.** No."
    assert prose.verdict_faults([claim], notebooks=lesson_with(tmp_path, line)) == []
    faults = prose.verdict_faults([claim], notebooks=lesson_with(tmp_path, line.replace(" otherwise", "")))
    assert any("the line says 'documented otherwise'" in fault for fault in faults)
    assert prose.figure("claim M3") == "documented otherwise"


def test_parts_have_lines_of_their_own(tmp_path: Path):
    claim = claim_of("T9", "refuted", "refuted", "open")
    both = '**T9 · gives it back: refuted.** No.\n\n**T9 · "at once": open for GPUs.** Who knows.'
    assert prose.verdict_faults([claim], notebooks=lesson_with(tmp_path, both)) == []
    wrong = both.replace("open for GPUs", "confirmed")
    faults = prose.verdict_faults([claim], notebooks=lesson_with(tmp_path, wrong))
    assert any("it says 'confirmed'" in fault for fault in faults)
    assert any("lacks the line" in fault and "open" in fault for fault in faults)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("In `torch_compile/mlp` the compiled model is FASTER.", True),
        ("In torch_compile/mlp it is `SAME` on all machines.", True),
        ("In `torch_compile/mlp` it is FASTER where the calls are few.", False),
        ("Look whether `torch_compile/mlp` says SAME.", False),
        ("`torch_compile/mlp` is <!--= x -->FASTER<!--/-->.", False),
        ("`FASTER` is a verdict.", False),
        ("`torch_compile/mlp` is faster.", False),
    ],
)
def test_a_verdict_of_an_experiment_without_a_condition_is_seen(text: str, seen: bool):
    names = experiments(find_lesson("torch_compile"))
    assert bool(prose.unconditional_verdicts([Passage("page.md", None, text)], names)) is seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("The claim T8 is confirmed.", True),
        ("[T8](../book/claims.md#t8) is refuted, and more.", True),
        ("**T8 · the first time only: refuted.** More.", True),
        ("Of T8 and T9, one is an outdated API.", True),
        ("The claim T8 is <!--= claim T8 -->refuted<!--/-->.", False),
        ("<!-- generated: lessons -->\nrefuted: [T8](x.md#t8)\n<!-- /generated -->", False),
        ("This course calls it T8. It is open.", False),
        ("A T4 confirms it.", False),
        ("It is refuted.", False),
    ],
)
def test_a_verdict_on_a_claim_that_is_typed_is_seen(text: str, seen: bool):
    assert bool(text_checks.untied_verdicts([Passage("README.md", None, text)], ledger.VERDICTS)) is seen


def test_a_verdict_line_belongs_into_a_lesson():
    line = "**T8 · the first time only: refuted.** More."
    assert not text_checks.untied_verdicts([Passage("11.ipynb", 3, line)], ledger.VERDICTS)
    assert text_checks.untied_verdicts([Passage("11.ipynb", 3, line.replace(" · ", " is "))], ledger.VERDICTS)


# Sources, glossary and times


def test_a_source_without_a_date_is_seen():
    text = "## Verdict\n\n**Sources**\n\n- [A](https://a.org/2024), version 2.1.\n- [B](https://b.org/2024/1.2): good."
    text += "\n- C, 1999.\n\n**Next** D."
    (fault,) = text_checks.undated_sources([Passage("page.md", None, text)])
    assert "https://b.org" in fault


TERMS = "# Glossary\n\n## Memory\n" + "".join(
    f"\n### {term}\n\nWords.\n" for term in ("pinned memory", "GIL", "pinned memory pool", "block")
)
LINKED = "Use [pinned memory](../book/glossary.md#pinned-memory)."


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Use pinned memory.", ["pinned memory"]),
        (f"{LINKED} Then pinned memory again.", []),
        (f"Pinned memory first. {LINKED}", ["pinned memory"]),
        ("Use [pages that are pinned](../book/glossary.md#pinned-memory). It is pinned memory.", []),
        ("## Pinned memory\n\nUse `pinned memory`, a block, and what is agile.", []),
        ("The GIL stays.", ["GIL"]),
        ("**M3** · *Pinned memory is fast.*", []),
        ("### Sources\n\n- Pinned memory, 2020.", []),
        ("A pinned memory pool.", []),
    ],
)
def test_a_term_without_its_link_is_seen(text: str, terms: list[str]):
    faults = text_checks.unlinked_terms([Passage("a.ipynb", 1, text)], TERMS)
    assert [
        term for term in ("pinned memory", "GIL", "block") for fault in faults if f"link {term!r}" in fault
    ] == terms


def test_a_link_to_no_term_is_seen():
    text = "Use [it](../book/glossary.md#pined-memory)."
    assert text_checks.dead_glossary_links([Passage("a.ipynb", 1, text)], TERMS)
    assert not text_checks.dead_glossary_links([Passage("a.ipynb", 1, LINKED)], TERMS)


def test_a_stated_time_that_is_wrong_is_seen(tmp_path: Path):
    lesson = find_lesson("torch_compile")
    right = prose.figure("time 10")
    for stated, faults in ((right, 0), ("999 minutes", 1), ("a while", 1)):
        notebook = read_notebook(lesson.path)
        first = notebook["cells"][0]
        first["source"] = re.sub(r"\*\*Time\*\*.*", f"**Time** about {stated}.", first["source"])
        path = tmp_path / lesson.path.name
        path.write_text(dumped(notebook), encoding="utf-8")
        assert len(text_checks.wrong_time(dataclasses.replace(lesson, path=path))) == faults
