"""Checks before training on hosts of their own: which nodes are sent away, why, and which go on.

Faults are injected (``FT_RUN_CHECK_FAULT``) and real: a cut between two hosts, a link that is
shaped, a CPU quota. The hosts share this machine's cores, so that only what is a multiple of what
they do to each other is told apart.
"""

import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ft_run.tests.harness.hosts import Host

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

WAIT_S = 300.0
SCRIPT = """import os
os.write(1, "rank {RANK} of {WORLD_SIZE}\\n".format_map(os.environ).encode())  # ranks do not mix
"""


class Job:
    """One ``ft-run --network-check`` on several hosts, to its end.

    What is to be done while it runs is a function that takes it.
    """

    def __init__(
        self, ft, network, names, nnodes, *flags, fault="", prefix=None, meanwhile=lambda job: None
    ):
        self.hosts: list[Host] = [network.hosts.get(name) or network.add(name) for name in names]
        self.report_path: Path = ft.folder / f"report-{uuid.uuid4().hex[:6]}.json"
        script = ft.script(SCRIPT)
        self.commands = [
            ft.start(
                *("--nnodes", nnodes, "--rdzv-endpoint", f"{names[0]}:29400", "--rdzv-id", "check"),
                *("--network-check", "--check-timeout", 120, "--check-report", self.report_path),
                *(*flags, script),
                program=((prefix or {}).get(host.name) or ()) + ft.program,
                host=host,
                env={"FT_RUN_CHECK_FAULT": fault, "OMP_NUM_THREADS": "1"},
            )
            for host in self.hosts
        ]
        meanwhile(self)
        for command in self.commands:
            command.process.wait(WAIT_S)
        self.statuses = {
            host.name: command.wait()
            for host, command in zip(self.hosts, self.commands, strict=True)
        }

    def said(self, name: str) -> str:
        """What a host's agent said."""
        command = self.commands[[host.name for host in self.hosts].index(name)]
        return str(command.stdout + command.stderr)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict on each host in the report."""
        report = json.loads(self.report_path.read_text())
        return {entry["node"].split("/")[0]: str(entry["verdict"]) for entry in report["nodes"]}

    def reason(self, name: str) -> str:
        """Why a host has its verdict."""
        report = json.loads(self.report_path.read_text())
        return next(str(e["reason"]) for e in report["nodes"] if e["node"].split("/")[0] == name)

    @property
    def ranks(self) -> set[str]:
        """What the workers printed."""
        return {
            line
            for command in self.commands
            for line in command.stdout.splitlines()
            if line.startswith("rank")
        }


def world(size: int) -> set[str]:
    """What the workers of a world print, one on each host."""
    return {f"rank {rank} of {size}" for rank in range(size)}


def names(count: int) -> list[str]:
    """Names of hosts."""
    return [f"h{number}" for number in range(count)]


def faults(kind: str, *hosts: str) -> str:
    """A fault on the workers of some hosts in all phases in which nodes meet."""
    return ";".join(
        f"{kind}@node={host}/0,phase={phase}"
        for host in hosts
        for phase in ("pair", "suspects", "all")
    )


# --- what CI runs ----------------------------------------------------------------------------


def test_a_wrong_value_condemns_its_host_which_hosts_the_master_all_the_same(ft, network):
    job = Job(ft, network, names(3), "2:3", fault=faults("wrong-value", "h0"))
    assert job.statuses == {"h0": 30, "h1": 0, "h2": 0}
    assert re.search(r"fails with h\d/0, h\d/0", job.said("h0"))
    assert "returned 1 wrong value" in job.said("h0")
    assert "still hosts the master" in job.said("h0")
    assert job.ranks == world(2)


# --- on request ------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_hosts_that_cannot_reach_each_other_are_a_link_and_the_rest_trains(ft, network):
    for name in names(4):
        network.add(name)
    network.separate(network.hosts["h1"], network.hosts["h3"])
    job = Job(ft, network, names(4), "3:4")
    assert set(job.statuses.values()) == {0}
    assert set(job.verdicts) == set(names(4))
    out = [name for name, verdict in job.verdicts.items() if verdict == "left out"]
    assert out in (["h1"], ["h3"])
    assert "the link to " in job.reason(out[0])
    assert {v for name, v in job.verdicts.items() if name != out[0]} <= {"passed", "slow"}
    assert job.ranks == world(3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fail", "hang", "exit", "wrong-value"])
def test_a_bad_rank_condemns_its_host_and_no_other(ft, network, kind):
    job = Job(ft, network, names(4), "2:4", fault=faults(kind, "h2"))
    assert job.statuses == {"h0": 0, "h1": 0, "h2": 30, "h3": 0}
    assert job.verdicts["h2"] == "faulty"
    assert "failed the checks: fails with" in job.said("h2")
    assert job.ranks == world(3)


def meets_others(pid: int) -> bool:
    """Return whether a process has a connection to another host."""
    sockets = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(entry))
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            # Address and port of both ends in hexadecimal, the state (1: established), the inode.
            words = line.split()
            local, remote = (word.partition(":")[0] for word in words[1:3])
            if words[3] == "01" and local != remote and f"socket:[{words[9]}]" in sockets:
                return True
    return False


def stop_check_workers_that_meet(job: Job) -> bool:
    """Really stop check workers of h2 that meet another node; its agent never does."""
    found = [p for p in job.hosts[2].pids() - {job.commands[2].pid} if meets_others(p)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return bool(found)


@pytest.mark.slow
def test_a_check_worker_that_is_stopped_once_costs_its_host_one_partner(ft, network):
    """Another takes its place, which passes with the next partner: that is a bad link."""

    def meanwhile(job):
        ft.wait_until(
            lambda: stop_check_workers_that_meet(job), "the check worker of h2 meets another"
        )

    job = Job(ft, network, names(4), "2:4", "--check-timeout", 60, meanwhile=meanwhile)
    assert set(job.statuses.values()) == {0}
    (out,) = [name for name, verdict in job.verdicts.items() if verdict == "left out"]
    partner = f"the link to {'h2' if out != 'h2' else 'h'}"
    assert job.reason(out).startswith(partner)
    assert "no answer within" in job.reason(out)
    assert job.ranks == world(3)


@pytest.mark.slow
def test_check_workers_that_are_stopped_each_time_condemn_their_host_and_no_other(ft, network):
    def meanwhile(job):
        def has_ended():
            stop_check_workers_that_meet(job)
            return job.commands[2].process.poll() is not None

        ft.wait_until(has_ended, "h2 rejected by the checks")

    job = Job(ft, network, names(4), "2:4", "--check-timeout", 60, meanwhile=meanwhile)
    assert job.statuses == {"h0": 0, "h1": 0, "h2": 30, "h3": 0}
    assert job.verdicts["h2"] == "faulty"
    assert "failed the checks: fails with" in job.said("h2")
    assert "no answer within" in job.said("h2")
    assert job.ranks == world(3)


@pytest.mark.slow
def test_one_host_alone(ft, network):
    assert Job(ft, network, names(1), "1").statuses == {"h0": 0}
    job = Job(ft, network, names(1), "1", fault="fail@phase=solo")
    assert job.statuses == {"h0": 30}
    assert "failed the checks: solo:" in job.said("h0")


@pytest.mark.slow
def test_too_few_are_left_and_all_nodes_say_so(ft, network):
    job = Job(ft, network, names(4), "4", fault=faults("fail", "h2"))
    assert job.statuses == {"h0": 20, "h1": 20, "h2": 30, "h3": 20}
    assert "3 of at least 4 nodes are usable after the checks" in job.said("h0")


@pytest.mark.slow
def test_a_host_behind_a_slow_link_is_a_straggler(ft, network):
    for name in names(4):
        network.add(name)
    network.hosts["h2"].shape("8mbit")
    job = Job(ft, network, names(4), "2:4", "--exclude-straggler", "--straggler-threshold", 5)
    assert job.statuses == {"h0": 0, "h1": 0, "h2": 30, "h3": 0}
    assert "inter-node bandwidth" in job.said("h2")
    assert job.ranks == world(3)


@pytest.fixture
def quarter() -> Iterator[Sequence[str]]:
    """A command before which another runs on a quarter of a CPU (cgroup v1)."""
    root = Path("/sys/fs/cgroup/cpu")
    if not os.access(root / "cpu.cfs_quota_us", os.F_OK) and not (root / "tasks").exists():
        pytest.skip("the CPU controller of cgroup v1 is not here")
    group = root / f"ft-run-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    (group / "cpu.cfs_quota_us").write_text("25000")
    yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    for _ in range(1000):
        if not (group / "cgroup.procs").read_text():
            break
    group.rmdir()


@pytest.mark.slow
def test_a_host_with_a_quarter_of_a_cpu_is_a_straggler(ft, network, quarter):
    flags = ("--exclude-straggler", "--straggler-threshold", 2)
    job = Job(ft, network, names(4), "2:4", *flags, prefix={"h1": tuple(quarter)})
    assert job.statuses["h1"] == 30
    assert job.reason("h1").startswith("compute ")
