"""The table of checks: at two widths, with and without colour."""

import io
import re

import pytest
from ft_run.checks.table import print_verdicts
from ft_run.checks.verdict import NodeVerdict, Standing, Verdicts
from rich.console import Console

METRICS = {
    "compute_tflops": 712.3,
    "memory_gb_per_s": 2411.0,
    "copy_gb_per_s": 51.2,
    "intra_gb_per_s": 361.0,
    "latency_us": 23.1,
    "bandwidth_gb_per_s": 189.2,
}
FACTS = {"gpus": 8}
SLOW = "compute 301 TFLOP/s, 2.4 times worse than the median 712 TFLOP/s of its peers"

NODES = (
    NodeVerdict("a/0", Standing.PASSED, "", METRICS, facts=FACTS),
    NodeVerdict(
        "b/0",
        Standing.SLOW,
        SLOW,
        METRICS | {"compute_tflops": 301.0},
        slow=("compute_tflops",),
        warnings=("GPU 3 is throttled by heat",),
        facts=FACTS,
    ),
    NodeVerdict(
        "c/0", Standing.FAULTY, "system information: GPU 1 does not answer", {}, facts=FACTS
    ),
)
VERDICTS = Verdicts(NODES, (), "2 of 3 nodes pass; faulty: c/0; slow: b/0")


def printed(width, verdicts=VERDICTS, **console):
    file = io.StringIO()
    print_verdicts(verdicts, Console(file=file, width=width, highlight=False, **console))
    return file.getvalue()


def test_at_80_columns_the_reasons_follow_the_table():
    lines = [line.rstrip() for line in printed(80).splitlines()]
    assert lines == [
        "              COMPUTE  MEMORY  COPY  INTRA  LATENCY  BANDWIDTH",
        "NODE  SYSTEM  TFLOP/s    GB/s  GB/s   GB/s       µs       GB/s  VERDICT",
        "a/0   ok          712    2411  51.2    361     23.1        189  passed",
        "b/0   warned    ! 301    2411  51.2    361     23.1        189  slow",
        "c/0   failed        -       -     -      -        -          -  faulty",
        "b/0: compute 301 TFLOP/s, 2.4 times worse than the median 712 TFLOP/s of its",
        "peers; GPU 3 is throttled by heat",
        "c/0: system information: GPU 1 does not answer",
        "2 of 3 nodes pass; faulty: c/0; slow: b/0",
    ]


def test_at_160_columns_they_are_in_it():
    lines = [line.rstrip() for line in printed(160).splitlines()]
    assert lines[1].endswith("VERDICT  REASON")
    assert f"slow     {SLOW[:40]}" in lines[3]
    assert lines[-1] == VERDICTS.sentence
    assert all(len(line) <= 160 for line in lines)


def test_colour_adds_nothing_but_colour():
    coloured = printed(80, force_terminal=True, color_system="standard")
    assert "\x1b[1;31mfaulty" in coloured
    assert "\x1b[1;33m  ! 301" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(80)


def test_what_no_node_has_measured_has_no_column():
    node = NodeVerdict("a/0", Standing.PASSED, "", {"compute_tflops": 0.0951}, facts=FACTS)
    lines = printed(80, Verdicts((node,), (), "1 of 1 nodes pass")).splitlines()
    assert lines[1].split() == ["NODE", "SYSTEM", "TFLOP/s", "VERDICT"]
    assert lines[2].split() == ["a/0", "ok", "0.0951", "passed"]


@pytest.mark.parametrize("width", [80, 160])
def test_no_control_character_of_another_host_reaches_the_terminal(width):
    node = NodeVerdict("a\x1b[2J/0", Standing.FAULTY, "solo: \x1b]0;x\x07 broken", {})
    text = printed(width, Verdicts((node,), (), "0 of 1"))
    assert "\x1b" not in text
    assert "\x07" not in text
