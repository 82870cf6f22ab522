"""Scripts of faults among hosts that may lead, and what becomes of them, word for word.

``FT_RUN_REWRITE_TRANSCRIPTS=1 pytest tests/rendezvous/lease/test_traces.py`` writes the files anew;
read the difference before you commit it.
"""

from pathlib import Path

import pytest
from ft_run.tests.harness.lease.transcript import perform
from ft_run.tests.harness.transcript_words import hold

FILES = sorted((Path(__file__).parent / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_trace_is_what_happens(path: Path) -> None:
    hold(path, perform)


def test_every_trace_says_what_it_shows() -> None:
    assert len(FILES) >= 12
    for path in FILES:
        assert path.read_text().startswith("# "), path.name


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(ValueError, match="no event"):
        perform("# A script with a slip.\njob nodes=2 hosts=ab\nstat a\n")
