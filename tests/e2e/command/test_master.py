"""The master: alone, lost and started again, asked for its status, and talked to by strangers."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from ft_run import exit_codes
from ft_run.protos import rendezvous_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

TIMEOUT_S = 60.0

SERVICE = "ft_run.rendezvous.v1.Rendezvous"

WORKER = """
import os, sys, time
gate = sys.argv[1]
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"up rank={rank} restart={restart} pid={os.getpid()}", flush=True)
while not os.path.exists(gate):
    if restart == "0" and os.path.exists(f"{gate}.fail{rank}"):
        sys.exit(3)
    time.sleep(0.01)
os.write(1, f"finished {rank}\\n".encode())
"""


class Job:
    """A job of two agents with one worker each, all of them waiting at a gate."""

    def __init__(self, ft: "Launcher", endpoint: str, *options: object) -> None:
        self.ft = ft
        self.endpoint = endpoint
        self.gate = ft.folder / "gate"
        # Identities are numbered by job on each host: no other test may have the same.
        self.id = f"job-{ft.mark}"
        self.arguments = (
            "--nnodes", 2, "--rdzv-id", self.id, "--rdzv-endpoint", endpoint, "--max-restarts", 2,
            *options, ft.script(WORKER, "worker.py"), self.gate,
        )  # fmt: skip

    def agent(self, *options: str) -> "Command":
        return self.ft.start(*options, *self.arguments)

    def master(self, *options: object) -> "Command":
        """Start a master alone, and wait until it listens."""
        command = self.ft.start("master", "--bind", self.endpoint, *options)
        command.expect("listening at")
        return command

    def open_gate(self) -> None:
        self.gate.touch()

    def fail(self, rank: int) -> None:
        Path(f"{self.gate}.fail{rank}").touch()

    def status(self) -> dict[str, Any]:
        command = self.ft.run("status", self.endpoint, "--json")
        assert command.process.returncode == 0, command.stderr
        found: dict[str, Any] = json.loads(command.stdout)
        return found


@pytest.fixture
def endpoint(free_port: int) -> str:
    return f"127.0.0.1:{free_port}"


def up(agent: "Command", restart: int) -> int:
    """Wait for an agent's worker; return its pid."""
    (match,) = agent.expect(rf"up rank=\d restart={restart} pid=(\d+)")
    return int(match[1])


# --- a master alone ------------------------------------------------------------------------------


def test_the_master_ends_with_the_job(ft: "Launcher", endpoint: str) -> None:
    events = ("--events", ft.folder / "events.jsonl")  # one file for all three
    job = Job(ft, endpoint, *events)
    master, agents = job.master(*events), [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    # On its host, the master is found without its address.
    found = json.loads(ft.run("status", job.id, "--json").stdout)
    assert [node["phase"] for node in found["nodes"]] == ["running"] * 2
    assert "ranks 0-1" in ft.run("stacks", str(master.pid)).stdout
    job.open_gate()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert master.wait() == 0
    assert "job succeeded: all workers succeeded (0 of 2 restarts used)" in master.stderr
    assert "hosted here" not in agents[0].stderr + agents[1].stderr
    report = json.loads(ft.run("report", events[1], "--json").stdout)
    assert (report["summary"]["job"], report["summary"]["exit_code"]) == (job.id, 0)
    assert report["note"] == ""
    assert len(report["summary"]["nodes"]["connected"]) == len(report["nodes"]) == 2
    assert report["time"]["phases"].keys() >= {"running", "stopping"}


def test_the_master_fails_with_the_job(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint, "--max-restarts", 0)
    master, agents = job.master(), [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    job.fail(1)
    assert [agent.wait() for agent in agents] == [exit_codes.WORKERS_FAILED] * 2
    assert master.wait() == exit_codes.WORKERS_FAILED
    last = {
        command.stderr.splitlines()[-1].partition(" ft-run ")[2] for command in [master, *agents]
    }
    assert len(last) == 1
    assert re.search(r"job FAILED: rank 1 on node 1 \(.*\) exited with 3", last.pop())


def test_a_new_master_takes_the_running_round_over(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint)
    master, agents = job.master(), [job.agent(), job.agent()]
    pids = [up(agent, 0) for agent in agents]
    master.send(signal.SIGTERM)
    assert master.wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    for agent in agents:
        agent.expect("no connection to the master at .*workers keep running")

    since = time.monotonic()
    successor = job.master()
    for agent in agents:
        agent.expect("reconnected to the master")
    ft.measured("new master: noticed by both agents", since)
    successor.expect("round=0 taken over nodes=2/2 restarts=0")
    told = job.status()
    assert (told["phase"], told["round"], told["restarts"]) == ("running", 0, 0)
    # The workers have noticed nothing.
    assert set(pids) <= set(ft.processes())

    job.fail(0)
    for agent in agents:
        up(agent, 1)
        agent.expect(r"round=1 .*restart 1/2: rank 0 .* exited with 3")
    assert (job.status()["round"], job.status()["restarts"]) == (1, 1)
    job.open_gate()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert successor.wait() == 0
    assert "1 of 2 restarts used" in successor.stderr.splitlines()[-1]


def test_a_node_that_is_preempted_while_the_master_is_away_leaves_by_name(
    ft: "Launcher", endpoint: str
) -> None:
    job = Job(ft, endpoint, "--nnodes", "1:2")
    master, agents = job.master(), [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    stays, goes = agents
    master.send(signal.SIGKILL)
    master.wait()
    for agent in agents:
        agent.expect("no connection to the master at .*workers keep running")
    # It learns that it is to go when there is a master that it has not yet found.
    goes.send(signal.SIGSTOP)
    goes.send(signal.SIGTERM)
    successor = job.master()
    goes.send(signal.SIGCONT)
    assert goes.wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    stays.expect(r"round=1 .*regroup with 1 node\(s\): node \d \(.*\) is leaving: SIGTERM")
    assert job.status()["restarts"] == 0
    job.open_gate()
    assert stays.wait() == 0
    assert successor.wait() == 0


def test_a_node_that_is_preempted_while_the_master_stays_away_goes_in_time(
    ft: "Launcher", endpoint: str
) -> None:
    job = Job(ft, endpoint, "--shutdown-timeout", 1)
    master, agents = job.master(), [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    master.send(signal.SIGKILL)
    master.wait()
    for agent in agents:
        agent.expect("no connection to the master at .*workers keep running")
        agent.send(signal.SIGTERM)
        assert agent.wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
        assert (
            "no connection to the master: trying for 1 s to report that this node is leaving"
        ) in agent.stderr


def test_a_failure_while_the_master_is_away_is_handled_when_it_is_back(
    ft: "Launcher", endpoint: str
) -> None:
    job = Job(ft, endpoint)
    master, agents = job.master(), [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    master.send(signal.SIGKILL)
    master.wait()
    job.fail(1)
    agents_say = "\n".join(agent.stderr for agent in agents)
    assert "restart 1" not in agents_say
    next(a for a in agents if "rank=1" in a.stdout).expect(r"rank 1 on node 1 .* exited with 3")
    successor = job.master()
    for agent in agents:
        up(agent, 1)
    job.open_gate()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert successor.wait() == 0


def test_the_workers_end_when_the_master_stays_away(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint, "--rdzv-conf", "master_timeout=1")
    master, agents = job.master(), [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    master.send(signal.SIGTERM)
    for agent in agents:
        assert agent.wait() == exit_codes.RENDEZVOUS_FAILED
        assert agent.stderr.splitlines()[-1] == (
            f"ft-run: error: no connection to the master at {endpoint} for 1 s (connection "
            "refused); --rdzv-conf master_timeout=SECONDS sets this limit."
        )
    master.wait()
    ft.wait_until(lambda: not ft.processes(), "everything is gone")


# --- a master in an agent ------------------------------------------------------------------------


def test_a_master_on_this_host_that_is_frozen_is_waited_for(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint)
    host = job.agent()
    host.expect("hosted here")
    host.send(signal.SIGSTOP)
    other = job.agent()
    other.expect("no connection to the master at .*no answer|does not answer")
    host.send(signal.SIGCONT)
    for agent in (host, other):
        up(agent, 0)
    job.open_gate()
    assert [agent.wait() for agent in (host, other)] == [0, 0]


def test_the_first_node_says_which_node_was_refused_and_why(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint)
    host = job.agent()
    host.expect("hosted here")
    for _ in range(2):
        other = ft.start(*job.arguments[:-2], "--max-restarts", 7, *job.arguments[-2:])
        assert other.wait() == exit_codes.REFUSED
    up_agent = job.agent()
    for agent in (host, up_agent):
        up(agent, 0)
    job.open_gate()
    assert [agent.wait() for agent in (host, up_agent)] == [0, 0]
    (told,) = re.findall("master: node (.*) refused: (.*)", host.stderr)
    assert told[1] == "the node's options differ: --max-restarts is 7 (this job: 2)"


@pytest.mark.parametrize("has_own_process", [False, True], ids=["node", "ft-run master"])
def test_second_job_of_one_node_at_an_endpoint_is_an_error(
    ft: "Launcher", endpoint: str, has_own_process: bool
) -> None:
    """Nobody gave an ID, so the second job would be a spare of the first one, and never run."""
    if has_own_process:
        ft.start("master", "--bind", endpoint).expect("listening")
    gate = ft.folder / "gate"
    options = ("--nnodes", 1, "--nproc-per-node", 1, "--rdzv-endpoint", endpoint)
    first = ft.start(*options, ft.script(WORKER), gate)
    first.expect("up rank=0")
    second = ft.run(*options, ft.script(WORKER), gate)
    assert second.process.returncode == exit_codes.REFUSED
    assert "another job without --rdzv-id, of one node" in second.stderr
    assert "use a different --rdzv-endpoint for each job" in second.stderr
    assert "up rank=0" not in second.stdout
    assert first.process.poll() is None
    gate.touch()
    assert first.wait() == 0


def test_an_ipv6_endpoint(ft: "Launcher", free_port: int) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", free_port))
        except OSError:
            pytest.skip("this host has no IPv6")
    job = Job(ft, f"[::1]:{free_port}")
    job.open_gate()
    agents = [job.agent(), job.agent()]
    assert [agent.wait() for agent in agents] == [0, 0]
    assert "store=::1:" in agents[0].stderr


# --- status and health ---------------------------------------------------------------------------


def test_the_health_service_says_serving(ft: "Launcher", endpoint: str) -> None:
    master = Job(ft, endpoint).master()
    with grpc.insecure_channel(endpoint) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=TIMEOUT_S)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        first = next(
            iter(stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=TIMEOUT_S))
        )
        assert first.status == health_pb2.HealthCheckResponse.SERVING
    master.send(signal.SIGTERM)
    master.wait()


def test_the_status_of_a_master_that_waits(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint)
    master = job.master()
    told = job.status()
    assert (told["job_id"], told["phase"], told["round"]) == ("", "waiting for nodes", -1)
    table = ft.run("status", endpoint)
    assert re.fullmatch(
        r"no node has joined yet · waiting for nodes · master up 0:00:\d\d\n", table.stdout
    )
    agent = job.agent()
    agent.expect("waiting for nodes: 1 of 2")
    names = [event["name"] for event in job.status()["events"]]
    assert names == ["master.listening", "node.joined"]
    lines = ft.run("status", endpoint).stdout.splitlines()
    assert lines[0] == f"job {job.id} · waiting for nodes"
    assert lines[1].startswith("nodes 1 of 2 connected · master up ")
    assert [line.split()[0] for line in lines[2:]] == ["NODE", "-"]
    for command in (agent, master):
        command.send(signal.SIGTERM)
        assert command.wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert master.stderr.endswith("master: received SIGTERM, exiting; no nodes are connected\n")


def test_the_status_of_a_master_that_waits_for_a_node_again(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint)
    master = job.master()
    agents = [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    agents[0].send(signal.SIGTERM)
    agents[0].wait()
    agents[1].expect("waiting for nodes: 1 of 2 connected")
    lines = ft.run("status", endpoint).stdout.splitlines()
    assert lines[0] == f"job {job.id} · waiting for nodes"
    assert lines[1].startswith(
        "round 0 is over · nodes 1 of 2 connected · restarts 0/2 · master up"
    )
    assert lines[2].startswith("last stop: "), lines
    assert len(lines) == 5
    master.send(signal.SIGTERM)
    master.wait()
    told = "exiting; the workers keep running and their agents wait for a new master"
    assert told in master.stderr
    agents[1].send(signal.SIGINT)
    agents[1].wait()


def test_the_status_of_a_running_job(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint, "--rdzv-id", "a-job-with-a-rather-long-name-of-its-own", "--role", "tr")
    agents = [job.agent("--segment", f"rack-{number}") for number in (2, 1)]
    for agent in agents:
        up(agent, 0)
    table = ft.run("status", endpoint, env={"COLUMNS": "80", "NO_COLOR": "1"})
    lines = table.stdout.splitlines()
    assert max(map(len, lines)) <= 80, table.stdout
    assert "a-job-with-a-rather-long-name-of-its-own" in lines[0]
    assert "running" in table.stdout
    assert "\x1b" not in table.stdout
    rows = [line.split() for line in lines if "127.0.0.1" in line]
    host = socket.gethostname()
    assert rows == [[str(n), host, "127.0.0.1", "tr", str(n), "running", "yes"] for n in (0, 1)]

    command = ft.run("status", endpoint, "--json")
    tool = subprocess.run(
        [sys.executable, "-m", "json.tool"], input=command.stdout, text=True, capture_output=True
    )
    assert tool.returncode == 0, tool.stderr
    told = json.loads(command.stdout)
    assert (told["phase"], told["round"], told["max_restarts"]) == ("running", 0, 2)
    assert [(n["node_rank"], n["rank_offset"], n["attached"]) for n in told["nodes"]] == [
        (0, 0, True),
        (1, 1, True),
    ]
    assert sorted(node["segment"] for node in told["nodes"]) == ["rack-1", "rack-2"]
    assert (told["exit_code"], told["ended"]) == (None, "")
    assert sorted(told["summary"]["nodes"]["connected"]) == sorted(
        node["node_id"] for node in told["nodes"]
    )
    assert told["events"][0]["name"] == "agent.started"
    job.open_gate()
    assert [agent.wait() for agent in agents] == [0, 0]


def test_the_status_where_there_is_no_master(ft: "Launcher", endpoint: str) -> None:
    command = ft.run("status", endpoint)
    assert command.process.returncode == exit_codes.RENDEZVOUS_FAILED
    assert command.stderr == (
        f"ft-run: error: no ft-run master answers at {endpoint} (connection refused); check the "
        "endpoint, and that the job is still running.\n"
    )


# --- strangers -----------------------------------------------------------------------------------


def _random_bytes(host: str, port: int) -> None:
    source = random.Random(7)
    for size in (1, 24, 1000, 100_000):
        with socket.create_connection((host, port), timeout=TIMEOUT_S) as stranger:
            try:
                stranger.sendall(source.randbytes(size))
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(65536):
                    pass
            except OSError:
                pass  # the master has hung up


def _say(channel: grpc.Channel, data: bytes) -> list[bytes]:
    """Say one thing on a stream and keep it open; return what comes until the master ends it."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield data
        over.wait(TIMEOUT_S)

    attend: Any = channel.stream_stream(f"/{SERVICE}/Attend")
    answers = attend(requests(), timeout=TIMEOUT_S)
    said: list[bytes] = []
    with contextlib.suppress(grpc.RpcError):  # too large a message, say
        said.extend(answers)
    over.set()
    assert answers.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return said


def _nonsense() -> Iterator[bytes]:
    yield b"\xff\xff\xff"
    yield b""
    yield b"\x0a" + b"\xff\xff\xff\x7f" + b"\0" * 8_000_000
    yield pb.NodeMessage(attend=pb.Attend(protocol=1)).SerializeToString()
    yield pb.NodeMessage(done=pb.Done(round=0)).SerializeToString()


def _attend(job_id: str, node_id: str, **changes: Any) -> pb.Attend:
    message = pb.Attend(
        protocol=1,
        version="0",
        job=pb.JobSpec(job_id=job_id, min_nodes=2, max_nodes=2, node_unit=1, max_restarts=2),
        # At the address of the node whose identity it claims: elsewhere it would get another one.
        node=pb.NodeSpec(
            node_id=node_id, incarnation="ab", host="h", address="127.0.0.1", local_world_size=1
        ),
        offer=pb.Offer(address="127.0.0.1", port=1),
    )
    message.MergeFrom(pb.Attend(**changes))
    return message


def _refusal(channel: grpc.Channel, attend: pb.Attend) -> str:
    """Attend as a stranger; return why that is refused."""
    (answer,) = _say(channel, pb.NodeMessage(attend=attend).SerializeToString())
    sentence: str = pb.MasterMessage.FromString(answer).refused.sentence
    return sentence


def test_strangers_do_not_disturb_a_running_job(ft: "Launcher", endpoint: str) -> None:
    job = Job(ft, endpoint)
    master, agents = job.master(), [job.agent(), job.agent()]
    pids = [up(agent, 0) for agent in agents]
    host, _, port = endpoint.rpartition(":")
    _random_bytes(host, int(port))
    with grpc.insecure_channel(endpoint) as channel:
        for data in _nonsense():
            assert _say(channel, data) == []
        node = job.status()["nodes"][0]["node_id"]
        for changes, told in (
            ({}, "is already used by another node"),
            ({"protocol": 99}, "protocol 99"),
            ({"job": pb.JobSpec(job_id="k")}, "is not the job of this master"),
            ({"job": pb.JobSpec(max_nodes=1)}, "is invalid; expected"),
        ):
            assert told in _refusal(channel, _attend(job.id, node, **changes))
        unknown: Any = channel.unary_unary(f"/{SERVICE}/NoSuchMethod")
        with pytest.raises(grpc.RpcError):
            unknown(b"", timeout=TIMEOUT_S)
    status = job.status()
    assert (status["phase"], status["round"], status["restarts"]) == ("running", 0, 0)
    assert [node["attached"] for node in status["nodes"]] == [True, True]
    assert set(pids) <= set(ft.processes())
    job.open_gate()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert master.wait() == 0
    assert "Traceback" not in master.stderr
    for agent in agents:
        assert "no connection" not in agent.stderr


def test_a_job_starts_among_strangers(ft: "Launcher", endpoint: str) -> None:
    # Silent connections that stay open do not keep the master from listening to its nodes,
    # nor from ending.
    job = Job(ft, endpoint)
    master = job.master()
    host, _, port = endpoint.rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=TIMEOUT_S) for _ in range(20)]
    channel = grpc.insecure_channel(endpoint)
    attend: Any = channel.stream_stream(f"/{SERVICE}/Attend")
    calls = [attend(iter(())) for _ in range(3)]
    agents = [job.agent(), job.agent()]
    for agent in agents:
        up(agent, 0)
    job.open_gate()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert master.wait() == 0
    for call in calls:
        call.cancel()
    channel.close()
    for stranger in silent:
        stranger.close()


def test_the_master_takes_thousands_of_open_files(ft: "Launcher", endpoint: str) -> None:
    shell = ("sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh")
    master = ft.start("master", "--bind", endpoint, program=(*shell, *ft.program))
    master.expect("listening at")
    limits = Path(f"/proc/{master.pid}/limits").read_text()
    found = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits)
    assert found is not None
    soft, hard = found.groups()
    assert soft == hard
    assert int(soft) > 64 or os.geteuid() != 0
    master.send(signal.SIGTERM)
    master.wait()
