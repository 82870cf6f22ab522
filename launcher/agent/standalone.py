"""The master of a job of one node: in the agent's process, without a port and without gRPC."""

from collections.abc import Callable, Sequence

from ...checks.ladder import Ladder
from ...checks.results import Known
from ...events.event import Event
from ...rendezvous.group.events import GroupSettings
from ...rendezvous.group.examination import Examination, Examiner
from ...rendezvous.master.link import LocalLink, MasterLink
from ...rendezvous.master.master import ALONE, Lease, Master
from ...rendezvous.protocol.check_messages import CheckSpec
from ...rendezvous.protocol.messages import Verdict
from ..options import RendezvousOptions
from .agent import Agent

Note = Callable[[Event], None]


class Standalone:
    """The master in this process, and the agent's link to it."""

    where = "standalone"
    """Where the master is, as shown to the user."""

    def __init__(
        self,
        options: RendezvousOptions,
        note: Note,
        changed: Callable[[Master], None] | None = None,
        meet: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``changed`` is called after each event of the group."""
        self._options, self._note = options, note
        self._changed, self._meet = changed, meet
        self._master: Master | None = None

    @property
    def master(self) -> Master | None:
        """The master in this process."""
        return self._master

    @property
    def serves_others(self) -> bool:
        """Whether the master is in this process and other nodes connect to it."""
        return False

    @property
    def is_needed(self) -> bool:
        """Whether the master is in this process and other nodes are about to need it."""
        return False

    async def start(self) -> None:
        """Start the master."""
        self._master = self._new_master(self._settings())

    def connect(self, agent: Agent) -> MasterLink:
        """Return the agent's link to the master."""
        assert self.master is not None
        # There is no socket: the link cannot break, and needs no pings.
        return LocalLink(self.master, agent.attend, agent.post, self._meet, agent.claims)

    async def settled(self) -> None:
        """Wait until the master is not needed (``is_needed``)."""
        if self.master is not None:
            await self.master.settled()

    async def stop(self, *, wait: bool) -> None:
        """Stop the master; ``wait``: first wait until every node has received the verdict."""
        if self.master is not None:
            if wait:
                await self.master.finished()
            self.master.close()

    def _settings(self) -> GroupSettings:
        return GroupSettings.of(self._options.timeouts)

    def _new_master(self, settings: GroupSettings, lease: Lease = ALONE) -> Master:
        return Master(
            settings,
            self._note,
            examiner=new_examiner(),
            lease=lease,
            ended=self._ended,
            changed=self._changed,
        )

    def _ended(self, verdict: Verdict) -> None:
        """Receive the verdict of the master."""


def new_examiner() -> Examiner:
    """Return the function that starts the checks of a job.

    It keeps the results of nodes that pass, to compare them with nodes that connect later.
    """
    known: dict[str, Known] = {}

    def begin(spec: CheckSpec, nodes: Sequence[str], vouched: Sequence[str]) -> Examination:
        return Ladder(spec, nodes, vouched, known)

    return begin
