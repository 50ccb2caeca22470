"""Two traces of one program: what differs, step by step, and how much of it the steps can carry."""

from __future__ import annotations

from course_utils.show.cards import Card, Shown
from course_utils.traces.columns import Reading


class TracePair(Shown):
    def __init__(self, before: Reading, after: Reading) -> None:
        self.before, self.after = before, after

    def card(self) -> Card:
        return Card("later")
