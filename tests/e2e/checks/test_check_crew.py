"""Check crews with real check workers: what they measure, and how every fault of a worker ends."""

import json
import sys

import pytest
from ft_run.tests.e2e.imports import torch_notes
from ft_run.tests.harness import ports

# gRPC must not be loaded before a spawner is forked, and pytest's process may have loaded it: the
# crews live in a process of their own, which takes what to do as JSON and prints records.
DRIVER = """
import asyncio, json, sys
from ft_run.launcher.spawner.client import SpawnerClient
spawners = [SpawnerClient() for _ in range(int(sys.argv[1]))]
from ft_run.checks.records import record_to_json
from ft_run.rendezvous.protocol.check_messages import CheckOrder
from ft_run.checks.worker_config import CheckWorkerConfig
from ft_run.launcher.preflight.crew import CheckCrew, CrewPlan

async def carry_out(plan, steps):
    crews = [
        CheckCrew(spawner, CrewPlan(CheckWorkerConfig(f"node{i}", local_world_size=plan["workers"]),
                                    env={"OMP_NUM_THREADS": "1"}, python=plan["python"],
                                    preload=tuple(plan["preload"])))
        for i, spawner in enumerate(spawners)
    ]
    total = plan["workers"] * len(crews)
    for number, step in enumerate(steps):
        orders = [
            CheckOrder(number, step["phase"], "light", i * plan["workers"], total,
                       "127.0.0.1", step.get("port", 0), step["deadline_s"])
            for i in range(len(crews))
        ]
        records = await asyncio.gather(*(c.run(o) for c, o in zip(crews, orders)))
        for record in records:
            print(record_to_json(record), flush=True)
    for crew, spawner in zip(crews, spawners):
        await crew.rest()
        spawner.close()
    print(json.dumps({"torch": "torch" in sys.modules}), flush=True)

asyncio.run(carry_out(json.loads(sys.argv[2]), json.loads(sys.argv[3])))
"""


@pytest.fixture
def crews(ft):
    """Run crews; return the records of every step: steps in order, and nodes in order."""

    def run(*steps, workers=1, nodes=1, fault="", preload=(), env=None, python=sys.executable):
        timed = [{"deadline_s": 50.0} | step for step in steps]
        plan = {"workers": workers, "preload": preload, "python": python}
        command = ft.run(
            nodes,
            json.dumps(plan),
            json.dumps(timed),
            program=(sys.executable, str(ft.script(DRIVER))),
            env={"FT_RUN_CHECK_FAULT": fault} | (env or {}),
        )
        assert command.process.returncode == 0, command.stderr
        assert command.stderr == ""
        assert not ft.processes()
        *records, last = map(json.loads, command.stdout.splitlines())
        assert last == {"torch": False}, "the process of the agent has imported torch"
        return records

    return run


# Check workers live in another time: that of the facts is when the order came to the agent.
LONG_AGO = """
import time
if "preflight.worker_main" in sys.orig_argv:
    time.time = lambda: 1.0
"""


def test_what_two_workers_measure_and_what_becomes_of_those_that_hang_or_end(crews, ft):
    noted, library = ft.folder / "imports", ft.folder / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(torch_notes(noted) + LONG_AGO)
    facts, solo, hung, replaced, ended, again = crews(
        {"phase": "facts"},
        {"phase": "solo"},
        {"phase": "suspects", "deadline_s": 2.0},  # torch is imported by then
        {"phase": "facts"},
        {"phase": "pair"},
        {"phase": "facts"},
        workers=2,
        fault="hang@phase=suspects; exit@local-rank=1,phase=pair",
        preload=["torch"],
        env={"PYTHONPATH": str(library)},
    )
    assert facts["facts"]["unix_time_s"] > 1.7e9
    assert (facts["node"], facts["facts"]["local_world_size"]) == ("node0", 2)
    assert facts["facts"]["torch"]
    assert "failure" not in solo
    assert set(solo["metrics"]) == {"compute_tflops", "memory_gb_per_s", "intra_gb_per_s"}
    assert all(value > 0 for value in solo["metrics"].values())
    assert hung["failure"] == "local rank 0: no answer within 2 s (opening the device)"
    assert ended["failure"] == "local rank 1: the check worker exited with 1 (opening the device)"
    for record in (facts, replaced, again):
        assert "failure" not in record
        assert record["facts"]["torch"] == facts["facts"]["torch"]
    assert noted.read_text() == "torch\n", "also those after a kill are forked"


def test_nodes_meet_one_is_slow_and_a_wrong_value_is_seen_on_both(crews, free_port):
    meetings = [{"phase": "pair", "port": free_port}, {"phase": "all", "port": free_port}]
    fault = "slow-compute=10@node=node1; wrong-value@node=node1,phase=all"
    fast, slow, *pair, first, second = crews({"phase": "solo"}, *meetings, nodes=2, fault=fault)
    for metric in ("compute_tflops", "memory_gb_per_s"):
        assert fast["metrics"][metric] > 3 * slow["metrics"][metric]
    for record in pair:
        assert "failure" not in record
        assert set(record["metrics"]) == {"latency_us", "bandwidth_gb_per_s"}
    assert "32 bytes among 2 workers returned 1 wrong value" in first["failure"]
    assert "32 bytes among 2 workers returned 1 wrong value" in second["failure"]


def test_an_interpreter_that_is_not_there_is_named(crews):
    (facts,) = crews({"phase": "facts"}, python="/no/such/python")
    assert facts["failure"] == (
        "the check could not run: the check worker could not be started:"
        " /no/such/python: No such file or directory"
    )


TOO_MANY_FILES = """
import asyncio, resource
from ft_run.launcher.spawner.client import SpawnerClient
spawner = SpawnerClient()
from ft_run.rendezvous.protocol.check_messages import CheckOrder
from ft_run.checks.worker_config import CheckWorkerConfig
from ft_run.launcher.preflight.crew import CheckCrew, CrewPlan

LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)
FACTS = CheckOrder(1, "facts", "light", 0, 2, "", 0, 50.0)

def limit(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, LIMIT[1]))

async def test():
    crew = CheckCrew(spawner, CrewPlan(CheckWorkerConfig("node0", local_world_size=2)))
    limit(3)
    print((await crew.run(FACTS)).failure)
    limit(LIMIT[0])
    print((await crew.run(FACTS)).failure)
    limit(3)
    print((await crew.run(FACTS)).failure)
    limit(LIMIT[0])
    print((await crew.run(FACTS)).failure)
    await crew.rest()
    spawner.close()

asyncio.run(test())
"""


def test_too_many_open_files_are_said(ft):
    command = ft.run(program=(sys.executable, str(ft.script(TOO_MANY_FILES))))
    assert command.process.returncode == 0, command.stderr
    why = "the check could not run: check workers could not be started: Too many open"
    # Before the workers are started, and where they run but have no port to meet at.
    assert command.stdout.splitlines() == [f"{why} files", "", f"{why} files", ""]
    assert command.stderr == ""


def test_an_import_that_hangs_ends_at_the_deadline_and_says_nothing_of_the_node(crews, ft):
    (ft.folder / "hangs.py").write_text("import threading; threading.Event().wait()")
    steps = [{"phase": "facts", "deadline_s": 1.0}] * 2
    records = crews(*steps, preload=["hangs"], env={"PYTHONPATH": str(ft.folder)})
    assert [record["failure"] for record in records] == [
        "the check could not run: no answer within 1 s (waiting for --preload imports)"
    ] * 2


# Rank 0, which hosts the store, is gone when rank 1 takes its leave.
FAREWELL = """
import os, sys
import torch, torch.distributed as dist
from ft_run.checks.faults import ActiveFaults
from ft_run.checks.measure import BUDGETS
from ft_run.checks.measure_group import GroupProbe
from ft_run.checks.records import Level, Phase
from ft_run.rendezvous.protocol.check_messages import CheckOrder

wait_for, let_go = os.pipe()
peer = os.fork()

def group(number, rank, size, port):
    order = CheckOrder(number, "pair", "light", 0, size, "127.0.0.1", port, 60.0)
    faults = ActiveFaults((), "node", 0, Phase.PAIR)
    return GroupProbe(order, rank, 60.0, torch.device("cpu"), BUDGETS[Level.LIGHT], faults)

with group(1, 1 if peer else 0, 2, int(sys.argv[1])) as first:
    first.latency_us()
    if not peer:
        os.read(wait_for, 1)
        os._exit(0)
    os.write(let_go, b"!")
    os.waitpid(peer, 0)
print("left", dist.is_initialized())
with group(2, 0, 1, int(sys.argv[2])) as second:
    print("alone", second.latency_us() > 0)
"""


def test_a_rank_that_cannot_take_leave_leaves_and_meets_again(ft):
    command = ft.run(
        *(ft.script(FAREWELL), ports.free_port(), ports.free_port()),
        program=(sys.executable,),
        env={"OMP_NUM_THREADS": "1"},
    )
    assert command.process.returncode == 0, command.stderr
    assert command.stdout.splitlines() == ["left False", "alone True"]


# Two check workers carry out one order; each counts its all-reduces of 32 bytes and of
# the size at which bandwidth would be measured.
TOGETHER = """
import os, sys
import torch, torch.distributed as dist
from ft_run.checks.worker_config import CheckWorkerConfig, Delivery, Order
from ft_run.checks.worker import CheckWorker

rank = 0 if os.fork() else 1
sizes = []
all_reduce = dist.all_reduce
def counted(tensor, *args, **more):
    sizes.append(tensor.nbytes)
    return all_reduce(tensor, *args, **more)
dist.all_reduce = counted
orders, to = os.pipe()
order = Order(1, sys.argv[1], "light", rank, 2, "127.0.0.1", int(sys.argv[2]), 50.0)
os.write(to, Delivery(order).to_json().encode() + b"\\n")
os.close(to)
answers, answers_to = os.pipe()
CheckWorker(CheckWorkerConfig(f"n{rank}", 0, 1, 0, "cpu"), orders, answers_to).run()
os.close(answers_to)
with open(answers) as lines:
    (answer,) = (line for line in lines if line.startswith("answer"))
os.write(1, f"{'failure' in answer} {sizes.count(32)} {sizes.count(max(sizes))}\\n".encode())
if rank == 0:
    os.wait()
os._exit(0)
"""


def test_all_together_are_seen_to_work_and_not_measured(ft, free_port):
    """Of a size, three all-reduces to warm up and five to see the values, however fast they are."""
    command = ft.run(
        *(ft.script(TOGETHER), "all", free_port),
        program=(sys.executable,),
        env={"OMP_NUM_THREADS": "1"},
    )
    assert command.process.returncode == 0, command.stderr
    # The largest has been tried twice before, unless it is the largest of all.
    assert {*command.stdout.splitlines()} in ({"False 8 10"}, {"False 8 8"})
