"""A group and its nodes for tests of single rules: a fake clock and what each node was told."""

from collections import defaultdict
from typing import Any, TypeVar

from ft_run.events.master import MasterEvent
from ft_run.rendezvous.group.events import (
    Close,
    Command,
    Detached,
    Event,
    Finish,
    GroupSettings,
    Received,
    Send,
    Tick,
)
from ft_run.rendezvous.group.examination import Examiner
from ft_run.rendezvous.group.group import Group, GroupPhase
from ft_run.rendezvous.master.job import Job
from ft_run.rendezvous.protocol.bounds import check
from ft_run.rendezvous.protocol.carried import Carried
from ft_run.rendezvous.protocol.check_messages import CheckSpec
from ft_run.rendezvous.protocol.claim import Claim, ClaimState, Past, Progress
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Assignment,
    Attend,
    Challenge,
    ChallengeReply,
    Done,
    Failed,
    HangSpec,
    JobSpec,
    MasterMessage,
    NodeMessage,
    NodeSpec,
    PolicySpec,
    Start,
    Stop,
    Stopped,
    Verdict,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.work.messages import WorkReport
from msgspec.structs import replace

_M = TypeVar("_M", bound=MasterMessage)


def claim_of(
    number: int,
    rank: int,
    *,
    nodes: int = 2,
    state: ClaimState = ClaimState.RUNNING,
    restarts: int = 0,
    failures: tuple[Failure, ...] = (),
    formed_by: str = "master",
    successor: str = "",
    past: Past | None = None,
    checked: bool = False,
    term: int = 0,
) -> Claim:
    """What a node says of its last round, one worker to a node."""
    return Claim(
        number, formed_by, restarts, nodes, rank, rank, successor, state, failures, past, checked,
        term,
    )  # fmt: skip


SPARE = Claim(0, "", 0, 0, 0, 0, "", ClaimState.STOPPED)
"""What a node says that was in no round while a round ran."""


def worker_failure(rank: int, *, code: int = 1, message: str = "", **more: Any) -> Failure:
    """A failure of the one worker of a node."""
    values: dict[str, Any] = {
        "kind": FailureKind.WORKER,
        "rank": rank,
        "local_rank": 0,
        "node_rank": rank,
        "host": f"host-{rank}",
        "pid": 100 + rank,
        "exit_code": code,
        "time_s": 0,
        "message": message,
    }
    return Failure(**{**values, **more})


class Scene:
    """One group, a clock that only tests move, and nodes known by name."""

    def __init__(
        self,
        low: int = 2,
        high: int | None = None,
        *,
        unit: int = 1,
        restarts: int = 3,
        policy: PolicySpec | None = None,
        checks: CheckSpec | None = None,
        examiner: Examiner | None = None,
        job_rescale_delay_s: float | None = None,
        hang: HangSpec | None = None,
        **times: Any,
    ) -> None:
        self.job = JobSpec("job", low, high or low, unit, restarts, policy, checks)
        self.job = replace(self.job, rescale_delay_s=job_rescale_delay_s, hang=hang)
        # Unless a test is about that, the world grows without a snapshot.
        settings = GroupSettings(**{"drain_timeout_s": 0.0, **times})
        self.group = Group(settings, "master", examiner)
        self.rules = Job(self.group)
        self.now = 0.0
        self.told: dict[str, list[MasterMessage]] = defaultdict(list)
        self.closed: list[str] = []
        self.notes: list[str] = []
        self.finished: list[Verdict] = []
        self.links: dict[str, int] = {}
        self.mute: set[str] = set()
        """Nodes that do not answer when they are asked for a sign of life."""
        self.carried: dict[str, Carried] = {}
        """By node, what it knows, e.g. from its tune file."""
        self._names: dict[int, str] = {}
        self._ports = 5000

    # --- what happens ------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """Let the group take an event and note what comes of it."""
        asked = []
        commands = self.rules.handle(event, self.now)
        for command in commands:
            match command:
                case Send(link, message):
                    check(message)  # as a node does
                    self.told[self._names[link]].append(message)
                    if isinstance(message, Challenge):
                        asked.append(link)
                case Close(link):
                    self.closed.append(self._names[link])
                case MasterEvent():
                    self.notes.append(str(command).removeprefix("master: "))
                case Finish(verdict):
                    self.finished.append(verdict)
        if isinstance(
            event, Tick
        ):  # for a sign of life; a node that claims an identity has just come
            for link in asked:
                if self._names[link] not in self.mute:
                    self.handle(Received(link, ChallengeReply()))
        return commands

    def attend(
        self,
        name: str,
        *,
        node_id: str = "",
        incarnation: str = "",
        claim: Claim | None = None,
        wanted_rank: int | None = None,
        role: str = "default",
        workers: int = 1,
        job: JobSpec | None = None,
        protocol: int = PROTOCOL_VERSION,
        address: str = "",
        leaving: str = "",
        work: tuple[WorkReport, ...] = (),
        claims: int | None = None,
        is_loading: bool = False,
    ) -> None:
        """Open a (new) stream for a node. ``name`` is its identity unless ``node_id`` is given."""
        link = len(self._names) + 1
        self._names[link], self.links[name] = name, link
        node_id = node_id or name
        spec = NodeSpec(
            node_id=node_id,
            incarnation=incarnation or name,
            host=node_id,
            address=address or f"address-of-{node_id}",
            role=role,
            local_world_size=workers,
            wanted_rank=wanted_rank,
        )
        offer = replace(self.offer(name), is_loading=is_loading)
        attend = Attend(protocol, "1", job or self.job, spec, offer, claim, leaving)
        claims = len(work) if claims is None else claims
        self.handle(Received(link, replace(attend, claims=claims)))
        for report in work:
            self.handle(Received(link, report))

    def offer(self, name: str) -> Offer:
        """A fresh place for a store."""
        self._ports += 1
        return Offer(
            f"store-of-{name}",
            self._ports,
            carried=self.carried.get(name, ()),
        )

    def say(self, name: str, message: NodeMessage) -> None:
        """A node reports on its last stream."""
        self.handle(Received(self.links[name], message))

    def fail(self, name: str, failure: Failure | None = None) -> None:
        """A worker of a node fails in the present round."""
        rank = self.assignment(name).node_rank
        self.say(name, Failed(self.group.round, failure or worker_failure(rank)))

    def stopped(self, *names: str, progress: Progress | None = None) -> None:
        """Nodes confirm that the workers of the present round are dead, after so much progress."""
        number = self.group.round
        for name in names:
            self.say(name, Stopped(number, self.offer(name), progress))

    def done(self, *names: str) -> None:
        """All workers of nodes exit 0."""
        for name in names:
            self.say(name, Done(self.group.round))

    def detach(self, *names: str) -> None:
        """The master sees the last stream of nodes break."""
        for name in names:
            self.handle(Detached(self.links[name]))

    def wait(self, seconds: float) -> None:
        """Let time pass, with every tick that the group wants on the way."""
        until = self.now + seconds
        ticks = 0
        while (deadline := self.group.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.handle(Tick())
            ticks += 1
            assert ticks < 1000, f"at {self.now} another tick is wanted at {deadline}"
        self.now = until
        self.handle(Tick())

    # --- what was said -----------------------------------------------------------------------

    def all_told(self, name: str, kind: type[_M]) -> list[_M]:
        """All messages of a kind that a node was sent."""
        return [message for message in self.told[name] if isinstance(message, kind)]

    def last(self, name: str, kind: type[_M]) -> _M:
        """The last message of a kind that a node was sent."""
        return self.all_told(name, kind)[-1]

    def assignment(self, name: str) -> Assignment:
        """The place that a node was given last."""
        return self.last(name, Start).assignment

    def rounds(self, name: str) -> list[int]:
        """The rounds that a node was told to start."""
        return [start.assignment.round for start in self.all_told(name, Start)]

    def stops(self, name: str) -> list[int]:
        """The rounds that a node was told to stop."""
        return [stop.round for stop in self.all_told(name, Stop)]

    def was_killed(self, name: str) -> bool:
        """Whether the last stop that a node was told leaves its workers no time."""
        return self.last(name, Stop).is_stale

    def is_settled(self) -> bool:
        """Whether nothing is under way that takes a master."""
        return self.group.is_settled

    def ranks(self, *names: str) -> list[int]:
        """The node ranks that nodes were given last."""
        return [self.assignment(name).node_rank for name in names]


def running(low: int = 2, high: int | None = None, names: str = "ab", **more: Any) -> Scene:
    """A group whose first round runs on the nodes named by single letters."""
    scene = Scene(low, high, **more)
    for name in names:
        scene.attend(name)
    scene.wait(60)
    assert scene.group.phase is GroupPhase.RUNNING
    return scene
