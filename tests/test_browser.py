"""Where no Chromium is found and none can be fetched, a newcomer reads which tests are skipped and how to get one."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.browser import ROOT


def test_without_a_browser_the_way_to_get_one_is_said(tmp_path):
    variables = {
        **os.environ,
        "PATH": str(tmp_path),
        "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "browsers"),
        "PLAYWRIGHT_DOWNLOAD_HOST": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.browser"], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert "tests with a browser are skipped" in done.stdout
    assert "playwright install chromium" in done.stdout
