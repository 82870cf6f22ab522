"""One node on the event loop: the master if it is hosted here, the agent, the live line."""

import asyncio
import contextlib
import os

from .. import exit_codes
from . import events_text as say
from .address import PortReservation, advertised_address
from .agent import Agent
from .display import Display
from .hosting import Hosting
from .identity import NodeIdentity
from .log_dir import LogDir
from .options import LaunchOptions
from .relay_client import RelayClient
from .spawner_client import SpawnerClient
from .worker_command import WorkerCommands
from .worker_count import WorkerCount

_REDRAW_S = 1.0


async def run_node(
    options: LaunchOptions,
    count: WorkerCount,
    *,
    commands: WorkerCommands,
    cpus: tuple[frozenset[int], ...] | None,
    log_dir: LogDir,
    spawner: SpawnerClient,
    relay: RelayClient | None,
    display: Display,
) -> int:
    """Attend the job until it is over for this node; return the exit status.

    Raises:
        FtRunError: as ``Agent.run`` and ``Hosting.start``.
    """
    rendezvous = options.rendezvous
    for remark in options.remarks:
        display.event(remark)
    identity = NodeIdentity(rendezvous.job_id)
    address = advertised_address(rendezvous.endpoint, rendezvous.local_addr)
    port = PortReservation(address, rendezvous.worker_ports)
    hosting = Hosting(rendezvous, display.event)
    agent = Agent(
        options,
        identity=identity,
        address=address,
        port=port,
        commands=commands,
        local_world_size=count.count,
        cpus=cpus,
        log_dir=log_dir,
        spawner=spawner,
        relay=relay,
        display=display,
    )
    try:
        await hosting.start()
        where = hosting.where
        display.event(
            say.hello(identity.node_id, rendezvous.job_id, count.count, count.source, where)
        )
        display.open()
        spawner.set_last_words(display.last_words)
        async with _live_line(agent, display):
            status = await agent.run(hosting.connect)
        await hosting.stop(wait=agent.verdict is not None)
    except BaseException:
        await hosting.stop(wait=False)
        raise
    finally:
        display.close()
        port.close()
        identity.close()
    agent.last_word()
    if status != exit_codes.SUCCESS:
        _pass_on_error_file(agent)
    return status


@contextlib.asynccontextmanager
async def _live_line(agent: Agent, display: Display):  # type: ignore[no-untyped-def]
    if not display.live:
        yield
        return

    async def redraw() -> None:
        while True:
            display.status(agent.status.text())
            await asyncio.sleep(_REDRAW_S)

    task = asyncio.create_task(redraw())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _pass_on_error_file(agent: Agent) -> None:
    """Copy the root cause's error file to where a scheduler above this agent looks for it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    verdict = agent.verdict
    if path and verdict is not None and verdict.cause is not None and verdict.cause.error_json:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(verdict.cause.error_json)
