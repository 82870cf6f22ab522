"""The check workers of this node: started once, sent orders one by one, stopped together.

They have their own spawner, which keeps them separate from training workers. A crew that missed a
deadline or lost a worker is unreliable: all of its workers are killed, and a new crew imports torch
while the node waits for its next order. With ``--preload`` all check workers are forked from a fork
server (``spawner.forkserver``), which imports torch once.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Final

from msgspec import Struct, field
from msgspec.structs import asdict

from ...checks.merge import merge
from ...checks.records import Phase, Record
from ...checks.worker_config import (
    NOT_CARRIED_OUT,
    STARTING,
    WAITING,
    CheckWorkerConfig,
    Delivery,
    Order,
)
from ...rendezvous.protocol.check_messages import CheckOrder
from ..machine.network import PortReservation
from ..processes import RUN_MODULE
from ..spawner.client import SpawnerClient, WorkerCommand
from ..spawner.messages import Empty, Exited, ForkServerEvent, Spawned, SpawnerEvent, SpawnerGone
from .check_worker import CheckMember

_LOOPBACK: Final = "127.0.0.1"
_OTHERS_S: Final = 1.0
"""How long a failed check waits for the errors of the other workers."""
_KILL_S: Final = 10.0
_LEFT: Final = "the previous ones have not exited"
_SPAWNER_EXITED: Final = "the process that starts them has exited"
_KILL_GPUS_S: Final = 60.0
"""Limit with GPUs: the kernel releases pinned memory page by page, which takes long for hundreds of
GB."""
_ENVIRONMENT: Final = {
    # A check reports hangs itself, by its own deadline; NCCL's watchdog must not end it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    # It must not tune matrix products for minutes.
    "PYTORCH_TUNABLEOP_ENABLED": "0",
}
"""Variables of check workers, which override the variables of training workers."""


class CrewPlan(Struct, frozen=True):
    """How the check workers of a node are started: like its training workers."""

    worker: CheckWorkerConfig
    """The configuration that is common to all check workers."""
    python: str = sys.executable
    visible_devices: tuple[Mapping[str, str], ...] = ()
    """The variables that show each worker one device under ``--virtual-local-rank``; else empty."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the agent's environment, e.g. ``OMP_NUM_THREADS``."""
    cpus: tuple[frozenset[int], ...] | None = None
    """The CPUs that each worker is bound to."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once, in a fork server that the workers are forked from."""

    @property
    def has_gpus(self) -> bool:
        """Whether the machine has GPUs, or an option requires them."""
        return bool(self.worker.gpus_asked_by or self.worker.gpus_shown)


class CheckCrew:
    """Runs orders on the check workers of this node."""

    def __init__(
        self,
        spawner: SpawnerClient,
        plan: CrewPlan,
        fork_server_changed: Callable[[ForkServerEvent], None] = lambda _: None,
    ) -> None:
        self._spawner = spawner
        self._plan = plan
        self._node, self._workers = plan.worker.node, plan.worker.local_world_size
        self._members: list[CheckMember] = []
        self._generation = 0
        self._passed_alone = 0
        """The generation that has completed all single-node measurements; 0 for none."""
        self._changed = asyncio.Event()
        """Set when a worker or the spawner has reported."""
        self._spawner_gone = False
        self._empty = True
        self._is_resting = False
        self._renewal: asyncio.Task[None] | None = None
        """Kills workers that cannot continue, and starts new ones."""
        self._fork_server_changed = fork_server_changed
        spawner.listen(self._handle_spawner_event)
        if plan.preload:
            own = tuple(plan.visible_devices[0]) if plan.visible_devices else ()
            spawner.preload(
                plan.preload, _head(plan.python), plan.env, differing=own, secluded=True
            )

    def start(self) -> None:
        """Start the workers, so that they import torch before the first order.

        Does nothing while workers of an earlier crew are left.

        Raises:
            OSError: If too many files are open; then no worker is started.
        """
        if self._members or not self._empty or self._spawner_gone or self._is_resting:
            return  # workers that survive SIGKILL may hold a device: start no new ones
        stage = WAITING if self._spawner.preloading else STARTING
        members = [CheckMember(rank, self._changed.set, stage) for rank in range(self._workers)]
        self._spawner.spawn(self._generation + 1, [self._command(member) for member in members])
        self._generation += 1
        self._empty = False
        self._members = members
        for member in members:
            member.started()

    async def run(self, order: CheckOrder) -> Record:
        """Execute one order and return this node's record, even of a failure, before its deadline.

        Single-node phases do not use the ranks and the address of the order: the workers of this
        node connect on the loopback interface.
        """
        deadline = asyncio.get_running_loop().time() + order.deadline_s
        if not await self._is_renewed(deadline):
            return self._not_carried_out(order, _LEFT)
        if any(member.has_ended for member in self._members):
            await self._kill()
        with ExitStack() as stack:
            try:
                self.start()
                delivery = stack.enter_context(self._at_home(order))
            except OSError as error:
                return self._not_carried_out(order, error.strerror or str(error))
            if not self._members:
                return self._not_carried_out(
                    order, _SPAWNER_EXITED if self._spawner_gone else _LEFT
                )
            phase = Phase(order.phase)
            asked = self._members[:1] if phase is Phase.FACTS else self._members
            for member in asked:
                member.ask(delivery)
            in_time = await self._answers(asked, deadline)
        if self._spawner_gone:
            return self._not_carried_out(order, _SPAWNER_EXITED)
        answers = [member.outcome(order, was_cut_short=in_time) for member in asked]
        record = merge(self._node, phase, answers, self._workers)
        if phase is Phase.SOLO and not record.failure and not self._passed_alone:
            self._passed_alone = self._generation
        if not all(member.can_go_on for member in asked):
            # A worker may take long to die, and the record has a deadline: do not wait here.
            self._renewal = asyncio.create_task(self._renew())
        return record

    async def rest(self) -> None:
        """Stop the workers; the next order starts new ones. Devices are free on return."""
        self._is_resting = True  # workers are not replaced
        try:
            await self._is_renewed()
            await self._kill()
        finally:
            self._is_resting = False

    async def _renew(self) -> None:
        await self._kill()
        with suppress(OSError):  # the next order reports it
            self.start()

    async def _is_renewed(self, deadline: float | None = None) -> bool:
        """Wait for workers of an earlier order to exit; return whether they did in time."""
        renewal = self._renewal
        if renewal is not None:
            loop = asyncio.get_running_loop()
            limit_s = None if deadline is None else max(deadline - loop.time(), 0.0)
            await asyncio.wait([renewal], timeout=limit_s)  # continues if this wait is canceled
            if not renewal.done():
                return False
            self._renewal = None
            renewal.result()
        return True

    def _not_carried_out(self, order: CheckOrder, why: str) -> Record:
        failure = f"{NOT_CARRIED_OUT}: check workers could not be started: {why}"
        return Record(self._node, Phase(order.phase), failure=failure)

    @contextmanager
    def _at_home(self, order: CheckOrder) -> Iterator[Delivery]:
        """Yield the order for the workers, with the port of the node's own store reserved."""
        now = time.time()
        if Phase(order.phase) not in (Phase.FACTS, Phase.SOLO):
            yield Delivery(Order(**asdict(order)), now)
            return
        # Workers that replace others, which hung with a partner, must be ready for the next
        # partner. The node's own all-reduce is already measured, and NCCL is slow to start.
        is_replaced = self._passed_alone not in (0, self._generation)
        port = PortReservation(lambda: _LOOPBACK, None)
        try:
            own = replace(
                Order(**asdict(order)),
                rank_offset=0,
                world_size=1 if is_replaced else self._workers,
                master_addr=_LOOPBACK,
                master_port=port.offer.port,
            )
            yield Delivery(own, now)
        finally:
            port.close()

    async def _answers(self, asked: list[CheckMember], deadline: float) -> bool:
        """Wait until all have replied, or waiting is useless; return False after the deadline."""
        loop = asyncio.get_running_loop()
        limit = deadline
        while not self._spawner_gone:
            if all(member.is_done for member in asked):
                break
            if any(member.has_failed for member in asked):
                # Peers of a worker that exited hang, or soon fail with an error that blames it.
                limit = min(limit, loop.time() + _OTHERS_S)
            if not await self._next_change(limit):
                break
        return loop.time() < deadline

    async def _kill(self) -> None:
        limit_s = _KILL_GPUS_S if self._plan.has_gpus else _KILL_S
        deadline = asyncio.get_running_loop().time() + limit_s
        if not self._empty and not self._spawner_gone:
            self._spawner.kill()
        while not self._empty and not self._spawner_gone:
            if not await self._next_change(deadline):
                break  # in uninterruptible sleep; they end with the spawner
        for member in self._members:
            member.close()
        self._members = []

    async def _next_change(self, deadline: float) -> bool:
        """Wait for the next report; return False after the deadline."""
        remaining_s = deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            return False
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), remaining_s)
        self._changed.clear()
        return True

    # --- workers -----------------------------------------------------------------------------

    def _command(self, member: CheckMember) -> WorkerCommand:
        plan, local_rank = self._plan, member.local_rank
        config = replace(
            plan.worker,
            local_rank=local_rank,
            device_index=0 if plan.visible_devices else local_rank,
            devices=",".join(own["CUDA_VISIBLE_DEVICES"] for own in plan.visible_devices) or None,
        )
        env = {**plan.env, **_ENVIRONMENT}
        if plan.visible_devices:
            env |= plan.visible_devices[local_rank]
        return WorkerCommand(
            argv=(*_head(plan.python), config.to_json()),
            env=env,
            stdin=member.theirs[0],
            stdout=member.theirs[1],
            stderr=member.theirs[2],
            cpus=plan.cpus[local_rank] if plan.cpus else None,
        )

    def _handle_spawner_event(self, event: SpawnerEvent) -> None:
        match event:
            case Spawned(round=generation):
                if generation == self._generation and self._members:
                    self._have_begun(event)
            case Exited(round=generation, local_rank=local_rank, exit_code=code):
                if generation == self._generation and self._members:
                    self._members[local_rank].exited(code)
            case Empty():
                self._empty = True
            case ForkServerEvent():
                self._fork_server_changed(event)
            case SpawnerGone():
                self._spawner_gone = True
        self._changed.set()

    def _have_begun(self, event: Spawned) -> None:
        for member in self._members:
            member.begun()
        programs = [self._plan.python] * len(self._members)
        for local_rank, why in event.why_not(programs).items():
            self._members[local_rank].not_started(why)


def _head(python: str) -> tuple[str, ...]:
    """Return the command of a check worker up to its configuration."""
    return (python, "-u", RUN_MODULE, "preflight.worker_main")
