"""``ft-run status`` and ``stacks`` for the jobs of a host, from another process."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

WORKER = """
import pathlib, sys, threading
print("up", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    threading.Event().wait(0.05)
"""


def test_a_standalone_job_is_seen_from_another_process(ft: "Launcher") -> None:
    script, gate, job = ft.script(WORKER), ft.folder / "gate", f"local-{ft.mark}"
    long = ft.temporary / ("x" * 120)  # no socket can be there
    long.mkdir()
    agent = ft.start(
        "--standalone", "--rdzv-id", job, "--watch-workers", script, gate,
        env={"TMPDIR": str(long)},
    )  # fmt: skip
    agent.expect("^up$")
    status = json.loads(ft.run("status", job, "--json").stdout)
    assert (status["job_id"], status["phase"], status["exit_code"]) == (job, "running", None)
    assert [node["node_rank"] for node in status["nodes"]] == [0]
    table = ft.run("status", "--job", agent.pid).stdout
    assert table.startswith(f"job {job} · running\n")
    stacks = ft.run("stacks", job)
    assert "script.py:5 <module>  threading.Event().wait(0.05)" in stacks.stdout, stacks.stderr
    (group,) = json.loads(ft.run("stacks", job, "--json").stdout)["groups"]
    assert group["ranks"] == [0]
    agent.send(signal.SIGSTOP)
    stopped = ft.run("status", "--job", agent.pid, "--timeout", 0.1)
    assert stopped.process.returncode == 40
    assert "does not answer within 0.1 s; it may be stopped" in stopped.stderr
    agent.send(signal.SIGCONT)
    gate.touch()
    assert agent.wait() == 0
    for words, more in ((("--job", job), "; "), ((job,), ", and no ft-run master answers at ")):
        over = ft.run("status", *words)
        assert over.process.returncode == 40
        assert f"no job of this user on this host has the ID '{job}'{more}" in over.stderr
    long.rmdir()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_the_jobs_of_a_user_are_listed(ft: "Launcher", free_port: int) -> None:
    user = 3_000_000 + os.getpid()  # it has no other jobs
    read = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
    become = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *read)
    program = (*become, *ft.program)
    ft.temporary.chmod(0o1777)
    script, gate = ft.script(WORKER), ft.folder / "gate"
    none = ft.run("status", "--json", program=program)
    assert none.process.returncode == 40
    assert "no job of this user runs on this host" in none.stderr
    options = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "two")
    agents = [ft.start(*options, script, gate, program=program) for _ in range(2)]
    for agent in agents:
        agent.expect("^up$")
    only = ft.run("status", program=program)
    assert only.stdout.startswith("job two · running\n"), only.stderr
    status = json.loads(ft.run("status", "--json", program=program).stdout)
    assert len(status["nodes"]) == 2
    assert {job["pid"] for job in status["jobs"]} == {agent.pid for agent in agents}
    assert "ranks 0-1" in ft.run("stacks", program=program).stdout
    alone = ft.start("--standalone", "--rdzv-id", "one", script, gate, program=program)
    alone.expect("^up$")
    listed = ft.run("status", program=program).stdout.splitlines()
    assert listed[0].split()[:4] == ["JOB", "PID", "NODE", "PHASE"]
    rows = {(row.split()[0], int(row.split()[1])) for row in listed[1:]}
    assert rows == {("one", alone.pid), *(("two", agent.pid) for agent in agents)}
    several = ft.run("stacks", program=program)
    assert several.process.returncode == 2
    assert "several jobs run on this host; expected one of them as JOB" in several.stderr
    assert "ranks 0-1" in ft.run("stacks", "two", program=program).stdout
    alone.send(signal.SIGKILL)
    alone.wait()
    assert ft.run("status", program=program).stdout.startswith("job two · running\n")
    gate.touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    folder = Path(f"/tmp/ft-run-{user}")
    assert not list(folder.glob("*.sock"))
    shutil.rmtree(folder)
