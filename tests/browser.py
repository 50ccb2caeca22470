"""A real Chromium for the tests: the machine's own, or else one that Playwright fetches.

``python -m tests.browser`` makes sure that there is one, and says what happens without it.
"""

# ruff: noqa: T201 - this module is also a command

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "no Chromium: tests with a browser are skipped. Install one (Debian, Ubuntu: sudo apt-get install chromium), "
    "or run: python -m playwright install chromium"
)
FETCH_LIMIT_S = 600
# The last one keeps every page to this machine.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


@functools.cache
def program() -> str | None:
    """The path of a Chromium: one on the PATH, or Playwright's own; None if there is neither."""
    on_the_path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if on_the_path is not None:
        return on_the_path
    ask = "from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.executable_path)"
    own = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False).stdout.strip()
    return own if own and Path(own).exists() else None


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium that reaches nothing but this machine; skips the test where there is none, and fails it in CI."""
    from playwright.sync_api import sync_playwright

    if program() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def main() -> int:
    """Fetches a Chromium if this machine has none; it is no failure if that cannot be had."""
    if program() is None:
        print("No Chromium on this machine: Playwright fetches its own, once.", flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = [sys.executable, "-m", "playwright", "install", "chromium"]
            subprocess.run(command, check=False, timeout=FETCH_LIMIT_S)
        program.cache_clear()
        if program() is None:
            print(f"There is {MISSING}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
