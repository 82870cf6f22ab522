"""Each match of the failure policy, and its spacing and limits, met by the real thing."""

import re
import signal
from typing import TYPE_CHECKING

import pytest
from ft_run import exit_codes

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

ALONE = ("--standalone", "--max-restarts", 5)


def verdict_of(text: str) -> str:
    """Return the last line of what an agent said."""
    return text.splitlines()[-1]


@pytest.mark.root
def test_out_of_memory(ft: "Launcher", memory_limit: tuple[str, ...]) -> None:
    script = ft.script(
        "import os\nhoard = []\nwhile True: hoard.append(bytearray(os.urandom(1 << 20)))\n"
    )
    rules = ("--on-failure", "signal:SIGTERM=restart", "--on-failure", "oom=fail")
    command = ft.run(*ALONE, *rules, script, program=(*memory_limit, *ft.program))
    assert command.process.returncode == exit_codes.POLICY_ENDED_JOB
    assert re.search(
        r"rank 0 on node 0 \(\S+\) was killed by the kernel's OOM killer \(out of memory\) "
        r"\(rule oom=fail; 0 of 5 restarts used\)$",
        verdict_of(command.stderr),
    )


def test_an_error_that_record_has_written(ft: "Launcher") -> None:
    """Torch's own @record, and standard error that is not captured."""
    script = ft.script(
        "import os\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    again = os.environ['TORCHELASTIC_RESTART_COUNT'] == '1'\n"
        "    raise RuntimeError('device-side assert' if again else 'link flap')\n"
        "main()\n"
    )
    rule = ("--on-failure", "error:RuntimeError: .*assert=fail")
    preload = ("--preload", "torch.distributed.elastic.multiprocessing.errors")
    command = ft.run(*ALONE, *preload, *rule, script)
    assert command.process.returncode == exit_codes.POLICY_ENDED_JOB
    command.expect(r"round=1 node_rank=0 restart 1/5: .*exited with 1: RuntimeError: link flap")
    assert re.search(
        r"exited with 1: RuntimeError: device-side assert "
        r"\(rule error:RuntimeError: \.\*assert=fail; 1 of 5 restarts used\)$",
        verdict_of(command.stderr),
    )


def test_an_import_error_ends_the_job_after_two_rounds(ft: "Launcher") -> None:
    """Without @record, and standard error that is not captured."""
    command = ft.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 20,
                     ft.script("import torhc\n"))  # fmt: skip
    assert command.process.returncode == exit_codes.POLICY_ENDED_JOB
    what = r"exited with 1: ModuleNotFoundError: No module named 'torhc'"
    assert re.search(
        rf"{what} \(default rule repeated usage or import error=fail; 1 of 20 restarts used\)$",
        verdict_of(command.stderr),
    )
    assert re.search(rf"^Root cause: rank [01] on node 0 \(\S+\) {what}$", command.stderr, re.M)
    assert re.search(r"^      import torhc$", command.stderr, re.M)  # of the traceback


@pytest.mark.parametrize("way", ["-m", "--run-path", "--preload=json", "--watch-workers"])
def test_an_error_of_any_way_to_run_python(ft: "Launcher", way: str) -> None:
    script = ft.script("raise RuntimeError('device-side assert')\n", "job.py")
    flags = (*ALONE, "--on-failure", "error:RuntimeError: .*assert=fail", way)
    given = (script.stem,) if way == "-m" else (script,)
    command = ft.run(*flags, *given, env={"PYTHONPATH": str(script.parent)})
    assert command.process.returncode == exit_codes.POLICY_ENDED_JOB
    error = re.search(r"error_file: (\S+)$", command.stderr, re.M)
    assert error is not None
    assert error[1].endswith("/attempt_0/0/error.json")


def test_a_program_that_need_not_be_python_is_left_alone(ft: "Launcher") -> None:
    program = ft.script('#!/bin/sh\n[ -z "$FT_RUN_HOOK$PYTHONPATH" ] || exit 9\nexit 5\n')
    program.chmod(0o755)
    script = ft.script("", "train.py")
    for given, more in ((("--no-python", program), {}), ((script,), {"PYTHON_EXEC": str(program)})):
        command = ft.run("--standalone", *given, env={"PYTHONPATH": "", **more})
        assert "exited with 5" in verdict_of(command.stderr)


@pytest.mark.parametrize("flags", [(), ("--preload=threading",)])
def test_what_a_thread_raised_is_why_its_process_ended(
    ft: "Launcher", flags: tuple[str, ...]
) -> None:
    script = ft.script(
        "import os, threading\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start()\nthread.join()\nos._exit(1)\n"
    )
    command = ft.run("--standalone", *flags, script)
    assert "exited with 1: ZeroDivisionError: division by zero" in verdict_of(command.stderr)


def test_a_lost_node(ft: "Launcher", free_port: int) -> None:
    script = ft.script("import threading\nprint('up', flush=True)\nthreading.Event().wait()\n")
    args = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", ft.mark,
            "--max-restarts", 5, "--on-failure", "node-lost=fail", script)  # fmt: skip
    host, other = ft.start_two(*args)
    for node in (host, other):
        node.expect("^up")
    other.send(signal.SIGKILL)
    assert host.wait() == exit_codes.POLICY_ENDED_JOB
    assert re.search(
        r"node 1 \(\S+\) was lost: .* \(rule node-lost=fail; 0 of 5 restarts used\)$",
        verdict_of(host.stderr),
    )


def test_restarts_are_spaced_and_the_wait_is_told(ft: "Launcher") -> None:
    """The first follows at once, the second after a second."""
    script = ft.script(
        "import os, sys\nsys.exit(0 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '2' else 5)\n"
    )
    command = ft.run(*ALONE, "--restart-backoff", "0s:60s", script)
    assert command.process.returncode == 0
    events = re.findall(
        r"round=(\d) node_rank=0 started|next round starts in (\d) s \(--restart-backoff\)",
        command.stderr,
    )
    assert events == [("0", ""), ("1", ""), ("", "1"), ("2", "")]


def test_a_node_that_fails_too_often_gives_way_to_a_spare(ft: "Launcher", free_port: int) -> None:
    """It is the node that is broken: each worker that runs there fails."""
    script = ft.script(
        "import os, sys, threading\n"
        "broken = sys.argv[1] + os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "while not os.path.exists(sys.argv[2]):\n"
        "    if os.environ.get('BROKEN') and os.path.exists(broken): sys.exit(7)\n"
        "    threading.Event().wait(0.02)\n"
    )
    gate = ft.folder / "gate"
    args = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", ft.mark,
            "--max-restarts", 9, "--max-node-failures", 2,
            script, ft.folder / "broken", gate)  # fmt: skip
    host = ft.start(*args)
    host.expect("hosted here")
    bad = ft.start(*args, env={"BROKEN": "1"})
    for restart in (0, 1):
        (ft.folder / f"broken{restart}").touch()
    # It stays while no spare could stand in.
    bad.expect(r"round=2 node_rank=1 restart 2/9: rank 1 .*exited with 7")
    spare = ft.start(*args)
    spare.expect("standing by as a spare")
    (ft.folder / "broken2").touch()
    assert bad.wait() == exit_codes.NODE_EXCLUDED
    assert "it was the root cause of 3 restarts, most recently: rank 1" in verdict_of(bad.stderr)
    spare.expect(
        r"round=3 node_rank=1 restart 3/9: rank 1 .*exited with 7 \(.*"
        r"node \S+ is excluded after 3 failures \(--max-node-failures 2\)"
    )
    gate.touch()
    assert [host.wait(), spare.wait()] == [0, 0]
