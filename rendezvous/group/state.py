"""The state of a group, and what it says: the lowest part of ``group.Group``. Pure."""

import enum

from ...values import replace
from ..policy.decision import Aftermath, RoundDecision
from ..policy.postmortem import Postmortem
from ..protocol.messages import JobSpec, MasterMessage, PolicySpec, Verdict, Waiting
from .ending import Ending
from .events import Command, GroupSettings, Note, Send
from .lobby import Lobby, missing_names
from .roster import Node, NodePhase, Roster
from .silence import Silence
from .takeover import Adoption

_DEFAULT_POLICY = PolicySpec()


class GroupPhase(enum.Enum):
    """What the group as a whole is doing."""

    GATHERING = "waiting for nodes"
    CHECKING = "checking nodes"
    ADOPTING = "taking over a running round"
    RUNNING = "running"
    STOPPING = "stopping a round"
    FINISHED = "finished"


class GroupState:
    """What a group remembers of its job."""

    def __init__(self, settings: GroupSettings | None = None, master_id: str = "") -> None:
        """Begin with no node and no round.

        Args:
            settings: the times to keep.
            master_id: random, one per master process; it tells worlds apart.
        """
        self.settings = settings or GroupSettings()
        self._master_id = master_id
        self.job: JobSpec | None = None
        self.roster = Roster()
        self.phase = GroupPhase.GATHERING
        self.round = -1
        self.formed_by = ""
        """The master that formed ``round``: this one, or the one that it was taken over from."""
        self.restarts = 0
        self.world_nodes = 0
        """Nodes in the world of ``round``."""
        self._out: list[Command] = []
        self._lobby = Lobby(self.settings)
        self._adoption: Adoption | None = None
        self._formed_before = False
        self._highest = -1
        """The highest round that any node is known to have been in: numbers never repeat."""
        self._former_ranks: dict[str, int] = {}
        self._postmortem = Postmortem()
        self._silence = Silence(self.settings)
        self._rescale_at: float | None = None
        self._newly_ready: list[Node] = []
        self._ending: Ending | None = None
        self._now = 0.0
        """The time of the event that is being handled."""
        self._formed_at: float | None = None
        """When the round was formed; None when an earlier master did it."""
        self._aftermath = Aftermath()
        self._answer = RoundDecision()
        """To the end of the last round."""
        self._not_before = 0.0
        """When the next round may be formed: ``--restart-backoff``."""
        self._ran_s: float | None = None
        """How long the round ran until it was stopped; None where that is not known."""
        self._members: dict[int, str] = {}
        """Identities of the round's members, by node rank."""
        self._rank0_is_done = False

    @property
    def policy(self) -> PolicySpec:
        """How failures of this job are answered."""
        return (self.job and self.job.policy) or _DEFAULT_POLICY

    @property
    def rescale_delay_s(self) -> float:
        """How long a newcomer waits for more before the world grows; infinity: for ever."""
        given = self.job.rescale_delay_s if self.job is not None else None
        return self.settings.rescale_delay_s if given is None else given

    @property
    def restarts_in_budget(self) -> int:
        """How many restarts count against ``--max-restarts`` now."""
        return self._aftermath.budget.used(self.restarts, self.policy, self._now)

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended; None while it has not."""
        return self._ending.verdict if self._ending is not None else None

    # --- output ------------------------------------------------------------------------------

    def _tell_newly_ready(self, now: float) -> None:
        nodes, self._newly_ready = self._newly_ready, []
        if self.phase is GroupPhase.FINISHED:
            return
        for node in nodes:
            # Who has stopped waits for the others in silence: told to be a spare, it would forget
            # its part in the round, and its failures, of which a later master must hear.
            is_member = self.phase is GroupPhase.STOPPING and self._was_member(node)
            if node.phase is NodePhase.READY and not is_member:
                self._send(node, self._waiting(now))

    def _was_member(self, node: Node) -> bool:
        """Whether a node has been in the present round, also as another incarnation."""
        rank = -1 if node.rank is None else node.rank
        return self._members.get(rank) == node.spec.node_id

    def _waiting(self, now: float) -> Waiting:
        assert self.job is not None
        missing = missing_names(self.job, self.roster, self._former_ranks)
        spare = self.phase in (GroupPhase.RUNNING, GroupPhase.STOPPING)
        waiting = self._lobby.waiting(self.job, len(self.roster), missing, now, spare=spare)
        backoff_s = self._not_before - now if self.phase is GroupPhase.GATHERING else 0.0
        return replace(waiting, backoff_s=backoff_s) if backoff_s > 0 else waiting

    def _send(self, node: Node, message: MasterMessage) -> None:
        if node.link is not None:
            self._out.append(Send(node.link, message))

    def _note(self, text: str) -> None:
        self._out.append(Note(text))
