"""Where the workers are, as a node reports it."""

import asyncio
import os
from pathlib import Path

import pytest
from ft_run.launcher.stacks import reports as module
from ft_run.launcher.stacks.collect import AskedWorker
from ft_run.launcher.stacks.flight_recorder import VARIABLES, record_collectives
from ft_run.launcher.stacks.reports import StackReports
from ft_run.rendezvous.protocol.stacks import StackReport

RECORDED = Path(__file__).parents[2] / "rendezvous/diagnosis/dumps/gpu/recorded.0"


def test_an_error_is_shown_when_it_comes() -> None:
    """The master only sees a node that does not answer."""
    shown: list[object] = []

    def broken(_: StackReport) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: shown.append((context["message"], type(context["exception"])))
        )
        reports = StackReports("h", broken)
        reports.report(1, 0, ())
        assert reports._task is not None
        await asyncio.wait([reports._task])
        await asyncio.sleep(0)
        told = "a report of stacks failed, which is a bug of ft-run"
        assert shown == [(told, ZeroDivisionError)]

    asyncio.run(test())


def test_what_nccl_has_recorded_is_in_the_reports_of_one_inquiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test is the thread of torch that writes a dump when its pipe says so."""
    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_",
    }
    os.mkfifo(tmp_path / "pipe_3.pipe")
    pipe = os.open(tmp_path / "pipe_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    sent: list[StackReport] = []
    workers = (AskedWorker(3, os.getpid(), None), AskedWorker(4, os.getpid(), None))

    async def ask(reports: StackReports, inquiry: int) -> list[int]:
        """Return how many groups are reported of each rank; -1: nothing is known of it."""
        reports.report(len(sent) + 1, 0, workers, inquiry)
        assert reports._task is not None
        await reports._task
        found = (stack.collectives for stack in sent[-1].stacks)
        return [len(one.groups) if one is not None else -1 for one in found]

    async def test() -> None:
        reports = StackReports("h", sent.append, environ)
        assert await ask(reports, 0) == [-1, -1]
        assert not os.read(pipe, 128), "nobody was asked"
        assert await ask(reports, 7) == [-1, -1]
        assert os.read(pipe, 128)
        (tmp_path / "dump_3").write_bytes(RECORDED.read_bytes())
        assert await ask(reports, 7) == [-1, -1], "it may still grow"
        assert await ask(reports, 7) == [2, -1]
        (tmp_path / "dump_3").write_bytes(RECORDED.with_name("recorded.2").read_bytes())
        for _ in range(2):
            assert await ask(reports, 7) == [2, -1], "a file is read once"
        assert not os.read(pipe, 128)
        assert await ask(reports, 8) == [-1, -1], "as of the hang before"
        assert os.read(pipe, 128)
        (tmp_path / "dump_3").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
        await ask(reports, 8)
        assert await ask(reports, 8) == [-1, -1]
        monkeypatch.setattr(module, "GROUPS_OF_NODE_MAX", 2)
        await ask(reports, 9)
        (tmp_path / "dump_3").write_bytes(RECORDED.read_bytes())
        await ask(reports, 9)
        assert await ask(reports, 9) == [1, -1], "each worker has its share of the report"

    try:
        asyncio.run(test())
    finally:
        os.close(pipe)


def test_recorders_are_switched_on_where_the_user_has_not_set_them() -> None:
    environ: dict[str, str] = {}
    folder = record_collectives(environ)
    os.rmdir(folder)
    assert environ == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/rank_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/dump_",
    }
    assert set(VARIABLES) == environ.keys()
    mine = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/mine/pipe",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/dump",
    }
    given = dict(mine)
    os.rmdir(record_collectives(given))
    assert given == mine
