"""One listed host with its clock, without a network: when it leads, and when it does so no more."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.lease import succession as succession_module
from ft_run.rendezvous.lease.succession import OtherOptionsError, Succession
from ft_run.rendezvous.lease.times import LeaseTimes
from ft_run.rendezvous.master.link import LinkEvent, LocalLink
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.lease_messages import LeaseAnswer, LeaseAsk, LeaseStep
from ft_run.rendezvous.protocol.messages import Verdict
from ft_run.rendezvous.protocol.timeouts import Timeouts
from ft_run.tests.rendezvous.master.test_master import attend
from msgspec.structs import replace

ENDPOINTS = [Endpoint("a", 1), Endpoint("b", 1), Endpoint("c", 1)]
SPEC = Timeouts(lease_s=1.0).succession_spec(ENDPOINTS)
assert SPEC is not None
OTHER_LIST = replace(SPEC, endpoints="a:1,b:1,d:1")


class Others:
    """The other hosts, which agree to all."""

    def __init__(self) -> None:
        self.asked: list[LeaseStep] = []

    async def ask(self, host: int, ask: LeaseAsk) -> LeaseAnswer:
        """Agree."""
        self.asked.append(ask.step)
        return LeaseAnswer(True, ask.number, host=host)

    async def close(self) -> None:
        """Nothing is open."""


class Host:
    """The first of three hosts, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, join_timeout_s: float = 3600.0) -> None:
        self.now = 100.0
        monkeypatch.setattr(succession_module, "_now", lambda: self.now)
        self.others = Others()
        self.succession = Succession(
            ENDPOINTS,
            0,
            LeaseTimes(lease_s=1.0),
            GroupSettings(succession=SPEC, join_timeout_s=join_timeout_s),
            lambda settings, lease: Master(settings, lambda _: None, lease=lease),
            lambda _: None,
            lambda _: None,
            self.others,
        )

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and what is asked then be answered."""
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            self.succession._turn()
            await settle()


async def settle() -> None:
    """Let the tasks run that are ready."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60.0))


def test_a_host_leads_when_the_others_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        host = Host(monkeypatch)
        await host.pass_time(3.0)
        assert host.succession.leading() is not None
        await host.succession.stop()
        assert host.succession.master is None
        assert host.others.asked[-1] is LeaseStep.RELEASE

    run(test)


def test_no_host_leads_a_job_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may save snapshots for minutes; a master without nodes would then never end."""

    async def test() -> None:
        host = Host(monkeypatch)
        assert SPEC is not None
        host.now += 1.0  # it takes part
        ask = LeaseAsk(LeaseStep.PROPOSE, 1, "p", 4, 4, 1000)
        assert host.succession.answer(ask, SPEC).accepted
        end = replace(ask, step=LeaseStep.END, exit_code=1)
        assert host.succession.answer(end, SPEC).accepted
        assert host.succession.over.result() == 1
        await host.pass_time(30.0)
        assert host.succession.master is None
        assert host.others.asked == []
        await host.succession.stop()

    run(test)


def test_a_verdict_is_told_also_where_a_host_with_another_list_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        host = Host(monkeypatch, join_timeout_s=0.01)
        await host.pass_time(3.0)
        master = host.succession.master
        assert master is not None
        heard: asyncio.Queue[LinkEvent] = asyncio.Queue()
        first = attend(0)
        first = replace(first, job=replace(first.job, succession=SPEC))
        link = LocalLink(master, lambda: first, heard.put_nowait)
        while not isinstance(await heard.get(), Verdict):
            pass
        with pytest.raises(OtherOptionsError):
            host.succession.answer(LeaseAsk(LeaseStep.PREPARE, 1, "p", 4, 4, 1000), OTHER_LIST)
        host.succession._differs(1, OTHER_LIST, host.succession.spec_seen)
        assert host.succession.master is master
        await link.close()
        await asyncio.wait_for(master.finished(), 30.0)
        await host.succession.stop()

    run(test)
