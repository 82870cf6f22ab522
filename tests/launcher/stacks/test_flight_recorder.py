"""When NCCL's flight recorders have written: the test is the thread of torch that does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.launcher.stacks.flight_recorder import (
    VARIABLES,
    FlightRecorders,
    record_collectives,
)


class Ranks:
    """Two ranks that listen at their pipes, as torch's do; and a third that has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_",
            "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/trace_",
        }
        for rank in (0, 1):
            os.mkfifo(folder / f"pipe_{rank}.pipe")
        self.fds = [os.open(folder / f"pipe_{r}.pipe", os.O_RDONLY | os.O_NONBLOCK) for r in (0, 1)]

    def write(self, rank: int, text: str) -> None:
        (self.folder / f"trace_{rank}").write_text(text)

    def are_asked(self) -> list[bool]:
        """Whether each has been asked since the last call."""
        return [bool(os.read(fd, 128)) for fd in self.fds]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path)
    yield ranks
    ranks.close()


def test_each_is_asked_once_and_has_written_when_its_file_no_longer_grows(ranks: Ranks) -> None:
    ranks.write(0, "of a round before")
    recorders = FlightRecorders(ranks.environ)
    assert recorders.ask((0, 1, 2))
    assert ranks.are_asked() == [True, True]
    recorders.look()
    assert ranks.are_asked() == [False, False]
    assert not recorders.written
    ranks.write(0, "half")
    ranks.write(1, "whole")
    recorders.look()
    ranks.write(0, "half, whole")
    recorders.look()
    assert list(recorders.written) == [1]
    recorders.look()
    assert list(recorders.written) == [0, 1]


def test_a_recorder_that_is_off_or_has_ended_writes_nothing(ranks: Ranks) -> None:
    assert not FlightRecorders({}).ask((0, 1))
    assert not FlightRecorders(ranks.environ).ask((2,))
    (ranks.folder / "pipe_2.pipe").touch()
    assert not FlightRecorders(ranks.environ).ask((2,)), "it is no pipe"
    os.close(ranks.fds.pop())
    recorders = FlightRecorders(ranks.environ)
    assert recorders.ask((0, 1))
    assert not recorders.written


@pytest.mark.parametrize(
    ("environ", "files"),
    [
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/a_", "TORCH_FR_DUMP_TEMP_FILE": "/b_"}, "/b_"),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/a_"}, "/a_"),
        ({"HOME": "/h"}, "/h/.cache/torch/comm_lib_trace_rank_"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/torch/comm_lib_trace_rank_"),
    ],
)
def test_the_files_are_where_torch_writes_them(environ: dict[str, str], files: str) -> None:
    assert FlightRecorders(environ).files == files


def test_recorders_are_switched_on_where_the_user_has_not_set_them() -> None:
    environ: dict[str, str] = {}
    folder = record_collectives(environ)
    os.rmdir(folder)
    assert environ == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/rank_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/dump_",
        "FT_RUN_RECORDER_SOCKETS": f"{folder}/c",
    }
    assert set(VARIABLES) == environ.keys()
    mine = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/mine/pipe",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/dump",
    }
    given = dict(mine)
    folder = record_collectives(given)
    os.rmdir(folder)
    assert given == mine | {"FT_RUN_RECORDER_SOCKETS": f"{folder}/c"}
