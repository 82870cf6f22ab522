"""``ft-run master``: a master without an agent, for a pod of its own or a login node."""

import asyncio
import signal
from typing import TYPE_CHECKING

from ... import events as ev
from ... import exit_codes
from ...rendezvous.protocol.failure import signal_name
from ...rendezvous.protocol.messages import Verdict
from ...rendezvous.trust.source import read_trust
from .. import startup
from ..agent.hosting import group_settings, new_examiner
from ..machine.network import is_loopback
from ..options import MasterOptions
from ..reporting.display import Display
from ..version import VERSION

if TYPE_CHECKING:
    from ...rendezvous.trust.wire import Trust


def run_master(options: MasterOptions) -> int:
    """Serve one job; return its exit status, or 128 + n after signal n.

    Raises:
        FtRunError: the endpoint cannot be listened at, or the token cannot be used.
    """
    trust = read_trust(options.trust)
    display = Display(live=False)
    return startup.run(_serve(options, trust, display))


async def _serve(options: MasterOptions, trust: "Trust | None", display: Display) -> int:
    from ...rendezvous.transport.channel_options import silence_s
    from ...rendezvous.transport.master import Master
    from ...rendezvous.transport.server import MasterServer

    for remark in options.remarks:
        display.event(ev.Remark(remark))
    timeouts = options.timeouts
    settings = group_settings(timeouts, options.rescale_delay_s)
    master = Master(
        settings,
        lambda note: display.event(ev.MasterNoted(note, is_apart=True)),
        examiner=new_examiner(),
    )
    silence = silence_s(timeouts.node_timeout_s, timeouts.node_grace_s)
    server = MasterServer(master, VERSION, silence, trust)
    port = await server.start(options.endpoint)
    display.event(ev.MasterListening(str(options.endpoint), port))
    if trust is None and not is_loopback(options.endpoint.host):
        display.event(ev.WireOpen(str(options.endpoint)))
    outcome: asyncio.Queue[Verdict | int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, outcome.put_nowait, int(number))
    finished = asyncio.create_task(master.finished())

    def settle(task: "asyncio.Task[Verdict]") -> None:
        if not task.cancelled():
            outcome.put_nowait(task.result())

    finished.add_done_callback(settle)
    try:
        first = await outcome.get()
        if isinstance(first, Verdict):
            display.event(ev.JobEnded(first))
            return first.exit_code
        has_nodes = any(node.link is not None for node in master.group.roster)
        display.event(ev.MasterSignalled(signal_name(first), has_nodes))
        return exit_codes.SIGNAL_BASE + first
    finally:
        finished.cancel()
        await server.stop()
        display.close()
