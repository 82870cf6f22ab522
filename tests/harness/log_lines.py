"""Log lines of a worker, as it writes them to standard error."""

import re

import pytest


def logged(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return the messages since the last call, without time; everything must be a log line."""
    matches = [
        re.fullmatch(r"\d\d:\d\d:\d\d ft-run (.*[^.])", line)
        for line in capfd.readouterr().err.splitlines()
    ]
    assert all(matches)
    return [match[1] for match in matches if match]
