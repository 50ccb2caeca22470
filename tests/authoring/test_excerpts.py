"""What of a lesson's text is for a room."""

from __future__ import annotations

import pytest

from authoring.excerpts import ends_left_out, excerpt, opening


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("## Verdict\n\nYes.\n\n### Recap\n\n- one\n\n### Sources\n\n- [1]\n\n### Next lesson\n\n05", None),
        ("## Verdict\n\nYes.\n\n### Recap\n\n- one\n\n## Solutions\n\n### Exercise 1\n\nSo.", None),
        ("## Verdict\n\nYes.\n\n### Recap\n\n- one\n\n## Exercises\n\nThree.\n\n## Solutions", None),
        ("**Recap**\n\n- one\n\n**Sources**\n\n- [1]\n\n**Next** [05](05_a.ipynb): more.", "**Recap**\n\n- one"),
        ("### Sources\n\n- [1]\n\n## Recap\n\n- one", "## Recap\n\n- one"),
        ("```\n## Solutions\n```\n\nStays.", "```\n## Solutions\n```\n\nStays."),
        ("A [lesson](04_a.ipynb#b), a [term](../book/glossary.md#c).", "A lesson, a term."),
        (
            "The [docs](https://docs.org), `x[i](y)` and ![](a.png).",
            "The [docs](https://docs.org), `x[i](y)` and ![](a.png).",
        ),
    ],
)
def test_what_is_not_for_a_room_is_left_out(markdown: str, expected: str | None):
    assert excerpt(markdown) == (expected or "## Verdict\n\nYes.\n\n### Recap\n\n- one")


def test_it_says_whether_the_end_was_left_out():
    assert ends_left_out("## Verdict\n\nYes.\n\n## Solutions\n\n### Exercise 1")
    assert not ends_left_out("### Sources\n\n- [1]\n\n## Verdict")


def test_the_opening_ends_at_the_line_and_not_at_the_words():
    assert opening("# A\n\nBefore **You need** it.\n\n**You need** a GPU.", "**You need**") == (
        "# A\n\nBefore **You need** it."
    )
