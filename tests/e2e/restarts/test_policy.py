"""The failure policy as a user meets it: exit codes, lines, spares, the success of rank 0."""

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run import exit_codes

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Fails as it is told in the first rounds; then it ends well.
WORKER = """
import os, sys, threading
env = os.environ
rank, code, times = (int(word) for word in sys.argv[1:4])
counter = f"{sys.argv[4]}/failures-of-{env['RANK']}"
if int(env["RANK"]) == rank:
    failures = os.path.getsize(counter) if os.path.exists(counter) else 0
    if failures < times:
        with open(counter, "a") as file:
            file.write("x")
        sys.exit(code)
    os.write(1, f"rank {rank} ends well after {failures}\\n".encode())
    open(f"{sys.argv[4]}/over", "w").close()
while not os.path.exists(f"{sys.argv[4]}/over"):
    threading.Event().wait(0.02)
"""

ALONE = ("--standalone", "--nproc-per-node", 2)


def start_nodes(ft: "Launcher", port: int, count: int, *args: object) -> "list[Command]":
    """Start nodes of a job for two, one after the other, so that the first ones are members."""
    # Nodes are numbered by job on each host: no other test may have the same.
    common = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", ft.mark)
    nodes = [*ft.start_two(*common, *args)]
    for node in nodes:
        node.expect("round=0 .* started")
    for _ in range(2, count):
        nodes.append(ft.start(*common, *args))
        nodes[-1].expect("standing by as a spare")
    return nodes


def test_fail_ends_the_job_on_every_node_with_status_3(ft: "Launcher", free_port: int) -> None:
    gate = ft.folder / "gate"
    script = ft.script(
        "import os, sys, threading\n"
        f"while not os.path.exists({str(gate)!r}): threading.Event().wait(0.02)\n"
        "if os.environ['RANK'] == '1': sys.exit(66)\n"
        "threading.Event().wait()\n"
    )
    nodes = start_nodes(
        ft, free_port, 2, "--max-restarts", 5, "--on-failure", "exit:64-79=fail", script
    )
    gate.touch()
    assert [node.wait() for node in nodes] == [exit_codes.POLICY_ENDED_JOB] * 2
    for node in nodes:
        assert re.search(
            r"job FAILED: the failure policy ended the job: rank 1 on node 1 \(\S+\) exited with "
            r"66 \(rule exit:64-79=fail; 0 of 5 restarts used\)$",
            node.stderr.splitlines()[-1],
        )
        assert "Root cause: rank 1 on node 1" in node.stderr


def test_a_free_restart_is_not_counted_and_says_so(ft: "Launcher") -> None:
    script = ft.script(WORKER)
    rule = ("--on-failure", "exit:75=restart-free")
    command = ft.run(*ALONE, *rule, script, 1, 75, 1, ft.folder)
    assert command.process.returncode == 0
    (line,) = command.expect(r"round=1 node_rank=0 restart (.*)")
    assert re.match(
        r"\(not counted, 0/0 used\): rank 1 .* exited with 75 \(rule exit:75=restart-free\)",
        line[1],
    )


def waits_for(gate: Path) -> str:
    """The worker, which does nothing before there is a file."""
    wait = f"while not os.path.exists({str(gate)!r}): threading.Event().wait(0.02)\n"
    return WORKER.replace("if int(env", f"{wait}if int(env", 1)


@pytest.mark.parametrize("node", [0, 1])
def test_a_spare_takes_the_place_of_a_node_that_a_rule_excludes(
    ft: "Launcher", free_port: int, node: int
) -> None:
    """Node 0 hosts the master, and goes on doing so when it is excluded."""
    gate = ft.folder / "failures-allowed"
    script = ft.script(waits_for(gate))
    rule = ("--max-restarts", 1, "--on-failure", "exit:9=replace-node")
    nodes = start_nodes(ft, free_port, 3, *rule, script, node, 9, 1, ft.folder)
    gate.touch()
    assert [command.wait() for command in nodes] == [
        exit_codes.NODE_EXCLUDED if rank == node else 0 for rank in range(3)
    ]
    told = nodes[node].stderr.splitlines()[-1]
    assert re.search(
        rf"ft-run: error: node '\S+/{node}' is excluded from this job and may not rejoin it: "
        rf"rank {node} on node {node} \(\S+\) exited with 9 \(rule exit:9=replace-node\)\.$",
        told,
    )
    assert ("still hosts the master" in nodes[node].stderr) == (node == 0)
    (line,) = nodes[2].expect("round=1 .* restart 1/1: (.*)")
    assert re.search(rf"\(rule exit:9=replace-node; node \S+/{node} is excluded\)", line[1])


def test_an_excluded_node_that_hosts_the_master_can_be_told_to_go(
    ft: "Launcher", free_port: int
) -> None:
    gate = ft.folder / "gate"
    script = ft.script(
        "import os, sys, threading\n"
        "fails = os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '00'\n"
        f"while not (fails and os.path.exists({str(gate)!r})): threading.Event().wait(0.02)\n"
        "sys.exit(9)\n"
    )
    rule = ("--max-restarts", 1, "--on-failure", "exit:9=replace-node")
    nodes = start_nodes(ft, free_port, 3, *rule, script)
    gate.touch()
    nodes[0].expect("still hosts the master")
    for node in nodes[1:]:
        node.expect("round=1 .* started")
    nodes[0].send(signal.SIGTERM)
    assert nodes[0].wait() == exit_codes.NODE_EXCLUDED
    for node in nodes[1:]:
        node.expect("no connection to the master at .*: workers keep running")
        node.send(signal.SIGTERM)
    for node in nodes[1:]:
        assert node.wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM


def test_the_success_of_rank_0_ends_the_others(ft: "Launcher", free_port: int) -> None:
    script = ft.script(
        "import os, threading\n"
        f"gate = {str(ft.folder / 'gate')!r}\n"
        "while int(os.environ['RANK']) or not os.path.exists(gate): threading.Event().wait(0.02)\n"
    )
    args = ("--nproc-per-node", 2, "--success-policy", "rank0", script)
    nodes = start_nodes(ft, free_port, 2, *args)
    (ft.folder / "gate").touch()
    assert [node.wait() for node in nodes] == [0, 0]
    for node in nodes:
        assert "job succeeded: rank 0 succeeded" in node.stderr.splitlines()[-1]


def test_the_exit_status_of_the_root_cause(ft: "Launcher") -> None:
    script = ft.script("import os\nos.kill(os.getpid(), 9)\n")
    assert ft.run("--standalone", "--propagate-exit-code", script).process.returncode == 137


def test_a_script_called_policy_and_the_command_of_that_name(ft: "Launcher") -> None:
    script = ft.script("print('a script')\n", "policy")
    assert "a script" in ft.run("--standalone", script).stdout
    told = ft.run("policy", "--explain", "exit:137 oom", "--on-failure", "oom=fail")
    assert told.process.returncode == 0
    assert ": fail: the job ends with exit code 3." in told.stdout


def test_restarts_that_do_no_new_step_end_the_job_with_status_3(ft: "Launcher") -> None:
    # It resumes from a checkpoint at 5 each time; once it comes beyond the step of the first round.
    script = ft.script(
        "import os, sys\n"
        "from ft_run.training import progress\n"
        "last = 9 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 7\n"
        "for step in range(5, last + 1): progress(step)\n"
        "sys.exit('a bad batch')\n"
    )
    command = ft.start(
        *ALONE, "--watch-workers", "--max-no-progress", 2, "--max-restarts", 9, script
    )
    assert command.wait() == exit_codes.POLICY_ENDED_JOB
    assert re.search(
        r"the failure policy ended the job: rank [01] on node 0 \(.*\) exited with 1.* "
        r"\(2 consecutive restarts without a step beyond step 9: --max-no-progress 2; "
        r"3 of 9 restarts used\)",
        command.stderr,
    )
