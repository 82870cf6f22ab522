"""The first things a user does."""

from pathlib import Path

import pytest


@pytest.fixture
def hello(ft):
    return ft.script(
        "import os, sys\n"
        "sys.stdout.write(f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\")\n"
    )


def test_standalone_runs_all_workers_and_exits_0(ft, hello):
    command = ft.run("--standalone", "--nproc-per-node", 3, hello)
    assert command.process.returncode == 0
    assert sorted(command.stdout.splitlines()) == [f"rank {r} of 3" for r in range(3)]
    assert "job succeeded" in command.stderr.splitlines()[-1]


def test_a_good_run_says_what_goes_on_in_under_ten_lines(ft, hello):
    command = ft.run("--standalone", hello)
    assert 3 <= len(command.stderr.splitlines()) < 10


def test_two_agents_form_one_world(ft, hello, free_port):
    args = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "two", hello)
    agents = [ft.start(*args), ft.start(*args)]
    assert [agent.wait() for agent in agents] == [0, 0]
    lines = sorted(line for agent in agents for line in agent.stdout.splitlines())
    assert lines == ["rank 0 of 2", "rank 1 of 2"]


def test_the_agent_never_imports_torch(ft, hello, tmp_path: Path):
    # The same entry point, in an interpreter that tells its modules at the end.
    probe = ft.script(
        "import atexit, sys\n"
        "from ft_run.launcher.main import main\n"
        "status = main(sys.argv[1:])\n"
        "print('torch' in sys.modules, 'grpc' in sys.modules, file=sys.stderr)\n"
        "sys.exit(status)\n",
        "probe.py",
    )
    import sys

    command = ft.run("--standalone", hello, program=(sys.executable, str(probe)))
    assert command.process.returncode == 0
    assert command.stderr.splitlines()[-1] == "False False"
