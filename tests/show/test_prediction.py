"""Predictions: what is typed, what is locked in, and how far off it was."""

from __future__ import annotations

import html as html_module

import ipywidgets
import pytest

from course_utils.show import prediction as prediction_module
from course_utils.show.formats import format_interval, format_ratio
from course_utils.show.prediction import predict
from tests.example_results import RESULTS


@pytest.fixture(autouse=True)
def _no_answers():
    prediction_module._locked.clear()
    yield
    prediction_module._locked.clear()


def test_prediction_against_a_number():
    guess = predict("How many times faster?").answer(3)
    assert repr(guess.reveal(1.0)) == "You said 3x; measured 1x. Your prediction was too high by a factor of 3."
    assert "too low" in repr(predict("Another?").answer(0.5).reveal(2.0))
    assert "by 3" in repr(predict("Change?", unit="%").answer(-1).reveal(2))
    with pytest.raises(ValueError, match="needs a number or a case"):
        predict("?").reveal(float("nan"))


def test_prediction_against_a_case():
    case = RESULTS["two"]["pinned"]
    shown = repr(predict("How many times faster?").answer(3).reveal(case))
    assert shown.startswith(f"You said 3x; measured {format_ratio(case.speedup)}x (95% interval ")
    assert "Verdict on pinned: FASTER." in shown
    ratio = predict("What share of the time?").answer(0.5).reveal(case, use="ratio")
    assert f"measured {format_ratio(case.ratio)}x (95% interval {format_interval(case.interval)})" in repr(ratio)
    inside = predict("Again?").answer(case.speedup).reveal(case)
    assert "Right: it lies inside the interval." in repr(inside)


def test_no_prediction_is_no_error():
    guess = predict("How many times faster?")
    assert guess.value is None
    shown = guess.reveal(RESULTS["two"]["pinned"])
    assert repr(shown).startswith("You made no prediction. The answer on this machine: ")
    few = guess.reveal(RESULTS["one round"]["pinned"])
    assert "UNCLEAR" in repr(few)
    assert "interval" not in repr(few)


@pytest.mark.parametrize(
    ("typed", "value"),
    [("3x", 3.0), (" 2.5 times ", 2.5), ("2,5", 2.5), ("1e2", 100.0), (7, 7.0)],
)
def test_answers_that_are_understood(typed, value):
    assert predict("How many?").answer(typed).value == value


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "Type a number first"),
        ("many", "'many' is not a number"),
        ("1,000", "Type 1000 without a comma"),
        ("nan", "finite"),
        (True, "not a number"),
        ("-1", "out of range. Give a number from 0 to 50."),
    ],
)
def test_answers_that_are_refused(typed, message):
    guess = predict("How many?", low=0, high=50)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        guess.answer(typed)
    assert guess.value is None


def test_a_question_may_have_one_limit_alone():
    for limits, words in (({"low": 0}, "of at least 0"), ({"high": 0}, "of at most 0")):
        with pytest.raises(ValueError, match=f"Give a number {words}"):
            predict("How far?", **limits).answer(-1 if "low" in limits else 1)


def test_a_locked_answer_stays_when_the_cell_runs_again():
    predict("How many?").answer(3)
    again = predict("How many?")
    assert again.value == 3.0
    again.answer(3)
    with pytest.raises(ValueError, match="Locked: you said 3x"):
        again.answer(4)
    assert predict("How many?", unit="ms").value is None


def test_prediction_without_a_frontend_is_text_and_html():
    guess = predict("Is 1 < 2?")
    assert "Is 1 &lt; 2?" in guess._repr_html_()
    bundle = guess._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}


def test_reveal_draws_a_number_line_that_is_well_formed():
    from xml.etree import ElementTree

    for answer, measured in ((3, 1.02), (0.01, 40), (-5, 2)):
        prediction_module._locked.clear()
        shown = predict("<b>?", unit="x" if answer > 0 else "%").answer(answer).reveal(measured)._repr_html_()
        svg = ElementTree.fromstring(shown[shown.index("<svg") :])
        assert svg.get("role") == "img"
        assert html_module.unescape(svg.get("aria-label")).startswith("You said")
        for circle in svg.iter("{http://www.w3.org/2000/svg}circle"):
            assert 0 <= float(circle.get("cx")) <= 520


def _parts(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _parts(child)


def test_form_refuses_bad_input_then_locks():
    guess = predict("How many <b>times</b>?", low=0)
    box = guess.widget()
    assert "course-predict" in box._dom_classes
    (entry,) = (part for part in _parts(box) if isinstance(part, ipywidgets.Text))
    (button,) = (part for part in _parts(box) if isinstance(part, ipywidgets.Button))
    message = [part for part in _parts(box) if isinstance(part, ipywidgets.HTML)][-1]
    for typed, words in (("<lots>", "&#x27;&lt;lots&gt;&#x27; is not a number"), ("-2", "at least 0")):
        entry.value = typed
        button.click()
        assert words in message.value
        assert guess.value is None
        assert not button.disabled
    entry.value = "2.5x"
    entry._handle_custom_msg({"event": "submit"}, [])  # Enter
    assert guess.value == 2.5
    assert message.value == "Locked: you said 2.5x. Now measure it."
    assert entry.disabled
    assert button.disabled
    again = predict("How many <b>times</b>?", low=0).widget()
    assert [part.value for part in _parts(again) if isinstance(part, ipywidgets.Text)] == ["2.5"]
    entry.value = "3"
    button.click()
    assert guess.value == 2.5
