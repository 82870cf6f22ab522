"""What a worker writes to its error file when an exception ends it, without ``@record``."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ft_run.launcher.logs.error_file import read_error_of_exit
from ft_run.launcher.processes.worker_exec import Worker, fork_worker
from ft_run.training.worker.starter.capture import SURVIVED_S, SURVIVED_SUFFIX

RECORD = """
import sys, time, traceback
from torch.distributed.elastic.multiprocessing.errors import record
"""


class Ended(NamedTuple):
    """What is left of a worker."""

    status: int
    """As ``subprocess`` has it."""
    output: str
    """Standard output and error."""
    error: dict[str, Any] | None
    """The error file."""
    survived: dict[str, Any] | None
    """The second file."""

    @property
    def message(self) -> str | None:
        """Of the error file."""
        return self.error["message"]["message"] if self.error is not None else None

    @property
    def survived_message(self) -> str | None:
        """Of the second file."""
        return self.survived["message"]["message"] if self.survived is not None else None


Run = Callable[..., Ended]


@pytest.fixture
def error_file(tmp_path: Path) -> Path:
    return tmp_path / "error.json"


@pytest.fixture
def run(tmp_path: Path, error_file: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Execute a worker as the spawner does, until it ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def execute(source: str, *head: str, captures: bool = True, **env: str) -> Ended:
        script = tmp_path / "train.py"
        script.write_text(source)
        here, there = os.pipe2(os.O_CLOEXEC)
        argv = [*(head or (sys.executable, "-u")), str(script)]
        variables = {"TORCHELASTIC_ERROR_FILE": str(error_file), **env}
        worker = Worker(0, argv, variables, [1, 2], [], [], captures_errors=captures)
        pid, errors = fork_worker(worker, (there, there))
        os.close(there)
        os.close(errors)
        with os.fdopen(here) as output:
            said = output.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        paths = (error_file, Path(f"{error_file}{SURVIVED_SUFFIX}"))
        files = [json.loads(path.read_text()) if path.exists() else None for path in paths]
        return Ended(status, said, *files)

    return execute


def test_the_exception_that_ends_a_worker_is_written_as_record_would(run: Run) -> None:
    ended = run("def train():\n    raise ValueError('loss is \"nan\\\\')\ntrain()\n")
    assert ended.status == 1
    assert ended.error is not None
    message = ended.error["message"]
    assert message["message"] == 'ValueError: loss is "nan\\'
    assert set(message["extraInfo"]) == {"py_callstack", "timestamp"}
    assert abs(int(message["extraInfo"]["timestamp"]) - os.stat("train.py").st_mtime) < 3600
    # The interpreter shows it as ever, and nothing of this in it.
    assert message["extraInfo"]["py_callstack"] == ended.output
    assert "capture" not in ended.output
    assert ended.survived is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ValueError", "ValueError"),
        ("1 +", "SyntaxError: invalid syntax (train.py, line 1)"),
        ("import torhc", "ModuleNotFoundError: No module named 'torhc'"),
        ("class E(Exception):\n  def __str__(self): 1 / 0\nraise E",
         "E: <exception str() failed>"),
        ("import asyncio\nraise asyncio.CancelledError('x')", "CancelledError: x"),
        ("raise ValueError('\\xfc\\ud800\\n')", "ValueError: \u00fc\ud800\n"),
        ("raise ValueError('x' * 10**6)", "ValueError: " + "x" * (8 * 1024 - 12)),
    ],
)  # fmt: skip
def test_what_is_captured(run: Run, error_file: Path, source: str, message: str) -> None:
    assert run(source).message == message
    found = read_error_of_exit(str(error_file), 0.0)
    assert found is not None
    assert found.message == message[:4096]


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("raise SystemExit('no')", 1),
        ("import sys; sys.exit(3)", 3),
        ("import os; os._exit(1)", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import sys; sys.excepthook(SystemExit, SystemExit(), None)", 0),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_what_is_no_exception_is_not_captured(run: Run, source: str, status: int) -> None:
    ended = run(source)
    assert (ended.status, ended.error, ended.survived) == (status, None, None)


def test_what_record_writes_stays(run: Run) -> None:
    ended = run(RECORD + "@record\ndef main():\n    raise ValueError('nan')\nmain()\n")
    assert ended.message == "ValueError: nan"
    assert ended.error is not None
    # It sees less of the stack than the interpreter.
    assert "in <module>" in ended.output
    assert "in <module>" not in ended.error["message"]["extraInfo"]["py_callstack"]


def test_the_failure_of_a_child_that_record_has_copied_stays(run: Run, tmp_path: Path) -> None:
    """torch removes what is there, and writes the child's error file in its place."""
    child = {"message": {"message": "OSError: disk", "extraInfo": {"timestamp": "1"}}}
    (tmp_path / "child.json").write_text(json.dumps(child))
    source = RECORD + (
        "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError\n"
        "from torch.distributed.elastic.multiprocessing.errors import ProcessFailure\n"
        "try: 1 / 0\n"
        "except Exception as error:\n"
        "    sys.last_value = sys.last_exc = error\n"
        "    sys.excepthook(*sys.exc_info())\n"
        "@record\n"
        "def main():\n"
        "    failure = ProcessFailure(local_rank=0, pid=7, exitcode=9, error_file='child.json')\n"
        "    raise ChildFailedError('child', {0: failure})\n"
        "main()\n"
    )
    ended = run(source)
    assert ended.error is not None
    assert ended.error["message"] == {**child["message"], "errorCode": 9}


def test_of_two_exceptions_the_last_one_ended_the_worker(run: Run) -> None:
    """A hook of the script may show several."""
    source = (
        "import sys\n"
        "before = sys.excepthook\n"
        "def hook(*failed):\n"
        "    before(*failed)\n"
        "    sys.last_value = sys.last_exc = error = KeyError(2)\n"
        "    before(KeyError, error, None)\n"
        "sys.excepthook = hook\n"
        "raise ValueError(1)\n"
    )
    assert run(source).message == "KeyError: 2"


# --- hooks of the script ------------------------------------------------------------------------


def test_a_hook_of_the_script_has_its_way(run: Run) -> None:
    hook = "import sys\nsys.excepthook = lambda *failed: {}\nraise ValueError(1)\n"
    ended = run(hook.format("print('mine')"))
    assert (ended.output, ended.error) == ("mine\n", None)
    for chained in ("sys.__excepthook__(*failed)", "before(*failed)"):
        ended = run("import sys\nbefore = sys.excepthook\n" + hook.format(chained))
        assert ended.message == "ValueError: 1"
        Path("error.json").unlink()


def test_a_hook_of_sitecustomize_has_its_way(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "def hook(*failed):\n"
        "    print('mine')\n"
        "    sys.__excepthook__(*failed)\n"
        "sys.excepthook = hook\n"
    )
    ended = run("raise ValueError(1)", PYTHONPATH=str(tmp_path))
    assert ended.output.startswith("mine\nTraceback")
    assert ended.message == "ValueError: 1"


def test_libraries_see_that_no_hook_is_set(run: Run) -> None:
    """Of ``exceptiongroup``, ``trio`` and ``code``: they would leave out or repeat something."""
    source = (
        "import sys, threading, code\n"
        "assert sys.excepthook is sys.__excepthook__\n"
        "assert threading.excepthook is threading.__excepthook__\n"
        "code.InteractiveInterpreter().runsource('1 / 0')\n"
    )
    ended = run(source)
    assert (ended.status, ended.error, ended.survived) == (0, None, None)


# --- what ends no process -----------------------------------------------------------------------

THREAD = "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\n"


def test_the_exception_of_a_thread_is_kept_aside(run: Run, error_file: Path) -> None:
    ended = run(THREAD + "raise SystemExit(1)\n")
    assert ended.error is None
    assert ended.survived_message == "ZeroDivisionError: division by zero"
    assert "Exception in thread" in ended.output
    found = read_error_of_exit(str(error_file), os.stat(error_file.parent).st_mtime)
    assert found is not None
    assert (found.message, found.path) == (ended.survived_message, f"{error_file}.survived")


def test_one_that_was_survived_is_not_why_the_worker_ended(run: Run, error_file: Path) -> None:
    ended = run(THREAD)
    assert ended.survived is not None
    at_s = int(ended.survived["message"]["extraInfo"]["timestamp"])
    assert read_error_of_exit(str(error_file), at_s + SURVIVED_S) is not None
    assert read_error_of_exit(str(error_file), at_s + SURVIVED_S + 1) is None


def test_the_exception_that_ends_the_worker_goes_before_that_of_a_thread(
    run: Run, error_file: Path
) -> None:
    ended = run(THREAD + "raise ValueError(1)\n")
    found = read_error_of_exit(str(error_file), 0.0)
    assert found is not None
    assert (ended.message, found.message) == ("ValueError: 1", "ValueError: 1")


def test_a_program_that_shows_an_exception_itself_need_not_end(run: Run) -> None:
    source = "import sys\ntry: 1 / 0\nexcept Exception: sys.excepthook(*sys.exc_info())\n"
    ended = run(source)
    assert (ended.error, ended.survived_message) == (None, "ZeroDivisionError: division by zero")


# --- other processes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "child",
    [
        "subprocess.run([sys.executable, '-c', '1 / 0'])",
        "os.fork() or 1 / 0; os.wait()",
        "p = multiprocessing.get_context('fork').Process(target=divmod, args=(1, 0));"
        " p.start(); p.join()",
        "os.execv(sys.executable, [sys.executable, '-c', '1 / 0'])",
    ],
)
def test_nothing_is_written_by_processes_that_the_script_starts(run: Run, child: str) -> None:
    ended = run(f"import multiprocessing, os, subprocess, sys\n{child}\n")
    assert "ZeroDivisionError" in ended.output
    assert (ended.error, ended.survived) == (None, None)


def test_of_a_program_around_the_interpreter_only_what_becomes_the_worker(
    run: Run, tmp_path: Path
) -> None:
    wrapper = tmp_path / "python-wrapper"
    wrapper.write_text(f"#!/bin/sh\n{sys.executable} -c '1 / 0'\n{sys.executable} $1\nexit 3\n")
    wrapper.chmod(0o755)
    ended = run("raise ValueError(1)", str(wrapper))
    assert (ended.status, ended.error, ended.output.count("Traceback")) == (3, None, 2)
    wrapper.write_text(f"#!/bin/sh\n{sys.executable} -c '1 / 0'\nexec {sys.executable} $1\n")
    assert run("raise ValueError(1)", str(wrapper)).message == "ValueError: 1"


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_python_that_reads_no_path_is_left_alone(run: Run, flag: str) -> None:
    """Nor does one that it starts take its place."""
    source = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1 / 0'])\n1 + ''\n"
    ended = run(source, sys.executable, flag)
    assert (ended.status, ended.error, ended.survived) == (1, None, None)
    assert "hook" not in ended.output
    assert ended.output.count("Traceback") == 2


# --- the worker before a failure ----------------------------------------------------------------

LOOKS = """
import sys
modules = set(sys.modules)
import json, os, subprocess
look = "import json, os, sys; print(json.dumps([sys.path[1:], dict(os.environ)]))"
print(json.dumps([sys.path, dict(os.environ), sorted(modules), len(os.listdir("/proc/self/fd")),
      sorted(sys.path_importer_cache), [type(f).__name__ for f in sys.meta_path],
      json.loads(subprocess.check_output([sys.executable, "-c", look]))]))
"""


@pytest.mark.parametrize("path", [None, "", "{0}", "{0}:", ":{0}"])
def test_a_script_finds_what_it_would_find(run: Run, tmp_path: Path, path: str | None) -> None:
    (tmp_path / "sitecustomize.py").write_text("import this_is_not_there\n")
    env = {} if path is None else {"PYTHONPATH": path.format(tmp_path)}
    with_it, without = (run(LOOKS, captures=captures, **env) for captures in (True, False))
    assert with_it.status == 0
    assert with_it.output == without.output


@pytest.mark.parametrize("path", ["/nowhere/error.json", "folder", ""])
def test_a_file_that_cannot_be_written_changes_nothing(run: Run, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    ended = run("raise ValueError(1)", TORCHELASTIC_ERROR_FILE=path)
    assert ended.status == 1
    assert ended.output.splitlines()[-1] == "ValueError: 1"
    assert ended.output.count("Traceback") == 1
