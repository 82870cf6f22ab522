"""Hangs as a user meets them: found, named by rank and line, restarted; and what is none.

The whole matrix is for the night; one row of it runs always.
"""

import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Rank argv[2] hangs by argv[1] in the fourth step of the first round.
JOB = """
import collections, itertools, os, signal, sys, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

cause, culprit, cgroup = sys.argv[1], int(sys.argv[2]), sys.argv[3]
parameter = torch.nn.Parameter(torch.zeros(2))

class Endless(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if index == 4:
            time.sleep(0.3)  # the rank has the batch before
            os.kill(os.getpid(), signal.SIGSTOP)
        return index

def hang():
    if cause == "sleeps":
        time.sleep(1000)  # sleeps
    if cause == "spins":
        while True: pass  # spins
    if cause == "spins in C":
        collections.deque(itertools.repeat(0), maxlen=0)  # spins in C
    if cause == "reads":
        open(os.path.join(os.path.dirname(__file__), "fifo")).read()  # reads
    if cause == "locks":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # locks
    if cause == "loads":
        for batch in DataLoader(Endless(), num_workers=1):  # loads
            pass
    if cause == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if cause == "freezes":
        names = sorted(os.listdir(cgroup))
        with open(f"{cgroup}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        name, word = ("cgroup.freeze", "1") if "cgroup.freeze" in names else ("freezer.state", "FROZEN")
        with open(f"{cgroup}/{name}", "w") as file:
            file.write(word)
        time.sleep(1000)
    if cause == "differs":
        dist.barrier()  # differs

dist.init_process_group("gloo")
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(6):
    is_odd = step == 3 and dist.get_rank() == culprit
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        is_odd = False
    if is_odd and cause != "skips":
        hang()
    if not (is_odd and cause == "skips"):
        parameter.grad = torch.ones(2)
        dist.all_reduce(parameter.grad)  # waits
    if step == 3:
        dist.broadcast(parameter.grad, 0)  # goes on
    optimizer.step()
sys.stdout.write(f"trained {step + 1} steps\\n")
dist.destroy_process_group()
"""  # noqa: E501 - a line of the script
CALLS = ("sleeps", "spins", "spins in C", "reads", "locks", "loads")
CAUSES = (*CALLS, "stops", "skips", "differs")
TOGETHER = {"one node": 1, "two nodes": 2}
STARTS = {"executed": (), "forked": ("--preload", "torch,torch._dynamo")}
ALWAYS = {("skips", 1, "two nodes", "forked")}
"""A call that hangs is always found in the jobs without torch, which are below."""


def rows() -> list[object]:
    """Return the rows of the matrix, all but one of them for the night."""
    every = itertools.product(CAUSES, (0, 1), TOGETHER, STARTS)
    slow = pytest.mark.slow
    return [pytest.param(*row, marks=() if row in ALWAYS else (slow,)) for row in every]


def line_of(marker: str, script: str = JOB) -> int:
    """Return the number of the line of the script that says so at its end."""
    lines = enumerate(script.split("\n"), 1)
    (number,) = (number for number, line in lines if line.endswith(f"# {marker}"))
    return number


def first_line(cause: str, culprit: int, nodes: int) -> str:
    """Return a pattern for what is said of a hang."""
    other = 1 - culprit
    named = [f"rank {rank} on node {rank if nodes == 2 else 0} \\(\\S+\\)" for rank in (0, 1)]
    waits = f"in all_reduce at script.py:{line_of('waits')}"
    since = r"no step for \d+ s \(step 3\)"
    follows = f"; 1 other rank waits for it {waits}; {since}"
    if cause in CALLS:
        inside = r", inside select\(\) of selectors.py" if cause == "loads" else ""
        return (
            f"{named[culprit]} hangs in hang\\(\\) at script.py:{line_of(cause)}{inside}{follows}"
        )
    if cause == "stops":
        return f"{named[culprit]} is stopped \\(by a signal\\){follows}"
    if cause == "freezes":
        state = r"(does not answer|is in uninterruptible sleep) \(.*\)"
        return f"{named[culprit]} {state}{follows}"
    goes = f"in broadcast at script.py:{line_of('goes on')}"
    if cause == "differs":
        goes = f"in barrier at script.py:{line_of('differs')}"
    where = {culprit: goes, other: waits}
    return f"{named[0]} waits {where[0]}, but {named[1]} waits {where[1]}; {since}"


@pytest.fixture(params=["v2", "v1"])
def freezer(request: pytest.FixtureRequest, ft: "Launcher") -> Iterator[Path]:
    """A cgroup that can be frozen, where there is such a hierarchy."""
    roots = {"v1": Path("/sys/fs/cgroup/freezer"), "v2": Path("/sys/fs/cgroup/unified")}
    if not (roots["v2"] / "cgroup.procs").exists():
        roots["v2"] = Path("/sys/fs/cgroup")
    path = roots[request.param] / f"ft-run-{ft.mark}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    yield path
    ft.finish()
    path.rmdir()


def start(ft: "Launcher", port: int, nodes: int, *args: object) -> "list[Command]":
    """Start a job of two ranks on one node or two."""
    if nodes == 1:
        return [ft.start("--standalone", "--nproc-per-node", 2, *args)]
    where = ("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", ft.mark)
    return [*ft.start_two("--nnodes", 2, *where, *args)]


def expect_hang(agents: "list[Command]", pattern: str) -> None:
    """Wait for the restart of every node, and the end of the training."""
    for agent in agents:
        agent.expect(rf"round=1 node_rank=\d restart 1/1: {pattern} \(default rule\)$")
    for agent in agents:
        assert agent.wait() == 0
    assert sum(agent.stdout.count("trained 6 steps") for agent in agents) == 2


@pytest.mark.parametrize(("cause", "culprit", "together", "starts"), rows())
def test_a_hang_is_found_and_named_on_every_node(
    ft: "Launcher", free_port: int, cause: str, culprit: int, together: str, starts: str
) -> None:
    os.mkfifo(ft.folder / "fifo")
    options = ("--hang-timeout", 3, "--max-restarts", 1, *STARTS[starts])
    nodes = TOGETHER[together]
    agents = start(ft, free_port, nodes, *options, ft.script(JOB), cause, culprit, "")
    expect_hang(agents, first_line(cause, culprit, nodes))
    for left in ft.temporary.glob("pymp-*"):  # by the loader, which was killed with its worker
        shutil.rmtree(left)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("culprit", "together", "starts"), [*itertools.product((0, 1), TOGETHER, STARTS)]
)
def test_a_frozen_process_is_found(
    ft: "Launcher", free_port: int, freezer: Path, culprit: int, together: str, starts: str
) -> None:
    options = ("--hang-timeout", 3, "--max-restarts", 1, *STARTS[starts])
    nodes = TOGETHER[together]
    job = (ft.script(JOB), "freezes", culprit, freezer)
    agents = start(ft, free_port, nodes, *options, *job)
    if (freezer / "freezer.state").exists():  # there not even SIGKILL ends it
        agents[0].expect("round=0 node_rank=0 stopping")
        (freezer / "freezer.state").write_text("THAWED")
    expect_hang(agents, first_line("freezes", culprit, nodes))


# --- without torch -------------------------------------------------------------------------------

PROGRESS = """
import os, signal, sys, threading, time
from ft_run.training import progress
what, rank, folder = sys.argv[1], int(os.environ["RANK"]), sys.argv[2]

def evaluate():
    for index in range(200):
        if os.path.exists(f"{folder}/enough"):
            return
        if what == "says so":
            progress()
LINES
def serve():
    while not os.path.exists(f"{folder}/over"): time.sleep(0.02)  # serves

def debug():
    import pdb
    pdb.Pdb(stdin=open(f"{folder}/fifo"), stdout=sys.stdout, nosigint=True).set_trace()
    print("on")

def load():
    time.sleep(7)

def record():  # what torch has a thread of its own for
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    def dump():
        while True:  # for the verdict, and before it is ended
            while not os.read(fd, 128): time.sleep(0.1)
            with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}", "w") as file:
                for part in ("all ", "that ", "was"):
                    file.write(part)
                    file.flush()
                    time.sleep(0.2)
    threading.Thread(target=dump, daemon=True).start()

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

acts = {"evaluates": evaluate, "says so": evaluate, "loads": load, "debugs": debug, "stops": stop}
if "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in os.environ:
    record()
for step in range(3):
    progress(step + 1)
    if step == 1 and rank == 0:
        if what == "sleeps":
            time.sleep(1000)  # sleeps
        acts.get(what, serve)()
        open(f"{folder}/over", "w").close()
    if step == 1 and rank and what == "steps":
        while not os.path.exists(f"{folder}/over"):
            step += 1
            progress(step)
            time.sleep(0.02)
    elif step == 1:
        serve()
sys.stdout.write("over\\n")
""".replace("LINES", "        time.sleep(0.01)\n" * 8)  # at the same line twice is only chance


def run_progress(
    ft: "Launcher", what: str, *more: object, env: Mapping[str, str] | None = None
) -> "Command":
    """Start a job that does something in its second step, in a folder of that name."""
    folder = ft.folder / what
    folder.mkdir(exist_ok=True)
    where = () if "--rdzv-endpoint" in more else ("--standalone",)
    options = (*where, "--nproc-per-node", 2, "--hang-timeout", 1, *more)
    script = ft.script(PROGRESS, f"{what}/script.py")
    return ft.start(*options, script, what, folder, env=env)


def test_jobs_that_hang_and_one_that_is_slow(ft: "Launcher", free_port: int) -> None:
    """At the same time, since they wait for most of it."""
    pipes, files = ft.folder / "pipe_", ft.folder / "trace_"
    env = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(pipes), "TORCH_FR_DUMP_TEMP_FILE": str(files)}
    sleeps = run_progress(ft, "sleeps", "--log-dir", ft.folder / "logs", env=env)
    stops = run_progress(
        ft,
        "stops",
        *("--nnodes", 1, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", ft.mark),
        *("--max-restarts", 1, "--shutdown-timeout", 1, "--preload", "colorsys"),
        *("--on-failure", "hang=restart-free"),
    )
    evaluates = run_progress(ft, "evaluates")
    evaluates.expect(r"no step for \d+ s, but rank \d is making progress: script.py:")
    (ft.folder / "evaluates" / "enough").touch()
    check_is_no_hang(evaluates)
    check_stopped(ft, stops, free_port)
    check_report(ft.folder / "logs", sleeps)
    assert [Path(f"{files}{rank}").read_text() for rank in (0, 1)] == ["all that was"] * 2


def check_report(logs: Path, job: "Command") -> None:
    """Check that the report has where all ranks were."""
    assert job.wait() == 1
    report = job.stderr.partition("Root cause: ")[2].splitlines()
    serves = f"script.py:{line_of('serves', PROGRESS)}"
    assert re.match(
        rf"rank 0 on node 0 \(\S+\) is in <module> at script.py:{line_of('sleeps', PROGRESS)}, but"
        rf" rank 1 on node 0 \(\S+\) is in serve\(\) at {serves}; no step for \d+ s \(step 2\)$",
        report[0],
    )
    stacks = [line.strip() for line in report if "script.py:" in line and "stacks" not in line]
    assert any(line.startswith(f"{serves} serve  while not") for line in stacks)
    (kept,) = logs.rglob("hang.txt")
    assert kept.read_text().startswith(report[0] + "\n\nrank 0 on node 0 (")
    assert f"{serves} serve" in kept.read_text()
    (events,) = logs.rglob("events.jsonl")
    records = map(json.loads, events.read_text().splitlines())
    suspected = [record for record in records if record["name"] == "hang.suspected"]
    assert {rank for record in suspected for rank in record["ranks"]} == {0, 1}
    assert all(record["idle_s"] >= 1 for record in suspected)


def check_stopped(ft: "Launcher", job: "Command", port: int) -> None:
    """Check that a rule decides on a stopped process, and that the status has the reason."""
    stopped = r"rank 0 on node 0 \(\S+\) is stopped \(by a signal\); no step for \d+ s \(step 2\)"
    job.expect(rf"restart \(not counted, 0/1 used\): {stopped} \(rule hang=restart-free\)$")
    said = ft.run("status", f"127.0.0.1:{port}", "--json").stdout
    assert re.fullmatch(stopped, json.loads(said)["last_stop"])
    job.send(signal.SIGTERM)
    job.wait()


def check_is_no_hang(job: "Command") -> None:
    assert job.wait() == 0
    assert job.stdout.count("over") == 2
    assert "hang" not in job.stderr


@pytest.mark.slow
@pytest.mark.parametrize("what", ["says so", "loads"])
def test_what_is_slow_is_no_hang(ft: "Launcher", what: str) -> None:
    check_is_no_hang(run_progress(ft, what))


@pytest.mark.slow
def test_a_debugger_is_left_alone(ft: "Launcher") -> None:
    (ft.folder / "debugs").mkdir()
    os.mkfifo(ft.folder / "debugs" / "fifo")
    job = run_progress(ft, "debugs")
    with open(ft.folder / "debugs" / "fifo", "w") as terminal:
        job.expect("no step for .*, but rank 0 is in a debugger: script.py:", count=2)
        terminal.write("continue\n")
    assert job.wait() == 0


@pytest.mark.slow
def test_a_rank_alone_is_found_while_the_other_gets_on(ft: "Launcher") -> None:
    job = run_progress(ft, "steps")
    assert job.wait() == 1
    assert re.search(r"Root cause: rank 0 on node 0 \(\S+\) hangs in serve\(\) at ", job.stderr)


@pytest.mark.slow
def test_a_job_that_was_stopped_for_a_while_goes_on(ft: "Launcher") -> None:
    """As a scheduler suspends it: the workers alone, then all of it."""
    job = run_progress(ft, "evaluates")
    job.expect("is making progress")
    (started,) = job.expect(r"pids=(\d+),(\d+)")
    workers = [int(pid) for pid in started.groups()]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    job.expect("but all ranks are stopped by a signal")
    whole = [job.pid, *workers]
    for pid in whole:
        os.kill(pid, signal.SIGSTOP)
    ft.wait_until(lambda: _is_stopped(job.pid), "the agent is stopped")
    for pid in whole:
        os.kill(pid, signal.SIGCONT)
    assert job.wait() == 0
    assert "hang" not in job.stderr


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
