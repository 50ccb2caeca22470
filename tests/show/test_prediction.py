"""Predictions: what is typed, what is locked in, how far off it was, and what a page shows without a kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from course_utils.show import prediction as prediction_module
from course_utils.show.prediction import predict
from tests.example_results import RESULTS
from tests.html_checks import Parsed

PINNED = RESULTS["two"]["pinned"]
LONG = {"unit": "times as long"}


@pytest.fixture(autouse=True)
def _no_answers():
    prediction_module._asked.clear()
    yield
    prediction_module._asked.clear()


@pytest.mark.parametrize(
    ("guess", "measured", "options", "words"),
    [
        (2, 12.4, {}, "You said 2× as fast. It is 12× as fast: six times what you expected."),
        (12, 12.4, {}, "You said 12× as fast. It is 12× as fast: as you expected."),
        (2000, 2, {}, "You said 2000× as fast. It is 2.00× as fast: less than a hundredth of what you expected."),
        (0.5, 4, {}, "You said 2× as long. It is 4.00× as fast: faster, where you expected slower."),
        (2, 0.25, LONG, "You said 2× as long. It is 4.00× as fast: faster, where you expected slower."),
        (1, 2.2, LONG, "You said 1× as long. It takes 2.20× as long: twice what you expected."),
        (80, 40.04, {"unit": "%"}, "You said 80%. It is 40%: half what you expected."),
        (4, 0, {"unit": "tensors"}, "You said 4 tensors. It is 0 tensors."),
    ],
)
def test_a_guess_against_a_number(guess: float, measured: float, options: dict[str, str], words: str):
    card = predict("How many?", **options).answer(guess).reveal(measured)
    assert card.words == words
    assert [row.label for row in card.rows] == ["you", "measured"]
    assert all(card.axis.low <= end <= card.axis.high for row in card.rows for end in row.bar.values)


def test_a_guess_against_a_case():
    for unit, value in (("times as fast", PINNED.speedup), ("times as long", PINNED.ratio)):
        guess = predict("How many?", unit=unit).answer(value)
        assert "It is 1.82× as fast: as you expected." in guess.reveal(PINNED).words
    same = RESULTS["two"][RESULTS["two"].baseline]
    assert "It is the same (within 1%): half what you expected." in predict("How?").answer(2).reveal(same).words
    unclear = predict("How?").answer(2).reveal(RESULTS["one round"]["pinned"])
    assert unclear.words.startswith("You said 2× as fast. Too close to call")
    assert not unclear.rows


def test_a_choice_against_a_case_and_a_plain_value():
    which = predict("Which is faster?", choices=["pinned", "pageable", "the same"]).answer("pageable")
    assert which.reveal(PINNED).words == "You said pageable. It is pinned: not what you expected."
    assert which.reveal("pageable").words == "You said pageable. It is pageable: as you expected."
    with pytest.raises(ValueError, match="the answer is 'pinned' or 'faster', and the choices are a, b"):
        predict("?", choices=["a", "b"]).reveal(PINNED)


def test_what_is_no_answer_is_refused():
    guess = predict("How many?", low=0, high=50)
    for value, words in ((-1, "at least 0"), (51, "at most 50"), ("2", "not a number")):
        with pytest.raises(ValueError, match=words):
            guess.answer(value)
    with pytest.raises(ValueError, match="'c' is not among the choices: a, b"):
        predict("?", choices=["a", "b"]).answer("c")
    with pytest.raises(ValueError, match="needs a number or a case"):
        guess.reveal(float("nan"))


def tell(guess: Any, answer: float | str | None, locked: bool) -> None:
    """Sends what the form sends."""
    guess.form._handle_custom_msg({"answer": answer, "locked": locked}, [])


def test_what_stands_in_the_form_counts_and_what_is_locked_can_be_changed():
    assert repr(predict("How many?").answer(3)) == "Prediction: How many? Locked: you said 3× as fast."
    assert predict("How many?").value == 3  # the cell runs again
    typed = predict("How many, then?")
    tell(typed, 2.5, False)
    assert predict("How many, then?").form.content["answer"] == 2.5  # where the cell runs again, it stands there again
    assert typed.reveal(5).words.startswith("You said 2.5× as fast.")
    assert typed.form.content["locked"]
    locked = predict("And now?")
    tell(locked, 3, True)
    tell(locked, 3, False)  # who opens it to change it
    assert "You said" not in repr(predict("And now?"))
    tell(locked, 4, True)
    assert locked.value == 4


def test_without_an_answer_the_reveal_is_folded_and_nothing_waits_for_one():
    asked = predict("Is 1 < 2? </script>", low=0.1)
    recorded = dataclasses.replace(PINNED.comparison, whose="recorded", name="lesson/experiment")
    shown = asked.reveal(PINNED, recorded, "some remark")
    assert repr(shown).startswith(f"You have not predicted yet.\n\n{recorded.head}\nIt is 1.82× as fast.\n")
    html = shown._repr_html_()
    assert Parsed(html).outside == []
    fold = html[html.index("<details>") : html.index("</details>")]
    assert "Guess first, then open" in fold
    assert "1.82× as fast" in fold
    assert all(text in fold for text in (recorded.environment.torch, "some remark"))
    assert "lesson/experiment" not in fold
    assert "Is 1 &lt; 2?" in html[: html.index("<details>")]


# By name: the question, the answer, what a reader types, what that means, and what else is refused.
PAGE: dict[str, tuple[Any, ...]] = {
    "number": (lambda: predict("How many?", low=0.1), PINNED, "0,5", 0.5, ["-1", "0"]),
    "choice": (lambda: predict("Which?", choices=["pinned", "pageable"]), PINNED, "pageable", "pageable", []),
}


@pytest.mark.browser
def test_a_page_tells_a_reader_what_python_tells_a_learner(chromium: Any, tmp_path):
    file = tmp_path / "page.html"
    shown = {name: ask().reveal(actual) for name, (ask, actual, *_) in PAGE.items()}
    shown["below"] = PAGE["number"][0]().reveal(PINNED, below=RESULTS["two"])
    parts = [f"<div id={name}>{part._repr_html_()}</div>" for name, part in shown.items()]
    file.write_text(f"<!doctype html><meta charset=utf-8>{''.join(parts)}", encoding="utf-8")
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.goto(file.as_uri())
    for name, (ask, actual, typed, guess, refused) in PAGE.items():
        form, sentence = page.locator(f"#{name}"), page.locator(f"#{name} .sentence")
        if isinstance(guess, str):
            form.get_by_text("Lock in").click()  # nothing is chosen yet
            form.get_by_label(typed).check()
            assert not sentence.is_visible()
            form.get_by_label(typed).press("Enter")
        else:
            for text in ("", "many", "1,000", *refused, typed):
                assert not sentence.is_visible()
                form.locator("input").fill(text)
                form.locator("input").press("Enter")
        prediction_module._asked.clear()
        expected = ask().answer(guess).reveal(actual)
        assert sentence.inner_text().replace("\xa0", " ") == expected.words
        assert form.locator("tbody rect").count() == len(expected.rows)
    # Asked once: the same guess has opened the measurement further down, and can be changed.
    below, first = page.locator("#below"), page.locator("#number")
    assert below.get_by_text(RESULTS["two"].card().words).is_visible()
    assert below.locator("input").count() == below.locator(".sentence", has_text="You said").count() == 0
    first.get_by_text("Change it").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    assert first.locator(".sentence").inner_text().startswith("You said 7×")
    assert first.locator(".course-card").evaluate("card => card === document.activeElement")
    page.close()
