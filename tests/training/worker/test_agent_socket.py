"""Workers whose agent does not answer: they say what they lack, and no work is done twice."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ft_run.training.worker import preemption, snapshot_page, work_messages
from ft_run.training.worker.agent_socket import address_of

CALLS = {
    "snapshots": (
        snapshot_page.SOCKET,
        "from ft_run.training.worker.snapshot_memory import request_memory\n"
        "print(request_memory(0))",
        "no snapshots are taken in this round",
    ),
    "notices": (
        preemption.SOCKET,
        "from ft_run.training.worker.preemption import find_notice\n"
        "print(find_notice(0, will_save=True))",
        "this rank sees no preemption notices in this round",
    ),
}
WORK = "from ft_run.training import shared_work\nprint([*shared_work('w', 2)])"
IMPATIENT = "from ft_run.training.worker import agent_socket\nagent_socket._ANSWER_S = 0.2\n"


def run_worker(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a child of this process, which has the agent's place."""
    return subprocess.run(
        [sys.executable, "-c", IMPATIENT + code], capture_output=True, text=True, timeout=300
    )


@contextmanager
def silent_agent(what: str, waiting: int) -> Iterator[None]:
    """Accept nothing; ``waiting`` connections already wait for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address_of(what, os.getpid()))
        server.listen(0)
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(waiting)]
        for client in clients:
            client.connect(server.getsockname())
        yield
        for client in clients:
            client.close()


@pytest.mark.parametrize("waiting", [0, 1], ids=["no answer", "too many wait"])
@pytest.mark.parametrize("call", CALLS)
def test_a_rank_says_what_it_lacks_without_an_answer(call: str, waiting: int) -> None:
    what, code, lacks = CALLS[call]
    with silent_agent(what, waiting):
        done = run_worker(code)
    assert done.stdout == "None\n", done.stderr
    (line,) = done.stderr.splitlines()
    reason = "[Errno 11] Resource temporarily unavailable" if waiting else "timed out"
    assert line.endswith(
        f" ft-run the ft-run agent of this node (process ID {os.getpid()}) does not answer: "
        f"{reason}; {lacks}"
    )


WAYS = {
    "nothing listens": "",
    "a sandbox without such sockets": (
        "def fail(*_):\n    raise OSError(97, 'Address family not supported by protocol')\n"
        "agent_socket.address_of = fail\n"
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_without_an_agent_nothing_is_said_of_one(way: str) -> None:
    for _, code, _ in CALLS.values():
        done = run_worker(way + code)
        assert (done.stdout, done.stderr) == ("None\n", "")
    done = run_worker(way + WORK)
    assert done.stdout == "[range(0, 1), range(1, 2)]\n"
    assert "split by rank" in done.stderr
    assert "agent" not in done.stderr


def test_a_rank_does_not_share_work_by_rank_while_others_may_do_its_pieces() -> None:
    with silent_agent(work_messages.SOCKET, 1):
        done = run_worker(WORK)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        f"ConnectionError: the ft-run agent of this node (process ID {os.getpid()}) does not "
        "answer: [Errno 11] Resource temporarily unavailable"
    )
