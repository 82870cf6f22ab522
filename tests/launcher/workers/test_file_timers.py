"""The FIFO of torch's timers: what is at its path when the agent ends."""

import os
from pathlib import Path

from ft_run.launcher.workers.file_timers import FileTimers


def test_the_fifo_is_removed(tmp_path: Path) -> None:
    timers = FileTimers(str(tmp_path / "fifo"))
    timers.close()
    assert not os.listdir(tmp_path)


def test_a_fifo_that_is_gone_does_not_disturb_the_end(tmp_path: Path) -> None:
    timers = FileTimers(str(tmp_path / "fifo"))
    (tmp_path / "fifo").unlink()
    timers.close()


def test_the_fifo_of_a_later_agent_stays(tmp_path: Path) -> None:
    earlier = FileTimers(str(tmp_path / "fifo"))
    later = FileTimers(str(tmp_path / "fifo"))
    earlier.close()
    assert os.listdir(tmp_path) == ["fifo"]
    later.close()
    assert not os.listdir(tmp_path)
