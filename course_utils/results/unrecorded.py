"""Stands for experiments that nobody has recorded yet, and for several results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from course_utils.show.cards import Card


@dataclass(frozen=True)
class Unrecorded:
    """Stands for an experiment that a notebook has and no machine has recorded yet. It shows itself as that sentence.

    Whatever is asked of it, as of a result (``.plot()``, ``["case"]``, ``.table``), it returns itself.

    What a machine must have to run it is told in words, such as ``a CUDA GPU``.
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
        return Card(self.words)._repr_html_()

    def __getattr__(self, attribute: str) -> Self:
        # Python and IPython ask for names such as __array__ and _repr_png_, and must hear that they are not there.
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return self

    def __call__(self, *args: Any, **options: Any) -> Self:
        """As any method of a result: returns itself."""
        return self

    def __getitem__(self, key: Any) -> Self:
        """A part of what is not recorded is not recorded: returns itself."""
        return self

    def __iter__(self) -> Iterator[Self]:
        """There are no cases or ranks to go through."""
        # Without this, Python would go through [0], [1], ... without end.
        return iter(())


@dataclass(frozen=True)
class Several:
    """Several results, shown below each other."""

    results: tuple[Any, ...]

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self.results))

    def _repr_html_(self) -> str:
        return "\n".join(each._repr_html_() for each in self.results)
