"""``--auto-tune on``: values for which all workers start again from the snapshot of a step."""

import json
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.tests.e2e.cluster import PORT
from ft_run.tests.e2e.listed import QUICK
from ft_run.tests.e2e.restarts.test_auto_tune import PROGRAM
from ft_run.tests.e2e.restarts.test_device_oom import PRELOAD

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher
    from ft_run.tests.harness.hosts import Host, Network

# What a step takes depends on a value of the script, or on the threads that OpenMP gets.
SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
from ft_run.training import Checkpointer, tuned
from torch import nn

folder, what = sys.argv[1:]
rank = int(os.environ["RANK"])
threads = torch.get_num_threads()
slow_ms = 100 if what == "is found" else 40
pause_ms = tuned("pause", slow_ms, [slow_ms, 10])
hoard = []
every = None if what == "no snapshots" else 1
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
checkpointer = Checkpointer(
    f"{folder}/checkpoints", state, snapshot_every=every, checkpoint_every=None, seed=1
)
log = open(f"{folder}/log-{rank}-{os.getpid()}", "a", buffering=1)
for step in checkpointer.steps(int(os.environ["STEPS"])):
    if pause_ms == 10 and what == "fails" and rank == 1:
        raise ValueError("too fast")
    while pause_ms == 10 and what == "grows" and rank == 1:
        hoard.append(bytearray(os.urandom(1 << 20)))
    if pause_ms == 10 and what == "hangs":
        time.sleep(1000)
    time.sleep(0.02 * min(threads, 4) if what == "threads" else pause_ms / 1000)
    loss = model(torch.randn(4, 3)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    log.write(json.dumps([step, pause_ms, threads, loss.item().hex()]) + "\\n")
dist.destroy_process_group()
"""
NODES_OF_TWO = ("--nproc-per-node", 2, "--auto-tune", "on", "--preload", PRELOAD)
ALONE = ("--standalone", *NODES_OF_TWO)
VALUE = 'tuned("pause") 40 -> 10'


def start(
    ft: "Launcher",
    *options: object,
    name: str = "job",
    what: str = "",
    steps: int = 2000,
    prefix: tuple[str, ...] = (),
    host: "Host | None" = None,
) -> Any:
    (ft.folder / name).mkdir(exist_ok=True)
    program = ft.script(PROGRAM, "ft_run_fast.py")
    return ft.start(
        *(*options, ft.script(SCRIPT, "train.py"), ft.folder / name, what),
        program=(*prefix, sys.executable, str(program)),
        env={"STEPS": str(steps)},
        host=host,
    )


def rows(folder: Path) -> dict[int, set[tuple[Any, ...]]]:
    """Return the values and threads of all ranks at each step, as it was done last."""
    found: dict[tuple[int, str], tuple[Any, ...]] = {}
    for path in sorted(folder.glob("log-*"), key=lambda path: path.stat().st_mtime_ns):
        for line in path.read_text().splitlines():
            step, *values = json.loads(line)
            found[step, path.name.split("-")[1]] = tuple(values)
    by_step: dict[int, set[tuple[Any, ...]]] = {}
    for (step, _), row in found.items():
        by_step.setdefault(step, set()).add(row[:2])
    return by_step


def test_a_value_of_the_script_is_found_on_all_ranks(ft: "Launcher") -> None:
    file = ft.folder / "tuned.json"
    # The gain is larger than what a busy machine takes from a block.
    command = start(ft, *ALONE, "--tune-file", file, what="is found", steps=1000)
    assert command.wait() == 0, command.stderr
    assert 'auto-tune: tuned("pause") 100 -> 10: accepted' in command.stderr
    assert re.search(r'1 trial: tuned\("pause", 10, ...\), \+\d+', command.stderr)
    assert command.stderr.count("regroup with 1 node(s)") == 5
    assert "not counted" not in command.stderr
    made = rows(ft.folder / "job")
    assert sorted(made) == list(range(1000))
    assert all(len(values) == 1 for values in made.values())
    assert made[999] == {(10, 1)}
    assert json.loads(file.read_text())["values"]["settings"] == {'tuned("pause")': 10}
    again = start(ft, *ALONE[:3], "--tune-file", file, what="is found", steps=1010)
    assert again.wait() == 0, again.stderr
    assert 'auto-tune: tuned("pause")=10 from --tune-file' in again.stderr
    assert rows(ft.folder / "job")[1009] == {(10, 1)}


def test_a_value_that_fails_is_rolled_back_and_not_tried_again(ft: "Launcher") -> None:
    command = start(ft, *ALONE, what="fails", steps=120)
    assert command.wait() == 0, command.stderr
    assert command.stderr.count("restart (not counted, 0/0 used)") == 1
    assert command.stderr.count('auto-tune was trying tuned("pause")=10') == 1
    assert f"{VALUE}: back to 40, failed: rank 1" in command.stderr
    assert command.stderr.count("auto-tune: tuned") == 1
    made = rows(ft.folder / "job")
    assert sorted(made) == list(range(120))
    assert {value for values in made.values() for value in values} == {(40, 1)}


@pytest.mark.slow
def test_a_value_that_hangs_is_rolled_back(ft: "Launcher") -> None:
    options = ("--hang-timeout", 3, "--hang-timeout-start", 10)
    command = start(ft, *ALONE, *options, what="hangs", steps=120)
    assert command.wait() == 0, command.stderr
    assert command.stderr.count("restart (not counted, 0/0 used)") == 1
    assert f"{VALUE}: back to 40, failed: " in command.stderr
    assert command.stderr.count("auto-tune: tuned") == 1


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("memory_limit", [1536], indirect=True)
def test_a_value_that_takes_all_memory_is_rolled_back(
    ft: "Launcher", memory_limit: tuple[str, ...]
) -> None:
    command = start(ft, *ALONE, what="grows", steps=120, prefix=memory_limit)
    assert command.wait() == 0, command.stderr
    assert command.stderr.count("restart (not counted, 0/0 used)") == 1
    assert re.search(r"back to 40, failed: rank 1 .* OOM killer", command.stderr)
    assert command.stderr.count("auto-tune: tuned") == 1


def test_without_snapshots_nothing_is_tried(ft: "Launcher") -> None:
    command = start(ft, *ALONE, what="no snapshots", steps=60)
    assert command.wait() == 0, command.stderr
    assert (
        "auto-tune: nothing was tuned: OMP_NUM_THREADS and tuned values need snapshots of a"
        " Checkpointer" in command.stderr
    )
    assert "regroup" not in command.stderr


def test_the_values_of_the_user_hold_when_a_job_is_stopped(ft: "Launcher") -> None:
    file = ft.folder / "tuned.json"
    command = start(ft, *ALONE, "--tune-file", file)
    command.expect("regroup with .*: auto-tune tries tuned")
    command.send(signal.SIGINT)
    assert command.wait() == 130
    assert f"{VALUE}: back to 40, the round ended" in command.stderr
    assert not file.exists()


@pytest.mark.slow
def test_the_threads_of_a_job_without_a_gpu(ft: "Launcher") -> None:
    options = ("--standalone", "--nproc-per-node", 1, "--tune-file", ft.folder / "tuned.json")
    unset, on = ("env", "-u", "OMP_NUM_THREADS"), ("--auto-tune", "on")
    command = start(ft, *options, *on, what="threads", steps=600, prefix=unset)
    assert command.wait() == 0, command.stderr
    assert re.search(r"auto-tune: OMP_NUM_THREADS \d+ -> 1: accepted", command.stderr)
    assert re.search(r"OMP_NUM_THREADS=1, \+\d+.*% steps/s", command.stderr)
    assert rows(ft.folder / "job")[599] == {(40, 1)}
    again = start(ft, *options, "--preload", PRELOAD, what="threads", steps=610, prefix=unset)
    assert again.wait() == 0, again.stderr
    assert rows(ft.folder / "job")[609] == {(40, 1)}
    assert "OMP_NUM_THREADS=1 from --tune-file" in again.stderr
    assert "falling back" not in again.stderr


@pytest.mark.slow
def test_a_trial_goes_on_with_another_master(ft: "Launcher", free_port: int) -> None:
    endpoint = f"127.0.0.1:{free_port}"
    master = ft.start("master", "--bind", endpoint)
    options = ("--nnodes", 2, *NODES_OF_TWO, "--rdzv-endpoint", endpoint, "--rdzv-id", ft.mark)
    nodes = [start(ft, *options, steps=2500) for _ in range(2)]
    first = nodes[0]
    first.expect("regroup with .*: auto-tune tries tuned")
    master.send(signal.SIGKILL)
    master.wait()
    first.expect("cannot reach the master|lost the connection to the master|reconnecting")
    again = ft.start("master", "--bind", endpoint)
    assert [node.wait() for node in nodes] == [0, 0], first.stderr
    again.send(signal.SIGTERM)
    again.wait()
    both = "".join(node.stderr for node in nodes)
    assert f"{VALUE}: accepted" in both
    assert "not counted" not in both
    made = rows(ft.folder / "job")
    assert all(len(values) == 1 for values in made.values())
    assert made[2499] == {(10, 1)}


@pytest.mark.slow
@pytest.mark.root
def test_a_trial_ends_with_the_node_that_hosts_the_master(
    ft: "Launcher", network: "Network"
) -> None:
    hosts = {name: network.add(name) for name in "abc"}
    options = (
        *("--nnodes", "2:3", "--nproc-per-node", 1, "--auto-tune", "on", "--preload", PRELOAD),
        *("--rdzv-endpoint", f"a,b,c:{PORT}", "--rdzv-id", ft.mark, "--rdzv-conf", QUICK),
        *("--max-restarts", 9),
    )
    nodes = [start(ft, *options, steps=1500, host=hosts[name]) for name in "abc"]
    nodes[0].expect("regroup with .*: auto-tune tries tuned")
    (leader,) = [node for node in nodes if "this host is the leader" in node.stderr]
    leader.send(signal.SIGKILL)
    leader.wait()
    left = [node for node in nodes if node is not leader]
    assert [node.wait() for node in left] == [0, 0], left[0].stderr
    made = rows(ft.folder / "job")
    assert sorted(made) == list(range(1500))
    assert all(len(values) == 1 for values in made.values())
    assert re.search(r"restart 1/9", left[0].stderr)
