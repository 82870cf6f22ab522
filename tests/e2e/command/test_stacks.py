"""``ft-run stacks`` as a user sees it: two nodes, ranks that are where they should not be."""

import json
import re
import signal

# Rank 0 is stopped, rank 1 waits for a lock, the others sleep.
ALONE = """
import os, signal, sys, threading, time
from ft_run.training import progress
rank = int(os.environ["RANK"])
progress(3)
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


def test_each_rank_is_described_by_what_holds_it(ft, free_port):
    """The ranks of node 0 are forked, those of node 1 executed."""
    endpoint = f"localhost:{free_port}"
    job = (
        *("--nnodes", 2, "--nproc-per-node", 2, "--rdzv-id", "stacks", "--rdzv-endpoint", endpoint),
        *("--shutdown-timeout", 1, "--watch-workers", ft.script(ALONE)),
    )
    host = ft.start("--preload", "colorsys", *job)
    host.expect("hosted here")
    agents = (host, ft.start(*job))
    for agent in agents:
        agent.expect("started ranks")
    said = ""

    def are_where_they_stay() -> bool:
        nonlocal said
        said = ft.run("stacks", endpoint).stdout
        return re.search(r"(?s)stopped.*deadlock.*ranks 2-3.*main", said) is not None

    ft.wait_until(are_where_they_stay, "the ranks are where they will stay")
    assert re.sub(r"on node 0 \(\S+\)", "on node 0 (host)", said).splitlines() == [
        "rank 0 on node 0 (host) · step 3 · stopped (by a signal)",
        "rank 1 on node 0 (host) · step 3",
        "  script.py:9 deadlock  lock.acquire()",
        "  script.py:14 main  deadlock()",
        "  script.py:16 <module>  main()",
        "ranks 2-3 · step 3",
        "  script.py:15 main  time.sleep(1000)",
        "  script.py:16 <module>  main()",
    ]
    found = json.loads(ft.run("stacks", endpoint, "--json", "--rank", "1,2").stdout)
    assert [(group["ranks"], group["state"]) for group in found["groups"]] == [
        ([1], "answered"),
        ([2], "answered"),
    ]
    assert found["silent_nodes"] == []
    nodes = json.loads(ft.run("status", endpoint, "--json").stdout)["nodes"]
    assert [[(w["rank"], w["steps"]) for w in node["workers"]] for node in nodes] == [
        [(0, 3), (1, 3)],
        [(2, 3), (3, 3)],
    ]
    for agent in agents:
        agent.send(signal.SIGTERM)
    for agent in agents:
        agent.wait()
