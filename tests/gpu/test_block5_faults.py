"""Block 5: injected faults, and a check that is interrupted."""

import os
import signal
import subprocess

import pytest
from ft_run.tests.gpu.machine import FT_RUN, Tell, check, smi

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("fail", 30), ("exit", 30), ("hang", 30), ("wrong-value", 30), ("slow-compute=3", 0)],
)
def test_an_injected_fault_leaves_nothing_on_the_gpu(
    fault: str, expected: int, record_property: Tell
) -> None:
    before = {row[0] for row in smi("compute-apps=pid")}
    status, node = check("--check-timeout", "60", FT_RUN_CHECK_FAULT=fault)
    record_property("gpu", f"{fault}: status {status}, {node['reason'] or 'no reason'}")
    assert status == expected
    assert {row[0] for row in smi("compute-apps=pid")} <= before


def test_a_check_that_is_interrupted_leaves_nothing_on_the_gpu(record_property: Tell) -> None:
    before = {row[0] for row in smi("compute-apps=pid")}
    command = (*FT_RUN, "check", "--nproc-per-node", "1", "--check-level", "full")
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "LOGLEVEL": "DEBUG"},
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "checks: solo" in line)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert {row[0] for row in smi("compute-apps=pid")} <= before
    record_property("gpu", "interrupted: nothing left")
