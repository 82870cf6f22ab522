"""A check crew whose workers take long to die: the answer does not wait for that."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from ft_run.checks.worker_config import CheckWorkerConfig
from ft_run.launcher.preflight import crew as crew_module
from ft_run.launcher.preflight.crew import CheckCrew, CrewPlan
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Empty, Spawned, SpawnerEvent
from ft_run.launcher.workers.worker_command import virtual_devices
from ft_run.rendezvous.protocol.check_messages import CheckOrder


class SlowToKill:
    """A spawner whose workers say that they compute, and die when the test says so."""

    preloading = False

    def __init__(self) -> None:
        self.did: list[str] = []
        self.kills = asyncio.Queue[None]()
        self.tell: Callable[[SpawnerEvent], None] = lambda _: None

    def listen(self, tell: Callable[[SpawnerEvent], None]) -> None:
        self.tell = tell

    def spawn(self, number: int, commands: Sequence[WorkerCommand]) -> None:
        self.did.append(f"spawn {number}")
        for command in commands:
            assert isinstance(command.stdout, int)
            os.write(command.stdout, b"stage matrix product\n")
        started = Spawned(number, tuple(range(len(commands))))
        asyncio.get_running_loop().call_soon(lambda: self.tell(started))

    def kill(self) -> None:
        self.did.append("kill")
        self.kills.put_nowait(None)


def order(number: int, deadline_s: float) -> CheckOrder:
    return CheckOrder(number, "solo", "light", 0, 1, "", 0, deadline_s)


def test_the_answer_does_not_wait_for_a_worker_to_die_but_the_next_order_does() -> None:
    async def test() -> None:
        spawner = SlowToKill()
        crew = CheckCrew(cast(SpawnerClient, spawner), CrewPlan(CheckWorkerConfig("n")))
        first = await crew.run(order(1, 2.0))
        assert first.failure == "no answer within 2 s (matrix product)"
        assert spawner.did == ["spawn 1"], "nothing was killed before the answer"
        second = await crew.run(order(2, 0.5))
        assert second.failure == (
            "the check could not run: check workers could not be started: the previous ones have "
            "not exited"
        )
        assert spawner.did == ["spawn 1", "kill"]
        third = asyncio.create_task(crew.run(order(3, 2.0)))
        await asyncio.sleep(0)
        spawner.tell(Empty())
        assert "no answer within 2 s" in (await third).failure
        assert spawner.did[:3] == ["spawn 1", "kill", "spawn 2"]
        closing = asyncio.create_task(crew.rest())
        await spawner.kills.get()  # the first one
        await spawner.kills.get()
        spawner.tell(Empty())
        await closing
        assert spawner.did == ["spawn 1", "kill", "spawn 2", "kill"], "no worker was replaced"

    asyncio.run(asyncio.wait_for(test(), 60.0))


def test_no_worker_starts_beside_one_that_survives_sigkill_for_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew_module, "_KILL_S", 0.05)

    async def test() -> None:
        spawner = SlowToKill()
        crew = CheckCrew(cast(SpawnerClient, spawner), CrewPlan(CheckWorkerConfig("n")))
        assert "no answer within" in (await crew.run(order(1, 0.2))).failure
        second = await crew.run(order(2, 30.0))  # waits for the kill's time to be over
        assert second.failure.endswith("the previous ones have not exited")
        assert spawner.did == ["spawn 1", "kill"]
        spawner.tell(Spawned(1, (0,)))  # late, and not the spawner's end
        spawner.tell(Empty())
        third = await crew.run(order(3, 0.2))
        assert "no answer within" in third.failure
        assert spawner.did[2] == "spawn 2"
        closing = asyncio.create_task(crew.rest())
        await spawner.kills.get()
        await spawner.kills.get()
        spawner.tell(Empty())
        await closing
        assert spawner.did == ["spawn 1", "kill", "spawn 2", "kill"]

    asyncio.run(asyncio.wait_for(test(), 60.0))


class Commands(SlowToKill):
    """A spawner that keeps what it is to start."""

    def spawn(self, number: int, commands: Sequence[WorkerCommand]) -> None:
        self.commands = commands
        super().spawn(number, commands)


def test_nccl_and_tuning_are_set_for_checks_whatever_the_training_has() -> None:
    async def test() -> None:
        spawner = Commands()
        theirs = {"TORCH_NCCL_BLOCKING_WAIT": "1", "PYTORCH_TUNABLEOP_ENABLED": "1", "A": "b"}
        crew = CheckCrew(cast(SpawnerClient, spawner), CrewPlan(CheckWorkerConfig("n"), env=theirs))
        crew.start()
        (command,) = spawner.commands
        assert command.env == {
            "A": "b",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "TORCH_NCCL_BLOCKING_WAIT": "0",
            "PYTORCH_TUNABLEOP_ENABLED": "0",
        }
        spawner.tell(Empty())
        await crew.rest()

    asyncio.run(test())


def test_each_check_worker_has_the_device_of_the_worker_that_will_train() -> None:
    async def test() -> None:
        spawner = Commands()
        environ = {"HIP_VISIBLE_DEVICES": "7,4"}
        devices = virtual_devices(True, 2, environ)
        plan = CrewPlan(CheckWorkerConfig("n", local_world_size=2), visible_devices=devices)
        crew = CheckCrew(cast(SpawnerClient, spawner), plan)
        crew.start()
        for command, own in zip(spawner.commands, devices, strict=True):
            assert command.env.items() >= own.items()
            assert json.loads(command.argv[-1])["devices"] == "7,4"
        spawner.tell(Empty())
        await crew.rest()

    asyncio.run(test())


@pytest.mark.parametrize(("shown", "limit_s"), [({}, 10.0), ({"nvidia.com/gpu": "8"}, 60.0)])
def test_gpus_have_longer_to_give_back_what_was_pinned(
    shown: dict[str, str], limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of time: the limit that the wait is given."""

    async def test() -> None:
        spawner = SlowToKill()
        crew = CheckCrew(
            cast(SpawnerClient, spawner), CrewPlan(CheckWorkerConfig("n", gpus_shown=shown))
        )
        crew.start()
        limits = []

        async def at_once(deadline: float) -> bool:
            limits.append(deadline - asyncio.get_running_loop().time())
            return False

        monkeypatch.setattr(crew, "_next_change", at_once)
        await crew.rest()
        assert round(limits[0]) == limit_s

    asyncio.run(test())
