"""What a watched worker's page says of it, executed and forked, and what it notices of it."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ft_run
import pytest
from ft_run.launcher.machine.network import PortReservation
from ft_run.launcher.processes.worker_watch import WorkerWatch, starter_env
from ft_run.training import progress
from ft_run.training.worker import hook, store_wait
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker.imported import names_of
from ft_run.training.worker.start import Page
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not declared

LIMIT = timedelta(seconds=60)

DRIVER = Path(__file__).parents[2] / "harness" / "preload_driver.py"

STEPS = """
import os, sys
from multiprocessing import Process
import torch
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.utils.data import DataLoader
from ft_run.training import progress

def parameter():
    value = torch.nn.Parameter(torch.zeros(2))
    value.grad = torch.ones(2)
    return value

def closure():
    loss = (value - 3).square().sum()
    loss.backward()
    return loss

class Own(Optimizer):
    def __init__(self):
        super().__init__([parameter()], {})
    def step(self, closure=None):
        if closure is not None:
            closure()

class Wrapper(Own):
    def step(self, closure=None):
        first.step(closure)
        second.step(closure)

def fail():
    raise MemoryError

def train():
    for _ in range(5):
        first.step()

def show_progress():
    for _ in range(5):
        progress()

def load():
    for _ in DataLoader(range(3)):
        pass

value = parameter()
first, second = SGD([parameter()], lr=0.1), Adam([parameter()], lr=0.1)
match sys.argv[1]:
    case "plain":
        train()
    case "closure":
        optimizer = LBFGS([value], max_iter=4)
        for _ in range(5):
            optimizer.step(closure)
    case "own":
        optimizer = Own()
        for _ in range(5):
            optimizer.step()
    case "two":
        for _ in range(5):
            second.step()
            first.step()
    case "two of which one steps more often":
        for number in range(5):
            first.step()
            if number % 2:
                second.step()
    case "a new one for each step":
        for _ in range(5):
            held = [SGD([parameter()], lr=0.1)]
            held[0].step()
    case "wrapper":
        optimizer = Wrapper()
        for _ in range(5):
            optimizer.step()
    case "one that fails":
        for optimizer in (Wrapper(), Own()):
            try:
                optimizer.step(fail)
            except MemoryError:
                pass
        train()
    case "compiled":
        step = torch.compile(first.step, backend="eager")
        for _ in range(5):
            step()
    case "accumulation":
        for number in range(10):
            (first.param_groups[0]["params"][0] * 2).sum().backward()
            if number % 2:
                first.step()
    case "children":
        train()
        for function in (train, show_progress, load):
            child = Process(target=function)
            child.start()
            child.join()
    case "progress":
        show_progress()
    case "progress with a number":
        for number in range(1, 6):
            first.step()
            progress(number)
            first.step()
    case "pieces":
        for _ in range(5):
            sys.modules["_ft_run_hook"].piece()
    case "pieces beside steps":
        train()
        sys.modules["_ft_run_hook"].piece()
    case "pieces and a number":
        progress(5)
        sys.modules["_ft_run_hook"].piece()
    case "batches":
        for _ in DataLoader(range(3)):  # before the first step: nothing is known yet
            pass
        first.step()
        for processes in (0, 1):
            for _ in DataLoader(range(4), num_workers=processes):
                pass
    case "none":
        pass
"""

TICKS = {
    "plain": [5, 5],
    "compiled": [5, 5],
    "children": [5, 5],
    "batches": [1, 9],
    "none": [0, 0],
    # From here on the hook is what counts, and not how it came in.
    "closure": [5, 5],
    "own": [5, 5],
    "two": [5, 10],
    "two of which one steps more often": [5, 7],
    "a new one for each step": [5, 5],
    "wrapper": [5, 15],
    "one that fails": [5, 5],
    "accumulation": [5, 5],
    "progress": [0, 5],
    "progress with a number": [5, 15],
    "pieces": [5, 5],
    "pieces beside steps": [5, 6],
    "pieces and a number": [5, 2],
}
"""Steps and signs of progress of each case of ``STEPS``."""


def test_every_step_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(STEPS)
    order = {
        "modules": ["torch", "torch._dynamo"],  # which each optimizer imports
        "watched": True,
        "workers": [{"argv": [sys.executable, "-u", "work.py", case]} for case in TICKS],
        # New interpreters import torch, which takes as long as all the rest.
        "cold": len(TICKS) if os.environ.get("FT_RUN_SLOW") else 0,
    }
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(tmp_path / "out")],
        input=json.dumps(order),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    came_out = json.loads(done.stdout)
    assert [state for state, _ in came_out["fork_servers"]] == ["loading", "ready"]
    for way in ("cold", "warm"):
        errors = "".join(run["err"] for run in came_out[way]).splitlines()
        # torch's own word on a compiled step, watched or not.
        assert [line for line in errors if "Profiler record function" not in line] == []
        found = [run["progress"] for run in came_out[way]]
        assert found == list(TICKS.values())[: len(found)], way
    assert len(came_out["cold"]) == order["cold"]
    assert len(came_out["warm"]) == len(TICKS)


class Optimizer:
    """Anything that steps."""


def test_an_optimizer_in_the_place_of_one_that_is_gone_is_another_one() -> None:
    page = memoryview(bytearray(layout.PAGE_BYTES)).cast("Q")
    watched = hook.Hook(Page(page))

    def step(optimizer: Optimizer) -> int:
        watched.after_step(optimizer)
        return int(page[layout.STEPS])

    first = Optimizer()
    assert step(first) == 1
    place = id(first)
    del first
    others = [Optimizer()]
    while id(others[-1]) != place:  # the next one, as CPython is
        others.append(Optimizer())
    assert step(others[-1]) == 2
    assert step(Optimizer()) == 2, "it takes turns with that"


def test_what_is_imported_by_the_first_step_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    page = memoryview(bytearray(layout.PAGE_BYTES)).cast("Q")
    watched = hook.Hook(Page(page))
    monkeypatch.setattr(sys, "modules", {"torch": sys, "numpy": sys, "os": os})
    watched.progress(0)
    monkeypatch.setattr(sys, "modules", {"transformers": sys})
    watched.progress(1)
    assert names_of(page[layout.IMPORTED]) == ("numpy", "torch")


# --- what led the interpreter to the hook -------------------------------------------------------

LOOKS = """
import json, os, subprocess, sys
look = "import json, os, sys; print(json.dumps([sys.path[1:], dict(os.environ)]))"
children = [json.loads(subprocess.check_output([sys.executable, "-c", look]))]
environ = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}
children[0][1].pop("LC_CTYPE", None)
print(json.dumps([sys.path, environ, children, sorted(sys.path_importer_cache),
                  getattr(sys.modules.get("sitecustomize"), "WHOSE", None),
                  "sitecustomize" in sys.modules]))
"""


def look(folder: Path, environ: Mapping[str, str], *, watched: bool) -> tuple[Any, str]:
    """Run ``LOOKS``, executed; return what it found and its errors."""
    watch = WorkerWatch()
    more = starter_env(environ, watch.fds) if watched else {}
    done = subprocess.run(
        [sys.executable, "-c", LOOKS],
        env={**environ, **more},
        pass_fds=watch.fds,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    if watched:
        assert watch.progress() is not None
    watch.close()
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("path", [None, "", "site", "other:site", "other:", ":site"])
@pytest.mark.parametrize("source", [None, "WHOSE = 'the user'", "1 / 0", "import nowhere"])
def test_an_executed_worker_finds_what_it_would_find(
    tmp_path: Path, path: str | None, source: str | None
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "other").mkdir()
    if source is not None:
        (tmp_path / "site" / "sitecustomize.py").write_text(source)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environ["PYTHONPATH"] = ":".join(
            str(tmp_path / folder) if folder else "" for folder in path.split(":")
        )
        environ["PYTHONPATH"] = environ["PYTHONPATH"] if path else ""
    assert look(tmp_path, environ, watched=True) == look(tmp_path, environ, watched=False)


def test_the_first_python_of_a_shell_script_is_watched(tmp_path: Path) -> None:
    """And the next one when that has ended; what they start is not."""
    watch = WorkerWatch()
    say = "from ft_run.training import progress; [progress() for _ in range(%d)]"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{say % 4}'])"
    found = []
    for script in (f'{sys.executable} -c "{say % 2}"', f'{sys.executable} -c "{child}"'):
        subprocess.run(
            ["sh", "-c", f"true; {script}; true"],
            env={**os.environ, **starter_env(os.environ, watch.fds)},
            pass_fds=watch.fds,
            cwd=tmp_path,
            check=True,
            timeout=60,
        )
        found.append(watch._page[layout.TICKS])
    watch.close()
    assert found == [2, 0]


def test_of_two_pythons_at_once_the_first_is_watched(tmp_path: Path) -> None:
    watch = WorkerWatch()
    os.mkfifo(tmp_path / "up")
    os.mkfifo(tmp_path / "over")
    say = "from ft_run.training import progress; [progress() for _ in range(%d)]"
    first = f"{say % 2}; open('up', 'w').close(); open('over').read()"
    script = (
        f'{sys.executable} -c "{first}" & cat up; {sys.executable} -c "{say % 4}"; : >over; wait'
    )
    subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, **starter_env(os.environ, watch.fds)},
        pass_fds=watch.fds,
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    ticks = watch._page[layout.TICKS]
    watch.close()
    assert ticks == 2


# --- torch's store ------------------------------------------------------------------------------


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch's rendezvous, changed as in a worker until the test is over."""
    # As an attribute of its package, that name is a function.
    module: Any = sys.modules["torch.distributed.rendezvous"]
    monkeypatch.setattr(module, "_create_c10d_store", module._create_c10d_store)
    store_wait.await_store()
    return module


def separate_at(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Set the variables of a worker with ``--store separate``."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))


@pytest.mark.parametrize(("rank", "libuv"), [(1, True), (1, False), (0, True)])
def test_a_client_waits_until_the_store_listens(
    rendezvous: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    rank: int,
    libuv: bool,
) -> None:
    reservation = PortReservation(lambda: "127.0.0.1", None)
    request.addfinalizer(reservation.close)
    port = reservation.offer.port
    if rank == 0:  # it is none, but with --store separate
        separate_at(monkeypatch, port)
    stores: list[Any] = []

    def listen(_: float) -> None:
        if stores:
            return
        stores.append(
            TCPStore("127.0.0.1", port, 2, True, LIMIT, wait_for_workers=False, use_libuv=libuv)
        )

    monkeypatch.setattr(time, "sleep", listen)
    client = rendezvous._create_c10d_store("127.0.0.1", port, rank, 2, LIMIT, libuv)
    assert len(stores) == 1
    client.set("word", "said")
    assert stores[0].get("word") == b"said"
    assert capfd.readouterr().err == "", "the store says nothing of a connection without a word"


def test_rank_0_does_not_wait_for_itself(rendezvous: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    assert rendezvous._create_c10d_store("127.0.0.1", 0, 0, 1, LIMIT).port > 0


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 2), ("localhost", 1)])
def test_rank_0_does_not_wait_for_a_store_that_the_script_names(
    monkeypatch: pytest.MonkeyPatch, host: str, port: int
) -> None:
    """With ``--store separate`` too: nobody hosts it before rank 0 does."""
    separate_at(monkeypatch, 1)
    monkeypatch.setattr(store_wait, "_await", lambda *_: pytest.fail("it waits"))
    module: Any = SimpleNamespace(_create_c10d_store=lambda *arguments: arguments)
    store_wait.await_before_connecting(module)
    assert module._create_c10d_store(host, port, 0, 2, LIMIT)[:2] == (host, port)


def test_where_nothing_ever_listens_torch_says_so(rendezvous: Any) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"{port}"):
            rendezvous._create_c10d_store("127.0.0.1", port, 1, 2, timedelta(seconds=1))


def test_an_address_that_cannot_be_resolved_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unresolved(*_: object) -> None:
        raise socket.gaierror("no such host")

    def create(*arguments: object) -> tuple[object, ...]:
        return arguments

    monkeypatch.setattr(socket, "create_connection", unresolved)
    module: Any = SimpleNamespace(_create_c10d_store=create)
    store_wait.await_before_connecting(module)
    assert module._create_c10d_store("h", 1, 1, 2, LIMIT) == ("h", 1, 1, 2, LIMIT)
    assert module._create_c10d_store.__name__ == "create"


def test_a_torch_without_that_function_is_left_alone() -> None:
    module = SimpleNamespace()
    store_wait.await_before_connecting(module)
    assert vars(module) == {}


# --- a script without ft-run --------------------------------------------------------------------


def plain(*lines: str) -> "subprocess.CompletedProcess[str]":
    command: Sequence[str] = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def test_does_nothing_where_nothing_watches_and_imports_nothing_but_itself() -> None:
    done = plain(
        "import sys; before = set(sys.modules)",
        "from ft_run.training import progress",
        "progress(); progress(3)",
        "print(sorted(n for n in set(sys.modules) - before if n.startswith(('ft_run', 'torch'))))",
    )
    assert done.stdout == "['ft_run', 'ft_run.training']\n"
    assert ft_run.__doc__


@pytest.mark.parametrize("step", [-1, 2**63])
def test_a_number_of_steps_that_is_none_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"invalid value {step} for step: expected"):
        progress(step)


@pytest.mark.parametrize("step", [1.0, "1"])
def test_what_is_no_whole_number_is_refused(step: Any) -> None:
    with pytest.raises(TypeError):
        progress(step)
