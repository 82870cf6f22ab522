"""Exits of workers that a stopped spawner does not report."""

import asyncio
import os
import signal
import subprocess

import pytest
from ft_run.launcher.spawner import exits


def test_an_exit_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawner that runs again reports what was reported for it, and then other workers."""
    monkeypatch.setattr(exits, "WAKE_S", 0.01)
    monkeypatch.setattr(exits, "REPORT_S", 0.01)

    async def test(worker: int) -> None:
        heard: asyncio.Queue[object] = asyncio.Queue()
        watch = exits.ExitWatch(
            lambda: heard.put_nowait("wake"), lambda key, code: heard.put_nowait((key, code))
        )
        watch.started((3, 1), worker, 1024)
        os.kill(worker, signal.SIGKILL)
        assert [await heard.get() for _ in range(2)] == ["wake", ((3, 1), -9)]
        assert not watch.reported((3, 1))
        assert watch.reported((3, 1))
        watch.close()

    with subprocess.Popen(["sleep", "1000"]) as worker:
        asyncio.run(test(worker.pid))
