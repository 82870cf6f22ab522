"""The relay with real processes and pipes: exact files, whole console lines, no process blocked."""

import asyncio
import contextlib
import errno
import os
import pty
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from ft_run.errors import NoProcessError
from ft_run.events.event import Event
from ft_run.events.output import LogFileEnded, OutputUnshown, RelayLost
from ft_run.launcher.logs import relay_client
from ft_run.launcher.logs.log_file import Route, Stream, StreamPlan
from ft_run.launcher.logs.relay_client import OpenStream, RelayClient
from ft_run.launcher.logs.relay_stream import (
    LINE_MAX_BYTES,
    LineBuffer,
    matching,
    prefixed,
)
from ft_run.tests.harness.descriptors import files_of, own_descriptors

PATIENCE_S = 60.0


def wait_drained(client: RelayClient, numbers: Iterable[int], timeout_s: float) -> frozenset[int]:
    return asyncio.run(client.drained(numbers, timeout_s))


def close(client: RelayClient, timeout_s: float) -> bool:
    return asyncio.run(client.aclose(timeout_s))


class Reader:
    """Collects what arrives at the read end of a console, in a thread."""

    def __init__(self, fd: int) -> None:
        self.data = bytearray()
        self._fd = fd
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a terminal answers EIO at its end
            while chunk := os.read(self._fd, 1 << 16):
                self.data += chunk
        os.close(self._fd)

    def finish(self) -> bytes:
        self._thread.join()
        return bytes(self.data)


class Consoles:
    """Starts relays with consoles of the test's choice; leaves nothing behind."""

    def __init__(self) -> None:
        self.warnings: list[Event] = []
        self.clients: list[RelayClient] = []

    def start(self, stdout: int, stderr: int | None = None) -> RelayClient:
        """Start a relay with these descriptors as its console, and close them here."""
        stderr = stdout if stderr is None else stderr
        saved = os.dup(1), os.dup(2)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        try:
            client = RelayClient(self.warnings.append)
        finally:
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            for fd in {stdout, stderr, *saved}:
                os.close(fd)
        self.clients.append(client)
        return client

    def piped(self) -> tuple[RelayClient, Reader]:
        read_fd, write_fd = os.pipe()
        client = self.start(write_fd)
        return client, Reader(read_fd)

    def in_file(self, path: Path) -> RelayClient:
        return self.start(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))


@pytest.fixture
def consoles() -> Iterator[Consoles]:
    consoles = Consoles()
    before = own_descriptors()
    yield consoles
    for client in consoles.clients:
        if client._control.fileno() >= 0 and not close(client, 0.0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(client.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                print("the relay ended with", os.waitpid(client.pid, 0)[1])
    assert own_descriptors() <= before


def order(
    prefix: str = "[default0]:",
    log_path: Path | None = None,
    stream: Stream = Stream.STDOUT,
    filters: tuple[bytes, ...] = (),
    filtered_path: Path | None = None,
) -> tuple[Stream, bytes, StreamPlan]:
    path, filtered = (str(one) if one else None for one in (log_path, filtered_path))
    return stream, prefix.encode(), StreamPlan(Route.RELAY, path, filters, filtered)


def worker(code: str, stdout: OpenStream, *args: object) -> "subprocess.Popen[bytes]":
    """Start a Python process that writes to the stream, and close it here."""
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code), *map(str, args)]
    process = subprocess.Popen(command, stdout=stdout.write_fd)
    os.close(stdout.write_fd)
    return process


def finish(client: RelayClient) -> None:
    assert close(client, PATIENCE_S)


def say(stream: OpenStream, data: bytes) -> None:
    """Write everything and close: the life of a worker in short."""
    with open(stream.write_fd, "wb", buffering=0) as pipe:
        pipe.write(data)


def warm_up(client: RelayClient) -> None:
    """Wait until the relay has begun: before that it reads and keeps what Python needs."""
    stream = client.add_stream(*order())
    say(stream, b"warm\n")
    assert wait_drained(client, [stream.number], PATIENCE_S) == frozenset()


def bytes_read(pid: int) -> int:
    read = re.search(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())
    assert read is not None
    return int(read[1])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        os.sched_yield()


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_the_chunks(size: int) -> None:
    data = b"one\ntwo\r\nthree\rfour\n\n\rfive\r\r\nsix"
    buffer = LineBuffer()
    lines = b"".join(buffer.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert lines + buffer.finish() == b"one\ntwo\nthree\nfour\n\n\nfive\n\nsix\n"
    assert buffer.finish() == b""


def test_a_line_without_end_is_given_out_in_pieces() -> None:
    buffer = LineBuffer()
    lines = b"".join(buffer.feed(b"x" * 65536) for _ in range(40)) + buffer.finish()
    assert [len(line) for line in lines.splitlines()] == [LINE_MAX_BYTES] * 2 + [8 * 65536]


def test_prefix_stands_before_every_line() -> None:
    assert prefixed(b"a\n\nb\n", b"[r0]:") == b"[r0]:a\n[r0]:\n[r0]:b\n"
    assert prefixed(b"", b"[r0]:") == b""


def test_matching_lines() -> None:
    assert matching(b"a 1\nb 2\nc 3\n", (b"b", b"3")) == b"b 2\nc 3\n"
    assert matching(b"a 1\n", (b"z",)) == b""


# ---------------------------------------------------------------- files and console


def test_file_is_exact_and_console_is_prefixed(consoles: Consoles, tmp_path: Path) -> None:
    data = b"one\ntwo\r\nbar 1\rbar 2\r\n\xff\xfe\nunfinished"
    client, reader = consoles.piped()
    stream = client.add_stream(*order(log_path=tmp_path / "log"))
    say(stream, data)

    assert wait_drained(client, [stream.number], PATIENCE_S) == frozenset()
    assert (tmp_path / "log").read_bytes() == data
    finish(client)
    expected = [b"one", b"two", b"bar 1", b"bar 2", b"\xff\xfe", b"unfinished", b""]
    assert reader.finish() == b"\n".join(b"[default0]:" + line for line in expected)[:-11]
    assert consoles.warnings == []


def test_streams_go_to_their_own_console(consoles: Consoles) -> None:
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    client = consoles.start(out_write, err_write)
    out, err = Reader(out_read), Reader(err_read)
    say(client.add_stream(*order()), b"to stdout\n")
    say(client.add_stream(*order(stream=Stream.STDERR)), b"to stderr\n")
    finish(client)
    assert (out.finish(), err.finish()) == (b"[default0]:to stdout\n", b"[default0]:to stderr\n")


def test_filtered_lines_of_several_ranks_share_a_file(consoles: Consoles, tmp_path: Path) -> None:
    client, reader = consoles.piped()
    path = tmp_path / "filtered"
    for rank in range(2):
        wanted = order(f"[default{rank}]:", filters=(b"loss", b"acc"), filtered_path=path)
        say(client.add_stream(*wanted), b"loss 1\nnoise\nacc 2\nnoise\nloss 3")
    finish(client)
    lines = path.read_bytes().splitlines()
    for rank in range(2):
        mine = [line for line in lines if line.startswith(b"[default%d]:" % rank)]
        assert [line[11:] for line in mine] == [b"loss 1", b"acc 2", b"loss 3"]
    assert len(lines) == 6
    assert reader.finish().count(b"noise") == 4


TALKER = """
    import os, sys
    name, count, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    out = open(1, "wb", buffering=1 << 13)
    for n in range(count):
        out.write(b"%s %07d %s\\n" % (name.encode(), n, name.encode() * (width + n % 97)))
    out.flush()
"""


def assert_whole(console: bytes, names: str, count: int, width: int) -> None:
    """Every line is there once, unharmed, in its rank's order."""
    seen = dict.fromkeys(names, 0)
    for line in console.splitlines():
        match = re.fullmatch(rb"\[(\w)\]:(\w) (\d{7}) (\w+)", line)
        assert match is not None, line[:200]
        name = match[1].decode()
        n = int(match[3])
        assert match[2] == match[1]
        assert match[4] == match[1] * (width + n % 97)
        assert n == seen[name]
        seen[name] += 1
    assert seen == dict.fromkeys(names, count)


@pytest.mark.parametrize("reads_late", [False, True], ids=["", "pipe-full"])
@pytest.mark.parametrize("width", [80, 9000], ids=["short", "longer-than-PIPE_BUF"])
def test_lines_of_fast_writers_are_never_torn(
    consoles: Consoles, tmp_path: Path, width: int, reads_late: bool
) -> None:
    count = 400_000 // width
    read_fd, write_fd = os.pipe()
    client = consoles.start(write_fd)
    reader = None if reads_late else Reader(read_fd)
    processes = []
    for name in "abcd":
        kind = Stream.STDERR if name in "bd" else Stream.STDOUT
        stream = client.add_stream(*order(f"[{name}]:", tmp_path / name, kind))
        processes.append(worker(TALKER, stream, name, count, width))
    assert [process.wait() for process in processes] == [0] * 4
    reader = reader or Reader(read_fd)
    finish(client)
    console = reader.finish()
    assert_whole(console, "abcd", count, width)
    for name in "abcd":
        shown = [line[4:] for line in console.splitlines() if line[1:2] == name.encode()]
        assert (tmp_path / name).read_bytes().splitlines() == shown


def test_lines_do_not_tear_those_of_others_on_the_same_pipe(
    consoles: Consoles, tmp_path: Path
) -> None:
    """The agent's own log lines go to the same pipe, from another process."""
    read_fd, write_fd = os.pipe()
    agent = OpenStream(0, os.dup(write_fd))
    client = consoles.start(write_fd)
    stream = client.add_stream(*order("[a]:", tmp_path / "a"))
    other = worker(TALKER, stream, "a", 3000, 50)
    one_write_per_line = TALKER.replace('b"%s %07d', 'b"[z]:%s %07d').replace("1 << 13", "0")
    process = worker(one_write_per_line, agent, "z", 3000, 50)
    assert other.wait() == 0
    reader = Reader(read_fd)  # by now the pipe is full, and both wait for room in it
    assert process.wait() == 0
    finish(client)
    assert_whole(reader.finish(), "az", 3000, 50)


def test_line_without_end_stalls_no_other_stream(consoles: Consoles, tmp_path: Path) -> None:
    client, reader = consoles.piped()
    endless = client.add_stream(*order("[long]:", tmp_path / "long"))
    size = 10_000_000
    code = "import sys; sys.stdout.write('x' * int(sys.argv[1])); sys.stdout.flush(); input()"
    gate_read, gate_write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, str(size)],
        stdin=gate_read,
        stdout=endless.write_fd,
    )
    os.close(gate_read)
    os.close(endless.write_fd)
    until(lambda: (tmp_path / "long").exists() and (tmp_path / "long").stat().st_size == size)
    # The writer is still there, and its line unfinished: another stream comes through.
    other = client.add_stream(*order("[short]:", tmp_path / "short"))
    say(other, b"quick\n")
    assert wait_drained(client, [other.number], PATIENCE_S) == frozenset()
    os.write(gate_write, b"\n")
    os.close(gate_write)
    assert process.wait() == 0
    finish(client)
    lines = reader.finish().splitlines()
    assert b"[short]:quick" in lines
    pieces = [line[7:] for line in lines if line.startswith(b"[long]:")]
    assert b"".join(pieces) == b"x" * size
    assert max(map(len, pieces)) == LINE_MAX_BYTES


def a_file(path: Path) -> tuple[int, int]:
    return os.open(path, os.O_RDONLY | os.O_CREAT), os.open(path, os.O_WRONLY)


def a_socket(_: Path) -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def a_terminal_that_does_not_block(_: Path) -> tuple[int, int]:
    leader, follower = pty.openpty()
    tty.setraw(follower)
    os.set_blocking(follower, False)
    return leader, follower


@pytest.mark.parametrize("make", [a_file, a_socket, a_terminal_that_does_not_block])
def test_what_a_console_may_be(
    consoles: Consoles, tmp_path: Path, make: Callable[[Path], tuple[int, int]]
) -> None:
    read_fd, write_fd = make(tmp_path / "console")
    client = consoles.start(write_fd)
    reader = None if make is a_file else Reader(read_fd)
    streams = [client.add_stream(*order(f"[{name}]:", tmp_path / name)) for name in "ab"]
    processes = [
        worker(TALKER, stream, name, 2000, 100) for name, stream in zip("ab", streams, strict=True)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    finish(client)
    assert_whole((reader or Reader(read_fd)).finish(), "ab", 2000, 100)


# ---------------------------------------------------------------- trouble


def test_stalled_console_blocks_no_worker_and_loses_nothing(
    consoles: Consoles, tmp_path: Path
) -> None:
    read_fd, write_fd = os.pipe()
    client = consoles.start(write_fd)
    streams = [client.add_stream(*order(f"[{name}]:", tmp_path / name)) for name in "ab"]
    processes = [
        worker(TALKER, stream, name, 20_000, 50) for name, stream in zip("ab", streams, strict=True)
    ]
    # Several megabytes, and the console is not read: the workers end all the same.
    assert [process.wait() for process in processes] == [0, 0]
    assert wait_drained(client, [s.number for s in streams], 0.0) != frozenset()
    reader = Reader(read_fd)
    finish(client)
    assert_whole(reader.finish(), "ab", 20_000, 50)
    assert consoles.warnings == []


def test_console_that_closes_while_stalled(consoles: Consoles, tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    client = consoles.start(write_fd)
    warm_up(client)
    before = bytes_read(client.pid)
    first = client.add_stream(*order("[a]:", tmp_path / "a"))
    assert worker(TALKER, first, "a", 20_000, 50).wait() == 0
    os.close(read_fd)
    assert wait_drained(client, [first.number], PATIENCE_S) == frozenset()
    second = client.add_stream(*order("[b]:", tmp_path / "b"))
    assert worker(TALKER, second, "b", 20_000, 50).wait() == 0
    assert wait_drained(client, [second.number], PATIENCE_S) == frozenset()
    sizes = [len((tmp_path / name).read_bytes()) for name in "ab"]
    read = bytes_read(client.pid) - before
    assert read < 1.2 * sum(sizes), "files are read back for a console that is gone"
    assert [(tmp_path / name).read_bytes().count(b"\n") for name in "ab"] == [20_000] * 2
    finish(client)


@pytest.mark.root
def test_full_disk_ends_the_file_only(consoles: Consoles, small_disk: Path) -> None:
    client, reader = consoles.piped()
    stream = client.add_stream(*order("[a]:", small_disk / "a"))
    assert worker(TALKER, stream, "a", 20_000, 50).wait() == 0
    assert wait_drained(client, [stream.number], PATIENCE_S) == frozenset()
    finish(client)

    console = reader.finish()
    logged = (small_disk / "a").read_bytes()
    assert len(logged) > 200 * 1024
    if b"lost]" not in console:  # a reader that kept up missed nothing
        assert_whole(console, "a", 20_000, 50)
    assert console.replace(b"[a]:", b"").startswith(logged[: logged.rfind(b"\n") + 1])
    assert consoles.warnings == [LogFileEnded(str(small_disk / "a"), "No space left on device")]


@pytest.mark.root
def test_full_disk_and_stalled_console_block_no_worker(
    consoles: Consoles, small_disk: Path
) -> None:
    read_fd, write_fd = os.pipe()
    client = consoles.start(write_fd)
    stream = client.add_stream(*order("[a]:", small_disk / "a"))
    assert worker(TALKER, stream, "a", 20_000, 50).wait() == 0
    reader = Reader(read_fd)
    finish(client)
    console = reader.finish()
    assert re.search(
        rb"\n\[a\]:\[\d+ bytes that the console was too slow for are lost\]\n", console
    )
    shown = console[: console.index(b"[a]:[")].replace(b"[a]:", b"")
    assert shown.startswith((small_disk / "a").read_bytes()[: 200 * 1024])


@pytest.mark.root
def test_a_console_on_a_full_disk_goes_on_when_there_is_room(
    consoles: Consoles, small_disk: Path
) -> None:
    client = consoles.in_file(small_disk / "console")
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(b"x" * (1 << 20))
    lost = client.add_stream(*order())
    say(lost, b"lost\n")
    assert wait_drained(client, [lost.number], PATIENCE_S) == frozenset()
    (small_disk / "filler").unlink()
    say(client.add_stream(*order()), b"shown\n")
    finish(client)
    assert (small_disk / "console").read_bytes() == b"[default0]:shown\n"


def test_log_file_that_cannot_be_opened(consoles: Consoles, tmp_path: Path) -> None:
    client, reader = consoles.piped()
    say(client.add_stream(*order(log_path=tmp_path / "missing" / "log")), b"shown\n")
    finish(client)
    assert reader.finish() == b"[default0]:shown\n"
    (told,) = consoles.warnings
    assert isinstance(told, LogFileEnded)
    assert told.reason == "No such file or directory"


AGENT = """
    import os, select, sys
    from ft_run.launcher.logs.log_file import Route, Stream, StreamPlan
    from ft_run.launcher.logs.relay_client import RelayClient

    client = RelayClient(print)
    stream = client.add_stream(Stream.STDOUT, b"[a]:", StreamPlan(Route.RELAY, sys.argv[1]))
    # It dies with an answer of the relay unread.
    os.close(client.add_stream(Stream.STDERR, b"", StreamPlan(Route.RELAY)).write_fd)
    select.select([client._control], [], [])
    # The "worker" outlives its agent; only when the agent is dead does it write.
    gate_read, gate_write = os.pipe()
    if os.fork() == 0:
        client._control.close()
        os.close(gate_write)
        os.read(gate_read, 1)
        for n in range(20_000):
            os.write(stream.write_fd, b"line %05d\\n" % n)
        os._exit(0)
    print(client.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_death_of_the_agent_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    agent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(AGENT), str(log)], stdout=subprocess.PIPE
    )
    console, _ = agent.communicate()  # the end of file comes when the relay is gone
    assert agent.returncode == -signal.SIGKILL
    lines = [b"line %05d" % n for n in range(20_000)]
    assert log.read_bytes().splitlines() == lines
    pid, *shown = console.splitlines()
    assert shown == [b"[a]:" + line for line in lines]
    until(lambda: not is_running(int(pid)))


def is_running(pid: int) -> bool:
    """Whether there is such a process that is not an unreaped zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("is_begun", [False, True])
def test_signals_to_the_job_do_not_reach_the_relay(consoles: Consoles, is_begun: bool) -> None:
    client, reader = consoles.piped()
    if is_begun:
        warm_up(client)
        assert os.getsid(client.pid) == client.pid
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        os.kill(client.pid, signal.Signals[name])
    say(client.add_stream(*order()), b"still here\n")
    finish(client)
    assert reader.finish().endswith(b"[default0]:still here\n")


def test_where_no_process_can_be_made_there_is_no_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "posix_spawn", refuse)
    before = own_descriptors()
    with pytest.raises(NoProcessError, match="no process can be made"):
        RelayClient(print)
    assert own_descriptors() == before


@pytest.fixture
def few_files() -> Iterator[tuple[int, int]]:
    """The limit on open files, of which this process has only a part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    yield hard, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_relay_may_open_as_many_files_as_there_can_be(
    consoles: Consoles, few_files: tuple[int, int]
) -> None:
    client, reader = consoles.piped()
    stream = client.add_stream(*order())
    say(stream, b"begun\n")
    assert wait_drained(client, [stream.number], PATIENCE_S) == frozenset()
    assert resource.prlimit(client.pid, resource.RLIMIT_NOFILE) == few_files
    finish(client)
    reader.finish()


def test_relay_keeps_no_file_of_the_agent(consoles: Consoles, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as secret:
        os.set_inheritable(secret.fileno(), True)
        client, reader = consoles.piped()
        stream = client.add_stream(*order())
        os.write(stream.write_fd, b"x\n")
        until(lambda: bool(reader.data))
        files = files_of(client.pid)
    assert not [target for _, target in files if "secret" in target]
    assert Path(f"/proc/{client.pid}/comm").read_text() == "ft-run-relay\n"
    os.close(stream.write_fd)
    finish(client)
    reader.finish()


def test_where_the_relay_was_killed_output_goes_to_the_file_or_the_agents_own_streams(
    consoles: Consoles, tmp_path: Path
) -> None:
    client, reader = consoles.piped()
    held = client.add_stream(*order())
    os.kill(client.pid, signal.SIGKILL)
    os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
    stream = client.add_stream(*order(log_path=tmp_path / "log"))
    assert client.is_lost
    assert consoles.warnings == [RelayLost(client.pid, 1)]
    say(stream, b"kept\n")
    assert wait_drained(client, [stream.number], 0.0) == frozenset()
    assert (tmp_path / "log").read_bytes() == b"kept\n"
    saved = os.dup(1), os.dup(2)
    ends = [os.pipe(), os.pipe()]
    try:
        for target, (_, write_fd) in enumerate(ends, start=1):
            os.dup2(write_fd, target)
            os.close(write_fd)
        for kind in Stream:
            say(client.add_stream(*order(stream=kind)), kind.value.encode())
    finally:
        for target, fd in enumerate(saved, start=1):
            os.dup2(fd, target)
            os.close(fd)
    assert [Reader(read_fd).finish() for read_fd, _ in ends] == [b"stdout", b"stderr"]
    os.close(held.write_fd)
    close(client, 0.0)
    reader.finish()


def test_a_relay_that_takes_nothing_is_not_waited_for(
    consoles: Consoles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_client, "_SEND_TIMEOUT_S", 0.1)
    client, reader = consoles.piped()
    os.kill(client.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, client.pid, os.WSTOPPED)
    streams = [client.add_stream(*order(log_path=tmp_path / "log"))]
    while stat.S_ISFIFO(os.fstat(streams[-1].write_fd).st_mode):
        streams.append(client.add_stream(*order(log_path=tmp_path / "log")))
    say(streams.pop(), b"kept\n")
    assert (tmp_path / "log").read_bytes() == b"kept\n"
    for stream in streams:
        os.close(stream.write_fd)
    os.kill(client.pid, signal.SIGCONT)
    finish(client)
    assert reader.finish() == b""


def test_neither_a_stalled_console_nor_the_pipe_of_a_daemon_keeps_the_relay(
    consoles: Consoles, tmp_path: Path
) -> None:
    """What nothing read is counted; an unfinished line is shown."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    client = consoles.start(out_write, err_write)
    reader = Reader(err_read)
    held = client.add_stream(*order(stream=Stream.STDERR))
    os.write(held.write_fd, b"from a daemon")
    unread = client.add_stream(*order("", log_path=tmp_path / "log"))
    assert worker(TALKER, unread, "a", 20_000, 50).wait() == 0
    assert close(client, PATIENCE_S)  # by now the relay has read what the pipe still held
    assert reader.finish() == b"[default0]:from a daemon\n"
    shown = Reader(out_read).finish()
    (told,) = consoles.warnings
    assert isinstance(told, OutputUnshown)
    assert told.bytes + len(shown) == (tmp_path / "log").stat().st_size
    os.close(held.write_fd)


# ---------------------------------------------------------------- memory, cost


def memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert anonymous is not None
    return int(anonymous[1]) * 1024


def test_memory_is_flat_with_a_stalled_console_and_endless_lines(
    consoles: Consoles, tmp_path: Path
) -> None:
    read_fd, write_fd = os.pipe()
    client = consoles.start(write_fd)
    code = """
        import os, sys
        block = (b"x" * 99 + sys.argv[1].encode()) * 640
        for n in range(500):
            os.write(1, block)
    """
    streams = [client.add_stream(*order(log_path=tmp_path / str(n))) for n in range(3)]
    warm_up(client)
    before = memory_bytes(client.pid)
    ends = ("", "x", "\n")
    processes = [worker(code, stream, end) for stream, end in zip(streams, ends, strict=True)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    stalled = memory_bytes(client.pid)
    reader = Reader(read_fd)
    finish(client)
    console = reader.finish()
    sent = sum((tmp_path / str(n)).stat().st_size for n in range(3))
    assert sent > 90_000_000
    assert len(console) >= sent
    assert stalled - before < 8 * LINE_MAX_BYTES


# ---------------------------------------------------------------- asyncio


def test_waiting_for_streams_in_a_loop_is_cancelled_cleanly(consoles: Consoles) -> None:
    client, reader = consoles.piped()

    async def scenario() -> None:
        stream = client.add_stream(*order())
        waiting = asyncio.create_task(client.drained([stream.number], PATIENCE_S))
        other = asyncio.create_task(client.drained([stream.number], PATIENCE_S))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        say(stream, b"x\n")
        assert await other == frozenset()

    asyncio.run(scenario())
    finish(client)
    assert reader.finish() == b"[default0]:x\n"


def test_many_streams_while_the_agent_does_not_listen(consoles: Consoles, tmp_path: Path) -> None:
    """Neither side may wait for the other: hundreds of orders and answers are under way."""
    client, reader = consoles.piped()
    numbers = []
    for n in range(600):
        stream = client.add_stream(*order(f"[{n}]:", stream=Stream.STDERR))
        say(stream, b"z" * 3000 + b"\n")
        numbers.append(stream.number)
    assert wait_drained(client, numbers, PATIENCE_S) == frozenset()
    finish(client)
    assert reader.finish().count(b"\n") == 600


def test_loss_of_the_relay_wakes_its_waiters(consoles: Consoles) -> None:
    client, reader = consoles.piped()
    stream = client.add_stream(*order())

    async def scenario() -> None:
        waiting = asyncio.create_task(client.drained([stream.number], PATIENCE_S))
        await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGKILL)
        assert await waiting == {stream.number}
        assert await client.aclose(PATIENCE_S)

    asyncio.run(scenario())
    os.close(stream.write_fd)
    reader.finish()


def test_the_relay_keeps_nothing_of_a_stream_that_is_over(
    consoles: Consoles, tmp_path: Path
) -> None:
    client, reader = consoles.piped()
    counts = []
    for name in "abc":
        stream = client.add_stream(
            *order(log_path=tmp_path / name, filters=(b"x",), filtered_path=tmp_path / "filtered")
        )
        say(stream, b"x\n")
        assert wait_drained(client, [stream.number], PATIENCE_S) == frozenset()
        counts.append(len(files_of(client.pid)))
    assert len({*counts}) == 1
    finish(client)
    reader.finish()
