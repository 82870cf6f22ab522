"""Lines are written in a thread: nothing waits for the outlet, and what is lost is counted."""

import asyncio
import threading

from ft_run.launcher.reporting.background_writer import BackgroundWriter

TIMEOUT_S = 60.0


class Outlet:
    """Keeps lines; a test decides what happens to each."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.error: OSError | None = None
        self.open = threading.Event()
        self.open.set()
        self.called = threading.Semaphore(0)
        self.is_closed = False

    def write(self, line: bytes) -> None:
        self.called.release()
        assert self.open.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        self.lines.append(line)

    def close(self) -> None:
        self.is_closed = True

    def await_call(self) -> None:
        assert self.called.acquire(timeout=TIMEOUT_S)


def writer_of(outlet: Outlet, failed: list[str], max_bytes: int = 1000) -> BackgroundWriter:
    def lost(count: int, reason: str) -> bytes:
        return f"lost {count}: {reason}\n".encode()

    return BackgroundWriter(outlet, lost, failed.append, max_bytes)


def test_lines_are_written_in_order() -> None:
    outlet, failed = Outlet(), list[str]()
    writer = writer_of(outlet, failed)
    for number in range(100):
        writer.put(b"%d\n" % number)
    writer.close(TIMEOUT_S)
    assert outlet.lines == [b"%d\n" % number for number in range(100)]
    assert outlet.is_closed
    assert not failed


def test_what_a_full_disk_loses_is_counted_before_the_next_line() -> None:
    outlet, failed = Outlet(), list[str]()
    writer = writer_of(outlet, failed)
    outlet.error = OSError(28, "full")
    for line in (b"1\n", b"2\n"):
        writer.put(line)
        outlet.await_call()
    outlet.open.clear()
    writer.put(b"3\n")
    outlet.await_call()  # it is about to write; by now both are counted
    outlet.error = None
    outlet.open.set()
    writer.close(TIMEOUT_S)
    assert outlet.lines == [b"lost 2: full\n", b"3\n"]
    assert failed == ["full"]


def test_a_disk_that_hangs_delays_nothing_and_loses_the_oldest_lines() -> None:
    outlet, failed = Outlet(), list[str]()
    outlet.open.clear()
    writer = writer_of(outlet, failed, max_bytes=30)
    writer.put(b"line 000\n")
    outlet.await_call()
    for number in range(1, 10):
        writer.put(b"line %03d\n" % number)
    writer.close(0.01)  # gives up
    assert failed == ["the disk or the reader is too slow"]
    outlet.open.set()
    writer.close(TIMEOUT_S)
    assert outlet.lines == [
        b"line 000\n",
        b"lost 6: the disk or the reader is too slow\n",
        *(b"line 007\n", b"line 008\n", b"line 009\n"),
    ]


def test_a_writer_without_lines_has_no_thread() -> None:
    outlet = Outlet()
    before = threading.active_count()
    writer = writer_of(outlet, [])
    assert threading.active_count() == before
    writer.close()
    assert outlet.is_closed


def test_in_an_event_loop_the_thread_wakes_after_a_while() -> None:
    outlet, failed = Outlet(), list[str]()
    writer = writer_of(outlet, failed)

    async def restart() -> None:
        writer.put(b"1\n")
        assert not outlet.called.acquire(timeout=0.02)  # what the loop does first is not delayed
        writer.put(b"2\n")
        await asyncio.to_thread(outlet.await_call)

    asyncio.run(asyncio.wait_for(restart(), TIMEOUT_S))
    writer.close(TIMEOUT_S)
    assert outlet.lines == [b"1\n", b"2\n"]


def test_what_waits_when_the_event_loop_ends_is_written() -> None:
    outlet, failed = Outlet(), list[str]()
    writer = writer_of(outlet, failed)

    async def end() -> None:
        writer.put(b"1\n")

    asyncio.run(end())
    writer.put(b"2\n")
    writer.close(TIMEOUT_S)
    assert outlet.lines == [b"1\n", b"2\n"]
