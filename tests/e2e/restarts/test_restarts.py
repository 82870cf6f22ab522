"""A rank dies: all nodes restart together, with one cause and one count; or all end."""

import os
import re

import pytest

# Each worker says where it is, then the one that is told to die does so; the others wait for the
# world to end, as in a collective whose peer is gone.
WORKER = """
import os, signal, sys, threading, time
env = os.environ
restart = int(env["TORCHELASTIC_RESTART_COUNT"])
die, times = int(sys.argv[1]), int(sys.argv[2])
if restart < times:
    # Or one of them may be stopped for another's failure before it has begun.
    os.makedirs(meeting := f"together-{restart}", exist_ok=True)
    open(f"{meeting}/{env['RANK']}", "w").close()
    while len(os.listdir(meeting)) < int(env["WORLD_SIZE"]):
        time.sleep(0.01)
    if int(env["RANK"]) == die:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
"""

STARTED = r"round=(\d+) node_rank=(\d+) started ranks=(\S+) of .* pids=(\S+) store=(\S+)"


def started(commands, round_number):
    """Return (ranks, pids, store) of every node that started this round, as the agents say."""
    found = [match for c in commands for match in re.findall(STARTED, c.stderr)]
    return sorted(
        (ranks, tuple(pids.split(",")), store)
        for round_, _, ranks, pids, store in found
        if int(round_) == round_number
    )


def pids(rounds):
    return {pid for _, of_node, _ in rounds for pid in of_node}


def restart_lines(command):
    return [
        line.split(" restart ", 1)[1] for line in command.stderr.splitlines() if " restart " in line
    ]


@pytest.fixture
def script(ft):
    return ft.script(WORKER)


def test_one_node_restarts_all_its_workers(ft, script):
    command = ft.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, script, 1, 1)
    assert command.process.returncode == 0
    first, second = started([command], 0), started([command], 1)
    assert [ranks for ranks, _, _ in first] == [ranks for ranks, _, _ in second] == ["0-1"]
    assert len(pids(first) | pids(second)) == 4
    assert first[0][2] != second[0][2]  # a fresh port for the store
    assert restart_lines(command) == [
        "1/2: rank 1 on node 0 (" + host(command) + ") was killed by SIGKILL (default rule)"
    ]


def host(command):
    match = re.search(r"node_id=(\S+)/\d+ nproc", command.stderr)
    assert match
    return match[1]


@pytest.mark.parametrize("dying_rank", [0, 2])
def test_two_agents_restart_in_lockstep_wherever_the_rank_is(ft, script, free_port, dying_rank):
    """The first agent hosts the master and has one worker, the second has two."""
    common = ("--nnodes", 2, "--max-restarts", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}",
              "--rdzv-id", "demo")  # fmt: skip
    first = ft.start(*common, "--nproc-per-node", 1, script, dying_rank, 1)
    first.expect("hosted here")
    second = ft.start(*common, "--nproc-per-node", 2, script, dying_rank, 1)
    agents = [first, second]
    assert [agent.wait() for agent in agents] == [0, 0]
    before, after = started(agents, 0), started(agents, 1)
    assert [ranks for ranks, _, _ in before] == [ranks for ranks, _, _ in after] == ["0", "1-2"]
    assert len(pids(before) | pids(after)) == 6
    assert restart_lines(first) == restart_lines(second)
    assert len(restart_lines(first)) == 1
    assert f"rank {dying_rank} on node" in restart_lines(first)[0]
    assert started(agents, 2) == []


def test_with_the_budget_spent_every_agent_exits_1_with_the_same_report(ft, script, free_port):
    args = ("--nnodes", 2, "--max-restarts", 1, "--rdzv-endpoint", f"127.0.0.1:{free_port}",
            "--rdzv-id", "spent", script, 1, 99)  # fmt: skip
    agents = [ft.start(*args), ft.start(*args)]
    assert [agent.wait() for agent in agents] == [1, 1]
    reports = [agent.stderr[agent.stderr.index("Root cause:") :] for agent in agents]
    without_clock = [re.sub(r"^\d\d:\d\d:\d\d ", "", r, flags=re.MULTILINE) for r in reports]
    assert without_clock[0] == without_clock[1]
    assert "rank 1 on node 1" in reports[0].splitlines()[0]
    assert "exitcode  : -9 (pid: " in reports[0]
    assert "(1 of 1 restarts used)" in reports[0].splitlines()[-1]
    assert "Traceback" not in agents[0].stderr + agents[1].stderr


def test_a_node_that_was_done_runs_again_when_another_fails(ft, free_port):
    script = ft.script(
        "import os, sys, time, pathlib\n"
        "env = os.environ\n"
        "print('ran', env['RANK'], env['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "if env['RANK'] == '1' and env['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    sys.stdin = open(sys.argv[1])\n"
        "    sys.stdin.read()\n"  # until the test lets go
        "    sys.exit(7)\n"
    )
    gate = ft.folder / "gate"
    os.mkfifo(gate)
    args = ("--nnodes", 2, "--max-restarts", 1, "--rdzv-endpoint", f"127.0.0.1:{free_port}",
            "--rdzv-id", "done", script, gate)  # fmt: skip
    agents = [ft.start(*args), ft.start(*args)]
    writer = os.open(gate, os.O_WRONLY)
    for agent in agents:
        if agent.expect(r"node_rank=(\d) started")[0][1] == "0":
            agent.expect("all 1 worker.* finished; waiting for the other nodes")
    os.close(writer)
    assert [agent.wait() for agent in agents] == [0, 0]
    ran = sorted(line for agent in agents for line in agent.stdout.splitlines())
    assert ran == ["ran 0 0", "ran 0 1", "ran 1 0", "ran 1 1"]
    assert all("exited with 7" in restart_lines(agent)[0] for agent in agents)


def test_a_program_that_cannot_be_started_is_a_failure_with_a_sentence(ft):
    program = ft.script("#!/no/such/interpreter\n", "program")
    program.chmod(0o755)
    command = ft.run("--standalone", "--no-python", program)
    assert command.process.returncode == 1
    assert "could not be started" in command.stderr
    assert "No such file or directory" in command.stderr
    assert "Traceback" not in command.stderr
