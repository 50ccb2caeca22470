"""What takes longest starts first, by the seconds of an earlier run: no worker is left alone with it at the end.

``make test ARGS=--write-seconds`` records the seconds in ``tests/seconds.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
ROOT = SECONDS.parents[1]
# A file that nobody has timed counts as slow: one that starts last keeps a core waiting for as long as it takes.
UNTIMED_S = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-seconds", action="store_true", help="record how long each file takes, for the order")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Stopwatch())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts slow files first; within a file nothing changes place."""
    seconds = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.exists() else {}

    def expected(item: pytest.Item) -> float:
        return seconds.get(item.path.relative_to(ROOT).as_posix(), UNTIMED_S)

    items.sort(key=lambda item: -expected(item) if item.path.is_relative_to(ROOT) else 0.0)


class _Stopwatch:
    """Adds up the seconds of each file, set-up and tear-down included."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        earlier = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.exists() else {}
        timed = {name: round(seconds, 1) for name, seconds in self.seconds.items()}
        kept = {name: seconds for name, seconds in {**earlier, **timed}.items() if (ROOT / name).exists()}
        SECONDS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
