"""The fork server: a process that has imported modules once and forks workers.

The spawner starts it in the same way as a worker, so that a preloaded module finds the same
interpreter, flags, environment, signals and ``sys.path``. It has one thread and never runs a line
of the training program.

An intermediate process forks each worker (``double_fork``). The worker thus becomes a child of the
spawner (the subreaper), which supervises it like any other worker and receives its exit from the
kernel. The worker waits for the spawner's release before it starts; end-of-file instead means that
it is not wanted.

    spawner → fork server                    fork server → spawner
    {"do": "preload", "modules", …}          {"ready": MiB} or {"failed": reason}
    {"do": "fork", "workers"} + fds          {"pids"}, {"stale": path} or {"cold": reason}

The modules that the fork server itself needs (sockets, JSON, this package) are removed from
``sys.modules`` before the preload. A worker therefore finds there only what its program and the
preload imported.
"""

import gc
import json
import os
import re
import select
import signal
import socket
import sys
import time
from typing import Any, NamedTuple

from ...exit_codes import SIGNAL_BASE
from ...training.worker.phases import find_joining
from ..processes.ipc import Incoming, close_all, send
from ..processes.tree import children
from ..processes.worker_exec import NOT_EXECUTED, Worker, code_from, error_code, explained
from . import forked_worker, rank_at_import
from .double_fork import double_fork
from .environ_watch import EnvironmentWatch
from .forked_worker import Program
from .imported_files import ImportedFiles

_THREADS_GONE_S = 1.0
"""Time limit for threads that end before a fork to disappear from /proc after it."""

_ROLLUP = "/proc/self/smaps_rollup"
_DEVICES = re.compile(r"/dev/(nvidia-uvm$|kfd|dri/|davinci|accel)")
"""NVML opens ``/dev/nvidiactl`` and ``/dev/nvidia0`` as well, and may be shared; CUDA opens
``/dev/nvidia-uvm``."""

READ_BY_LIBRARIES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|GOTO|VECLIB|NUMEXPR|LD|MALLOC|GLIBC|LC|PYTHON|NPY|TORCH_CPP)_?"
    r"[A-Z0-9_]*|LANG|TZ"
)
"""Variables that libraries read when they are loaded, bypassing ``os.environ``."""

_SENTENCE_MAX = 300


class Bare(NamedTuple):
    """The contents of an interpreter when it starts to run a script."""

    modules: frozenset[str]
    importer_paths: frozenset[str]
    main: dict[str, Any]


def serve(fd: int, bare: Bare) -> Program:
    """Preload and fork workers until the spawner disconnects. Returns in a worker only."""
    return ForkServer(socket.socket(fileno=fd), bare).serve()


class ForkServer:
    """The loop of the fork server process."""

    def __init__(self, channel: socket.socket, bare: Bare) -> None:
        self._channel = channel
        self._incoming = Incoming[dict[str, Any]](channel, json.loads)
        self._spawner = os.getppid()
        self._bare = bare
        self._environ: dict[str, str] = {}
        """The variables that the preload found."""
        self._watch = EnvironmentWatch()
        self._path0: str | None = None
        self._is_secluded = False
        self._files: ImportedFiles | None = None
        self._own = {n: m for n, m in sys.modules.items() if n not in bare.modules}

    def serve(self) -> Program:
        """Serve the spawner until it disconnects; return in a worker only."""
        while True:
            messages = self._incoming.receive()
            if messages is None:
                os._exit(0)
            for message in messages:
                if message["do"] == "preload":
                    self._preload(message)
                    continue
                program = self._fork([Worker(*fields) for fields in message["workers"]])
                if program is not None:
                    return program

    # --- preload -----------------------------------------------------------------------------

    def _preload(self, order: dict[str, Any]) -> None:
        argv = order["argv"]
        self._is_secluded = order["secluded"]
        self._path0 = forked_worker.pretend(argv, self._bare.main, is_secluded=self._is_secluded)
        for name in self._own:
            del sys.modules[name]
        for path in set(sys.path_importer_cache) - self._bare.importer_paths:
            del sys.path_importer_cache[path]
        for name in order["differing"]:
            os.environ.pop(name, None)  # the agent's value does not apply to workers
        self._environ = dict(os.environ)
        self._watch.start()
        reason = None
        for name in order["modules"]:
            reason = _import(name) or _unfit(name)
            if reason is not None:
                break
        self._watch.stop()
        if reason is not None:
            send(self._channel, {"failed": reason})
            os._exit(0)
        self._files = ImportedFiles(list(sys.modules.values()))
        find_joining()
        forked_worker.flush()
        gc.collect()
        gc.freeze()  # a worker's garbage collections do not touch, and so do not copy, shared pages
        send(self._channel, {"ready": _pss_mib()})

    # --- fork --------------------------------------------------------------------------------

    def _fork(self, workers: list[Worker]) -> Program | None:
        assert self._files is not None
        try:
            fds = self._incoming.take_fds(1 + sum(worker.fds for worker in workers))
        except OSError as error:
            send(self._channel, {"cold": _not_forked(error)})
            return None
        path = self._files.changed()
        if path is not None:
            send(self._channel, {"stale": path})
            os._exit(0)
        reason = next(filter(None, map(self._unlike, workers)), None)
        if reason is None:
            answer = self._fork_all(workers, fds)
            if isinstance(answer, Program):
                return answer
        else:
            answer = {"cold": reason}
        close_all(fds)
        send(self._channel, answer)
        return None

    def _unlike(self, worker: Worker) -> str | None:
        """Return why a worker would differ from one that imported the modules itself, or None."""
        env = worker.env
        for name, value in env.items():
            if self._environ.get(name) != value and (
                name in self._watch.reads or READ_BY_LIBRARIES.fullmatch(name)
            ):
                return f"importing reads {name}, which is different for the workers"
        stream = forked_worker.detoured(worker.targets)
        if stream is not None:
            return f"importing reopens {stream}, and it would not write to the workers' files"
        if worker.cpus and "OMP_NUM_THREADS" not in {**self._environ, **env}:
            return "the workers are bound to CPUs and OMP_NUM_THREADS is not set"
        if self._is_secluded:
            return None  # workers will not search there either
        path0 = forked_worker.first_path(worker.argv)
        return None if path0 in (None, self._path0) else self._shadowed(str(path0))

    def _shadowed(self, folder: str) -> str | None:
        """Return whether a preloaded module would be imported from a worker's own directory."""
        names = {name for name in sys.modules if "." not in name} - self._bare.modules
        try:
            found = {entry.partition(".")[0] for entry in os.listdir(folder)}
        except OSError:
            return None
        for name in sorted(names & found):
            if os.path.exists(f"{folder}/{name}.py") or os.path.exists(
                f"{folder}/{name}/__init__.py"
            ):
                return f"{folder} has a module {name} of its own"
        return None

    def _fork_all(self, workers: list[Worker], fds: list[int]) -> Program | dict[str, Any]:
        try:
            forked = double_fork(len(workers))
        except OSError as error:
            return {"cold": _not_forked(error)}
        if isinstance(forked, int):
            return self._become_worker(workers[forked], _own_fds(forked, workers, fds))
        return {"pids": forked} if forked else {"cold": "a forked worker was killed"}

    def _become_worker(self, worker: Worker, fds: list[int]) -> Program:
        try:
            self._channel.close()
            go, *streams = fds
            if not os.read(go, 1):
                os._exit(SIGNAL_BASE + signal.SIGKILL)
            os.close(go)
            return forked_worker.become(self._spawner, worker, streams, self._environ, self._path0)
        except OSError as error:
            why = explained(code_from(error_code(error)), worker.argv[0])
            os.write(2, f"ft-run: the worker cannot be started: {why}\n".encode())
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(NOT_EXECUTED)


def _own_fds(index: int, workers: list[Worker], fds: list[int]) -> list[int]:
    """Return the release pipe (the first) and the streams of one worker; close those of others."""
    start = 1 + sum(worker.fds for worker in workers[:index])
    end = start + workers[index].fds
    close_all([*fds[1:start], *fds[end:]])
    return [fds[0], *fds[start:end]]


def _import(name: str) -> str | None:
    """Import a module; return the reason for a failure, or None."""
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return f"there is no module {name!r}"
        return _raised(name, error)
    except BaseException as error:
        return _raised(name, error)
    return None


def _not_forked(error: OSError) -> str:
    return f"forking failed: {error.strerror}"


def _raised(name: str, error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"importing {name} raised {type(error).__name__}: {text}"[:_SENTENCE_MAX]


def _unfit(name: str) -> str | None:
    """Return why no worker may be forked from a process with this module, or None."""
    if not _is_single_threaded():
        return f"importing {name} starts threads, which a fork does not copy"
    if children(os.getpid()):
        return f"importing {name} starts processes"
    devices = opened_devices()
    if devices:
        return f"importing {name} opens {devices[0]}, which a fork must not share"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return f"importing {name} initialises CUDA, which a fork must not share"
    try:
        rank_at_import.read_again()
    except AttributeError:
        return f"importing {name} reads the rank, which is different for the workers"
    shared = shared_memory()
    if shared:
        return f"importing {name} creates shared memory or locks between processes ({shared[0]})"
    return None


def _pss_mib() -> int:
    """Return the memory of this process in MiB, with its share of shared pages; 0 if unknown."""
    try:
        with open(_ROLLUP, encoding="utf-8") as file:
            return next((int(line.split()[1]) >> 10 for line in file if line.startswith("Pss:")), 0)
    except OSError:  # some sandboxes have no such file
        return 0


def _is_single_threaded() -> bool:
    if _threads() == 1:
        return True
    # Some libraries (OpenBLAS) end their threads before a fork and restart them when needed.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _THREADS_GONE_S
    while _threads() > 1 and time.monotonic() < deadline:
        select.select([], [], [], 0.001)  # an ended thread stays in /proc for a moment
    return _threads() == 1


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def opened_devices(folder: str = "/proc/self/fd") -> list[str]:
    """Return the accelerator devices among the links in ``folder``: open files of a process."""
    found = []
    for name in os.listdir(folder):
        try:
            path = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if _DEVICES.match(path):
            found.append(path)
    return found


def shared_memory(maps: str = "/proc/self/maps") -> list[str]:
    """Return shared writable mappings: all workers would share a lock in such memory."""
    found = []
    with open(maps, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split(None, 5)
            if words[1].startswith("rw") and words[1].endswith("s"):
                found.append(words[5].strip() if len(words) == 6 else "anonymous")
    return found
