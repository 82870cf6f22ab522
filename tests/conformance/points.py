"""The fourteen points in which torchrun is wrong: what is claimed of ft-run, for either launcher.

Each function drives a job and asserts what must hold. ``test_torchrun_is_wrong.py`` runs it with
ft-run, where it passes, and with torchrun, where an assertion must fail: so that what is claimed
to be better is seen to be.
"""

import base64
import contextlib
import os
import pickle
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ft_run.tests.conformance.job import Job, has_ended
from ft_run.tests.conformance.launchers import Surroundings

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command


@dataclass(frozen=True)
class Point:
    """One claim."""

    number: int
    claim: Callable[[Job], None]
    entry: str
    """The entry of ``differences.TABLE`` that documents it."""
    needs_root: bool = False

    @property
    def name(self) -> str:
        return f"{self.number} {self.claim.__name__}"


def restarts_are_counted_once_for_the_job(job: Job) -> None:
    for node in "ab":
        job.agent(node, "--nnodes 2 --max-restarts 3")
    job.until(lambda: len(job.starts()) == 2, "started")
    job.fail("a")
    job.until(lambda: len(job.starts()) == 4, "restarted")
    job.end()
    assert [job.last(node).restarts for node in "ab"] == ["1", "1"]


def the_end_of_one_node_is_the_end_of_all(job: Job) -> None:
    failing = job.agent("a", "--nnodes 2", hosts=False)
    other = job.agent("b", "--nnodes 2", hosts=True)
    job.until(lambda: len(job.starts()) == 2, "started")
    job.fail("a")
    job.until(lambda: has_ended(failing), "ended")
    job.end()  # a node that has not been told succeeds now
    assert job.soon_exits(other)
    assert [failing.wait(), other.wait()] == [1, 1]


def all_nodes_of_a_static_job_restart(job: Job) -> None:
    where = f"--nnodes 2 --max-restarts 1 --master-addr 127.0.0.1 --master-port {job.launcher.port}"
    for rank, node in enumerate("ab"):
        job.agent(node, f"{where} --node-rank {rank}")
    job.until(lambda: len(job.starts()) == 2, "started")
    job.fail("b")
    job.until(lambda: len(job.starts("b")) == 2, "restarted on the node that failed")
    assert job.soon(lambda: len(job.starts("a")) == 2)
    job.end()


def nothing_is_left_of_an_agent_that_was_killed(job: Job) -> None:
    host = job.agent("a", "--nnodes 2", hosts=True)
    other = job.agent("b", "--nnodes 2", hosts=False)
    job.until(lambda: len(job.starts()) == 2, "started")
    host.send(signal.SIGKILL)
    worker = job.last("a")
    # Without the host of the rendezvous torchrun's other agent ends, and nothing happens after.
    job.until(lambda: not worker.is_alive or has_ended(other), "noticed")
    assert not worker.is_alive


def a_job_outlives_the_host_of_its_rendezvous(job: Job) -> None:
    args = "--nnodes 2 --max-restarts 3"
    host = job.agent("a", args, hosts=True)
    other = job.agent("b", args, hosts=False)
    job.until(lambda: len(job.starts()) == 2, "started")
    host.send(signal.SIGKILL)
    again = job.agent("a", args, hosts=True)
    assert job.soon(lambda: len(job.starts("b")) == 2 or has_ended(other))
    assert not has_ended(other)
    job.until(lambda: len(job.starts("a")) == 2, "started on the replacement")
    job.end()
    assert [again.wait(), other.wait()] == [0, 0]


def a_node_that_leaves_is_noticed(job: Job) -> None:
    job.agent("a", "--nnodes 1:2", hosts=True)
    leaver = job.agent("b", "--nnodes 1:2", hosts=False)
    job.until(lambda: len(job.starts()) == 2, "started")
    leaver.send(signal.SIGTERM)
    leaver.wait()
    assert job.soon(lambda: len(job.starts("a")) == 2)
    assert job.last("a").world_size == "1"
    job.end()


def a_restart_does_not_wait_for_nodes_that_are_not_there(job: Job) -> None:
    args = "--nnodes 2:3 --max-restarts 3 --rdzv-conf CONF:last_call_timeout=600"
    job.agent("a", args, hosts=True)
    agents = [job.agent(node, args, hosts=False) for node in "bc"]
    job.until(lambda: len(job.starts()) == 3, "started")  # all that can come: no last call
    agents[1].send(signal.SIGTERM)
    agents[1].wait()
    job.soon(lambda: len(job.starts("a")) == 2)  # ft-run goes on without the one that left
    job.fail("a")
    assert job.soon(lambda: [job.last(node).world_size for node in "ab"] == ["2", "2"])
    assert job.soon(lambda: job.last("a").restarts == "1")
    job.end()


_REPLACED: Final = (
    "--nnodes 2:3 --max-restarts 3 --rdzv-conf "
    "CONF:last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8"
)
"""A job that takes a third node in before it has noticed the loss of one of two, as torchrun
must, and under torchrun takes a node for dead after 8 seconds, not 15."""


def nobody_keeps_the_address_of_a_dead_rank_0(job: Job) -> None:
    places = {"a": ("host-1", "127.0.0.2"), "b": ("host-5", "127.0.0.3")}
    places["c"] = ("host-0", "127.0.0.1")  # for torchrun's order, which goes by addresses

    def start(node: str) -> "Command":
        hostname, address = places[node]
        host = Surroundings(hostname=hostname)
        args = f"{_REPLACED} --local-addr {address}"
        return job.agent(node, args, surroundings=host, hosts=node == "b")

    first, _ = start("a"), start("b")
    job.until(lambda: len(job.starts()) == 2, "started")
    job.until(lambda: job.last("a").group_rank == "0", "with the first agent as rank 0")
    first.send(signal.SIGKILL)
    first.wait()
    start("c")
    job.until(lambda: len(job.starts("b")) == 2 and job.starts("c"), "started again")
    known = {(s.master_addr, s.master_port) for s in (job.last("b"), job.last("c"))}
    assert len(known) == 1
    job.end()


def sigterm_is_an_orderly_end(job: Job) -> None:
    command = job.agent("a", "--standalone")
    job.until(lambda: job.starts(), "started")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "Traceback" not in command.stderr


def many_sigterms_leave_nothing(job: Job) -> None:
    ignores = {"IGNORES_SIGTERM": "1"}
    command = job.agent("a", "--standalone --shutdown-timeout 2", env=ignores)
    job.until(lambda: job.starts(), "started")
    for count in (1, 2):
        command.send(signal.SIGTERM)
        if count == 1 or job.launcher.name == "torchrun":  # which passes on the second, too
            job.until((job.folder / f"told {count}").exists, f"told {count} times")
    command.send(signal.SIGTERM)
    assert job.soon_exits(command)
    assert job.soon(lambda: not job.last("a").is_alive)


def a_hang_up_under_nohup_changes_nothing(job: Job) -> None:
    ignored = Surroundings(ignored=(signal.SIGHUP,))
    command = job.agent("a", "--standalone", surroundings=ignored)
    job.until(lambda: job.starts(), "started")
    command.send(signal.SIGHUP)
    job.end()
    assert command.wait() == 0


_NAMES_ONLY: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torchrun would else resolve the host names, which are made up."""


def host_9_is_before_host_10(job: Job) -> None:
    for node in ("host-10", "host-9"):
        job.agent(node, "--nnodes 2", env=_NAMES_ONLY, surroundings=Surroundings(hostname=node))
    job.until(lambda: len(job.starts()) == 2, "started")
    job.end()
    assert [job.last(node).group_rank for node in ("host-9", "host-10")] == ["0", "1"]


def a_survivor_keeps_its_rank(job: Job) -> None:
    agents = {
        node: job.agent(
            node,
            _REPLACED,
            env=_NAMES_ONLY,
            surroundings=Surroundings(hostname=node),
            hosts=node == "host-5",
        )
        for node in ("host-3", "host-5")
    }
    job.until(lambda: len(job.starts()) == 2, "started")
    before = job.last("host-5").rank
    agents["host-3"].send(signal.SIGKILL)
    agents["host-3"].wait()
    replacement = Surroundings(hostname="host-7")
    job.agent("host-7", _REPLACED, env=_NAMES_ONLY, surroundings=replacement, hosts=False)
    job.until(lambda: len(job.starts("host-5")) == 2 and job.starts("host-7"), "started again")
    job.end()
    assert (before, job.last("host-5").rank) == ("1", "1")


def a_spare_that_was_not_needed_succeeds_with_the_job(job: Job) -> None:
    args = "--nnodes 2 --rdzv-conf CONF:close_timeout=1"
    agents = [job.agent(node, args, hosts=node == "a") for node in "ab"]
    job.until(lambda: len(job.starts()) == 2, "started")
    spare = job.agent("c", args, hosts=False)
    if job.launcher.name == "ft-run":
        spare.expect("standing by as a spare")
    job.end()
    for agent in agents:
        agent.wait()
    assert job.soon_exits(spare)
    assert spare.wait() == 0


class _Evil:
    """Makes a folder wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._path),)


def nobody_can_have_code_executed(job: Job) -> None:
    trace = job.folder / "was here"
    agents = [job.agent(node, "--nnodes 2 --max-restarts 1") for node in "ab"]
    job.until(lambda: len(job.starts()) == 2, "started")
    state = base64.b64encode(pickle.dumps(_Evil(trace)))
    # The wire of torch's TCPStore: its greeting, then "set" with a key and a value.
    attack = struct.pack("<BI", 0, 0x3C85F7CE) + b"\1"
    for text in (b"/torch.rendezvous.job", state):
        attack += struct.pack("<Q", len(text)) + text
    with socket.create_connection(("localhost", job.launcher.port)) as stranger:
        with contextlib.suppress(ConnectionError):  # turned away
            stranger.sendall(attack)
        job.fail("a")  # and the state is read, if not before
        job.until(lambda: len(job.starts("a")) == 2 or any(map(has_ended, agents)), "going on")
    job.end()
    assert not trace.exists()
    assert [agent.wait() for agent in agents] == [0, 0]


_SLOW_CLOCK: Final = Surroundings(
    prelude={
        "torchrun": """
import datetime
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
class Late(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) - datetime.timedelta(seconds=60)
dynamic_rendezvous.datetime = Late
""",
        "ft-run": """
import time
right = time.time
time.time = lambda: right() - 60
""",
    }
)


def clocks_need_not_agree(job: Job) -> None:
    args = "--nnodes 2 --max-restarts 1"
    agents = [
        job.agent("a", args, hosts=True),
        job.agent("b", args, hosts=False, surroundings=_SLOW_CLOCK),
    ]
    assert job.soon(lambda: len(job.starts()) == 2)
    job.fail("a")
    assert job.soon(lambda: len(job.starts()) == 4)
    job.end()
    assert [agent.wait() for agent in agents] == [0, 0]


def a_worker_that_cannot_be_interrupted_is_no_success(job: Job) -> None:
    command = job.agent(
        "a",
        "--standalone --nproc-per-node 2 --shutdown-timeout 1",
        env={"SLEEPS_IN_THE_KERNEL": "1", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.2"},
    )
    job.until(lambda: [s.state for s in job.starts()].count("D") == 1, "asleep in the kernel")
    if job.launcher.name == "ft-run":  # torchrun ends by itself
        job.fail("a")
    assert command.wait() == 1


POINTS: Final = [
    Point(1, restarts_are_counted_once_for_the_job, "`--max-restarts`, restart count"),
    Point(2, the_end_of_one_node_is_the_end_of_all, "restarts used up"),
    Point(3, all_nodes_of_a_static_job_restart, "a rank dies"),
    Point(4, nothing_is_left_of_an_agent_that_was_killed, "the agent is killed with SIGKILL"),
    Point(4, a_job_outlives_the_host_of_its_rendezvous, "the rendezvous host dies"),
    Point(5, a_node_that_leaves_is_noticed, "a node leaves"),
    Point(
        6,
        a_restart_does_not_wait_for_nodes_that_are_not_there,
        "`--nnodes 2:5`, four nodes present",
    ),
    Point(7, nobody_keeps_the_address_of_a_dead_rank_0, "rank 0's node is replaced", True),
    Point(8, sigterm_is_an_orderly_end, "SIGTERM to the agent"),
    Point(8, many_sigterms_leave_nothing, "SIGTERM to the agent"),
    Point(9, a_hang_up_under_nohup_changes_nothing, "SIGHUP under `nohup`"),
    Point(10, host_9_is_before_host_10, "ranks after a restart", True),
    Point(10, a_survivor_keeps_its_rank, "ranks after a restart", True),
    Point(11, a_spare_that_was_not_needed_succeeds_with_the_job, "a node that is not needed"),
    Point(12, nobody_can_have_code_executed, "master, rendezvous"),
    Point(13, clocks_need_not_agree, "clocks of hosts differ by more than 15 s"),
    Point(
        14,
        a_worker_that_cannot_be_interrupted_is_no_success,
        "a worker in uninterruptible sleep",
    ),
]
