"""Ordinary training causes no alarm of the comparison of ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("no_alarm.py")
RANKS = 4
DIFFERS = {"ddp uneven inputs with adam": "the state of 'optimizer' differs between ranks 0 and 1"}
"""Kinds that get a warning: the optimizer of a rank that has joined early has done fewer steps."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ordinary_training_causes_no_alarm(tmp_path: Path) -> None:
    """Prints a row for each kind of training, with the objects that were compared and are equal."""
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(RANKS)], stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    rows = [json.loads(output.splitlines()[-1]) for output in outputs]
    print(rows[0].pop("versions"))
    for kind, result in rows[0].items():
        print(f"{kind}: {result}")
    assert len(rows[0]) >= 45
    for kind, result in rows[0].items():
        equal, *lines = result.split("; ", 1)
        assert equal.startswith("equal: "), kind
        assert ("net" in equal) or ("maker" in equal), kind
        assert DIFFERS.get(kind, "") in "".join(lines), kind
        assert bool(lines) == (kind in DIFFERS), kind
        assert ("optimizer" in equal or "makes" in equal) == (
            kind not in DIFFERS and kind != "optimizer LBFGS"  # without names: not compared
        ), kind
    assert all(row[kind].startswith("equal: ") for row in rows[1:] for kind in rows[0])
