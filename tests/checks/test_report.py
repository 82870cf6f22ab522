"""The report of checks: how large it may grow on its way, and what a terminal shows of it."""

import asyncio
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from types import SimpleNamespace
from typing import Any

import pytest
from ft_run import defaults
from ft_run.checks.gpu_facts import collect_gpu_facts
from ft_run.checks.report import report_from_json, report_to_json
from ft_run.checks.table import noteworthy_nodes
from ft_run.checks.verdict import NodeVerdict, Standing, Verdicts
from ft_run.launcher.options import CheckOptions
from ft_run.launcher.preflight.show import show_finding
from ft_run.launcher.reporting.display import Display
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.group.examination import CheckStep, Conclusion, NodeFinding
from ft_run.rendezvous.master.link import LinkEvent
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.check_messages import CheckSpec, CheckVerdict
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import PROTOCOL_VERSION, Attend, JobSpec, NodeSpec
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.transport.channel_options import MAX_MESSAGE_BYTES
from ft_run.rendezvous.transport.client import GrpcLink
from ft_run.rendezvous.transport.server import MasterServer
from msgspec.structs import replace

METRICS = {
    "compute_tflops": 712.3456789012345,
    "memory_gb_per_s": 2411.123456789012,
    "copy_gb_per_s": 51.234567890123456,
    "intra_gb_per_s": 361.12345678901234,
    "latency_us": 23.123456789012345,
    "bandwidth_gb_per_s": 189.12345678901234,
}


class Nvml:
    """A driver with eight healthy GPUs that know everything they may be asked."""

    NVMLError = Exception
    NVML_NVLINK_MAX_LINKS = 18

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlSystemGetDriverVersion": "570.124.06",
            "nvmlDeviceGetCount": 8,
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=85520809984, used=641728512),
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetTemperatureThreshold": 87,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetNvLinkState": 1,
        }
        return lambda *_: answers.get(name, 0)


def node_facts() -> dict[str, str | int | float]:
    """What a node with eight GPUs and as many ports says of itself."""
    facts = collect_gpu_facts({}, Nvml)
    assert len(facts) > 8 * 12
    for port in range(8):
        facts |= {f"ib_mlx5_{port}_1_state": "ACTIVE", f"ib_mlx5_{port}_1_rate_gbit_per_s": 400.0}
    versions = ("ft_run", "python", "torch", "cuda", "nccl", "driver", "grpc")
    return facts | dict.fromkeys(versions, "12.34.5678") | {"script_sha256": "f" * 32}


def large(count: int, *faulty: int) -> Verdicts:
    """The verdicts on so many nodes; some of them are faulty."""
    facts = node_facts()
    nodes = []
    for number in range(count):
        standing = Standing.FAULTY if number in faulty else Standing.PASSED
        reason = "system information: GPU 1 does not answer" if number in faulty else ""
        name = f"gpu-node-{number:05}.cluster.internal/0"
        nodes.append(NodeVerdict(name, standing, reason, METRICS, facts=facts))
    return Verdicts(tuple(nodes), (), f"{count - len(faulty)} of {count} nodes pass")


# --- how large it may grow -------------------------------------------------------------------


def test_a_report_of_2000_nodes_with_8_gpus_is_whole() -> None:
    verdicts = large(2000, 17)
    report = report_to_json(verdicts, defaults.CHECK_REPORT_MAX_BYTES)
    assert len(report) > MAX_MESSAGE_BYTES  # more than any other message may take
    assert report_from_json(report) == verdicts
    assert json.loads(report)["facts_left_out"] == json.loads(report)["nodes_left_out"] == 0


@pytest.mark.parametrize("most", [450_000, 30_000, 16_000])
def test_what_has_no_room_is_left_out_and_counted(most: int) -> None:
    verdicts = large(100, 17, 98)
    report = report_to_json(verdicts, most)
    assert len(report) <= most
    found, cut = json.loads(report), report_from_json(report)
    without_facts = [node for node in cut.nodes if not node.facts]
    assert len(cut.nodes) + cut.left_out == 100
    assert found["nodes_left_out"] == cut.left_out
    assert found["facts_left_out"] == len(without_facts)
    assert (found["facts_left_out"] > 0) != (cut.left_out == 98)
    assert cut.left_out == 0 or len(report) > 0.8 * most
    assert cut.sentence == verdicts.sentence
    # The node that failed comes first, with all that is known of it.
    faulty = [node for node in cut.nodes if node.standing is Standing.FAULTY]
    assert faulty == [verdicts.nodes[17], verdicts.nodes[98]]
    if most > 200_000:
        assert cut.left_out == 0


def test_a_remark_is_no_less_than_a_fault() -> None:
    verdicts = large(10)
    warned = replace(verdicts.nodes[9], warnings=("GPU 3 is throttled by heat",))
    verdicts = replace(verdicts, nodes=(*verdicts.nodes[:9], warned))
    cut = report_from_json(report_to_json(verdicts, 8_000))
    assert cut.nodes[-1] == warned
    assert cut.left_out > 0


class OneStep:
    """An examination that is over at once, with a given report."""

    def __init__(self, report: str) -> None:
        self._report = report

    def next_step(self, _remaining_s: float) -> CheckStep | None:
        return None

    def answered(self, _node_id: str, _report: str, _took_s: float) -> None:
        pass

    def silent(self, _node_id: str, _why: str) -> None:
        pass

    def lost(self, _node_id: str) -> None:
        pass

    def conclude(self) -> Conclusion:
        return Conclusion({"h/0": NodeFinding(0, "")}, (), "fine", self._report)


def test_the_longest_report_arrives() -> None:
    report = "x" * defaults.CHECK_REPORT_MAX_BYTES
    attend = Attend(
        protocol=PROTOCOL_VERSION,
        version="1",
        job=JobSpec("j", 1, 1, 1, 0, checks=CheckSpec("light", 60.0)),
        node=NodeSpec("h/0", "i0", "h", "127.0.0.1", "r", 1, None),
        offer=Offer("127.0.0.1", 1000),
        claim=None,
    )

    async def test() -> None:
        master = Master(GroupSettings(), lambda _: None, examiner=lambda *_: OneStep(report))
        server = MasterServer(master, "1", 60.0)
        port = await server.start(Endpoint("127.0.0.1", 0))
        events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        link = GrpcLink(
            Endpoint("127.0.0.1", port),
            lambda: attend,
            events.put_nowait,
            silence_s=60.0,
            connect_timeout_s=60.0,
            master_timeout_s=60.0,
        )
        while not isinstance(event := await events.get(), CheckVerdict):
            assert "exhausted" not in str(event)
        assert event.report == report
        await link.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60.0))


# --- on a terminal ---------------------------------------------------------------------------

SHOW = """
import sys
from ft_run.launcher.preflight.show import show_finding
from ft_run.launcher.reporting.display import Display
from ft_run.launcher.options import CheckOptions
from ft_run.rendezvous.protocol.messages import CheckSpec, CheckVerdict
found = CheckVerdict(0, "", "1 of 2 nodes pass; faulty: b/0", sys.stdin.read())
show_finding(found, Display(), CheckOptions(CheckSpec("light", 60.0)))
"""
FAULTY = NodeVerdict(
    "b/0", Standing.FAULTY, "system information: GPU 1 does not answer", {}, facts={"gpus": 8}
)
PASSED = NodeVerdict("a/0", Standing.PASSED, "", METRICS, facts={"gpus": 8})
REPORT = report_to_json(Verdicts((PASSED, FAULTY), (), "1 of 2 nodes pass; faulty: b/0"))


def shown(columns: int, **variables: str) -> str:
    """What an agent shows of a report on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm", **variables}
    try:
        subprocess.run(
            [sys.executable, "-c", SHOW],
            input=REPORT,
            text=True,
            stderr=theirs,
            env=env,
            check=True,
        )
    finally:
        os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as file:
        return file.read(65536).decode().replace("\r\n", "\n")


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_a_narrow_terminal_has_the_reasons_below_the_table(variables: dict[str, str]) -> None:
    text = shown(80, **variables)
    assert ("\x1b[1;31mfaulty" in text) == (not variables)
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    assert lines == [
        "",
        "              COMPUTE  MEMORY  COPY  INTRA  LATENCY  BANDWIDTH",
        "NODE  SYSTEM  TFLOP/s    GB/s  GB/s   GB/s       µs       GB/s  VERDICT",
        "a/0   ok          712    2411  51.2    361     23.1        189  passed",
        "b/0   failed        -       -     -      -        -          -  faulty",
        "b/0: system information: GPU 1 does not answer",
        "1 of 2 nodes pass; faulty: b/0",
    ]


def test_of_many_nodes_only_those_with_something_to_tell_are_shown() -> None:
    few = large(32, 3)
    assert noteworthy_nodes(few) == few
    shortened = noteworthy_nodes(large(1000, 3, 500))
    assert [node.standing for node in shortened.nodes] == [Standing.FAULTY] * 2
    assert shortened.left_out == 998


def test_without_a_terminal_a_line_for_each_node_with_something_to_tell(
    capfd: pytest.CaptureFixture[str],
) -> None:
    hot = replace(PASSED, node="c/0", warnings=("GPU 3 is throttled by heat",))
    worse = replace(FAULTY, warnings=("driver is 1 here and 2 on most other nodes",))
    report = report_to_json(Verdicts((PASSED, worse, hot), (), "2 of 3 nodes pass"))
    found = CheckVerdict(0, "", "2 of 3 nodes pass", report)
    show_finding(found, Display(live=False), CheckOptions(CheckSpec("light", 60.0)))
    lines = [line.partition(" ft-run ")[2] for line in capfd.readouterr().err.splitlines()]
    assert lines == [
        "checks: b/0 faulty: system information: GPU 1 does not answer;"
        " driver is 1 here and 2 on most other nodes",
        "checks: c/0 passed: GPU 3 is throttled by heat",
        "checks: 2 of 3 nodes pass",
    ]
