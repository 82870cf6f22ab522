"""``ft-run stacks`` as a user sees it: two nodes, ranks that are where they should not be."""

import json
import os
import re
import signal
import time

import pytest

# Rank 1 hangs by itself; the others wait for it in a collective.
COLLECTIVE = """
import os, sys, time
import torch, torch.distributed as dist

def read_sample():
    with open("fifo") as file:
        return file.read()

dist.init_process_group("gloo")
parameter = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(10):
    if step == 3 and dist.get_rank() == 1:
        read_sample()
    parameter.grad = torch.ones(2)
    dist.all_reduce(parameter.grad)
    optimizer.step()
"""

# Rank 0 is stopped, rank 1 waits for a lock, the others sleep.
ALONE = """
import os, signal, sys, threading, time
rank = int(os.environ["RANK"])
def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
def main():
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 1:
        deadlock()
    time.sleep(1000)
main()
"""


def job(port, *more):
    return (
        "--nnodes", 2, "--nproc-per-node", 2, "--rdzv-id", "stacks", "--shutdown-timeout", 1,
        "--rdzv-endpoint", f"localhost:{port}", *more,
    )  # fmt: skip


def asked_until(ft, port, pattern, *more):
    """Ask until the ranks are where they will stay; return the answer."""
    deadline = time.monotonic() + 120
    while True:
        asked = ft.run("stacks", f"localhost:{port}", *more)
        assert asked.process.returncode == 0, asked.stderr
        if re.search(pattern, asked.stdout):
            return asked.stdout
        assert time.monotonic() < deadline, asked.stdout


def start_two(ft, *args):
    """Start two agents; return them when the master is there and has formed the round."""
    agents = ft.start_two(*args)
    for agent in agents:
        agent.expect("started ranks")
    return agents


def end(*agents):
    for agent in agents:
        agent.send(signal.SIGTERM)
    for agent in agents:
        agent.wait()


def test_a_hang_of_two_nodes_is_seen_in_one_look(ft, free_port):
    os.mkfifo(ft.folder / "fifo")
    preload = ("--preload", "torch,torch._dynamo")
    agents = start_two(ft, *job(free_port, "--watch-workers", *preload), ft.script(COLLECTIVE))
    waits = (
        r"(?s)rank 1 on node 0 \(\S+\) · step 3\n  script.py:6 read_sample.*ranks 0,2-3 · step 3"
    )
    said = asked_until(ft, free_port, waits + r"\n.*all_reduce")
    first, *frames = said.splitlines()
    assert first.startswith("rank 1 on node ")
    assert frames[:2] == [
        '  script.py:6 read_sample  with open("fifo") as file:',
        "  script.py:14 <module>  read_sample()",
    ]
    assert frames[-1] == "  script.py:16 <module>  dist.all_reduce(parameter.grad)"
    found = json.loads(asked_until(ft, free_port, "frames", "--json", "--rank", "0,1"))
    assert [group["ranks"] for group in found["groups"]] == [[0], [1]]
    assert {group["state"] for group in found["groups"]} == {"answered"}
    assert found["silent_nodes"] == []
    nodes = json.loads(ft.run("status", f"localhost:{free_port}", "--json").stdout)["nodes"]
    assert [[(w["rank"], w["steps"]) for w in node["workers"]] for node in nodes] == [
        [(0, 3), (1, 3)],
        [(2, 3), (3, 3)],
    ]
    end(*agents)


@pytest.mark.parametrize("preload", [(), ("--preload", "colorsys")], ids=["executed", "forked"])
def test_each_rank_is_described_by_what_holds_it(ft, free_port, preload):
    agents = start_two(ft, *job(free_port, "--watch-workers", *preload), ft.script(ALONE))
    said = asked_until(ft, free_port, r"(?s)stopped.*deadlock.*ranks 2-3")
    assert re.sub(r"on node 0 \(\S+\)", "on node 0 (host)", said).splitlines() == [
        "rank 0 on node 0 (host) · step 0 · stopped (by a signal)",
        "rank 1 on node 0 (host) · step 0",
        "  script.py:7 deadlock  lock.acquire()",
        "  script.py:12 main  deadlock()",
        "  script.py:14 <module>  main()",
        "ranks 2-3 · step 0",
        "  script.py:13 main  time.sleep(1000)",
        "  script.py:14 <module>  main()",
    ]
    end(*agents)


@pytest.mark.parametrize("watch", [(), ("--watch-workers",)])
def test_programs_without_the_hook_run_on(ft, free_port, watch):
    agents = start_two(ft, *job(free_port, *watch, "--no-python"), "sleep", 1000)
    for agent in agents:
        agent.expect("started ranks")
    for _ in range(2):
        said = asked_until(ft, free_port, "ranks 0-3")
        assert said == "ranks 0-3 · not known (not watched)\n"
    end(*agents)


def test_no_master_is_one_sentence(ft, free_port):
    asked = ft.run("stacks", f"localhost:{free_port}", "--timeout", 1)
    assert asked.process.returncode == 40
    assert f"no ft-run master answers at localhost:{free_port}" in asked.stderr
