"""A process that has imported torchrun once and forks one torchrun for each request.

Importing torch costs a launch of torchrun over a second of CPU, and the conformance tests launch
it a hundred times. A fork runs the very same ``torch.distributed.run.main`` with the arguments,
the environment, the working directory and the standard streams of the request;
``test_the_image_is_torchrun`` compares it with the program itself.

Not imported by tests: it is run by ``launchers.TorchrunImage``, which says what a request is.
"""

import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for each request until the tests are gone; return only in a fork, with its request."""
    children: dict[int, int] = {}
    wake_from, wake_to = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_to)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        sources: list[Any] = [channel, wake_from]
        ready, _, _ = select.select(sources, [], [])
        if wake_from in ready:
            os.read(wake_from, 4096)
            for number, pid, status in _reap(children):
                _say(channel, {"id": number, "pid": pid, "status": status})
        if channel not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        request: dict[str, Any] = json.loads(message)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (channel.detach(), wake_from, wake_to):
                os.close(fd)
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
                os.close(fd)
            return request
        for fd in fds:
            os.close(fd)
        children[pid] = request["id"]
        _say(channel, {"id": request["id"], "pid": pid})


def _reap(children: dict[int, int]) -> list[tuple[int, int, int]]:
    found = []
    for pid, number in list(children.items()):
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            del children[pid]
            found.append((number, pid, os.waitstatus_to_exitcode(status)))
    return found


def _say(channel: socket.socket, answer: dict[str, Any]) -> None:
    channel.send(json.dumps(answer).encode())


def become(request: dict[str, Any]) -> None:
    """Take on what a process of its own would have been started with."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    tempfile.tempdir = None
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if request["hostname"]:
        _unshare(_CLONE_NEWUTS)
        socket.sethostname(request["hostname"])
    if request["network"]:
        _unshare(_CLONE_NEWNET)
        _bring_loopback_up()
    if request["mounts"]:
        _mount(request["mounts"])
    # What a spawned worker of --run-path would import again as its main module.
    main = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main
    if request["prelude"]:
        runpy.run_path(request["prelude"])


def _mount(mounts: dict[str, str]) -> None:
    _unshare(_CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for target, source in mounts.items():
        subprocess.run(["mount", "--bind", source, target], check=True)


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = b"lo".ljust(16, b"\0")
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, name + b"\0" * 16)
        (flags,) = struct.unpack_from("H", answer, 16)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, name + struct.pack("H", flags | _IFF_UP) + b"\0" * 14)


if __name__ == "__main__":
    from torch.distributed.run import main as torchrun

    # Else each fork would visit, and so copy, all of torch's objects when it ends.
    gc.collect()
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.exit(torchrun())
