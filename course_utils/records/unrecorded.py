"""Stands for an experiment that nobody has recorded yet."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Unrecorded:
    """Stands for an experiment that a notebook has and no machine has recorded yet. It shows itself as that sentence.

    Attributes:
        name: the experiment, ``lesson/experiment``.
        needs: what a machine must have to run it, in words, such as ``a CUDA GPU``; empty if any machine will do.
    """

    name: str
    needs: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What is missing, and how to get it."""
        lesson = self.name.partition("/")[0]
        where = f"It needs {' and '.join(self.needs)}. On such a machine, run" if self.needs else "Run"
        return f"No run of {self.name} is recorded yet. {where} `course record {lesson} --reference`."

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.words)}</p>"

    def __getitem__(self, key: Any) -> Self:
        """A part of what is not recorded is not recorded: returns itself."""
        del key
        return self

    def __iter__(self) -> Iterator[Self]:
        """There are no cases or ranks to go through."""
        # Without this, Python would go through [0], [1], ... without end.
        return iter(())

    def first(self, label: str, verdict: str) -> Self:
        """As in a :class:`Sweep`; there is no first value either: returns itself."""
        del label, verdict
        return self

    def comparison(self, key: str = "", practical: float = 0.0) -> Self:
        """As in :class:`RankResults`; there is nothing to compare: returns itself."""
        del key, practical
        return self

    def curves(self, key: str, x: str = "", y: str | None = None) -> Self:
        """As in :class:`RankResults`; there are no curves: returns itself."""
        del key, x, y
        return self

    def against(self, check: object) -> Self:
        """As in a :class:`ClusterPlan`; there is no plan: returns itself."""
        del check
        return self

    @property
    def table(self) -> Self:
        """As in :class:`RankResults`; there is no table: itself."""
        return self

    def plot(self, *args: Any, **options: Any) -> Self:
        """There is nothing to draw: returns itself, so that the sentence is shown where the figure would be."""
        del args, options
        return self

    def explore(self) -> Self:
        """As in a :class:`MemoryTrace`; there is nothing to explore: returns itself."""
        return self
